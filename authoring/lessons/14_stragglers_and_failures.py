# %% [markdown]
# # 14 Stragglers and failures
#
# In most lessons so far all ranks were equally fast and lived to the end. On a thousand devices neither holds for a
# day. In this lesson (130 minutes) you will
#
# - find out from a trace which rank keeps the others waiting,
# - predict how much is lost where *nobody* is slow, but all are now and then,
# - run three remedies, and see what each of them costs,
# - kill ranks, and read what the survivors read,
# - derive how often to save, and hold the formula against deaths that are drawn,
# - have `torchrun` restart a training, for real: it fails, you mend it, it ends with the same weights,
# - look for faults that raise no error.

# %%
import inspect
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from IPython.display import display
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import simlib
from simlib import labs, scale

# %% [markdown]
# ## Who is it?
#
# Eight ranks train together; one of them computes half as fast as the others. Who is it, and which share of the time
# is lost? In the second picture no rank is slow. Who keeps the others waiting there, and how much longer is a step
# than one rank's computing?

# %%
guess = None  # the rank


def equal_work(rank, world_size, steps):
    for _ in range(steps):
        simlib.compute(seconds=0.01)
        dist.all_reduce(torch.ones(250_000))


run = simlib.simulate(equal_work, 8, (3,), slow={21**2 % 8 + 4: 2})
display(run.timeline())
waited_s = run.states.waiting_s
print(f"{run.states}\nleast waiting: rank {waited_s.argmin()};", end=" ")
print(f"lost by all: {waited_s.sum() / run.time_s / 8:.0%}")
run = simlib.simulate(equal_work, 8, (3,), slow=scale.Jitter("exponential", spread=1, seed=4))
display(run.timeline())
print(run.states)

# %% [markdown]
# A straggler is the one who *never waits*. All others show hatched time inside every all_reduce: they have
# come, and somebody has not. Who looks
# busiest is the cause; those who look idle are the victims. (Where several take turns, who waits least need
# not cost the others most: exercise 1.)
#
# One rank in eight is slow, and everybody's step takes 20 ms in place of 10: a step lasts as long as its
# **maximum**. Of a thousand ranks 999 would wait for it.
#
# ## Nobody is slow
#
# In the second picture all ranks are equally fast *on average*, but each piece of computing takes a time of its own:
# a page that has to be read, a hot chip, another process. The times are exponential with mean $\mu$ = 10 ms (a bad
# case); `slow=` takes such noise with a seed. In each step *another* rank is last, and each step lasts as long as
# that one. No rank's mean grows with R. Does the step's?
#
# While k of R ranks still compute, the first of them is done after $\mu/k$ on average (k independent clocks
# run, and exponential times have no memory). So the last one is done after
#
# $$E[\max] = \mu \Big(\frac1R + \frac1{R-1} + \dots + 1\Big) = \mu H_R \approx \mu\,(\ln R + 0.58)$$
#
# **Now you write it**: `harmonic(R)`, the sum. The cell holds it against the integral of
# `scale.expected_max`, and against runs. The last line breaks an assumption: there all ranks are held up
# *together* (one switch, one file system). What becomes of the step?

# %%
guess = None  # ms for a step on 16 ranks; on 16 that are slow together


def harmonic(R):
    return math.nan  # replace me


def noisy(R, jitter, steps=100):
    cluster = simlib.Cluster(R, 1, simlib.Link(0, math.inf))
    return simlib.simulate(equal_work, R, (steps,), cluster=cluster, slow=jitter).time_s / steps


def together(rank, k, random):
    return float(np.random.default_rng(k).exponential())  # the same for all ranks


for R in (1, 4, 16):
    seen_s = np.mean([noisy(R, scale.Jitter("exponential", spread=1, seed=s)) for s in (1, 2, 3)])
    predicted = scale.expected_max(R, "exponential", spread=1)
    print(f"{R:2} ranks: {seen_s * 1e3:.1f} ms a step, E[max] {10 * predicted:.1f} ms;", end=" ")
    print(f"residual of yours below 1e-9: {abs(harmonic(R) - predicted) < 1e-9}")
print(f"together, 16 ranks: {noisy(16, scale.Jitter(together)) * 1e3:.1f} ms a step")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return sum(1 / k for k in range(1, R + 1))`
#
# </details>
#
# The step grows, and never stops: a cousin of Amdahl's law. Ranks that are slow together lose nothing to each other:
# *independence* makes the maximum grow. And mild noise, with a long tail (`lognormal`)? `spread` is the standard
# deviation over the mean.

# %%
Rs = [2**k for k in range(14)]
figure, axes = plt.subplots(figsize=(7, 3))
for spread in (0.05, 0.1, 0.2):
    axes.plot(Rs, scale.expected_max(Rs, "lognormal", spread=spread), label=f"spread {spread}")
seen = [noisy(R, scale.Jitter("lognormal", spread=0.1, seed=1)) / 0.01 for R in (2, 8, 32)]
axes.plot([2, 8, 32], seen, "o", color="C1", label="simulated, 0.1")
axes.set(xscale="log", xlabel="ranks", ylabel="time of a step / mean of one rank", ylim=0.95)
axes.legend(frameon=False)
plt.show()
print("10,000 ranks, spread 0.1:", round(scale.expected_max(10_000, spread=0.1), 2))

# %% [markdown]
# With a tenth of noise, a step on 10,000 ranks takes 1.46 times as long as one rank computes on average: 0.46 of 1.46,
# a third, is waiting. No profile of one rank shows it.
#
# ## A listing that balances nothing
#
# Answers on the web to "what is *dynamic load balancing*?" often have three parts: measure each step, lower the
# learning rate of the slow node, and let one process validate meanwhile. The next cell is such a listing, on
# digits. First with rank 3 half as fast. Whose rate falls, what does it save, and who waits for
# the validation? (In `simulate`, `time.monotonic` reads the virtual clock.)

# %%
images, labels = simlib.digits.load()[0][:800]
X = images.flatten(1)


def gradient(W, x, y):
    return x.T @ (torch.softmax(x @ W, 1) - F.one_hot(y, 10)) / len(x)


def listing(rank, world_size, whole_step, validate_s):
    W, rate, times = torch.zeros(784, 10), 0.5, [torch.zeros(1) for _ in range(world_size)]
    for step in range(10):
        began, mine = time.monotonic(), slice(80 * step + 20 * rank, 80 * step + 20 * rank + 20)
        simlib.compute(seconds=10e-3)
        g = gradient(W, X[mine], labels[mine]) / world_size
        own_s = time.monotonic() - began
        dist.all_reduce(g)
        step_s = time.monotonic() - began if whole_step else own_s
        dist.all_gather(times, torch.tensor([step_s]))
        if step_s > 1.01 * torch.stack(times).mean():
            rate *= 0.9  # slower than the others
        W -= rate * g
        if rank == 0:
            simlib.compute(seconds=validate_s)  # one process validates
    return W, rate


# %%
guess = None  # the rates of the four ranks
for name, (*args, slow) in {
    "as printed": (True, 5e-3, {3: 2}),
    "own seconds": (False, 5e-3, {3: 2}),
    "nobody slow": (False, 5e-3, {}),
    "none validates": (False, 0, {}),
}.items():
    run = simlib.simulate(listing, 4, args, slow=slow)
    apart = max((W - run.results[0][0]).abs().max() for W, _ in run.results)
    rates = [round(rate, 2) for _, rate in run.results]
    print(f"{name:14} {run.time_s * 1e3:.0f} ms, rates {rates}; alike: {bool(apart == 0)}")

# %% [markdown]
# As printed, the clock is read *after* the all_reduce, in which all wait for the slowest. So ranks 1 and 2 count as
# slow, too, though they only waited (rank 0 comes late from validating, and waits less). With their own seconds it
# is rank 3 alone. But a learning rate changes what is done with a gradient, not how long it takes to get: not a
# millisecond is won, and the replicas *drift apart*, which no later step mends. And where nobody is slow, rank 0 is:
# all wait for the one that validates. Split that over all ranks (lesson 07), or see the queue below.
#
# ## Remedy 1: shards by speed
#
# What can be balanced is *work*. Three attempts with 80 examples a step, rank 3 half as fast:
#
# - **equal**: 20 examples each;
# - **speed**: each rank gets examples by its speed, and gradients are averaged as ever;
# - **weighted**: the same, each mean weighted by its examples.
#
# How long do ten steps take, and which have the weights of one process? **Now you write it**: from the seconds per
# example of each rank, and B, the shares. They have to add up to B; the last line tries them
# (after each name, how many examples they are).


# %%
def shares_of(seconds_per_example, B):
    return [B // len(seconds_per_example)] * len(seconds_per_example)  # replace me


def train_shards(rank, world_size, shares, weigh):
    W, B, first = torch.zeros(784, 10), sum(shares), sum(shares[:rank])
    for step in range(10):
        mine = slice(B * step + first, B * step + first + shares[rank])
        simlib.compute(seconds=0.5e-3 * shares[rank])
        weight = shares[rank] / B if weigh else 1 / world_size
        dist.all_reduce(g := weight * gradient(W, X[mine], labels[mine]))
        W -= 0.5 * g
    return W


alone = simlib.simulate(train_shards, 1, ([80], True)).results[0]
for name, shares, weigh in (
    ("equal", [20] * 4, True),
    ("speed", [23, 23, 23, 11], False),
    ("weighted", [23, 23, 23, 11], True),
    ("yours", shares_of([0.5e-3, 0.5e-3, 0.5e-3, 1e-3], 80), True),
):
    run = simlib.simulate(train_shards, 4, (shares, weigh), slow={3: 2})
    off = max((W - alone).abs().max() for W in run.results)
    print(f"{name:8} {sum(shares)}: {run.time_s * 1e3:.0f} ms; as one process: {bool(off < 1e-5)}")

# %% [markdown]
# Shards by speed win the time. Only the weighted mean is that of one process: $\sum_r \frac{n_r}{B}\, g_r$. (A plain
# mean lets an example of the slow rank count 23/11 times as much; fewer than 80 examples are another step.)
# *Dynamic* it becomes when the shares come from measured seconds, again and again.
#
# <details><summary>Answer</summary>
#
# The speeds are `v = [1 / s for s in seconds_per_example]`; the shares `[round(B * each / sum(v)) for each in
# v]`. Rounding may miss B by a few: give what is left over to those whose share was cut most. Exercise 2 asks
# for the best shares.
#
# </details>
#
# ## Remedy 2: a work queue
#
# Where pieces of work do not depend on each other (validation, a search, preparing data), nobody has to predict
# speeds. Rank 0 hands out the next piece to whoever asks, by a receive of *any* source. 40 pieces of 5,
# 10 or 15 ms; then one rank three times as slow. What does asking cost when all are equal? (In the queue rank 0
# only hands out: four work.)

# %%
guess = None  # ms: divided beforehand, queue; all equal, one slow


def queue(rank, world_size, pieces):
    ask, answer, done = torch.zeros(1), torch.zeros(1), 0
    for number in range(pieces + world_size - 1 if rank == 0 else 0):
        answer[0] = number if number < pieces else -1
        dist.send(answer, dst=dist.recv(ask))  # recv says from whom it came
    while rank > 0:
        dist.send(ask, dst=0)
        dist.recv(answer, src=0)
        if answer < 0:
            return done
        simlib.compute(seconds=0.005 * (1 + int(answer) % 3))
        done += 1


for factor in (1, 3):
    times = [5 * (1 + piece % 3) for piece in range(40)]
    lists = [sum(times[rank::5]) * (factor if rank == 3 else 1) for rank in range(5)]
    run = simlib.simulate(queue, 5, (40,), slow={3: factor})
    print(f"rank 3 x {factor}: beforehand {max(lists)} ms, queue {run.time_s * 1e3:.0f} ms")
    print(f"   pieces: {run.results[1:]}")
print("equal, among four:", max(sum(times[rank::4]) for rank in range(4)), "ms")

# %% [markdown]
# Divided beforehand, the slow rank's list decides. In the queue it simply asks less often, and the end is
# late by at most one piece. When all are equal, it is late for want of a fifth worker: divided among
# four, 105 ms; asking costs about 1 ms.
#
# ## Remedy 3: backup workers
#
# In training, steps do depend on each other. But does a step need *all* gradients? Chen et al. (2016, arXiv
# 1604.00981) start k workers more than needed, and each step takes the first $R - k$ gradients; late ones are thrown
# away. Four workers and a server. Worker 4 has all the sevens, and is slow. What happens to the time, what to
# the sevens?


# %%
def with_backup(rank, world_size, k, steps):
    R, state, got = world_size - 1, torch.zeros(7841), torch.empty(7841)
    while rank > 0 and state[-1] < steps:  # state: weights, and the number of the step
        x, y = X[PARTS[rank]], labels[PARTS[rank]]
        simlib.compute(seconds=0.01)
        g = gradient(state[:-1].view(784, 10), x, y) * len(x) / 200
        dist.send(torch.cat([g.flatten(), state[-1:]]), dst=0)
        dist.recv(state, src=0)
    for step in range(steps if rank == 0 else 0):
        senders, total = [], torch.zeros(7840)
        while len(senders) < R - k:
            src = dist.recv(got)
            if got[-1] == step:
                senders, total = [*senders, src], total + got[:-1]
            else:
                dist.send(state, dst=src)  # too late: go on with the weights of now
        state += torch.cat([-0.5 * total / len(senders), torch.ones(1)])
        for src in senders:
            dist.send(state, dst=src)
    for _ in range(k if rank == 0 else 0):  # who is late in the last step
        dist.send(state, dst=dist.recv(got))
    return state[:-1].view(784, 10)


# %%
guess = None
sevens = labels == 7
others = (~sevens).nonzero().flatten()
PARTS = {w: others[w - 1 :: 3] for w in (1, 2, 3)} | {4: sevens.nonzero().flatten()}
test_images, test_labels = simlib.digits.load()[1][:]
for k in (0, 1):
    run = simlib.simulate(with_backup, 5, (k, 20), slow={4: 2})
    right = (test_images.flatten(1) @ run.results[0]).argmax(1) == test_labels
    print(f"k = {k}: {run.time_s * 1e3:.0f} ms, right {right.float().mean():.0%},", end=" ")
    print(f"of the sevens {right[test_labels == 7].float().mean():.0%}")

# %% [markdown]
# Nearly twice as fast, and no seven is ever known: whose gradients come last are not *sampled less*, they
# are not in the mean at all. Backup workers are fair where any worker may be the late one, and each draws
# from all data. With shards of their own they make a **bias**.
#
# A fourth remedy is a **time-out**: who is late by more than T counts as dead.
#
# ## A rank dies
#
# Eight ranks, then four, add up gradients; rank 2 is killed after 0.5 s. What do the others see, when?
# `on_death="continue"` lets survivors go on, as plain Gloo does; without it simlib ends the run at once and
# names the dead.

# %%
guess = None  # what each survivor reads


def until_it_fails(rank, world_size, pause_s=0):
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    began, x = time.monotonic(), torch.ones(4)
    try:
        for _ in range(3):
            time.sleep(0.3 + (pause_s if rank == 2 else 0))
            dist.all_reduce(x)
    except RuntimeError as error:
        words = "closed" if "closed" in str(error) or "reset" in str(error) else "timed out"
        words = f"rank {rank}: {words} at {time.monotonic() - began:.1f} s"
        if rank == 2:
            return words
        survivors = dist.new_group([*{*range(world_size)} - {2}], use_local_synchronization=True)
        dist.all_reduce(y := torch.ones(1), group=survivors)
        return words + f", then {y.item():.0f} survivors added up"


options = {"kill": {2: 0.5}, "on_death": "continue"}
for R in (8, 4):
    run = simlib.simulate(until_it_fails, R, algorithms="gloo", **options)
    print(*run.results, run.deaths, sep="\n")
run

# %% [markdown]
# Ranks 1 and 3 exchange with rank 2, and see their connection closed. All others wait for *survivors who have
# given up*, and learn nothing before their time limit: torch's own is 30 minutes. So synchronous training
# stands still with one rank, and of seven survivors five do not know why. (Where ranks 1 and 3 look busy after 0.6 s,
# they wait in `new_group`.) A smaller group goes on, if the program catches the
# error and says who is in it.
#
# Is that what real processes do? The next cell sends a real SIGKILL to one of them. And then nobody dies,
# but rank 2 *pauses* for 2 s. Can the others tell the difference?

# %% tags=["nbval-ignore-output"]
run = simlib.run(until_it_fails, 4, **options)
print(*run.results, sep="\n")
run = simlib.run(until_it_fails, 4, (2,))
print("a pause:", *run.results, sep="\n")

# %% [markdown]
# Real processes say the same, at about the same times (another rank may stand next to the dead one). A rank that
# pauses is told from a dead one by nothing but the limit. A time-out closes a rank's connections (to see one closed
# does not close the others): when rank 2 comes back, *it* finds them closed. A short limit kills the slow, a long
# one waits for the dead. Take it from how long your steps really vary, not from hope.
#
# ## Runs that go on
#
# What most trainings do is simpler: save now and then; when a rank dies, end all and start all again from what
# was saved. Whoever starts them is the launcher, `torchrun`; `restarts=` does the same here. A new attempt reads
# `TORCHELASTIC_RESTART_COUNT`. Note the lines that
# save: one rank writes, into a *new* file, that then takes the old one's place.


# %%
def train(rank, world_size, path, dies=False):
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    step, w = torch.load(path) if os.path.exists(path) else (0, torch.zeros(4))
    began = step
    while step < 10:
        if dies and (attempt, step, rank) == (0, 5, 1):
            os._exit(9)
        time.sleep(0.1)  # stands for a large model
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        g = (w - x[rank::world_size]).sum(0) / 12  # any number of ranks has the same mean
        dist.all_reduce(g)
        w, step = w - 0.3 * g, step + 1
        if step % 2 == 0 and rank == 0:
            torch.save((step, w), f"{path}.new")
            os.replace(f"{path}.new", path)
    return attempt, world_size, began, w


# %% [markdown]
# Rank 2 dies after 0.55 s, in step 5 (counted from 0); rank 1 in the second attempt. A restart takes 2 s. Once all
# four are started again, once those that are left. From which step does the last attempt go on, and with
# which weights does it end?

# %%
guess = None  # from which step; equal weights or not
FOLDER = Path(tempfile.mkdtemp())


undisturbed = simlib.simulate(train, 4, (FOLDER / "undisturbed",))
options = {"kill": {2: 0.55, 1: 2.8}, "restarts": 2, "restart_s": 2}
for fewest in (None, 2):  # None: always as many ranks
    run = simlib.simulate(train, 4, (FOLDER / f"a{fewest}",), min_ranks=fewest, **options)
    for each in run.attempts:
        print(f"from {each.began_s:.2f} s: {each.world_size} ranks, died: {list(each.deaths)}")
    last = max((w - undisturbed.results[0][3]).abs().max() for *_, w in run.results)
    print(
        f"began at step {run.results[0][2]}; the weights of the run without deaths: {last < 1e-6}"
    )

# %% [markdown]
# Steps since the last checkpoint are done again, no others; the weights are those of a run without deaths, on
# as many ranks or on fewer: that needs a mean that does not depend on the number of ranks, data that
# depend on the step alone, and *all* state in the file (with Adam its moments, too; the state of random
# numbers; the place in the data). And a file that is never half written: a rank that dies while it
# writes leaves the old one.
#
# ## `torchrun`, for real
#
# `torchrun --max-restarts=1` starts real processes on this machine, and starts them again when one dies. `train` goes
# into a script; rank 1 dies at step 5. Two jobs differ in one line, the **rendezvous**: the place where ranks leave
# their addresses for each other. The plain one is a store that torchrun keeps for the whole job; the other is a file
# for each attempt. Does either end? A third is the second in `simulate`: `python -m simlib simulate
# --restarts=1` is torchrun on virtual time, here with `--min-ranks=3` of four.

# %% tags=["nbval-ignore-output"]
guess = None
PLACES = {"plain": '"env://"', "file": 'f"file://{sys.argv[1]}.{attempt}"'}
SCRIPT = """import os, sys, time, torch, torch.distributed as dist
from datetime import timedelta
{train}
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
time.sleep(rank / 2)  # no two ranks come at the same moment
settings = dict(rank=rank, world_size=world_size, timeout=timedelta(seconds=6))
dist.init_process_group("gloo", {place}, **settings)
result = train(rank, world_size, sys.argv[1], dies=sys.argv[2:] == ["dies"])
print("result:", rank, *result[:3], result[3].tolist())
dist.destroy_process_group()
"""
FOLDER = Path(tempfile.mkdtemp())
options = ["--standalone", "--nproc-per-node=3", "--max-restarts=1", "--monitor-interval=0.1"]
commands = {name: ["-m", "torch.distributed.run", *options, f"{name}.py"] for name in PLACES}
commands["simulate"] = "-m simlib simulate -n4 --restarts=1 --min-ranks=3 --quiet file.py".split()
environ, jobs = os.environ | {"OMP_NUM_THREADS": "1"}, {}
for name, place in PLACES.items():
    (FOLDER / f"{name}.py").write_text(SCRIPT.format(train=inspect.getsource(train), place=place))
for name, words in commands.items():
    said, words = open(FOLDER / f"{name}.txt", "w"), [sys.executable, *words, FOLDER / name, "dies"]
    jobs[name] = subprocess.Popen(words, cwd=FOLDER, env=environ, stdout=said, stderr=said)

# %% [markdown]
# Meanwhile:
#
# ## How often to save?
#
# Each checkpoint costs C seconds. Each failure costs what was not saved, and a restart. Let M be the mean time between
# failures of the *job*, and save after every t seconds of work. Of each second of work, the share
# lost is about
#
# $$\underbrace{\frac{C}{t}}_{\text{saving}} + \underbrace{\frac{t}{2M}}_{\text{done again: half an interval}}$$
#
# (and what a restart takes, which does not depend on t). **Now you write it**: set the derivative to zero;
# which t?
#
# Does that hold in runs with deaths at random? A program in `simulate`: steps of 1 s, C = 2 s, 5 s for a
# restart. Killing a thousand runs so would take long; so `lasts` plays the
# same story in ten lines. First we hold it against the simulation.


# %%
mine = None  # a function of C and M
for C, M in ((2, 400), (5, 3000), (60, 11_000)):
    young = scale.checkpoint_interval(C, M, formula="young")
    print(f"C = {C} s, M = {M:,} s: as Young 1974:", mine and math.isclose(mine(C, M), young))


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


# %%
def lasts(steps, every, deaths):
    now_s, saved = 0.0, 0
    while saved < steps:
        piece = min(every, steps - saved)
        end_s = now_s + piece * STEP_S + SAVE_S * (saved + piece < steps)
        died_s = next((death for death in deaths if now_s <= death < end_s), None)
        now_s, saved = (end_s, saved + piece) if died_s is None else (died_s + RESTART_S, saved)
    return now_s


STEP_S, SAVE_S, RESTART_S = 1.0, 2.0, 5.0
for seed in (1, 2, 3):
    kill = scale.Failures(mtbf_s=200, seed=seed)  # of each of 4 ranks
    cluster = simlib.Cluster(4, 1, simlib.Link(0, math.inf))
    path = Path(tempfile.mkdtemp()) / "saved"
    options = {"kill": kill, "restarts": 99, "restart_s": RESTART_S, "cluster": cluster}
    run = simlib.simulate(saving, 4, (path, 100, 10), **options)
    end_s = run.began_s + run.time_s
    deaths = [one.began_s + s for one in run.attempts for s in one.deaths.values()]
    off_s = abs(end_s - lasts(100, 10, deaths))
    print(f"deaths: {len(deaths)}; {end_s:.1f} s; residual below 1e-6 s: {off_s < 1e-6}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# $-C/t^2 + 1/(2M) = 0$: `mine = lambda C, M: math.sqrt(2 * C * M)`. At the best t both shares are equal.
#
# </details>
#
# Daly (2006) also counts failures while saving, and several in one interval: his t is a little shorter. Now 200 drawn
# lives for each interval and three values of M; the interval that does best there against Young's and
# Daly's. The points are simulated, the lines `scale.goodput`. (The points scatter: the best is read off a
# smooth curve through them.)

# %%
guess = None  # within how many percent?
figure, axes = plt.subplots(figsize=(7, 3.4))
for number, M in enumerate((100, 400, 1600)):
    random, work = np.random.default_rng(14), 10 * M
    lives = [np.cumsum(random.exponential(M, 60)).tolist() for _ in range(200)]
    daly = scale.checkpoint_interval(SAVE_S, M)
    every = [round(daly * factor) for factor in np.geomspace(0.35, 3, 11)]
    seen = [work / np.mean([lasts(work, each, life) for life in lives]) for each in every]
    smooth, fine = np.polyfit(np.log(every), seen, 3), np.linspace(*np.log(every)[[0, -1]], 999)
    best = math.exp(fine[np.polyval(smooth, fine).argmax()])
    young = scale.checkpoint_interval(SAVE_S, M, formula="young")
    print(
        f"M = {M:4} s: best {best:5.1f} s, Young {young:5.1f} ({young / best - 1:+.0%}),", end=" "
    )
    print(f"Daly {daly:5.1f} ({daly / best - 1:+.0%})")
    axes.plot(every, seen, "o", color=f"C{number}", label=f"M = {M} s")
    axes.plot(every, scale.goodput(every, SAVE_S, M, restart_s=RESTART_S), color=f"C{number}")
    axes.axvline(daly, color=f"C{number}", linestyle=":")
axes.set(xscale="log", xlabel="seconds of work between checkpoints", ylabel="goodput")
axes.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# The dotted lines (Daly) stand at the tops. Half or twice the best interval costs a few percent only: it need not be
# known well. At scale: if *one* rank fails once in $M_1$ seconds (`mtbf_s`), R ranks do R times as often:
# $M = M_1/R$. Meta report ("The Llama 3 Herd of Models", 2024, arXiv 2407.21783) 419 unexpected interruptions in 54
# days on 16,384 GPUs. What is that for one GPU? And what is left of the time on 10,000 ranks if a checkpoint takes a
# minute, or 5 s?
#
# Below it is a lab; points are drawn lives. Move one slider at a time. Ten times the ranks: what
# becomes of the best interval, what of the goodput? Which saves more, half of C or half of the restart? Which slider
# does not move the upright lines? And when do Young and Daly part?

# %%
guess = None
gpu_s = 54 * 86_400 * 16_384 / 419
print(f"one GPU: {gpu_s / 86_400 / 365:.1f} years; 16,384: {gpu_s / 16_384 / 3600:.1f} hours")
for ranks in (100, 10_000, 100_000):
    for save_s in (60, 5):
        t = scale.checkpoint_interval(save_s, gpu_s, ranks)
        left = scale.goodput(t, save_s, gpu_s, ranks, restart_s=300)
        print(f"{ranks:7,} ranks, C = {save_s:2} s: every {t / 60:5.1f} min, goodput {left:.1%}")
nbytes = 12 * 70e9  # 70 billion parameters with Adam, float32
print(f"C at 2 GB/s a rank: {nbytes / 2e9:.0f} s by one rank, {nbytes / 2e9 / 1000:.2f} s by 1,000")
labs.draw_checkpoint(ranks=10_000, mtbf_s=gpu_s)

# %% tags=["nbval-ignore-output"]
labs.checkpoint_lab(ranks=10_000, mtbf_s=gpu_s)

# %% [markdown]
# <details><summary>Answers</summary>
#
# Ten times the ranks: the interval shrinks about as a root, 24 to 7 min; the goodput falls from 91 to 65 %. Half of
# C saves more on 10,000 ranks (92.8 %; half of the restart: 91.4 %); on 100,000 both save alike (70.4, 70.5). The
# restart moves no line. Young and Daly part where C is no longer small against M.
#
# </details>
#
# ## Cheaper checkpoints
#
# So C is worth work. **Sharded**: each rank writes its own part, all at the same time.
# `torch.distributed.checkpoint` (DCP) does it, and notes which part of
# which tensor is where: the parts may be read by *another* number of ranks. **Asynchronous**
# (`dcp.async_save`): copy to memory, go on training, write meanwhile: C shrinks to the copy. First a model saved
# by 4 ranks of FSDP2 (lesson 12), loaded by 3. Then 40 MB on each of two real ranks: how long does each of two saves
# hold the training up? And which weights are in the file, if training changes them while it is written?


# %% tags=["nbval-ignore-output"]
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


parts, place = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
four, three = (simlib.simulate(sharded, n, (parts, n == 3)).results[0] for n in (4, 3))
print(sorted(path.name for path in parts.iterdir()), torch.equal(four, three))
print(*simlib.run(saves, 2, (place,)).results, sep="\n")

# %% [markdown]
# On three ranks the model is the same. And `async_save` holds up less, and what it writes is of the moment of the call.
#
# ## What came of `torchrun`
#
# The jobs have had their time. Their errors, and results: rank, attempt, ranks, first step, weights. Below, as
# recorded (steps of 0.5 s): a torchrun for each of four "nodes", one killed *with its launcher*; and a job of
# Slurm's on a practice cluster (lesson 16), whose node is switched off.

# %% tags=["nbval-ignore-output"]
for name, job in jobs.items():
    print(name, f"ended with {job.wait(timeout=100)}")
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if "result:" in line or "Error: " in line:
            print("  ", re.sub(r"\[/\S+\] ", "", line)[:150])  # without a place in Gloo's source
print("undisturbed:", undisturbed.results[0][3].tolist())
for name in ("elastic", "requeue"):
    print("\nrecorded:", Path("recorded", "failures", f"{name}.txt").read_text())

# %% [markdown]
# "Connection closed by peer", where it stands, is from the first attempt: the death that was meant. In the second the store of the whole
# job still has addresses *of ranks that are dead*: "Connection refused", or a time-out. It looks like a network
# problem, and is a stale rendezvous. With a place for each attempt the job ends well, with the weights of the run
# without deaths, to the rounding of another order of sums (1e-6). (Now and then the plain job is lucky, where who
# comes late reads new addresses.) A restart that was never tried is none: kill a rank on purpose before you need it.
#
# **Rendezvous** (not lesson 03's, of one send) is more than addresses: who takes part, how many they are, which rank
# each one gets. With `--nnodes=3:4` three of four launchers meet again and go on. Launchers may count their restarts
# differently; so there no file by number, but `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: each meeting gets a store of
# its own. `--requeue` hands the *whole job* in again, on nodes that live, when Slurm knows that one is gone (here it
# was told; alone it notices after its `SlurmdTimeout`). Both only start it: what it continues from is your checkpoint.
#
# ## Faults that raise nothing
#
# A bit flips in the memory of one device: no exception, no death. Rank 2 of four has one of four faults in step 3,
# and in each step all ranks look at three things: are all weights alike (a **checksum**), are the norms of the
# gradients near each other *before* the sum, is everything finite *after* it?


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
# The faults: a small bit of a weight, a small one and a large one of a gradient, and NaN, as 0/0 leaves it. For each:
# seen by which look, in which step, on which ranks?

# %%
guess = None
faults = {
    "bit 10 of a weight": lambda w, g: flip(w, 10),
    "bit 30 of a gradient": lambda w, g: flip(g, 30),
    "NaN in a gradient": lambda w, g: g.fill_(math.nan),
    "bit 10 of a gradient": lambda w, g: flip(g, 10),
}
for name, fault in faults.items():
    print(f"{name}:", *simlib.simulate(faulty, 4, (fault,)).results[0], sep="\n   ")

# %% [markdown]
# A wrong *weight* is on one rank alone: a checksum names it, from then on in every step. A wrong *gradient*
# is on all ranks after one all_reduce: they agree, on something wrong. Only a look *before* the sum names
# who brought it, and only at once: one step later all norms are `inf` or NaN, none of which is *less* than 3 times
# their median, so all are named. And bit 10 of a gradient is seen by nobody: it is smaller than the noise of the
# batch. The looks cost 16 bytes a rank and step.
#
# With three ranks or more the majority is taken for right. Two only know that they differ: both go back to
# the last checkpoint.
#
# ## Which remedy?
#
# | what you see | what to do |
# |---|---|
# | one rank never waits, always the same | mend or replace it; until then shards by speed, weighted means |
# | who is last changes from step to step | backup workers, if all draw from all data; meet less often (lesson 13) |
# | pieces that do not depend on each other | a work queue |
# | a rank is gone | a time-out longer than steps vary; checkpoint and restart, tried before |
# | nothing raised, and the loss jumps | checksums of weights, norms before the sum |
#
# ## Your turn
#
# [Exercises 14](../exercises/14_stragglers_and_failures.ipynb): the culprit in recorded traces, shards by
# speed, the best interval, and a training that survives two deaths.
#
# ## Exit ticket
#
# 1. Rank 5 waits more than all others. Is it the straggler?
# 2. Exponential times with a mean of 10 ms on 8 ranks: a step?
# 3. Rank 3 is half as fast, and gets half the learning rate. What is gained?
# 4. C = 8 s, M = 10,000 s: the interval? And on four times as many ranks?
# 5. After a restart ranks fail with "Connection refused". What is stale?
# 6. All checksums of the weights are equal, and the loss is NaN. What was looked at too late?
#
# <details><summary>Answers</summary>
#
# 1. No: the straggler is the one who does not wait.
# 2. 10 (1 + 1/2 + ... + 1/8) = 27 ms.
# 3. Nothing; and where each applies its own rate, replicas drift apart.
# 4. $\sqrt{2 \cdot 8 \cdot 10\,000}$ = 400 s; M is a quarter, so 200 s.
# 5. The addresses in the store of the rendezvous.
# 6. The gradients before the sum.
#
# </details>
#
# **Next:** your programs on a [real cluster](16_the_real_cluster.ipynb).
