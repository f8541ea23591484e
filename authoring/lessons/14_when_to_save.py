# %% [markdown]
# # 14 When to save, and silent faults
#
# Take [the second part](14_when_ranks_die.ipynb) first: it restarts a training from its checkpoints. Each
# checkpoint costs time. When a rank dies, the steps since the last checkpoint are lost. The ranks do them again,
# and this costs time as well. In this third part (60 minutes) you will
#
# - derive how often to save, and compare the formula with deaths drawn at random,
# - compute in ten lines when a training with deaths ends, and check the result against the simulator,
# - see how much useful time is left on 10,000 ranks, and how much time cheaper checkpoints save,
# - find faults that raise no error.

# %%
import math
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import simlib
from simlib import labs, scale

# %% [markdown]
# ## How often to save?
#
# Each checkpoint takes C seconds. In this time no rank computes. Each failure costs the work since the last
# checkpoint, and the time of a restart. Let M be the mean time between failures of the *job*, and let the job save
# after every t seconds of work. So each second of work costs C / t seconds of saving. A failure comes at a random
# moment. So on average it destroys half an interval, which is t / 2 seconds of work. There is one failure in M
# seconds, so each second of work costs about t / (2M) seconds of work that is done again. The sum of both costs is
#
# $$\underbrace{\frac{C}{t}}_{\text{saving}} + \underbrace{\frac{t}{2M}}_{\text{work done again}}$$
#
# If t is short, saving costs much. If t is long, much work is done again. The time of the restarts is lost as
# well, but this time does not depend on t.
#
# **Now you write it:** `interval(C, M)` returns the best t. To find it, take the derivative of the sum with
# respect to t, and set this derivative to zero. (J. Young found the formula in 1974.)


# %%
def interval(C, M):
    return math.nan  # yours


for C, M in ((2, 400), (5, 3000), (60, 11_000)):
    young = scale.checkpoint_interval(C, M, formula="young")
    is_right = math.isclose(interval(C, M), young)
    print(f"C = {C} s, M = {M:,} s:", "right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The derivative is $-C/t^2 + 1/(2M)$. It is 0 at $t = \sqrt{2CM}$, so `return math.sqrt(2 * C * M)`. At the best t
# both costs are equal.
#
# </details>
#
# ## A training with deaths, as a story
#
# Does the formula hold if deaths come at random? `saving` is a program for `simulate`. A step takes 1 s, a
# checkpoint takes 2 s, and a restart takes 5 s. `scale.Failures` draws the moments of the deaths. To find the best
# interval, we would need thousands of such runs, and they would take a long time. But the program is simple. So we
# can compute without any ranks when it ends, from the moments of the deaths. We call this computation the *story*
# of the run.


# %%
STEP_S, SAVE_S, RESTART_S = 1.0, 2.0, 5.0


def saving(rank, world_size, path, steps, every):
    step = int(path.read_text()) if path.exists() else 0
    while step < steps:
        time.sleep(STEP_S)
        dist.barrier()
        step += 1
        if step % every == 0 and step < steps:
            time.sleep(SAVE_S)
            dist.barrier()
            if rank == 0:
                path.write_text(str(step))


# %% [markdown]
# **Now you write it:** `story` returns the second in which the training ends. `deaths` is a list of the moments of
# the deaths, in seconds since the start and in order.
#
# - The work comes in pieces of `every` steps; the last piece may be shorter. A step takes `STEP_S`. After each
#   piece except the last one, a checkpoint takes `SAVE_S`.
# - If a rank dies during a piece or during the checkpoint after the piece, the whole piece is lost. `RESTART_S`
#   seconds after the death, the training continues from the last checkpoint.
# - A death during a restart has no effect, because the job does not run then.
#
# The cell compares your story with three simulated runs.


# %%
def story(steps, every, deaths):
    return math.nan  # yours


for seed in (1, 2, 3):
    kill = scale.Failures(mtbf_s=200, seed=seed)  # of each of 4 ranks
    cluster = simlib.Cluster(4, 1, simlib.Link(0, math.inf))
    path = Path(tempfile.mkdtemp()) / "saved"
    options = {"kill": kill, "restarts": 99, "restart_s": RESTART_S, "cluster": cluster}
    run = simlib.simulate(saving, 4, (path, 100, 10), **options)
    end_s = run.began_s + run.time_s
    deaths = [one.began_s + s for one in run.attempts for s in one.deaths.values()]
    is_right = abs(end_s - story(100, 10, deaths)) < 1e-6
    print(f"deaths: {len(deaths)}; {end_s:.1f} s;", "right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     now_s, saved = 0.0, 0
#     while saved < steps:
#         piece = min(every, steps - saved)
#         end_s = now_s + piece * STEP_S + SAVE_S * (saved + piece < steps)
#         died_s = next((death for death in deaths if now_s <= death < end_s), None)
#         if died_s is None:
#             now_s, saved = end_s, saved + piece
#         else:
#             now_s = died_s + RESTART_S
#     return now_s
#
# </details>
#
# A call of `story` takes microseconds, so we can now call it thousands of times. `lasts` is our version of
# `story`. `best_of` looks for the best interval. The results of single intervals scatter, because the deaths are
# random. So `best_of` draws a smooth curve through the results, and returns the place of the curve's maximum.


# %%
def lasts(steps, every, deaths):
    now_s, saved = 0.0, 0
    while saved < steps:
        piece = min(every, steps - saved)
        end_s = now_s + piece * STEP_S + SAVE_S * (saved + piece < steps)
        died_s = next((death for death in deaths if now_s <= death < end_s), None)
        now_s, saved = (end_s, saved + piece) if died_s is None else (died_s + RESTART_S, saved)
    return now_s


def best_of(every, seen):
    smooth, fine = np.polyfit(np.log(every), seen, 3), np.linspace(*np.log(every)[[0, -1]], 999)
    return math.exp(fine[np.polyval(smooth, fine).argmax()])


# %% [markdown]
# Daly (2006) refines Young's formula: he also counts failures while saving, and several failures in one interval.
# Daly's t is shorter by about 2C / 3. The **goodput** is the useful share of the time: the ranks compute, and this
# work is not lost later. For each of three values of M, the next cell draws 200 *lives*. A life is the list of the
# deaths of one run. For each of eleven intervals, a point shows the goodput of the 200 lives together. The lines
# are not simulated: `scale.goodput` computes them from a formula. A dotted line marks Daly's interval. How many
# percent longer than the best interval is Young's, with C = 2 s and M = 100 s?

# %%
percent = None  # by which Young's interval misses the best one at M = 100 s

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for M, color in ((100, "#0072B2"), (400, "#D55E00"), (1600, "#009E73")):
    random, work = np.random.default_rng(14), 10 * M
    lives = [np.cumsum(random.exponential(M, 60)).tolist() for _ in range(200)]
    daly = scale.checkpoint_interval(SAVE_S, M)
    every = [round(daly * factor) for factor in np.geomspace(0.35, 3, 11)]
    seen = [work / np.mean([lasts(work, each, life) for life in lives]) for each in every]
    best, young = best_of(every, seen), scale.checkpoint_interval(SAVE_S, M, formula="young")
    print(
        f"M = {M:4} s: best {best:5.1f} s, Young {young:5.1f} ({young / best - 1:+.0%}),", end=" "
    )
    print(f"Daly {daly:5.1f} ({daly / best - 1:+.0%})")
    simlib.guess(percent if M == 100 else None, 100 * (young / best - 1), within=0.3)
    axes.plot(every, seen, "o", color=color, label=f"M = {M} s")
    axes.plot(every, scale.goodput(every, SAVE_S, M, restart_s=RESTART_S), color=color)
    axes.axvline(daly, color=color, linestyle=":")
axes.set(xscale="log", xlabel="seconds of work between checkpoints", ylabel="goodput")
axes.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# The dotted lines are at the tops of the curves. Young's interval is 7 % too long at M = 100 s, and 2 % at M =
# 1,600 s. If your interval is half or twice the best one, you lose only a few percent of the goodput. So you need
# not know the best interval exactly.
#
# ## At scale
#
# Suppose that *one* rank fails once in $M_1$ seconds on average. In the code, this mean time between failures is
# called `mtbf_s`. R ranks fail R times as often, so $M = M_1/R$. Meta reports 419 unexpected interruptions in 54
# days on 16,384 GPUs ("The Llama 3 Herd of Models", 2024, arXiv 2407.21783). How many years pass between two
# failures of one GPU? How large is the goodput on 10,000 ranks, if a checkpoint takes one minute and a restart
# takes five? The cell computes both numbers, and draws the picture of a lab.
#
# The second cell *is* the lab. Each of its points is one random life. Move one slider at a time. How do the best
# interval and the goodput change with ten times the ranks? Does it help more to halve C, or to halve the time of
# the restart? Which slider does not move the vertical lines? When do Young's and Daly's intervals differ?

# %%
years, left = None, None  # years for one GPU; goodput in %, 10,000 ranks, a minute a checkpoint

gpu_s, found = 54 * 86_400 * 16_384 / 419, {}
print(f"one GPU: {gpu_s / 86_400 / 365:.1f} years; 16,384: {gpu_s / 16_384 / 3600:.1f} hours")
for ranks in (100, 10_000, 100_000):
    for save_s in (60, 5):
        t = scale.checkpoint_interval(save_s, gpu_s, ranks)
        found[ranks, save_s] = share = scale.goodput(t, save_s, gpu_s, ranks, restart_s=300)
        print(f"{ranks:7,} ranks, C = {save_s:2} s: every {t / 60:5.1f} min, goodput {share:.1%}")
nbytes = 12 * 70e9  # 70 billion parameters with Adam, float32
print(f"C at 2 GB/s a rank: {nbytes / 2e9:.0f} s by one rank, {nbytes / 2e9 / 1000:.2f} s by 1,000")
simlib.guess(years, gpu_s / 86_400 / 365, within=0.2)
simlib.guess(left, 100 * found[10_000, 60], within=0.03)
labs.draw_checkpoint(ranks=10_000, mtbf_s=gpu_s)

# %% tags=["nbval-ignore-output"]
labs.checkpoint_lab(ranks=10_000, mtbf_s=gpu_s)

# %% [markdown]
# <details><summary>Answers</summary>
#
# With ten times the ranks the best interval is about $\sqrt{10}$ times shorter: 7 min instead of 24. The goodput
# falls from 91 to 65 %. On 10,000 ranks it helps more to halve C: the goodput rises to 92.8 %. With half the
# restart it rises to 91.4 %. On 100,000 ranks both help equally: the goodput is 70.4 or 70.5 %. The slider of the
# restart does not move the vertical lines. Young's and Daly's intervals differ when C is no longer small compared
# with M.
#
# </details>
#
# ## Cheaper checkpoints
#
# So a smaller C is worth some work. There are two ways to make C smaller.
#
# - **Sharded**: each rank writes its own part, and all ranks write at the same time.
#   `torch.distributed.checkpoint` (DCP) does this. In the file `.metadata` DCP notes for each part its tensor and
#   its file. So a *different* number of ranks can read the checkpoint. The last line that was printed under "At
#   scale" is an example: 70 billion parameters with Adam. If one rank writes all of them at 2 GB/s, C is 420 s. If
#   1,000 ranks write, C is 0.42 s.
# - **Asynchronous** (`dcp.async_save`): the ranks copy the state to another place in memory. Then they go on
#   training, and write the copy to disk at the same time. The training waits only for the copying, so C is the
#   time of the copying.
#
# Below, `sharded` saves or loads an FSDP2 model (lesson 12). `saves` saves 40 MB twice, with `dcp.save` and with
# `dcp.async_save`. It measures how long the training waits for each call.


# %%
def sharded(rank, world_size, folder, load):
    torch.manual_seed(load)  # other weights, if nothing were loaded
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    fully_shard(net)
    state = {"model": get_model_state_dict(net)}
    dcp.load(state, checkpoint_id=folder) if load else dcp.save(state, checkpoint_id=folder)
    return torch.cat([p.full_tensor().flatten() for p in net.parameters()])


def saves(rank, world_size, folder):
    w, held_up_s = torch.ones(10_000_000), {}
    for save in (dcp.save, dcp.async_save):
        began = time.monotonic()
        writing = save({"w": w}, checkpoint_id=folder / save.__name__)
        held_up_s[save.__name__] = round(time.monotonic() - began, 3)
    while not writing.done():  # training goes on
        w += 1
    dcp.load(saved := {"w": torch.zeros_like(w)}, checkpoint_id=folder / "async_save")
    return f"held up {held_up_s} s; in the file: {saved['w'].unique().tolist()}"


# %% [markdown]
# Four ranks save the model, and three ranks load it. Then two real ranks run `saves`. During its second save the
# training goes on and adds 1 to weights that were 1. Which weights are in the file at the end?

# %% tags=["nbval-ignore-output"]
weights = None  # in the file of `async_save`: "1", or "more"

parts, place = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
four, three = (simlib.simulate(sharded, n, (parts, n == 3)).results[0] for n in (4, 3))
print("files:", *sorted(path.name for path in parts.iterdir()))
print("the model on three ranks is the same:", torch.equal(four, three))
run = simlib.run(saves, 2, (place,))
print(*run.results, sep="\n")
simlib.guess(weights, "1" if "[1.0]" in run.results[0] else "more", of=("1", "more"))

# %% [markdown]
# The three ranks have the model that the four ranks saved. The training waits for a shorter time with
# `async_save`. The file has the weights from the moment of the call, although the training has changed the weights
# since then.
#
# ## Faults that raise no error
#
# Not every fault kills a rank. A bit may flip in the memory of one device. Then there is no exception and no
# death, only a wrong number. This is a **silent fault**. Below, rank 2 of four has a fault in step 3. In each step
# all ranks make three checks:
#
# 1. Are the weights of all ranks equal? Each rank reads the bits of each weight as an integer, and adds up these
#    integers. The sum is a **checksum**, and the ranks compare it.
# 2. Do all ranks' gradients have similar norms, *before* the all_reduce adds them up?
# 3. Are all numbers of the gradient finite, *after* the all_reduce?
#
# The first two checks name the ranks that are *odd*, which means suspicious. A checksum is odd if it is not equal
# to the median of all checksums. A norm is odd unless it is smaller than three times the median of all norms. If
# the third check finds a number that is not finite, it names all ranks, because all ranks have the same sum.


# %%
def flip(x, bit):
    x.view(torch.int32)[5] ^= 1 << bit


def faulty(rank, world_size, fault):
    w, seen, random = torch.ones(8), [], torch.Generator().manual_seed(rank)
    for step in range(5):
        g = 0.1 * w + 0.02 * torch.randn(8, generator=random)
        if (rank, step) == (2, 3):
            fault(w, g)
        looks = torch.stack([w.view(torch.int32).sum().double(), g.norm().double()])
        dist.all_gather(of_all := [torch.empty_like(looks) for _ in range(world_size)], looks)
        sums, norms = torch.stack(of_all).T
        dist.all_reduce(g, op=dist.ReduceOp.AVG)
        w -= g
        for what, odd in (
            ("weights differ", sums != sums.median()),
            ("norm before the sum", ~(norms < 3 * norms.nanmedian())),
            ("not finite after it", ~g.isfinite().all().expand(world_size)),
        ):
            seen += [f"step {step}, {what}: ranks {odd.nonzero().flatten().tolist()}"] * any(odd)
    return seen


# %% [markdown]
# We try four faults:
#
# - A low bit of a weight flips. This changes the number very little.
# - A high bit of a gradient flips. This changes the number very much.
# - A gradient becomes NaN. The result of 0/0 is NaN, too.
# - A low bit of a gradient flips.
#
# How many of the four faults do all three checks miss? How many ranks have an odd norm in step 4, one step after
# the high bit of the gradient has flipped?

# %%
unnoticed, odd_ranks = None, None  # faults; ranks

faults = {
    "bit 10 of a weight": lambda w, g: flip(w, 10),
    "bit 30 of a gradient": lambda w, g: flip(g, 30),
    "NaN in a gradient": lambda w, g: g.fill_(math.nan),
    "bit 10 of a gradient": lambda w, g: flip(g, 10),
}
told = {name: simlib.simulate(faulty, 4, (fault,)).results[0] for name, fault in faults.items()}
for name, lines in told.items():
    print(f"{name}:", *(lines or ["nothing noticed"]), sep="\n   ")
simlib.guess(unnoticed, sum(not lines for lines in told.values()))
named = told["bit 30 of a gradient"][-1].partition("ranks ")[2]
simlib.guess(odd_ranks, named.count(",") + 1)

# %% [markdown]
# A wrong *weight* is on one rank alone. The checksum names that rank, in step 3 and in every later step.
#
# A wrong *gradient* reaches all ranks in one all_reduce. Then all ranks have the same wrong weights, and the
# checksums agree. Only a check *before* the all_reduce can name the rank with the wrong number, and only in the
# step of the fault. One step later all norms are `inf` or NaN. Three times their median is `inf` or NaN as well,
# and no norm is *smaller* than this bound. A norm is odd unless it is smaller. So the check names all four ranks.
#
# No check notices bit 10 of a gradient. The fault changes the norm much less than the random noise does, which
# differs from rank to rank. The first two checks are cheap: in each step each rank contributes 16 bytes.
#
# With three ranks or more, we assume that the majority is right. Two ranks can only see that they differ. Then
# both ranks go back to the last checkpoint.
#
# ## Which remedy?
#
# | what you see | what to do |
# |---|---|
# | a rank is slow | see [the table of the first part](14_stragglers_and_failures.ipynb) |
# | a rank is gone | a time-out that is longer than the slowest normal step; checkpoint and restart, tried before |
# | restarts work, but much time is lost | save at Young's interval; make checkpoints cheaper |
# | no error, but the loss jumps | checksums of the weights, norms before the sum |
#
# ## Your turn
#
# [Exercises 14](../exercises/14_stragglers_and_failures.ipynb): in task 3 you look for the best interval, and in
# task 4 you write a training that survives two deaths.
#
# ## Exit ticket
#
# 1. C = 8 s and M = 10,000 s: which interval is the best? Which one on four times as many ranks?
# 2. Why does the time of a restart not change the best interval?
# 3. All checksums of the weights are equal, and the loss is NaN. Which numbers should the ranks have checked
#    earlier?
#
# <details><summary>Answers</summary>
#
# 1. $\sqrt{2 \cdot 8 \cdot 10\,000}$ = 400 s. With four times the ranks M is a quarter, so 200 s.
# 2. Each failure costs one restart, however often the job saves.
# 3. They should have checked the gradients, before the all_reduce added them up.
#
# </details>
#
# **Next:** your programs on a [real cluster](16_the_real_cluster.ipynb).
