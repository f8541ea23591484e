# %% [markdown]
# # 19 Hangs from records
#
# In this course you have always seen the timeline of a run. On a real cluster there is no timeline. A job of 256 GPUs
# stops, and after ten minutes it ends with an error. You only have the **records** that each rank wrote. In this part
# (60 minutes) you will
#
# - read the record of one rank by hand,
# - learn what the error of a watchdog says, and what it does not say,
# - write a program that compares the records of all ranks, and finds the odd rank,
# - find a call that was left out long before the job stopped,
# - see where such rules name the wrong rank.
#
# You need [lesson 03](03_when_it_hangs.ipynb) about hangs. Here all ranks belong to one group. The [second
# part](19_hangs_of_many_groups.ipynb) is about many groups, and the [third part](19_slow_steps_from_traces.ipynb)
# is about slow steps.

# %%
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from IPython.utils.capture import capture_output
from torch._C._distributed_c10d import _dump_fr_trace_json

import simlib
from simlib import labs

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"  # each rank keeps its last 100 calls
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The flight recorder
#
# torch has a **flight recorder**: each rank keeps its last calls in memory, in a buffer of fixed size. When the
# buffer is full, a new call replaces the oldest one. When a call takes too long, each rank writes its buffer to a
# file, the **dump**. The recorder costs almost nothing, so large jobs leave it on.
#
# `main` below calls all_reduce and broadcast in turn, twice each. First it runs on four real ranks with Gloo,
# and each rank returns what torch has recorded. Then the same function runs in `simulate`. There, `to_recorder`
# writes the dumps that a job with NCCL would have left. The cell prints both records of rank 2. The recorder gives
# each collective a number. Which number does the second broadcast have?

# %%
last_number = None  # of the second broadcast


def main(rank, world_size):
    x = torch.zeros(4)
    for _ in range(2):
        dist.all_reduce(x)
        dist.broadcast(x, src=0)
    return _dump_fr_trace_json()  # what torch has recorded; nothing in simulate


def read(folder):
    """The dumps of a folder by rank. Unpickle only dumps of jobs that you trust."""
    files = Path(folder).iterdir()
    return {int(file.name.rpartition("_")[2]): pickle.loads(file.read_bytes()) for file in files}


from_gloo = json.loads(simlib.run(main, 4).results[2])
simulated = read(simlib.simulate(main, 4).to_recorder(FOLDER / "small"))[2]
shown = "collective_seq_id", "profiling_name", "input_sizes", "state"
for dump in (from_gloo, simulated):
    for entry in dump["entries"]:
        print(*(entry[name] for name in shown))
simlib.guess(last_number, simulated["entries"][-1]["collective_seq_id"])

# %% [markdown]
# Both records have the same calls with the same **sequence numbers**. All collectives of a group share one count,
# whatever the op. So the second broadcast has the number 4. Calls with the same number on different ranks belong
# together.
#
# With NCCL, the `state` of a call is `scheduled`, `started` or `completed`. With Gloo the state stays `scheduled`.
# So we use another field, `retired`. With both backends, `retired` becomes True when a call is over.
#
# ## A job that hangs
#
# In `train`, eight ranks share the matrices of three layers (lesson 12). Each layer makes two all_reduces of the
# same size, one after attention and one after the MLP. Rank 5 is the odd rank: it does something wrong in step 1, in
# layer 1. (Steps and layers count from 0.) `fault` says what it does. In the first job, rank 5 leaves after attention.
# Which number does the last call of rank 5 have, and which number does the last call of the others have?

# %%
of_rank_5, of_others = None, None


def train(rank, world_size, fault=None, odd=5):
    x = torch.zeros(512)
    for step in range(4):
        for layer in range(3):
            own_fault = fault if rank == odd and (step, layer) == (1, 1) else None
            dist.all_reduce(x)  # attention
            if own_fault == "leaves":
                return
            if own_fault == "other op":
                dist.broadcast(x, src=rank)
            elif own_fault == "other size":
                dist.all_reduce(x[:511])
            elif own_fault != "skips":
                dist.all_reduce(x)  # the MLP


# %%
def dumps_of(fault, odd=5, last=100):
    """The dumps of a run by rank, from buffers with room for `last` calls."""
    try:
        with capture_output():  # without the picture of the waits that simlib shows
            run = simlib.simulate(train, 8, (fault, odd))
    except (simlib.DeadlockError, simlib.MismatchError) as error:
        run = error.run
    return read(run.to_recorder(FOLDER / "job", last))


job = dumps_of("leaves")
lasts = {rank: dump["entries"][-1]["collective_seq_id"] for rank, dump in sorted(job.items())}
print("number of the last call by rank:", lasts)
simlib.guess(of_rank_5, lasts[5])
simlib.guess(of_others, lasts[0])

# %% [markdown]
# Now we read the last two calls in the dumps of ranks 4 and 5.

# %%
for rank in (4, 5):
    print(f"rank {rank}, groups: {[one['ranks'] for one in job[rank]['pg_config'].values()]}")
    for entry in job[rank]["entries"][-2:]:
        frame = entry["frames"][-1]  # of two: torch's own line, and the line of our program
        print("   ", *(entry[name] for name in shown), f"in {frame['name']}, line {frame['line']}")

# %% [markdown]
# The lines count from the top of the cell with `train`. (Press Esc, then Shift+L: JupyterLab shows line numbers.)
# Rank 4 has an **open call**: call 10 has started, and it is not over. Rank 4's dump lists the ranks of the group,
# but does not say which rank is missing. In rank 5's dump all calls are over, and nothing looks wrong. **No dump
# explains the hang.**
#
# ## What the watchdog says
#
# With NCCL, a thread on each rank watches the open calls: the **watchdog**. If a call is open for longer than the
# time-out, the watchdog prints an error message and ends the process. The time-out is 10 minutes by default. The
# cell prints the error messages of our job, in the form that [users
# report](https://github.com/NVIDIA/Megatron-LM/issues/1207). How many of the eight ranks print an error message?
# And how many messages name rank 5?

# %%
texts, name_5 = None, None


def open_call(dump):
    """The first call that is not over; None if all are over."""
    return next((entry for entry in dump["entries"] if not entry["retired"]), None)


said = []
for rank, dump in sorted(job.items()):
    if entry := open_call(dump):
        size, op = entry["input_sizes"][0][0], entry["profiling_name"].split(":")[1]
        work = f"SeqNum={entry['collective_seq_id']}, OpType={op.replace('_', '').upper()}, "
        work += f"NumelIn={size}, NumelOut={size}, Timeout(ms)={entry['timeout_ms']}"
        said += [f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL({work})"]
print(*said[:2], f"... and {len(said) - 2} more", sep="\n")
simlib.guess(texts, len(said))
simlib.guess(name_5, sum("Rank 5" in text for text in said))

# %% [markdown]
# A watchdog only knows the calls of its own rank. So it reports a **victim**: a rank that waited, and the op in
# which it waited. It does not say for which rank the victim waited. Here rank 5 is the cause, and only rank 5 prints
# no text. But a missing text is only a hint. A rank that calls another op has an open call, too, and then all eight
# watchdogs print a text.
#
# A longer time-out is no fix: if a rank has left, you only wait longer.
#
# ## Compare the ranks
#
# `calls_of` takes from each dump what we compare. It describes a call as `(op, sizes, is over, line)`. On a GPU, a
# rank can queue further calls behind an open call. The GPU has not begun them, so `calls_of` stops at the open call.


# %%
def calls_of(dumps):
    """{rank: {number: (op, sizes, is over, line)}}: the calls that have begun."""
    found = {}
    for rank, dump in dumps.items():
        found[rank] = {}
        for entry in dump["entries"]:
            op, sizes = entry["profiling_name"].split(":")[1], str(entry["input_sizes"])
            frames = entry.get("frames", ())  # the innermost comes first; Gloo's dumps have none
            line = next((one["line"] for one in frames if "/torch/" not in one["filename"]), None)
            found[rank][entry["collective_seq_id"]] = op, sizes, entry["retired"], line
            if not entry["retired"]:
                break
    return found


# %% [markdown]
# **Now you write it:** `your_difference(ranks, calls)` finds the first call in which ranks differ. `ranks` are all
# ranks of the group, and `calls` comes from `calls_of`.
#
# 1. Full buffers have lost their oldest calls. Begin with the first number that *all* buffers still have. End with
#    the last number that *any* of them has.
# 2. For each number, compare op and sizes of the ranks that made the call. If some of these ranks differ from most,
#    the ranks that differ are the **odd ranks**.
# 3. If no rank differs, but ranks are missing, the missing ranks are the odd ranks.
#
# Find the first number with odd ranks. Return `(number, odd)`, where `odd` is a sorted list of these odd ranks. If
# no number has odd ranks, return None.
#
# The check runs five jobs. In the job `skips`, rank 5 leaves out the MLP's all_reduce of layer 1 in step 1. This
# all_reduce would be call 10. At which number will `your_difference` find the first difference?

# %%
shows_at = None  # the number at which the first difference shows in `skips`


def your_difference(ranks, calls):
    return None  # yours


if no_fault := your_difference(range(8), calls_of(dumps_of("nothing"))):
    print(f"no fault: not yet: {no_fault}")
last = max(calls_of(dumps_of("skips"))[0])
for fault, number in {"leaves": 10, "other op": 10, "other size": 10, "skips": last}.items():
    cases = ((5, 100), (2, 5))  # the odd rank, and how many calls a buffer holds
    found = [your_difference(range(8), calls_of(dumps_of(fault, *case))) for case in cases]
    is_right = found == [(number, [5]), (number, [2])]
    print(f"{fault}:", "right" if is_right else f"not yet: {found}")
simlib.guess(shows_at, last)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_difference(ranks, calls):
#         first = max(min(own) for own in calls.values())
#         last = max(max(own) for own in calls.values())
#         for number in range(first, last + 1):
#             made = {r: own[number][:2] for r, own in calls.items() if number in own}
#             usual = Counter(made.values()).most_common(1)[0][0]
#             odd = [r for r in made if made[r] != usual] or [r for r in ranks if r not in made]
#             if odd:
#                 return number, sorted(odd)
#
# </details>
#
# In scatter, gather, and all_to_all with splits, ranks may have different sizes without a fault. Do not compare the
# sizes of these collectives. Roots and reduce ops are in no dump, so you cannot compare them.
#
# ## The call that was left out long ago
#
# In `skips`, rank 5 leaves out call 10, but the first difference shows at call 24, at the end of the program. Why did
# nothing happen in between? All calls look alike. So call 10 of rank 5 met call 10 of the others, although rank 5 was
# already in its next layer. From then on, the numbers of rank 5 are **shifted by one**, and the ranks sum tensors
# that do not belong together. Only at the very end a call is missing.
#
# Op and sizes do not show which call was left out. But the dumps also contain the line of each call. Attention's
# all_reduce and the MLP's all_reduce are on different lines of the program. **Now you write it:**
# `other_line(calls, odd)` returns the first number at which rank `odd` called from another line than most ranks. If
# there is no such number, it returns None.


# %%
def other_line(calls, odd):
    return None  # yours


right = {5: 10, 2: 10}  # the call that the odd rank left out
found = {odd: other_line(calls_of(dumps_of("skips", odd)), odd) for odd in right}
nowhere = other_line(calls_of(dumps_of("leaves")), 5)
is_right = found == right and nowhere is None
print("right" if is_right else f"not yet: {found}; if rank 5 leaves: {nowhere}")
calls = calls_of(dumps_of("skips"))
for number in (9, 10, 11, 12):
    print(f"call {number}: rank 4 at line {calls[4][number][3]}, rank 5 at {calls[5][number][3]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def other_line(calls, odd):
#         for number in sorted(calls[odd]):
#             lines = Counter(own[number][3] for own in calls.values() if number in own)
#             if calls[odd][number][3] != lines.most_common(1)[0][0]:
#                 return number
#
# </details>
#
# The hang came 14 calls after its cause. All training in between was wrong, and no rank raised an error. Lines
# are a hint, not a proof. A right program may make one collective from two lines:
# `if rank == 0: dist.broadcast(...)`, `else: dist.broadcast(...)`.
#
# **A lab:** the picture shows the calls in the buffers of the eight ranks. Each letter is a call, and its column is
# the call's number. Try three changes:
#
# - Set "at call" to 4, and then to 22. At which call does the first difference show?
# - Set "at call" to 4 and "a buffer holds" to 8. What can you still find out, and what is lost?
# - Choose the other faults. What do they have in common?

# %%
labs.draw_records("skips", odd=5, call=10)

# %% tags=["nbval-ignore-output"]
labs.records_lab("skips", odd=5, call=10)

# %% [markdown]
# The first difference of `skips` always shows at call 24. With short buffers you still see that the letters of rank 5
# are shifted, but not where the shift began. The other three faults stop the job at the call that goes wrong.
#
# ## When a rule names the wrong rank
#
# A rule compares ranks, and then it has to decide which side is right. In the next program, each rank reads settings
# from a file. A rank with the old file calls a broadcast, and a rank with the new file does not. In the first run,
# only rank 0 has the old file. In the second run, only rank 0 has the new file.
#
# torch comes with an analyser of dumps, `torchfrtrace`. It assumes that the first rank that it reads is right. We let
# it read rank 0 first. Which ranks does the analyser name in the first run? And which ranks does the rule of the
# majority name in the second run?

# %%
torchs, majoritys = None, None  # lists of ranks, such as [0, 3]


def settings(rank, world_size, old_on):
    x = torch.zeros(4)
    dist.all_reduce(x)
    if rank in old_on:
        dist.broadcast(x, src=0)
    dist.all_reduce(x)


for old_on in ([0], [1, 2, 3]):
    try:
        with capture_output():
            simlib.simulate(settings, 4, (old_on,))
    except simlib.MismatchError as error:
        folder = error.run.to_recorder(FOLDER / f"old on {old_on}")
    ops = {rank: own[2][0] for rank, own in sorted(calls_of(read(folder)).items())}
    usual = Counter(ops.values()).most_common(1)[0][0]
    found = [rank for rank, op in ops.items() if op != usual]
    print(f"old file on {old_on}: call 2 is {list(ops.values())}; the majority names {found}")
program = "import os, torch.distributed.flight_recorder.fr_trace as analyser\n"
program += "os.walk = lambda at: [(at, [], sorted(os.listdir(at)))]\n"  # so that rank 0 comes first
tool = [sys.executable, "-c", program + "analyser.main()", FOLDER / "old on [0]"]
said = subprocess.run(tool, capture_output=True, text=True)
theirs = sorted(map(int, re.findall(r"Culprit rank (\d+)", said.stdout + said.stderr)))
print("old file on [0]: torch's analyser names", theirs)
simlib.guess(torchs, theirs)
simlib.guess(majoritys, found)

# %% [markdown]
# torch's analyser names all ranks that differ from the first one. So it names three ranks that are right. A comment
# in its source warns of this (`components/utils.py`, torch 2.13). In the second run, three ranks have
# the old file. So the majority is wrong, and names rank 0. In a group of two ranks there is no majority at all.
#
# **A rule only says where ranks differ.** Then go to the two lines of the program, and decide which side is wrong.
#
# ## Exit ticket
#
# 1. The log of a job of 64 ranks has 63 watchdog texts. All of them have `OpType=ALLREDUCE`. What do you know?
# 2. Two ranks have 40 as the number of their last call, and six others have 41. All calls have the same op and the
#    same size. What do you compare next?
# 3. Buffers hold 2,000 calls. Rank 3 left out a call 5,000 calls ago. What can you still find out?
#
# <details><summary>Answers</summary>
#
# 1. You know that 63 ranks waited in an all_reduce. The 64th may have left, or it may be slow. You have to read its
#    dump, and its output.
# 2. Compare the lines of all earlier calls. Find the first number at which the lines of the two ranks differ from
#    the lines of the others. That is the call that the two ranks left out.
# 3. You find out that rank 3 is one call behind, and that its lines are shifted by one in the whole buffer. You
#    do not find out which call it left out.
#
# </details>
#
# **Next:** 256 ranks in 48 groups, in [19 b](19_hangs_of_many_groups.ipynb).
