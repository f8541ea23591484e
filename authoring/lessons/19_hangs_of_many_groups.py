# %% [markdown]
# # 19 Hangs of many groups
#
# This is the second part of lesson 19. You need [the first part](19_hangs_from_records.ipynb), and the mesh of ranks
# from [lesson 12 d](12_two_axes_at_once.ipynb). In a large job each rank belongs to several groups. One odd rank
# stops its own groups, and the ranks of these groups stop all other groups. In this part (60 minutes) you will
#
# - read the dumps of 256 ranks in 48 groups,
# - write a program that follows the waits to their cause, and try it on five jobs,
# - recognise a slow rank that looks like a hang,
# - learn in which order to look at the dumps of a job that you do not know.

# %%
import json
import os
import pickle
import statistics
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from IPython.utils.capture import capture_output

import simlib

FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A job of 256 ranks
#
# The job trains on a mesh of 32 x 8 ranks. Eight neighbours form a tp group, and every eighth rank belongs to the same
# dp group. Each layer makes two all_reduces in the tp group. After each step, a rank sums its gradient over its dp
# group, and then the loss over its **log group**. The log group has the same ranks as the dp group, but its own
# sequence numbers. So there are 32 tp groups, 8 dp groups and 8 log groups.
#
# Rank 133 is the odd rank, and it goes wrong in step 2. In the first job, `leaves`, rank 133 leaves before the sum of
# the gradients. How many of the 256 ranks then have a call that never ends?

# %%
waiting = None  # how many ranks?


def train(rank, world_size, fault=None, odd=133, tp=8):
    rows = [dist.new_group(range(first, first + tp)) for first in range(0, world_size, tp)]
    dps, logs = ([dist.new_group(range(a, world_size, tp)) for a in range(tp)] for _ in range(2))
    row, dp, log = rows[rank // tp], dps[rank % tp], logs[rank % tp]
    x, gradient, loss = torch.zeros(512), torch.zeros(4096), torch.zeros(1)
    for step in range(5):
        own_fault = fault if rank == odd and step == 2 else None
        for layer in range(3):
            dist.all_reduce(x, group=row)  # attention
            if own_fault != "skips" or layer != 1:
                dist.all_reduce(x, group=row)  # the MLP
        if own_fault == "leaves":
            return
        if rank == odd and fault == "slow":
            simlib.compute(seconds=250 * step)  # it saves a file that grows
        if own_fault == "other order":
            dist.all_reduce(loss, group=log)
        if own_fault == "other op":
            dist.broadcast(gradient, src=rank, group=dp)
        else:
            dist.all_reduce(gradient, group=dp)
        if own_fault != "other order":
            dist.all_reduce(loss, group=log)


# %%
def read(folder):
    """The dumps of a folder by rank. Unpickle only dumps of jobs that you trust."""
    files = Path(folder).iterdir()
    return {int(file.name.rpartition("_")[2]): pickle.loads(file.read_bytes()) for file in files}


def dumps_of(fault):
    try:
        with capture_output():  # without the picture of the waits that simlib shows
            run = simlib.simulate(train, 256, (fault,))
    except (simlib.DeadlockError, simlib.MismatchError) as error:
        run = error.run
    return read(run.to_recorder(FOLDER / fault))


def open_call(dump):
    """The first call that is not over; None if all are over."""
    return next((entry for entry in dump["entries"] if not entry["retired"]), None)


jobs = {"leaves": dumps_of("leaves")}
dump = jobs["leaves"][128]
print("rank 128's groups:", {name: one["ranks"][:20] for name, one in dump["pg_config"].items()})
for entry in dump["entries"][-3:]:
    print(f"group {entry['process_group'][0]}, call {entry['collective_seq_id']}", end=": ")
    print(entry["profiling_name"], entry["input_sizes"], entry["state"])
simlib.guess(waiting, sum(open_call(dump) is not None for dump in jobs["leaves"].values()))

# %% [markdown]
# The name of each group is a number, and each group counts its own calls. Rank 128 belongs to group 0, which is the
# world, and to three other groups. 255 ranks wait: 31 ranks in rank 133's dp group wait for rank 133. Each of the 32
# tp groups contains one rank of this dp group, and its other 7 ranks wait for that rank. $31 + 32 \times 7 = 255$.
#
# ## The calls of each group
#
# `channels` works like `calls_of` of the first part, but it returns a dict for each group. If a rank has several
# open calls, `channels` keeps only the first of them. It leaves out messages of `send` and `recv`, because our jobs
# have none. The appendix adds them.
#
# `difference` is the first part's function with one change. If a call is over on one rank, all ranks of the group
# have made this call. Ranks without the call have only lost it from their buffers, so they are not odd.


# %%
def line_of(entry):
    """The line of the program that made a call; None if the dump does not say."""
    frames = entry.get("frames", ())
    return next((one["line"] for one in frames if "/torch/" not in one["filename"]), None)


def channels(dumps):
    """{(group, ranks): {rank: {number: (op, sizes, is over, line)}}}"""
    found = {}
    for rank, dump in dumps.items():
        members = {name: json.loads(one["ranks"]) for name, one in dump["pg_config"].items()}
        for entry in dump["entries"]:
            group, number = entry["process_group"][0], entry["collective_seq_id"]
            ranks, op = members[group], entry["profiling_name"].split(":")[1]
            if entry["is_p2p"]:  # see the appendix
                continue
            own = found.setdefault((group, tuple(ranks)), {}).setdefault(rank, {})
            own[number] = op, str(entry["input_sizes"]), entry["retired"], line_of(entry)
            if not entry["retired"]:
                break  # the calls behind an open one have not begun
    return found


# %%
def difference(ranks, calls):
    """The first number at which ranks differ, and the odd ranks; None if there is none."""
    first = max(min(own) for own in calls.values())
    last = max(max(own) for own in calls.values())
    for number in range(first, last + 1):
        made = {rank: own[number] for rank, own in calls.items() if number in own}
        usual = Counter(call[:2] for call in made.values()).most_common(1)[0][0]
        odd = [rank for rank, call in made.items() if call[:2] != usual]
        if not odd and not any(is_over for _, _, is_over, _ in made.values()):
            odd = [rank for rank in ranks if rank not in made]
        if odd:
            return number, odd
    return None


# %% [markdown]
# ## Follow the waits
#
# If a rank has an open call, and this call has odd ranks, the rank waits for them. `waits_of` finds these waits. In the
# job `leaves`, only rank 133 is missing. In how many of the 48 groups does `difference` find an odd rank?

# %%
groups_with = None  # how many of the 48 groups?


def waits_of(dumps):
    """{rank: the ranks that it waits for}, for the ranks that wait."""
    waits = {}
    for (_, ranks), calls in channels(dumps).items():
        number, odd = difference(ranks, calls) or (None, ())
        for rank, own in calls.items():
            if rank not in odd and number in own and not own[number][2]:
                waits[rank] = odd
    return waits


found = [difference(key[1], calls) for key, calls in channels(jobs["leaves"]).items()]
print("odd in some group: ranks", *sorted({rank for one in found if one for rank in one[1]}))
waits = waits_of(jobs["leaves"])
print(f"rank 0 waits for {waits[0]}, rank 5 waits for {waits[5]}; 133 waits: {133 in waits}")
simlib.guess(groups_with, sum(one is not None for one in found))

# %% [markdown]
# 33 groups report an odd rank: all 32 tp groups and one dp group. But rank 5 is odd in its tp group only because it
# waits for rank 133 in its dp group. So rank 5 is a victim, too. Follow the waits until they end: the rank at the end
# is the **culprit**.
#
# Waits may also form a **circle**, in which each rank waits for another one. Then we name the rank that waits for the
# most ranks. The reason: if one rank differs from 31 others, each of the 31 waits for one rank, and the one waits for
# 31.
#
# **Now you write it:** `your_culprits(waits)` returns a set of tuples of ranks.
#
# - If some rank waits for a rank that waits for nobody, this last rank is a culprit. Put `(rank,)` into the set.
# - Start at each rank that waits. Go to the lowest of the ranks for which it waits, and from there on in the same way.
#   If you come back to a rank that you have visited, the ranks from its first visit on form a circle. Put the rank of
#   the circle that waits for the *most* ranks into the set, as `(rank,)`. If several ranks of the circle wait for
#   equally many, put all of these into the set, as one sorted tuple.


# %%
def your_culprits(waits):
    return None  # yours


# 6 and 8 form a circle, 9 and 10 another one
drawn = {0: [1], 1: [2], 3: [4, 5], 6: [8], 7: [6], 8: [6, 7], 9: [10], 10: [9]}
found = your_culprits(drawn), your_culprits(waits)
right = {(2,), (4,), (5,), (8,), (9, 10)}, {(133,)}
print("right" if found == right else f"not yet: {found}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_culprits(waits):
#         found = {(other,) for others in waits.values() for other in others if other not in waits}
#         for rank in waits:
#             way = [rank]
#             while way[-1] in waits and way[-1] not in way[:-1]:
#                 way.append(min(waits[way[-1]]))
#             if way[-1] in waits:
#                 circle = sorted(set(way[way.index(way[-1]) :]))
#                 most = max(len(waits[rank]) for rank in circle)
#                 found.add(tuple(rank for rank in circle if len(waits[rank]) == most))
#         return found
#
# </details>
#
# ## Three more hangs
#
# `culprits` is the lesson's version of your function. It takes the dumps. In three more jobs, rank 133 has another
# fault in step 2:
#
# - `other op`: it calls broadcast, while the rest of its dp group calls all_reduce.
# - `other order`: it sums the loss first, and the gradient second.
# - `skips`: it leaves out one all_reduce of its tp group.
#
# In how many of the three jobs does `culprits` name rank 133 alone?

# %%
named_alone = None  # of three jobs


def culprits(dumps):
    waits = waits_of(dumps)
    found = {(other,) for others in waits.values() for other in others if other not in waits}
    for rank in waits:
        way = [rank]
        while way[-1] in waits and way[-1] not in way[:-1]:
            way.append(min(waits[way[-1]]))
        if way[-1] in waits:
            circle = sorted(set(way[way.index(way[-1]) :]))
            most = max(len(waits[rank]) for rank in circle)
            found.add(tuple(rank for rank in circle if len(waits[rank]) == most))
    return found


for fault in ("other op", "other order", "skips"):
    jobs[fault] = dumps_of(fault)
for fault, dumps in jobs.items():
    count = sum(open_call(dump) is not None for dump in dumps.values())
    print(f"{fault:11} {count} ranks have an open call; culprits {culprits(dumps)}")
simlib.guess(named_alone, sum(culprits(jobs[fault]) == {(133,)} for fault in list(jobs)[1:]))

# %% [markdown]
# The next cell draws the four jobs. Each square is a rank, and its colour shows in which group the rank has an open
# call. A column is a tp group, and a row is a dp group. Both count from 0, so column 16 is the group with the name 17.

# %%
COLOURS = {"none": "#D55E00", "tp": "#56B4E9", "dp": "#009E73", "log": "#CC79A7"}


def group_of(entry):
    """Groups 1 to 32 are tp groups, 33 to 40 are dp groups, and 41 to 48 are log groups."""
    number = int(entry["process_group"][0]) if entry else 0
    return "none" if not number else "tp" if number <= 32 else "dp" if number <= 40 else "log"


figure, axes = plt.subplots(2, 2, figsize=(9, 3.6), layout="constrained")
for (fault, dumps), one in zip(jobs.items(), axes.flat, strict=True):
    for name, colour in COLOURS.items():
        here = [rank for rank, dump in dumps.items() if group_of(open_call(dump)) == name]
        at = [rank // 8 for rank in here], [rank % 8 for rank in here]
        one.scatter(*at, s=20, lw=0, marker="s", color=colour, label=name)
    one.plot(133 // 8, 133 % 8, "o", ms=11, mfc="none", mec="#888888", mew=1.5)
    one.set(title=f"{fault}; the ring is rank 133", xlabel="tp group", ylabel="dp group")
    one.invert_yaxis()
legend = axes[0, 0].get_legend_handles_labels()
figure.legend(*legend, title="open call in", loc="outside right center")
plt.show()

# %% [markdown]
# In three pictures the row of rank 133 waits in its dp group, and all other ranks wait in their tp groups. These
# pictures differ only in the square of rank 133. In `other order`, rank 133 waits in its log group for the other ranks
# of its row, and they wait in the dp group for rank 133. That is a circle.
#
# `skips` looks different. Rank 133 left out a call in step 2, and its later calls met the wrong partners. A call is
# missing only in the last step: column 16 waits for rank 133 in tp. Rank 133's whole row has finished its program.
#
# ## Which line followed which
#
# Waits show where the ranks are now. What did rank 133 do before? A buffer contains the calls of all groups in the
# order in which the rank made them. `pairs_of` collects pairs of lines that follow each other in a buffer, and the
# ranks on which each pair occurs.


# %%
def pairs_of(dumps):
    """[((line, next line), ranks)]: on which ranks this was so; the rarest pair comes first."""
    found = {}
    for rank, dump in dumps.items():
        for pair in pairwise(line_of(entry) for entry in dump["entries"]):
            found.setdefault(pair, set()).add(rank)
    return sorted(found.items(), key=lambda one: len(one[1]))


for fault, dumps in jobs.items():
    pair, ranks = pairs_of(dumps)[0]
    print(f"{fault:11} rarest pair {pair}: on {len(ranks)} of 256 ranks, first {min(ranks)}")

# %% [markdown]
# In three jobs, the rarest pair occurs on rank 133 alone. In `skips`, attention's line follows itself: the MLP's call
# between them was left out. `leaves` has no rare pair, because rank 133 only stopped. The rarest pair also helps if
# `culprits` names a whole circle. But it is no proof: rank 0 may do things that no other rank does, and be right. And a
# full buffer may have lost the pair.
#
# To find the number of the call, pass the calls of group 17, rank 133's tp group, to the first part's `other_line`.
#
# ## A slow rank looks like a hang
#
# In the fifth job, rank 133 writes a file after each step, before the sum of the gradients. The file grows, so writing
# takes 250 s more each time. In step 3 the others wait for 600 s, and a watchdog ends the job. `as_of` returns the
# dumps as they were then. `arrivals` returns the times at which each rank came to the calls of a group.
#
# **Now you write it:** `late_s(came, rank)` returns a dict `{number: seconds}`. For each call that the rank made,
# take the *median* of the times at which ranks came to this call. How many seconds after the median did `rank` come?
# `came[rank][number]` is a time in nanoseconds.


# %%
def late_s(came, rank):
    return None  # yours: {number: seconds}


def as_of(dumps, moment_ns):
    """What the recorders had at that moment."""
    then = {}
    for rank, dump in dumps.items():
        entries = [one for one in dump["entries"] if one["time_created_ns"] <= moment_ns]
        for i, one in enumerate(entries):
            if one["time_discovered_completed_ns"] > moment_ns:
                entries[i] = one | {"state": "started", "retired": False}
        then[rank] = dump | {"entries": entries}
    return then


def arrivals(dumps, group):
    """{rank: {number: when it came, in nanoseconds}}"""
    came = {}
    for rank, dump in dumps.items():
        own = [one for one in dump["entries"] if one["process_group"][0] == group]
        if own:
            came[rank] = {one["collective_seq_id"]: one["time_created_ns"] for one in own}
    return came


# %% [markdown]
# Rank 133's dp group is number 38.

# %%
whole = dumps_of("slow")
came = arrivals(whole, "38")
moment_ns = statistics.median_low(own[4] for own in came.values()) + 600 * 10**9
jobs["slow"] = as_of(whole, moment_ns)
print("culprits:", culprits(jobs["slow"]), "with an open call:", bool(open_call(jobs["slow"][133])))
known = late_s(arrivals(jobs["slow"], "38"), 133) or {}
is_right = {number: round(late) for number, late in known.items()} == {1: 0, 2: 250, 3: 500}
print("late_s:", "right" if is_right else f"not yet: {known}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def late_s(came, rank):
#         late = {}
#         for number, moment_ns in came[rank].items():
#             others = [own[number] for own in came.values() if number in own]
#             late[number] = (moment_ns - statistics.median(others)) / 1e9
#         return late
#
# </details>
#
# At the time-out, this job looks exactly like `leaves`: 255 ranks wait, and rank 133 has no open call. Only its
# **history** differs. Rank 133 came 0, 250 and 500 s late before, so you expect 750 s. The job needs a faster way to
# save, or a longer time-out. If the job still runs, look at the stack of rank 133 with `py-spy dump`. And take dumps
# twice, some minutes apart. If a rank has made a new call in between, it does not hang.
#
# ## The same in one call
#
# `simlib.diagnose` does all this for a folder. From the date of the dumps it knows for how long the ranks had waited.
# Our dumps have today's date. So the cell writes the fifth job's dumps again, and sets their date to the time of the
# time-out.

# %%
for rank, dump in jobs["slow"].items():
    file = FOLDER / "slow" / f"nccl_trace_rank_{rank}"
    file.write_bytes(pickle.dumps(dump))
    os.utime(file, ns=(moment_ns, moment_ns))
for fault in jobs:
    found = simlib.diagnose(FOLDER / fault)
    print(f"{fault:11} {found.kind:8} {found.ranks}: {found.message.splitlines()[0][:88]} ...")

# %% [markdown]
# `diagnose` names rank 133 in all five jobs. In `other order` it also names rank 5, the other side of the circle. In a
# terminal you write `python -m simlib diagnose FOLDER`. [Records of real jobs](../docs/real-jobs.md) says how to start
# a job so that it leaves dumps.
#
# ## A folder that you do not know
#
# Read a folder of dumps in this order:
#
# 1. **Are all ranks there?** A rank without a dump may be dead. Read its output first. Some dumps are JSON: read
#    them with `json.loads`.
# 2. **Which ranks have no open call?** These ranks have left, they are slow, or they have finished.
# 3. **Where do the waits end?** If they end in several places, there may be several faults. Name each of them. Does the
#    culprit's open call have another op or size than the calls of its group? Then `difference` gives its number.
# 4. **Which pairs of lines are rare?** They show what a rank did in another order, or left out. The cause may be much
#    older than the hang. Then call `other_line` for each group of this rank.
# 5. **Was the culprit late before?** Then it may be slow.
# 6. **Which side is right?** Only the program can tell. Read both lines.
#
# ## Your turn
#
# Now you can do tasks 1 and 2 of [exercises 19](../exercises/19_hangs_from_records.ipynb).
#
# ## Exit ticket
#
# 1. In a job of 256 ranks, 33 groups report an odd rank. Are there 33 faults?
# 2. Ranks 0 to 3 wait for rank 9 in one group. Rank 9 waits for ranks 0 to 3 in another group. What is the fault?
# 3. A rank has no open call. Name three possible reasons.
#
# <details><summary>Answers</summary>
#
# 1. Probably not. Most odd ranks are victims: they wait in another group. Count the ends of the waits.
# 2. The ranks call the collectives of two groups in different orders. Rank 9 is alone, so look at its program first.
# 3. It has left a loop earlier than the others. It is slow, for example because it saves a file. It has finished
#    because it left out a call much earlier. Its process may also be dead, but then there is often no dump at all.
#
# </details>
#
# **Next:** steps that end, but too late, in [19 c](19_slow_steps_from_traces.ipynb).
#
# ## Appendix: messages of `send` and `recv`
#
# In a pipeline, ranks also wait for messages. The two ranks of a message form a group of their own. Messages have no
# number on which both ranks agree. So keep only the open messages, and give each of them the number 1. To do this,
# replace the two lines about `is_p2p` in `channels`, and import `re`:
#
#     if entry["is_p2p"]:  # "send 0->1" or "recv 1<-0": places in the group
#         if entry["retired"]:
#             continue
#         ends = [ranks[int(place)] for place in re.findall(r"\d+", op)]
#         ranks = ends if op.startswith("send") else ends[::-1]
#         op, number = "message", 1
