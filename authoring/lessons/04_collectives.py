# %% [markdown]
# # 04 Collectives as contracts
#
# With `send` and `recv` you say *how* data moves. With a **collective** you say only *what* must
# be true afterwards, and the library decides how. All ranks of a group call it together. Each
# collective is a contract: it says what each rank has before the call, and what each rank has
# after it. In this lesson (80 minutes) you will
#
# - see nine contracts, each drawn from your own run: the six that most tutorials show (broadcast,
#   scatter, gather, reduce, all_gather, all_reduce), and also reduce_scatter, all_to_all and
#   barrier,
# - find out what the contract does **not** promise, above all to ranks that are not the root,
# - look inside two collectives: which messages are they made of, and how long do they take?
# - use other operations than the sum, and smaller groups than the world,
# - break four programs in ways that really happen, and fix them,
# - choose a collective for a job.
#
# ## broadcast: one to all
#
# Every rank has two numbers. `dist.broadcast(x, src=1)` makes every `x` equal to the `x` of rank
# 1, the **root**. It works in place, on a tensor that must have the same shape and dtype on every
# rank. The rank function returns the rank's tensor as it was before the call and as it is after
# it. `draw_states` draws both. The colour of a cell shows which rank its number came from.
# `before` needs the `.clone()`, because the call overwrites `x`. Without the `.clone()`, both
# halves of the picture would show the result.

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
# All rows on the right have the colour of rank 1. Here is the contract. $x_r$ is the tensor of rank
# $r$, and a prime means "after":
#
# $$\text{broadcast:}\quad x_r' = x_\text{root} \quad\text{for every rank } r$$
#
# **Every** rank made the call, including the receivers. No rank calls `recv`. If one rank skips a
# collective, the others wait for it (lesson 03).
#
# ## scatter and gather: the root deals out, the root collects
#
# With `scatter` the root deals out a list: rank `r` gets part `r`. `gather` is the inverse: every
# rank brings a tensor, and the root gets the list. Only the root passes a list; the others pass
# none. The root, rank 0, scatters `[0], [1], [2], [3]`. What will each rank have? And how many
# ranks will have a list after `gather`?

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
# After `gather` only the root has a list. Programs scatter training data, and gather results. In
# both, all data pass through the root. So its network link is the bottleneck, and its memory must
# hold all parts.
#
# ## all_gather: everybody collects
#
# `all_gather` is like `gather`, but every rank gets the list. How many different rows will the
# right half of the picture have?

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
# All rows on the right are the same. This has a price: each rank now stores the tensors of all
# ranks. If 64 ranks bring 1 GB each, every rank needs 64 GB.
#
# ## reduce: the root gets the sum
#
# The next three contracts (reduce, all_reduce, reduce_scatter) compute. `reduce` adds up the
# tensors of all ranks, element by element, and leaves the sum on the root. Here rank 0 brings ones,
# rank 1 tens, rank 2 hundreds and rank 3 thousands, so the digits of a sum show which ranks are in
# it. The root, rank 0, will have 1111 everywhere. What will ranks 1, 2 and 3 have: their own
# numbers, or the sum as well?

# %%
guess = None  # what do the non-roots hold?


def reduce(rank, world_size):
    x = torch.full((6,), 10.0**rank)
    before = x.clone()
    dist.reduce(x, dst=0)
    return before, x


draw_states(simlib.run(reduce, world_size=4))

# %% [markdown]
# A white cell holds a computed number, which no rank brought. (A grey cell would hold a number
# that several ranks brought.) Row 0 is right. The other rows contain **leftovers**. Some cells
# have not changed. Some contain an intermediate result: 1110 is the sum of ranks 1, 2 and 3, and
# Gloo's algorithm wrote it over your data. Some even contain the true sum. The contract says
# nothing about any of these cells:
#
# $$\text{reduce:}\quad x_\text{root}' = \sum_s x_s, \qquad
# x_r' \text{ undefined for } r \ne \text{root}$$
#
# Which cells are right depends on Gloo's version, the world size and the length of the tensor. A
# program that reads them may pass its tests by luck.
#
# ## all_reduce: 1 + 2 - 3 = 0
#
# `all_reduce` is the most important collective of distributed training: every rank brings a
# tensor, and every rank gets the sum. In the classic example three ranks bring one number each:
# 1, 2 and -3. What does each rank print?

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
# Data-parallel training uses exactly this call for gradients. Every rank brings the gradient of
# its part of the batch. Every rank gets the sum, so all ranks take the same step. "All" means
# that all ranks get the result. It does not mean that every rank sends everything to every other
# rank; see below. Lesson 05 builds an `all_reduce` in five ways.
#
# ## reduce_scatter: everybody has one part of the sum
#
# Each rank brings a list with one part for every rank. The library adds up part `r` of all lists,
# and rank `r` gets this sum. Below, rank `r` brings `[10r], [10r + 1], [10r + 2], [10r + 3]`.
# What does rank 1 get?

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
# The second column on the left is 1, 11, 21, 31. Its sum is 64, and rank 1 gets it:
#
# $$\mathrm{reduce\_scatter:}\quad x_r' = \sum_s \text{parts}_s[r]$$
#
# ## all_to_all: a transposed matrix
#
# Each rank has one part for every rank, and sends part `s` to rank `s`. Below, the ranks bring
# the same lists as in the last program. Think of them as a matrix: row `r` is the list of rank
# `r`. What will the matrix be afterwards?

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
# Rows became columns. On the left every row has one colour; on the right every column has one.
# Mixture-of-experts models use `all_to_all` to send each word to the rank that has its expert, a
# part of the model.
#
# ## barrier: nothing but waiting
#
# The ninth contract moves no data at all. No rank leaves `dist.barrier()` before every rank has
# entered it. Here the ranks work for 0, 40, 80 and 120 ms, and then enter the barrier. When does
# each rank leave it?

# %%
guess = None  # when does rank 0 leave it, in ms? And the others?


def barrier(rank, world_size):
    time.sleep(0.04 * rank)
    dist.barrier()


run = simlib.run(barrier, world_size=4)
simlib.guess(guess, run.trace.spans[0][1] * 1e3, within=0.2)
run

# %% [markdown]
# The grey shape through the lanes is one collective. All ranks wait for the slowest: rank 0 does
# nothing for 120 ms. A rank that is slower than all others is called a **straggler**. Many
# programs have a barrier before each forward pass, or before each collective, "to keep the ranks
# together". Do they need it?
#
# We ask the simulation, because its clock is exact. 64 ranks work for 40 ms each
# (`simlib.compute` imitates work), but rank 3 takes four times as long: `slow={3: 4}`. Then they
# call a barrier, or the all_reduce of a gradient, or both. When can rank 0 go on in each case?
# How much of their time do the 63 fast ranks lose?

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
# All three runs end just after 160 ms, when rank 3 has done its work. Nobody can know the sum
# before the last rank has brought its part, so the all_reduce already keeps the ranks together.
# An extra barrier only adds its own time: 6 rounds of messages take 30 us each, which is 0.18 ms
# in all. You need a barrier when ranks share something other than messages, for example a file;
# see below.
#
# The picture shows six of the 64 lanes. Each fast rank works for 40 ms and waits for 120 ms. So
# in every step one slow rank costs the 63 others three quarters of their time. Together they lose
# 63 x 0.12 s = 7.6 s. [Lesson 14](14_stragglers_and_failures.ipynb) is about that.
#
# Suppose a rank spends a long time in an all_reduce. Is the network slow, or is another rank
# late? `run.states` adds up three durations for each rank: how long it computed, how long it
# *waited* for other ranks to arrive, and how long it *transferred* data after they had arrived.
# (In the picture, waiting is hatched and transferring is pale.) Below, each rank brings 20 MB,
# and rank 2 works 10 ms longer than the others. Which would you fix first, the network or rank 2?

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
# Fix the network. Every rank transfers for 24 ms, and each fast rank waits only 10 ms for rank 2.
# (In the picture, ranks 0 and 1 first exchange their own data, and wait afterwards.) A faster
# rank 2 saves at most 10 ms of the step. Ten times the bandwidth saves more than 20 ms. If you
# measure only the time of the call, you see one number: 34 ms in `all_reduce`.
#
# ## Contracts can be composed
#
# Two programs with the same contract can replace each other. Here are three claims. An all_reduce
# is a reduce, then a broadcast. It is also a reduce_scatter, then an all_gather. And an
# all_gather is an all_to_all in which every rank brings copies of its tensor. For each rank and
# each claim, the next cell prints the largest difference between the two results.

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
# All differences are zero, so these claims are **identities**. Large systems use the second
# identity to save memory. They call `reduce_scatter` and `all_gather` at different times, and in
# between each rank keeps only its part of the sum ([lesson 12](12_tensors_and_state.ipynb)).
#
# ## What a collective is made of
#
# A contract says what is true afterwards. An *algorithm* decides which messages make it true. In
# a simulation you choose the algorithm by name, and `expand=True` keeps its messages in
# `run.wire`. Below, four ranks all_reduce four numbers by the algorithm `ring`. The name "all"
# suggests that every rank sends everything to every other rank: 12 messages of 16 bytes. Is that
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
# No. Each rank sends only to its right neighbour, one number at a time. The ring uses the second
# identity from above. The first three rounds are a reduce_scatter: after them each rank has one
# finished sum. The last three are an all_gather of these sums. Each rank sends 24 bytes;
# "everything to everyone" would be 48. Lesson 05 builds this and four other algorithms.
#
# The second collective is the broadcast. In lesson 02 rank 0 sent to all other ranks, one after
# the other. That algorithm is called `flat`. In a `binomial` tree every rank that has the numbers
# helps: in each round it sends them to one rank that does not have them yet. How many times as
# long as 2 ranks do 64 ranks take? Write your formula for the tree in `in_a_row` (you may need
# `import math`). The cell checks it.


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
# Both send n - 1 messages. But the tree sends many at the same time. Each round doubles the
# number of ranks that have the numbers: 1, 2, 4, 8. So $\lceil \log_2 n \rceil$ rounds reach all
# ranks. In Python this is `math.ceil(math.log2(n))`. Twice as many ranks need only one more
# round. The two times are
#
# $$T_\text{flat} = (n - 1) \left( \text{latency} + \frac{\text{nbytes}}{\text{bandwidth}} \right),
# \qquad T_\text{tree} = \lceil \log_2 n \rceil \left( \text{latency} +
# \frac{\text{nbytes}}{\text{bandwidth}} \right)$$
#
# Both algorithms keep the same contract, but on 1,000 ranks the tree is 100 times faster. A
# library chooses the algorithm for you, by the size of the tensor and the size of the group.
#
# ## Not only sums
#
# A reducing collective takes an operation; the default is `op=dist.ReduceOp.SUM`. The four ranks
# below bring 1, 2, 3 and 4. Guess the results of SUM, AVG, MAX and PRODUCT. One of them should
# fail: in this torch, the help text of `dist.ReduceOp` says that AVG works only with the backend
# NCCL, Nvidia's library for GPUs. Our backend is Gloo.

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
# AVG works: the help text is out of date. Where AVG is missing, use SUM and divide by the world
# size. If R ranks forget to divide, the sum of their R mean gradients is R times too large. That
# has the same effect as a learning rate that is R times too large ([lesson
# 06](06_synchronous_sgd.ipynb)).
#
# ## Groups
#
# A collective need not involve all ranks. `dist.new_group([0, 1])` makes a group of two ranks,
# and `group=` limits a collective to this group. There are two rules. **Every** rank of the world
# must call `new_group`, in the same order, even a rank that is not a member. And only members
# call the collective. The first program below breaks the first rule. Does anybody notice? In the
# second program, each half of the world adds up its own numbers. What do the four ranks get?

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
# The first program ran to its end. Only the finding `unfinished` shows that something is wrong.
# The second program made two independent all_reduces: 1 + 11 and 21 + 31.
#
# Why is there a rule, if you can break it without harm? The next program breaks it again. Then it
# makes a second group, correctly on all ranks. `simlib` compares the ranks' calls. With
# `check=False` it does not compare them, and neither does plain Gloo.

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
# `new_group` calls are matched **by their count**. The first call of ranks 2 and 3 met the first
# call of ranks 0 and 1, which asked for another group. Then ranks 0 and 1 made a second call, and
# nobody else did. Without the comparison all four ranks wait, each in a correct line. (Chance
# decides which of the program's last two lines that is.) The mistake is one call earlier: ranks 2
# and 3 did not make the first call.
#
# ## Break it: one rank too many
#
# Tutorials usually print the program for three ranks with one branch for each rank. Run it on
# **four** ranks. Which rank fails, and what happens to the other three? The cell is meant to
# fail: go on with the next one, as Run All does.

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
# Rank 3 has no branch, so it has no `x`. This is an ordinary Python mistake. Ranks 0, 1 and 2 did
# everything right, but could not finish, so `simlib` ended them. Without `simlib` they would
# wait, or fail with "connection closed by peer". Then you see four error messages. Three of them
# mislead you, and one names the cause.
#
# The fix: give **every** rank a contribution. A rank with nothing to add brings the **neutral
# element** of the operation, the number that does not change the result. **Now you write it**:
# replace `nan` by a number that keeps the sum at 0. Then every line ends with `right`.


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
# Collectives write their result into memory of a known size, so they need tensors. Some listings
# on the web pass a Python list to `all_reduce`. Who notices the mistake: PyTorch, the other
# ranks, the network, or nobody? **Now you write** the fixed program, `largest`. At each place,
# both ranks should get the larger one of their two numbers.


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
# PyTorch rejects the list before it sends anything. The fix: put the numbers into one tensor, and
# take them out again after the call. One tensor with two numbers costs one latency, and two
# tensors cost two (lesson 02).
#
# ## Break it: only rank 0 prepares the data
#
# Rank 0 downloads a file once (here it only sleeps). The others must not read a half-written
# file, so they wait at a barrier. This is a good use of a barrier, and the first run below shows
# that it works. In the second run the disk of rank 0 is full: rank 0 raises and never reaches the
# barrier. What happens to the two other ranks? The cell is meant to fail: go on with the next
# one.

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
# In the picture of the first run, ranks 1 and 2 wait for 100 ms and then continue. In the second
# run they do nothing wrong either, but they can never leave their barrier. `simlib` sees that
# rank 0 raised an error, and ends them. Without `simlib` they may wait until a time limit ends,
# while you pay for every node. PyTorch documents a limit of 30 minutes for Gloo (the default of
# `timeout` in `dist.init_process_group`).
#
# The fix: rank 0 tells the others **before** it gives up. It catches its error. Then a broadcast
# takes the place of the barrier: it sends the error's message, or `None`. Every rank takes part
# in the broadcast, with or without an error. Then all ranks continue, or all stop, and each rank
# knows why.


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
# The last program raises no error. For each of its three weights $w$, the loss of rank $r$ is
# $(r + 1) w^2 / 2$, so its gradient is $(r + 1) w$. A step needs the mean gradient of the four
# ranks, which is 2.5 w. `reduce` is cheaper than `all_reduce`, so somebody uses it. We start at
# $w = 1$ with learning rate 0.1. The right first step leads to 1 - 0.1 x 2.5 = 0.75. The right
# second step leads to 0.75 - 0.1 x 2.5 x 0.75 = 0.5625. Which weights will each rank get with
# `reduce`? Will at least the root be right?

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
# With `reduce` only the root took the right *first* step. The others used leftovers, and the
# copies of the model are no longer equal. In the second step each rank brings the gradient at its
# own `w`, so the root adds up wrong gradients. It gets 0.5406 or 0.5462, but 0.5625 is right. If
# a test makes one step and checks only rank 0, it finds no mistake. There is no error and no
# warning. The rule: **if every rank needs the result, use a collective whose name begins with
# `all_`**, or add a broadcast.
#
# ## Which collective for which job?
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
# What is the least possible cost? Let each of n ranks bring N bytes. In a gather the root must
# receive (n - 1) N bytes: no algorithm can avoid that. In an all_reduce with evenly shared work
# each rank must send and receive $2 \frac{n-1}{n} N$ bytes. That is less than 2 N for any number of
# ranks. The next cell computes both for the gradient of ResNet-50 (25,557,032 float32 numbers,
# torchvision's count) at 10 Gbit/s, without latency.

# %%
nbytes, bandwidth_Bps = 25_557_032 * 4, 1.25e9
for n in (2, 8, 64):
    gather_s = (n - 1) * nbytes / bandwidth_Bps
    all_reduce_s = 2 * (n - 1) / n * nbytes / bandwidth_Bps
    print(f"{n:>3} ranks: gather to one {gather_s:6.3f} s, all_reduce {all_reduce_s:6.3f} s")

# %% [markdown]
# With 64 ranks it takes 5 seconds to collect all gradients on one rank. It takes only 0.16
# seconds to give *every* rank their sum, because a sum is no larger than one rank's gradient.
# Lesson 05 finds an algorithm that is as quick as this.
#
# ## Your turn
#
# [Exercises 04](../exercises/04_collectives.ipynb): a mean with one collective, your own quick
# broadcast, and an all_gather around a ring.
#
# ## Exit ticket
#
# 1. What does rank 0 have in `x` after `dist.reduce(x, dst=2)`?
# 2. Of four ranks, only ranks 0 and 1 should form a group. Which ranks call `new_group`?
# 3. Rank 0 reads a file that may be missing. Why is a barrier after this not enough?
#
# <details><summary>Answers</summary>
#
# 1. Nothing that you may use: it is undefined.
# 2. All four, in the same order.
# 3. If rank 0 raises an error, it never reaches the barrier, and the others wait. Broadcast the
#    outcome instead.
#
# </details>
#
# **Next:** [lesson 05](05_building_all_reduce.ipynb), which builds `all_reduce` itself.
