# %% [markdown]
# # 04 Collectives as contracts
#
# With `send` and `recv` you say *how* data moves. A **collective** says *what* is to be true
# afterwards, and leaves the how to the library. All ranks of a group call it together, and each
# collective is a contract: before the call each rank holds this, after it each rank holds that. In
# this lesson (80 minutes) you will
#
# - see nine contracts, each drawn from your own run: the six of most tutorials (broadcast, scatter,
#   gather, reduce, all_gather, all_reduce), reduce_scatter, all_to_all and barrier,
# - find out what the contract does **not** promise, above all to ranks that are not the root,
# - look inside two collectives: which messages are they made of, and how long do they take?
# - use other operations than the sum, and smaller groups than the world,
# - break four programs, as people really do, and mend them,
# - choose a collective for a job.
#
# ## broadcast: one to all
#
# Every rank has two numbers. `dist.broadcast(x, src=1)` makes every `x` equal to that of rank 1,
# the **root**. It works in place, on a tensor that must have the same shape and dtype everywhere.
# The rank function returns what the rank held before and after, and `draw_states` draws both. The
# colour of a cell says which rank brought the number. (`before` needs the `.clone()`: the call
# writes into `x`, and without it both halves would show the result.)

# %%
import time

import torch
import torch.distributed as dist
from IPython.display import display

import simlib
from simlib.draw import draw_states

guess = None  # the first of rank 2's two numbers afterwards?


def broadcast(rank, world_size):
    x = torch.arange(2.0) + 10 * rank
    before = x.clone()
    dist.broadcast(x, src=1)
    return before, x


run = simlib.run(broadcast, world_size=4)
simlib.guess(guess, run.results[2][1][0])
draw_states(run)

# %% [markdown]
# All rows on the right have the colour of rank 1. The contract, with $x_r$ for the tensor of rank
# $r$ and a prime for "after":
#
# $$\text{broadcast:}\quad x_r' = x_\text{root} \quad\text{for every rank } r$$
#
# Note that **every** rank made the call, the receivers too. Nobody calls `recv`. A collective that
# one rank leaves out is a meeting to which one guest does not come: the others wait (lesson 03).
#
# ## scatter and gather: the root deals out, the root collects
#
# `scatter` deals out a list of the root, part `r` to rank `r`. `gather` is its inverse: every rank
# brings a tensor, and the root has the list. Only the root has a list to give; the others pass
# none. What will the ranks hold, if the root (rank 0) scatters `[0], [1], [2], [3]`?

# %%
guess = None  # how many of the 4 ranks hold a list after gather?


def scatter(rank, world_size):
    parts = [torch.tensor([float(r)]) for r in range(world_size)] if rank == 0 else None
    mine = torch.empty(1)
    dist.scatter(mine, parts, src=0)
    return parts, mine


def gather(rank, world_size):
    mine = torch.tensor([10.0 * rank])
    parts = [torch.empty(1) for _ in range(world_size)] if rank == 0 else None
    dist.gather(mine, parts, dst=0)
    return mine, parts


for function in (scatter, gather):
    run = simlib.run(function, world_size=4)
    display(draw_states(run))
simlib.guess(guess, sum(parts is not None for _, parts in run.results))

# %% [markdown]
# $$\text{scatter:}\quad x_r' = \text{parts}_\text{root}[r] \qquad\qquad
# \text{gather:}\quad \text{parts}_\text{root}'[r] = x_r$$
#
# Training data are scattered, results are gathered. In both, the root carries everything: its
# network link is the bottleneck, and its memory must hold all parts.
#
# ## all_gather: everybody collects
#
# As `gather`, but every rank has the list in the end. How many different rows will the picture have?

# %%
guess = None  # how many different rows?


def all_gather(rank, world_size):
    mine = torch.arange(2.0) + 10 * rank
    parts = [torch.empty(2) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return mine, parts


run = simlib.run(all_gather, world_size=4)
simlib.guess(guess, len({str(parts) for _, parts in run.results}))
draw_states(run)

# %% [markdown]
# $$\mathrm{all\_gather:}\quad \text{parts}_r'[s] = x_s \quad\text{for all ranks } r, s$$
#
# One: all rows are the same. Note the price: each rank now holds what the whole world held. With a
# tensor of 1 GB on 64 ranks that is 64 GB on every rank.
#
# ## reduce: and what do the others hold?
#
# The next three contracts (reduce, all_reduce, reduce_scatter) compute. `reduce` adds up the
# tensors of all ranks, element by element, and leaves the sum on the root. Here rank 0 brings ones,
# rank 1 tens, rank 2 hundreds and rank 3 thousands, so that every sum tells who is in it. The root,
# rank 0, will have 1111 everywhere. What will ranks 1, 2 and 3 hold: what they brought, or the sum
# as well?

# %%
guess = None  # what do the non-roots hold?


def reduce(rank, world_size):
    x = torch.full((6,), 10.0**rank)
    before = x.clone()
    dist.reduce(x, dst=0)
    return before, x


draw_states(simlib.run(reduce, world_size=4))

# %% [markdown]
# White cells hold numbers that nobody brought: they were computed. (A grey cell would hold a number
# that several ranks brought.) Row 0 is right. In the other rows you find **leftovers**. Some cells
# are as they were. Some hold a stage on the way: 1110 is the sum of ranks 1, 2 and 3, written over
# your data by Gloo's algorithm. Some even hold the true sum. The contract says nothing about any of
# them:
#
# $$\text{reduce:}\quad x_\text{root}' = \sum_s x_s, \qquad
# x_r' \text{ undefined for } r \ne \text{root}$$
#
# Which cells are right depends on Gloo's version, the world size and the length of the tensor. A
# program that reads them may pass its tests by luck.
#
# ## all_reduce: 1 + 2 - 3 = 0
#
# The most important of distributed training: everybody brings a tensor, everybody has the sum. The
# classic example has a world of three, with one number each: 1, 2 and -3. What does each rank print?

# %%
guess = None  # what does each rank print after the call?


def all_reduce(rank, world_size):
    x = torch.tensor([[1.0], [2.0], [-3.0]][rank])
    before = x.clone()
    dist.all_reduce(x)
    print("before", before.item(), "after", x.item())
    return before, x


run = simlib.run(all_reduce, world_size=3)
simlib.guess(guess, run.results[0][1])
draw_states(run)

# %% [markdown]
# $$\mathrm{all\_reduce:}\quad x_r' = \sum_s x_s \quad\text{for every rank } r$$
#
# The gradients of data-parallel training go through exactly this call: every rank brings the
# gradient of its part of the batch, every rank gets the sum, and all take the same step. "All" says
# who gets the result. It does not say that everyone sends everything to everyone; see below.
# Lesson 05 builds it in five ways.
#
# ## reduce_scatter: everybody has one part of the sum
#
# Each rank brings a list with one part for every rank. Part `r` is summed over all ranks and lands
# on rank `r`. Below rank `r` brings `[10r], [10r + 1], [10r + 2], [10r + 3]`. What lands on rank 1?

# %%
guess = None  # the number on rank 1?


def reduce_scatter(rank, world_size):
    parts = [torch.tensor([10.0 * rank + s]) for s in range(world_size)]
    mine = torch.empty(1)
    dist.reduce_scatter(mine, parts)
    return parts, mine


run = simlib.run(reduce_scatter, world_size=4)
simlib.guess(guess, run.results[1][1])
draw_states(run)

# %% [markdown]
# The second column on the left is 1, 11, 21, 31. Its sum is 64, and that is what rank 1 has:
#
# $$\mathrm{reduce\_scatter:}\quad x_r' = \sum_s \text{parts}_s[r]$$
#
# ## all_to_all: a transposed matrix
#
# Rank `r` has one part for every rank, and everybody delivers. Look at the
# left half of the next picture as a matrix, with one row per rank. What will the right half be?

# %%
guess = None  # the first number of rank 1's right half, 0 to 33?


def all_to_all(rank, world_size):
    parts = [torch.tensor([10.0 * rank + s]) for s in range(world_size)]
    received = [torch.empty(1) for _ in range(world_size)]
    dist.all_to_all(received, parts)
    return parts, received


run = simlib.run(all_to_all, world_size=4)
simlib.guess(guess, run.results[1][1][0])
draw_states(run)

# %% [markdown]
# $$\mathrm{all\_to\_all:}\quad \text{received}_r'[s] = \text{parts}_s[r]$$
#
# Rows became columns. On the left every row has one colour, on the right every column.
# Mixture-of-experts models use this to send each word to the rank that holds its expert.
#
# ## barrier: nothing but waiting
#
# The ninth contract moves no data at all. No rank leaves `dist.barrier()` before every rank has
# entered it. Here the ranks work for 0, 40, 80 and 120 ms before it. At which moment does each rank
# leave it?

# %%
guess = None  # when does rank 0 leave it, in ms? And the others?


def barrier(rank, world_size):
    time.sleep(0.04 * rank)
    dist.barrier()


run = simlib.run(barrier, world_size=4)
simlib.guess(guess, run.trace.spans[0][1] * 1e3, within=0.2)
run

# %% [markdown]
# The grey shape through the lanes is one collective. All wait for the slowest: rank 0 does nothing
# for 120 ms. A rank that is slower than all others is called a **straggler**. Many programs have a
# barrier before each forward pass, or before each collective, "to keep the ranks together". Is it
# needed?
#
# We ask the simulation, whose clock is exact. 64 ranks work for 40 ms each (`simlib.compute` is a
# sleep that stands for work), but rank 3 is four times slower: `slow={3: 4}`. After the work comes
# a barrier, or the all_reduce of a gradient, or both. When can rank 0 leave in each case? And how
# much of their time do the 63 fast ranks lose?

# %%
guess = None  # ms with both? And with each alone?


def work_then(rank, world_size, *calls):
    simlib.compute(seconds=0.04)
    for call in calls:
        if call == "barrier":
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1000))


for calls in (["barrier"], ["all_reduce"], ["barrier", "all_reduce"]):
    run = simlib.simulate(work_then, 64, args=calls, slow={3: 4})
    print(f"{' and '.join(calls):22} {run.trace.spans[0][1] * 1e3:.3f} ms")
simlib.guess(guess, run.trace.spans[0][1] * 1e3, within=0.02)
run.timeline(ranks=range(6))

# %% [markdown]
# All three end just after 160 ms, when rank 3 has done its work. A sum over all ranks cannot be
# known before the last rank has brought its part, so the all_reduce already keeps the ranks
# together. A barrier beside it only adds its own time: 6 rounds of messages with 30 us each, 0.18
# ms. It is needed where ranks meet outside of their messages, for example at a file. We come to
# that below.
#
# The picture shows six of the 64 lanes. Each fast rank works for 40 ms and waits for 120. So one
# slow rank makes 63 others lose three quarters of their time, 63 x 0.12 s = 7.6 s for every step.
# [Lesson 14](14_stragglers_and_failures.ipynb) is about that.
#
# A rank stands long in an all_reduce: is the network slow, or is somebody late? `run.states` adds
# up each lane: computed, *waited* (for others to come: hatched), *transferred* (all have come, data
# are on their way: pale). Below, each rank brings 20 MB, and rank 2 works 10 ms longer than the
# others. Which would you mend first, the network or rank 2?

# %%
guess = None  # "network" or "rank 2"?


def slow_step(rank, world_size):
    simlib.compute(seconds=0.01 + 0.01 * (rank == 2))
    dist.all_reduce(torch.ones(5_000_000))


run = simlib.simulate(slow_step, 4)
print(run.states)
of_rank_0 = {"network": run.states.transferring_s[0], "rank 2": run.states.waiting_s[0]}
simlib.guess(guess, max(of_rank_0, key=of_rank_0.get), of=list(of_rank_0))
run

# %% [markdown]
# The network: each fast rank waits 10 ms for rank 2 (ranks 0 and 1 only once they have exchanged
# what they had), and every rank transfers for 24 ms. Mending rank 2 saves 10 ms of the step at the
# most, a network of ten times the bandwidth more than 20. A stopwatch around the call would have
# told you one number: 34 ms in `all_reduce`.
#
# ## Contracts can be composed
#
# Two programs with the same contract can replace each other. Three claims: an all_reduce is a
# reduce, then a broadcast. It is also a reduce_scatter, then an all_gather. And an all_gather is an
# all_to_all in which everybody brings copies. The next cell prints, for each rank, the largest
# difference in each of the three.

# %%
guess = None  # how many of the three claims hold?


def residuals(rank, world_size):
    x = torch.arange(float(world_size)) + 10 * rank
    total = x.clone()
    dist.all_reduce(total)

    rooted = x.clone()
    dist.reduce(rooted, dst=0)
    dist.broadcast(rooted, src=0)
    part = torch.empty(1)
    dist.reduce_scatter(part, list(x.split(1)))
    parts = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(parts, part)

    copies = [torch.empty(1) for _ in range(world_size)]
    dist.all_to_all(copies, [part] * world_size)
    pairs = [(total, rooted), (total, torch.cat(parts)), (torch.cat(parts), torch.cat(copies))]
    return [(a - b).abs().max().item() for a, b in pairs]


found = simlib.run(residuals, world_size=4).results
print(found)
simlib.guess(guess, sum(not any(of_claim) for of_claim in zip(*found, strict=True)))

# %% [markdown]
# All zero. The second identity saves memory in large systems: they do the two halves at different
# times, and in between each rank keeps only its part of the sum ([lesson 12](12_tensors_and_state.ipynb)).
#
# ## What a collective is made of
#
# A contract says what is true afterwards. Which messages make it true is the choice of an
# *algorithm*. A simulation lets you choose it by name, and with `expand=True` it keeps the
# messages: `run.wire`. Take the all_reduce of four numbers on four ranks by the algorithm called
# `ring`. "All" sounds as if everyone sent everything to everyone: 12 messages of 16 bytes. Is it
# so?

# %%
guess = None  # how many bytes does rank 0 send? And to whom?


def add(rank, world_size):
    x = torch.arange(4.0) + 10 * rank
    dist.all_reduce(x)
    return x.tolist()


run = simlib.simulate(add, world_size=4, all_reduce="ring", expand=True)
print("every rank has", run.results[0])
for number in range(1 + run.wire[-1].round):
    messages = [message for message in run.wire if message.round == number]
    who = ", ".join(f"{m.src} -> {m.dst}" for m in messages)
    end_us = messages[0].end_s * 1e6
    print(f"round {number}: {who}; {messages[0].nbytes} bytes each, until {end_us:.1f} us")
sent = sum(m.nbytes for m in run.wire if m.src == 0)
print("sent by rank 0:", sent, "bytes")
simlib.guess(guess, sent)

# %% [markdown]
# Not so. Each rank sends to its right neighbour only, one number at a time. It is the second
# identity of above: the first three rounds are a reduce_scatter, after which each rank has one
# finished sum; the last three are an all_gather of these sums. Each rank sends 24 bytes, where
# "everything to everyone" would be 48. Lesson 05 builds this and four other algorithms.
#
# Next, the broadcast. In lesson 02 rank 0 sent to all others, one after the other. That algorithm
# is called `flat`. In a `binomial` tree everyone who has the numbers helps: in each round every
# rank that knows tells one that does not. How much longer do 64 ranks take than 2? Put your formula
# for the tree into `in_a_row`; the cell compares it.


# %%
def in_a_row(n):
    return None  # **now you write it**: messages one after the other in a tree of n ranks


def tell(rank, world_size):
    dist.broadcast(torch.ones(2), src=0)


link = simlib.clusters.ethernet_10g(nodes=1).inter
message_s = link.latency_s + 8 / link.bandwidth_Bps
sizes = (2, 4, 8, 16, 32, 64, 1000)
flat = [simlib.simulate(tell, n, broadcast="flat").time_s for n in sizes]
tree = [simlib.simulate(tell, n, broadcast="binomial").time_s for n in sizes]
for n, flat_s, tree_s in zip(sizes, flat, tree, strict=True):
    in_flat, in_tree = round(flat_s / message_s), round(tree_s / message_s)
    yours = "right" if in_a_row(n) == in_tree else "not yet"
    print(f"{n:>5} ranks: flat {flat_s * 1e6:8.1f} us = {in_flat:3} messages in a row,", end="")
    print(f" tree {tree_s * 1e6:5.1f} us = {in_tree:2}, yours", yours)

# %% [markdown]
# Both send n - 1 messages. But the tree sends many at the same time. Each round doubles the number
# of ranks that know: 1, 2, 4, 8. So $\lceil \log_2 n \rceil$ rounds reach everybody. Twice as many
# ranks cost one message more:
#
# $$T_\text{flat} = (n - 1) \left( \text{latency} + \frac{\text{nbytes}}{\text{bandwidth}} \right),
# \qquad T_\text{tree} = \lceil \log_2 n \rceil \left( \text{latency} +
# \frac{\text{nbytes}}{\text{bandwidth}} \right)$$
#
# One contract, two algorithms, and on 1,000 ranks one of them is 100 times faster. A library
# chooses for you, by the size of the tensor and of the group.
#
# ## Not only sums
#
# A reducing collective takes an operation, `op=dist.ReduceOp.SUM` unless you say otherwise. The
# four ranks below bring 1, 2, 3 and 4. Guess SUM, AVG, MAX and PRODUCT. One of them should fail:
# the help text of `dist.ReduceOp`, in this very torch, says that AVG works with the NCCL backend
# only (NCCL is Nvidia's library, between GPUs). Ours is Gloo.

# %%
guesses = {"SUM": None, "AVG": None, "MAX": None, "PRODUCT": None}  # of 1, 2, 3, 4?


def every_op(rank, world_size):
    found = {}
    for name in ("SUM", "AVG", "MAX", "PRODUCT"):
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        found[name] = x.item()
    return found


found = simlib.run(every_op, world_size=4).results[0]
print(found)
for name, number in found.items():
    simlib.guess(guesses[name], number)

# %% [markdown]
# AVG works: the help text is behind the code. Where it is missing, write SUM and divide by the
# world size. Do divide: a sum of R mean gradients is R times too large, as if the learning rate were
# ([lesson 06](06_synchronous_sgd.ipynb)).
#
# ## Groups
#
# A collective need not involve the world. `dist.new_group([0, 1])` makes a group of two ranks, and
# `group=` confines a collective to it. Two rules: **every** rank of the world must call
# `new_group`, in the same order, members or not; and only members call the collective. The first
# program below breaks the first rule: who finds out? In the second, each half of the world adds up
# its own numbers. What do the four ranks hold?

# %%
guess = None  # what does rank 2 hold in the second? And who notices the first?


def members_only(rank, world_size):
    if rank < 2:
        low = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=low)


def halves(rank, world_size):
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    x = torch.tensor([10.0 * rank + 1])
    before = x.clone()
    dist.all_reduce(x, group=low if rank < 2 else high)
    return before, x


simlib.run(members_only, world_size=4)
run = simlib.run(halves, world_size=4)
nbytes_of = {collective.group.ranks: collective.nbytes for collective in run.trace.collectives}
for ranks in sorted(nbytes_of):
    print("all_reduce on ranks", ranks, "-", nbytes_of[ranks], "bytes each")
simlib.guess(guess, run.results[2][1])
draw_states(run)

# %% [markdown]
# The first program ran to its end, and only the finding `unfinished` tells that something is wrong.
# The second made two all_reduces that know nothing of each other: 1 + 11 and 21 + 31.
#
# So why the rule, if breaking it does no harm? Make one group more, on all ranks as it should be.
# `simlib` compares what the ranks ask for; with `check=False` it does not, as plain Gloo.

# %% tags=["nbval-ignore-output"]
guess = None  # the second group is right: what becomes of it, with and without the comparison?


def one_group_more(rank, world_size):
    if rank < 2:
        dist.new_group([0, 1])
    everyone = dist.new_group([0, 1, 2, 3])
    dist.all_reduce(torch.ones(1), group=everyone)


for check in (True, False):
    try:
        simlib.run(one_group_more, 4, check=check, timeout_s=2)
    except simlib.SimlibError as error:
        print(f"check={check}: {type(error).__name__}: {error}\n")

# %% [markdown]
# `new_group` calls are matched **by their count**. The first call of ranks 2 and 3 met the first one
# of ranks 0 and 1, which asked for another group; then ranks 0 and 1 made a second call that nobody
# else makes. Without the comparison all four wait, each in a line that is right (which of its last two is
# chance): the mistake is a call earlier, on other ranks.
#
# ## Break it: one rank too many
#
# Here is the world of three as it is usually printed, with one branch per rank. Run it on **four**
# ranks. Which rank fails, and what becomes of the other three? It is meant to fail: go on with the next
# cell, as Run All does.

# %% tags=["raises-exception"]
guess = None  # which rank fails? And the others?


def one_branch_each(rank, world_size):
    if rank == 0:
        x = torch.tensor([1.0])
    elif rank == 1:
        x = torch.tensor([2.0])
    elif rank == 2:
        x = torch.tensor([-3.0])
    dist.all_reduce(x)
    return x.item()


simlib.run(one_branch_each, world_size=4)

# %% [markdown]
# No branch is for rank 3, so there is no `x` on rank 3: a mistake of ordinary Python. Ranks 0, 1
# and 2 had done everything right and were stranded. `simlib` ended them. Elsewhere they would wait, or
# fail with "connection closed by peer": three messages that mislead, beside the one with the cause.
#
# The mend: give **every** rank a contribution. A rank that has nothing to add brings the neutral
# element of the operation. **Now you write it**: which number, so that the sum stays 0? With another
# number in place of `nan` the last column says `right`.


# %%
def neutral_for_the_rest(rank, world_size):
    contributions = [1.0, 2.0, -3.0]
    x = torch.tensor([contributions[rank] if rank < 3 else float("nan")])  # your number for nan
    dist.all_reduce(x)
    return x.item()


for world_size in (3, 4, 5):
    found = simlib.run(neutral_for_the_rest, world_size).results
    print(world_size, found, "right" if found == [0.0] * world_size else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0.0. For a product it would be 1.
#
# </details>
#
# ## Break it: a list is not a tensor
#
# Collectives work on tensors, which are memory of a known size, because the result is written into
# that memory. Some listings on the web give a Python list to `all_reduce`. Who notices: the other
# ranks, the network, or nobody? **Now you write** the mended program, `largest`.


# %%
guess = None  # who notices?


def a_list(rank, world_size):
    losses = [0.5, 0.25]
    dist.all_reduce(losses)


def largest(rank, world_size):
    losses = torch.tensor([[0.5, 0.25], [0.125, 1.0]][rank])
    # your line: every rank shall have the larger one of both ranks, at each place
    return losses.tolist()


try:
    simlib.run(a_list, world_size=2)
except simlib.InvalidCallError as error:
    print(error)
found = simlib.run(largest, world_size=2).results
print("right" if found == [[0.5, 1.0]] * 2 else "not yet", found)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `dist.all_reduce(losses, op=dist.ReduceOp.MAX)`
#
# </details>
#
# PyTorch refuses the list before anything is sent. The mend: put the numbers into one tensor, and
# take them out again. One tensor with two numbers costs one latency, not two (lesson 02).
#
# ## Break it: only rank 0 prepares the data
#
# A file is downloaded once, by rank 0; the others must not read it half-written. So they wait at a
# barrier. (The download is a sleep; nothing is loaded.) This is a good use of a barrier, and the
# first run below shows that it works. In the second run the disk of rank 0 is full: rank 0 raises,
# and so never comes to the barrier. What becomes of the two others? It is meant to fail: go on with the
# next cell.

# %% tags=["raises-exception"]
guess = None  # what do ranks 1 and 2 do when the disk is full?


def prepare(rank, world_size, disk_is_full):
    if rank == 0:
        time.sleep(0.1)  # "download"
        if disk_is_full:
            raise OSError("no space left on device")
    dist.barrier()
    return "data ready"


display(simlib.run(prepare, world_size=3, args=(False,)))
simlib.run(prepare, world_size=3, args=(True,))

# %% [markdown]
# In the picture ranks 1 and 2 wait for 100 ms and go on together. In the second run they have done
# nothing wrong either, and are at a barrier that cannot open. `simlib` sees that rank 0 has raised
# and ends them. Elsewhere they may wait until a time limit. PyTorch's own for Gloo is 30 minutes
# (the documented default of `timeout` in `dist.init_process_group`), and every node is paid for
# meanwhile.
#
# The mend: tell the others **before** you give up. Rank 0 catches its error, and in the place of
# the barrier stands a broadcast of what went wrong (`None` if nothing did). Every rank takes part
# in it, whatever has happened. Then all go on, or all stop, and each can say why.


# %%
def prepare_and_tell(rank, world_size, disk_is_full):
    problem = [None]
    if rank == 0:
        try:
            if disk_is_full:
                raise OSError("no space left on device")
        except OSError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, src=0)  # any Python object, as bytes in a tensor
    return f"stopped, rank 0 says: {problem[0]}" if problem[0] else "data ready"


print(simlib.run(prepare_and_tell, world_size=3, args=(False,)).results)
print(simlib.run(prepare_and_tell, world_size=3, args=(True,)).results)

# %% [markdown]
# ## Break it quietly: reduce for gradients
#
# The last one raises nothing. The loss of rank $r$ is $(r + 1) w^2 / 2$ for each of three weights, its
# gradient $(r + 1) w$, and a step needs the mean gradient. `reduce` is cheaper than `all_reduce`, so
# somebody uses it. From w = 1 with learning rate 0.1 the right first step leads to 1 - 0.1 x 2.5 = 0.75,
# the second to 0.75 - 0.1 x 2.5 x 0.75 = 0.5625. What will each rank have? Is at least the root right?

# %%
guess = None  # w on the root after two steps with reduce? And on the others?


def train(rank, world_size, combine, steps):
    w = torch.ones(3)
    for _ in range(steps):
        gradient = (rank + 1) * w
        if combine == "reduce":
            dist.reduce(gradient, dst=0)
        else:
            dist.all_reduce(gradient)
        w = w - 0.1 * gradient / world_size
    return [round(number, 4) for number in w.tolist()]


after = {}
for combine in ("reduce", "all_reduce"):
    for steps in (1, 2):
        after[combine, steps] = simlib.run(train, 4, args=(combine, steps)).results
        print(f"{combine}, w after {steps} on ranks 0 to 3:", *after[combine, steps], sep="\n  ")
simlib.guess(guess, after["reduce", 2][0][0])

# %% [markdown]
# With `reduce` only the root took the right *first* step. The others used leftovers, and the copies of
# the model are no longer equal. In the second step each brings the gradient at a `w` of its own, so the
# root adds up the wrong ones: 0.5406 or 0.5462 where 0.5625 is right. A test of one step that looks at
# rank 0 finds nothing. There is no error and no warning. The rule: **if every rank needs the result, the
# name of the collective begins with `all_`** (or a broadcast follows).
#
# ## Which one?
#
# | before | wanted | collective |
# |---|---|---|
# | one rank has x | x everywhere | broadcast |
# | one rank has n parts | part r on rank r | scatter |
# | every rank has x | all x on one rank / on all | gather / all_gather |
# | every rank has x | the sum on one rank / on all | reduce / all_reduce |
# | every rank has n parts | the sum of part r on rank r | reduce_scatter |
# | every rank has n parts | part r of everyone on rank r | all_to_all |
# | nothing | everyone has arrived | barrier |
#
# What must it cost at least? Let each rank bring N bytes in all, and let n be the world size. In a
# gather the root must receive (n - 1) N bytes: no algorithm can avoid that. In an all_reduce each
# rank must send and receive $2 \frac{n-1}{n} N$ bytes if the work is shared evenly, less than 2 N
# however many ranks there are. The next cell puts in the gradient of ResNet-50 (25,557,032 float32
# numbers, torchvision's count) and 10 Gbit/s, without latency.

# %%
nbytes, bandwidth_Bps = 25_557_032 * 4, 1.25e9
for n in (2, 8, 64):
    gather_s = (n - 1) * nbytes / bandwidth_Bps
    all_reduce_s = 2 * (n - 1) / n * nbytes / bandwidth_Bps
    print(f"{n:>3} ranks: gather to one {gather_s:6.3f} s, all_reduce {all_reduce_s:6.3f} s")

# %% [markdown]
# To collect all gradients on one rank takes 5 seconds with 64 ranks. To have their sum on *every*
# rank takes 0.16, because a sum is not larger than what one rank brings. Lesson 05 finds the
# algorithm that is so quick.
#
# ## Your turn
#
# [Exercises 04](../exercises/04_collectives.ipynb): a mean with one collective, a broadcast of your
# own that is quick, and an all_gather around a ring.
#
# ## Exit ticket
#
# 1. After `dist.reduce(x, dst=2)`: what does rank 0 hold in `x`?
# 2. Four ranks, and only ranks 0 and 1 shall form a group. Who calls `new_group`?
# 3. Rank 0 reads a file that may be missing. Why is a barrier after it not enough?
#
# <details><summary>Answers</summary>
#
# 1. Nothing you may use: it is undefined.
# 2. All four, in the same order.
# 3. If rank 0 raises, it never arrives, and the others wait. Share the verdict by a collective.
#
# </details>
#
# **Next:** [lesson 05](05_building_all_reduce.ipynb), which builds `all_reduce` itself.
