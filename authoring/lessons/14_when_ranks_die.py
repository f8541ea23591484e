# %% [markdown]
# # 14 When ranks die
#
# In [the first part](14_stragglers_and_failures.ipynb) some ranks were slow, but no rank died. On many devices some
# rank dies sooner or later. The training of Llama 3 on 16,384 GPUs was interrupted every three hours on
# average. Take lesson 07 first: it saves a training and loads it again. In this second part (60 minutes) you will
#
# - kill ranks, and see which error each survivor gets,
# - see why the other ranks cannot tell a dead rank from a rank that pauses,
# - write the code of a training that outlives deaths: it loads, continues and saves,
# - let `torchrun` restart real trainings, and see what a restart needs to end well,
# - read what large jobs do besides.

# %%
import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## A rank dies
#
# In the next cell eight ranks call `all_reduce` three times. Each rank works for 0.3 s before each call, and each
# call has a time limit of 1 s. After 0.5 s rank 2 is killed. Then the cell does the same with four ranks.
#
# `on_death="continue"` lets the survivors go on, as plain Gloo does. Without this option, simlib ends the run at
# once and names the dead rank. `algorithms="gloo"` means that the ranks send the messages that Gloo sends. Gloo's
# all_reduce is a ring (lesson 05).
#
# A survivor gets one of two errors. Either it sees that a connection was closed, or its time limit expires. Then all
# survivors form a smaller group, and add up in it. The cell prints one line for each rank, and `None` for the dead
# rank. The last line says which rank died, and when.
#
# **Guess:** of the seven survivors in the first run, how many see a closed connection?

# %%
closed = None  # of the seven survivors


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
        alive = [each for each in range(world_size) if each != 2]
        survivors = dist.new_group(alive, use_local_synchronization=True)  # without rank 2
        dist.all_reduce(y := torch.ones(1), group=survivors)
        return words + f", then {y.item():.0f} survivors added up"


options = {"kill": {2: 0.5}, "on_death": "continue"}
for R in (8, 4):
    run = simlib.simulate(until_it_fails, R, algorithms="gloo", **options)
    print(f"{R} ranks:", *run.results, f"died: {run.deaths}", sep="\n")
    simlib.guess(closed if R == 8 else None, sum("closed" in str(one) for one in run.results))
run

# %% [markdown]
# Two of the seven survivors see a closed connection. In a ring a rank exchanges messages with its two neighbours
# only. The neighbours of rank 2 are ranks 1 and 3. Each of them sees that its connection to rank 2 was closed, and
# gives up at 0.6 s. It keeps its other connections open. So the other five ranks notice nothing until their time
# limit expires at 1.6 s. Here the limit is 1 s. If you set no limit, torch's limit for Gloo is 30 minutes.
#
# So one dead rank stops synchronous training, and five of the seven survivors do not know why. The survivors can
# go on in a smaller group. For that, the program has to catch the error, and it has to know which ranks are left.
# Our program knows this because we wrote the number 2 into it.
#
# The picture shows the second run, with four ranks. Rank 2 ends at the cross, and rank 0 waits for 1 s. After 0.6 s
# ranks 1 and 3 look busy. In fact they wait in `new_group` for rank 0.
#
# Do real processes behave like this? The next cell starts four real processes, and sends a real SIGKILL to rank 2.
# Then it starts four processes again. This time no rank dies, but rank 2 *pauses* for 2 s before each call. Can the
# other ranks see that this is no death?
#
# **Guess:** which error does rank 2 read when it comes back?

# %% tags=["nbval-ignore-output"]
reads = None  # what rank 2 reads after its pause: "closed" or "timed out"

run = simlib.run(until_it_fails, 4, **options)
print("a death:", *run.results, sep="\n")
run = simlib.run(until_it_fails, 4, (2,))
print("a pause:", *run.results, sep="\n")
its = "closed" if "closed" in run.results[2] else "timed out"
simlib.guess(reads, its, of=("closed", "timed out"))

# %% [markdown]
# After the death, real processes get the same errors as simulated ranks, at about the same times. In your run, other
# ranks may exchange messages with rank 2.
#
# During the pause nobody closes a connection. So the other three ranks wait until a time limit expires at 1.3 s.
# They would wait in the same way if rank 2's machine had lost power, because a machine without power closes no
# connection. The other ranks cannot see whether rank 2 pauses or is dead. They can only decide: when the limit has
# expired, they treat rank 2 as dead.
#
# What happens to rank 2? When a call times out on a rank, torch closes *all* connections of that rank. So the
# connections to rank 2 close at 1.3 s. At 2.3 s rank 2 comes back, finds its connections closed, and fails as well.
# One of the other ranks may read "closed" at 1.3 s, too, because its neighbour timed out a moment earlier.
#
# With a short limit, a slow rank is treated as dead. With a long limit, the ranks wait long for a dead rank. Measure
# how much the times of your steps vary, and choose the limit from that.
#
# ## Restart from a checkpoint
#
# Most trainings do something simpler. They save a **checkpoint** now and then. When a rank dies, the launcher ends
# all ranks, and starts all of them again. The new ranks load the checkpoint and continue from there. The usual
# launcher is `torchrun`; in simlib, `restarts=` does the same. Each start is an *attempt*. A rank finds the number
# of its attempt in the environment variable `TORCHELASTIC_RESTART_COUNT`. The first attempt has number 0.
#
# The training should end with the weights of a run without deaths. For that it needs three things:
#
# - **A step that can be done again.** The number of a step decides which examples it takes. The mean of their
#   gradients does not depend on the number of ranks. `one_step` below is such a step: any number of ranks share its
#   12 examples.
# - **All state in the file.** With Adam, the file also needs the moments. If the training draws random numbers, the
#   file needs the generator's state. If the data are read in order, the file needs the place in the data
#   (lesson 07).
# - **No half file.** A rank may die while it writes. So write to a file with *another* name. When this file is
#   complete, give it the checkpoint's name: `os.replace(other, path)`. This call is *atomic*: it is done completely
#   or not at all. So the checkpoint's name always belongs to a complete file, the old one or the new one.
#
# **Now you write it:** `my_share`, the part of the gradient that one rank computes in `one_step`. `x` has the 12
# examples of all ranks, and the gradient of example i is `w - x[i]`. Rank r takes the examples r, r + R, r + 2R,
# ..., which are `x[rank::world_size]`. `one_step` adds up the parts of all ranks. This *sum* has to be the mean
# gradient of all 12 examples, for any number of ranks R, also for 5. The line below is right for one rank only.


# %%
def my_share(w, x, rank, world_size):
    return (w - x[rank::world_size]).mean(0)  # yours


def one_step(w, step, rank, world_size, share):
    time.sleep(0.1)  # stands for a large model
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
    dist.all_reduce(g := share(w, x, rank, world_size))
    return w - 0.3 * g


def ten_steps(rank, world_size, share):
    w = torch.zeros(4)
    for step in range(10):
        w = one_step(w, step, rank, world_size, share)
    return w


def one_process():
    w = torch.zeros(4)
    for step in range(10):
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        w = w - 0.3 * (w - x.mean(0))
    return w


found = {R: simlib.simulate(ten_steps, R, (my_share,)).results[0] for R in (1, 4, 5)}
same = {R: bool((w - one_process()).abs().max() < 1e-6) for R, w in found.items()}
print("as one process, by ranks:", same)
print("my_share:", "right" if all(same.values()) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return (w - x[rank::world_size]).sum(0) / len(x)`
#
# Each rank divides by the number of *all* examples. With 5 ranks, ranks 0 and 1 have three examples, and the others
# have two.
#
# </details>
#
# **Now you write it:** `restarting`, the training itself. All ranks call it, once in each attempt.
#
# 1. It looks for checkpoints: `sorted(folder.glob("step*.pt"))` lists them, the newest last. Their names,
#    `step02.pt`, `step04.pt`, and so on, have the number of steps done. If there are checkpoints, it loads the
#    newest with `torch.load`: a pair (steps done, weights). If there is none, it begins at step 0 with four zeros as
#    weights.
# 2. It continues at that step, with `w = one_step(w, step, rank, world_size, given_share)`, until `STEPS` steps are
#    done. `given_share` is a right `my_share`. Steps count from 0: after step 3, four steps are done.
# 3. When the number of steps done is a multiple of `every`, rank 0 saves the pair with `write(pair, path)`. The path
#    `folder / f"step{done:02}.pt"` has the right name. `write` takes 50 ms, and rank 0 may be killed in the middle
#    of it. So first write to `folder / "new"`: a half file must never have a checkpoint's name.
# 4. It returns the step at which this attempt began, and the weights.
#
# The check makes three runs with a checkpoint after every 2 steps. It compares the weights with those of one
# process, and also checks with which step the last attempt began. In the first run nobody dies. In the second run
# rank 2 dies in step 5. In the third run rank 0 dies while it writes `step04.pt`, and in the next attempt rank 1
# dies in step 8. If `torch.load` raises an error, your program has read a half file.

# %%
STEPS = 10


def given_share(w, x, rank, world_size):
    return (w - x[rank::world_size]).sum(0) / len(x)


def write(pair, path):
    torch.save(pair, held := io.BytesIO())
    with open(path, "wb") as file:
        for part in (held.getvalue()[:1000], held.getvalue()[1000:]):
            file.write(part)
            file.flush()
            time.sleep(0.025)


# %%
def restarting(rank, world_size, folder, every):
    return 0, torch.zeros(4)  # yours


for name, kill, right in (
    ("nobody dies", {}, 0),
    ("rank 2 dies", {2: 0.55}, 4),
    ("rank 0 dies writing", {0: 0.46, 1: 3.3}, 8),
):
    folder = Path(tempfile.mkdtemp())
    run = simlib.simulate(restarting, 4, (folder, 2), kill=kill, restarts=2, restart_s=2)
    (began, w), saved = run.results[0], sorted(folder.glob("step*.pt"))
    is_right = began == right and bool(saved) and (w - one_process()).abs().max() < 1e-6
    print(f"{name}: attempts {len(run.attempts)}; the last began at step {began}:", end=" ")
    print("right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     first, w = 0, torch.zeros(4)
#     saved = sorted(folder.glob("step*.pt"))
#     if saved:
#         first, w = torch.load(saved[-1])
#     for step in range(first, STEPS):
#         w = one_step(w, step, rank, world_size, given_share)
#         if (step + 1) % every == 0 and rank == 0:
#             write((step + 1, w), folder / "new")
#             os.replace(folder / "new", folder / f"step{step + 1:02}.pt")
#     return first, w
#
# </details>
#
# Only the steps after the last checkpoint are done again. In the second run these are steps 4 and 5.
#
# ## As many ranks, or fewer
#
# The rest of this part uses `train`. It does the same as `restarting`, so you need not read it. But it keeps a
# single file: each checkpoint replaces the one before. With `dies=True` rank 1 ends itself in step 5 of the first
# attempt. The torchrun jobs below need this.


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
# Four ranks begin. Rank 2 dies at 0.55 s, in step 5. A restart takes 2 s, so the second attempt begins at 2.55 s.
# Rank 1 dies at 2.8 s. A step takes 0.1 s. The cell does this twice. In the first run the launcher always starts
# four ranks again. In the second run it starts only those that are left: three, then two.
#
# **Guess:** at which step does the last attempt begin? And does the second run end with the weights of a run without
# deaths?

# %%
first_step, equal = None, None  # of the last attempt; equal weights on fewer ranks, "yes" or "no"

FOLDER = Path(tempfile.mkdtemp())
undisturbed = simlib.simulate(train, 4, (FOLDER / "undisturbed",))
options = {"kill": {2: 0.55, 1: 2.8}, "restarts": 2, "restart_s": 2}
for fewest in (None, 2):  # None: always as many ranks
    run = simlib.simulate(train, 4, (FOLDER / f"a{fewest}",), min_ranks=fewest, **options)
    for each in run.attempts:
        print(f"from {each.began_s:.2f} s: {each.world_size} ranks, died: {list(each.deaths)}")
    off = max((w - undisturbed.results[0][3]).abs().max() for *_, w in run.results)
    print(f"the last began at step {run.results[0][2]}; weights as without deaths: {off < 1e-6}")
simlib.guess(first_step, run.results[0][2])
simlib.guess(equal, "yes" if off < 1e-6 else "no", of=("yes", "no"))

# %% [markdown]
# The second attempt loads the checkpoint of step 4, and saves step 6 before rank 1 dies. So the last attempt begins
# at step 6. Both runs end with the weights of a run without deaths, because `train` has the three things that we
# listed above.
#
# ## `torchrun`, for real
#
# `torchrun` starts real processes on this machine. When one of them dies, `torchrun` ends the others, and starts
# all of them again. With `--max-restarts=1` it does so once. The next cell writes `train` into two scripts and starts
# them. You need not read its code. In each job rank 1 dies in step 5.
#
# The ranks of a job first have to find each other. Each rank leaves its address in a common place, and reads the
# addresses of the others there. This meeting is called the **rendezvous**, like the meeting of a send with its
# receive in lesson 03. We try two places, in two scripts:
#
# - `plain.py` uses `env://`. With it, the ranks meet in a *store*: a small server that keeps names and values.
#   torchrun keeps this store for the *whole* job.
# - `file.py` uses a file: the ranks meet in it. The file's name has the number of the attempt, so each attempt has a
#   new file.
#
# Apart from this one line the scripts are equal. torchrun runs both, with three ranks. A third job, `simulate`,
# runs `file.py` in the simulator: `python -m simlib simulate --restarts=1` does the work of torchrun on virtual
# time. It begins with four ranks, and `--min-ranks=3` lets it go on with three.
#
# **Guess:** which of the two real jobs, `plain` and `file`, finish without an error?

# %% tags=["nbval-ignore-output"]
ends = None  # "plain", "file", "both" or "none"
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
# ## What large jobs do besides
#
# Your jobs need about 20 seconds. Meanwhile, here are three things that jobs on thousands of devices do:
#
# - **Fault tolerance per step.** [torchft](https://docs.pytorch.org/torchft/) does not restart the job. In each
#   step the healthy replicas form a *quorum*, and average their gradients. When a replica comes back, it copies the
#   weights from a healthy one.
# - **Hot spares.** Some nodes wait without work. At a restart they replace the nodes that failed, so the number of
#   ranks stays the same. [NVIDIA's resiliency
#   extension](https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/deployment.html) keeps such nodes as
#   *standbys*.
# - **A flight recorder.** If you ask for it, torch keeps the last calls of each rank in memory, and writes them to
#   a file when a call times out. `simlib diagnose` reads these files. It says which rank did not make the call
#   ([records of real jobs](../docs/real-jobs.md)).
#
# ## What the jobs did
#
# The next cell waits for the jobs. For each job it prints the exit code, the errors and the results. A result has
# the rank, the number of the attempt, the number of ranks, the step at which the attempt began, and the weights.
# An exit code of 0 means that the job ended well.

# %% tags=["nbval-ignore-output"]
codes = {name: job.wait(timeout=100) for name, job in jobs.items()}
for name, code in codes.items():
    print(name, f"ended with {code}")
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if "result:" in line or "Error: " in line:
            print("  ", re.sub(r"\[/\S+\] ", "", line)[:150])  # without a place in Gloo's source
well = [name for name in PLACES if codes[name] == 0]
which = well[0] if len(well) == 1 else "both" if well else "none"
simlib.guess(ends, which, of=("plain", "file", "both", "none"))
print("undisturbed:", undisturbed.results[0][3].tolist())

# %% [markdown]
# **Why `plain` fails.** You may see "Connection closed by peer" or "Connection reset by peer". These errors belong
# to the first attempt, and the death that we caused explains them. The second attempt fails for another reason. The
# store lives as long as the whole job, so it still has the addresses of the *dead ranks* of the first attempt. A
# new rank reads such an address and tries to connect. Then it gets "Connection refused" or a time-out. That looks
# like a network problem, but the cause is a *stale* rendezvous: the addresses in it are out of date.
# `ChildFailedError` means that torchrun gives up. Sometimes `plain` is lucky and ends well, because a rank that
# comes late reads the new addresses.
#
# **Why `file` ends well.** Each attempt has a place of its own, so no rank can read an old address. The weights are
# those of the run without deaths. They differ by less than 1e-6, because three ranks add up in another order than
# four.
#
# torchrun only starts the job again. Your checkpoint decides where it continues. A restart that you never tried may
# not work, so kill a rank on purpose before you need the restart. The appendix shows two larger jobs that restart.
#
# ## Your turn
#
# [Exercises 14](../exercises/14_stragglers_and_failures.ipynb): in task 4 you write a training that outlives two
# deaths.
#
# ## Exit ticket
#
# 1. Rank 2 of eight dies before an all_reduce. Which survivors learn at once that a rank is dead?
# 2. Why does a checkpoint go into a new file first?
# 3. After a restart, ranks fail with "Connection refused". What is out of date?
# 4. Your job may restart on fewer ranks. Which two things in a step must not depend on the number of ranks?
#
# <details><summary>Answers</summary>
#
# 1. Ranks that exchange messages with rank 2 in this call. All others wait until their time limit expires.
# 2. A rank may die while it writes. `os.replace` gives the checkpoint's name to complete files only.
# 3. The addresses in the store of the rendezvous are out of date.
# 4. The set of examples that all ranks together take in a step, and the mean of their gradients.
#
# </details>
#
# **Next:** how often a training should save, in [the third part](14_when_to_save.ipynb).
#
# ## Appendix: two recorded jobs on several nodes
#
# This appendix is optional. It shows the records of two jobs that take too long for a cell. Their steps take 0.5 s.
#
# - In the first job, four "nodes" each have a torchrun of their own. One node is killed *together with its launcher*,
#   so nothing on this node can restart its rank.
# - The second job runs under **Slurm**, a program that gives the nodes of a cluster to jobs (lesson 16). One of its
#   nodes is switched off.

# %%
for name in ("elastic", "requeue"):
    print("recorded:", Path("recorded", "failures", f"{name}.txt").read_text())

# %% [markdown]
# **The recorded torchrun.** With several launchers a rendezvous decides more than addresses. It decides which nodes
# take part, how many ranks there are, and which number each rank gets. `--nnodes=3:4` allows three or four nodes.
# So the three living launchers meet again, and go on with three ranks from step 4. Here the number of the attempt
# must not be part of a file's name, because launchers may count their restarts differently. The setting
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` helps instead: with it, each rendezvous gets a store of its own.
#
# **The recorded Slurm job.** When Slurm knows that a node is gone, `--requeue` makes it start the *whole* job again
# on other nodes. In this record we told Slurm with `scontrol update` that the node was down. If you do not tell it,
# Slurm notices it after the time `SlurmdTimeout`.
#
# torchrun and Slurm only start the job again. Your checkpoint decides where it continues.
