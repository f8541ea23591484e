# %% [markdown]
# # 03 When it hangs
#
# A wrong distributed program seldom fails with an error. It stands still, and says nothing for half
# an hour. Or it goes on, with numbers that are wrong on some ranks, and says nothing at all. In
# this lesson (50 minutes) you will meet six sorts of such programs, as people really write them:
#
# 1. both ranks receive first,
# 2. both ranks send first (and why this may pass elsewhere),
# 3. a rank is missing from a collective,
# 4. the order of two collectives is swapped,
# 5. shape, dtype or operation differ,
# 6. a race: a buffer is used before `wait`, or the order of arrival decides.
#
# Each one is run, read, explained and mended. At the end stands what no tool will tell you.

# %%
import time

import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## 1. Both receive first
#
# Two ranks swap a number. Each receives the other's, then sends its own. Every line of it is legal,
# and each rank does the same. What does rank 0 hold in the end?

# %% tags=["raises-exception"]
guess = None  # the number on rank 0?


def receive_first(rank, world_size):
    mine, other = torch.tensor([10.0 * rank]), torch.zeros(1)
    partner = 1 - rank
    dist.recv(other, src=partner)
    dist.send(mine, dst=partner)
    return other.item()


simlib.run(receive_first, world_size=2)

# %% [markdown]
# Nothing, for ever. Rank 0 waits for a message that rank 1 would send in its next line, if only it
# got there. Rank 1 waits for rank 0 in the same way. This is a **deadlock**.
#
# Look at the picture first. A circle is a rank, and an arrow from rank 0 to rank 1 says that rank 0
# *waits for* rank 1. Beside each circle stand the call it waits in and the line. If the arrows form
# a **ring**, nobody in it can be the first to go on. Below the picture is the same as text: one
# sentence, one line per rank, and a hint.
#
# This verdict came in a fraction of a second, and it is not guessed from silence. A rank that
# computes may still send something, so `simlib` lets it compute for as long as it likes. A rank
# that waits is **stuck** if what it needs can only come from ranks that are stuck as well, or have
# finished. Then waiting longer cannot help. So a slow rank is never taken for a deadlock.
#
# Other tools have only a time limit. The next cell works like them: `check=False` switches the
# diagnosis off, and `timeout_s=1` ends a run after one second of silence. Will it tell you why the
# ranks waited?

# %% tags=["raises-exception"]
simlib.run(receive_first, world_size=2, check=False, timeout_s=1)

# %% [markdown]
# It tells where the ranks stood. It does not tell that they waited in vain: a limit cannot know
# whether the message would have come a moment later. So a limit has to be long, and PyTorch's own
# for Gloo is 30 minutes. A job on 512 GPUs that hangs until then costs 512 x 0.5 h = 256 GPU hours.
# Then the log says "timeout" or "connection closed by peer", often on a rank that had done nothing
# wrong.
#
# The mend: the two ranks must not do the same. One of them sends first.


# %%
def swap(rank, world_size):
    mine, other = torch.tensor([10.0 * rank]), torch.zeros(1)
    partner = 1 - rank
    if rank == 0:
        dist.send(mine, dst=partner)
        dist.recv(other, src=partner)
    else:
        dist.recv(other, src=partner)
        dist.send(mine, dst=partner)
    return other.item()


print(simlib.run(swap, world_size=2).results)

# %% [markdown]
# ## 2. Both send first
#
# So the cure is to send first? Below, four ranks stand in a ring. Each sends 1,000 numbers to the
# right, then receives from the left. Nobody waits for a message before sending one.

# %% tags=["raises-exception"]
guess = None  # does it pass? If not, who waits for whom?


def send_first(rank, world_size, length=1000):
    mine, other = torch.full((length,), float(rank)), torch.zeros(length)
    dist.send(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    return other[0].item()


simlib.run(send_first, world_size=4)

# %% [markdown]
# A ring of four arrows. Gloo's `send` returns when the receiver has taken the message (lesson 02),
# and no receiver is there: all are still sending. This is the **rendezvous** rule: the two sides
# have to meet.
#
# Written for another library, MPI for one, the same program may run to its end. Many libraries send
# small messages **eagerly**: the message is copied away, and `send` returns at once. Only above a
# limit do they use rendezvous. The limit differs by library, network and setting, commonly between
# some kB and some tens of kB.
#
# `simlib.simulate` runs the same function on a modelled cluster (lesson 00), and lets you choose
# the rule. `sends="eager"` copies every message; `eager_limit_bytes=1024` only those of at most
# 1,024 bytes. Below, four rules meet messages of 10, 1,000 and 100,000 numbers, 4 bytes each.
# (`check=False` spares you a picture for each hang. No time limit is needed: when no simulated rank
# can go on, that is certain at once.)

# %%
guess = None  # which of twelve pass?

rules = {
    "always rendezvous": {"sends": "rendezvous"},
    "eager up to 1,024 bytes": {"eager_limit_bytes": 1024},
    "eager up to 65,536 bytes": {"eager_limit_bytes": 65536},
    "always eager": {"sends": "eager"},
}
for name, rule in rules.items():
    verdicts = []
    for length in (10, 1000, 100_000):
        try:
            simlib.simulate(send_first, 4, args=(length,), check=False, **rule)
            verdicts.append("passes")
        except simlib.SimlibError:
            verdicts.append("hangs ")
    print(f"{name:26}", *verdicts)

# %% [markdown]
# One program, four rules, four answers. Read the second row: with 10 numbers in the tests the
# program passes, and with 1,000 in production it hangs. This is the oldest trap of MPI, and its
# standard calls such a program **unsafe**: it is right only where somebody else happens to keep a
# copy. No library can always be eager: the copies need memory at the receiver. The first row is the
# strictest rule, and the default of `simulate`, so that the trap shows.
#
# The mend works for every size of message. `isend` has the message under way while the rank
# receives, and `wait` comes after that. (Letting the even ranks send first and the odd ones receive
# first works too.)


# %%
def shift(rank, world_size):
    mine, other = torch.full((1000,), float(rank)), torch.zeros(1000)
    request = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    request.wait()
    return other[0].item()


print(simlib.run(shift, world_size=4).results)

# %% [markdown]
# ## 3. A missing rank
#
# A very common one. Only rank 0 writes the log, so somebody put the line that adds up the losses
# inside the `if` too. Predict: which rank is in trouble, the one that makes the call or the one
# that does not?

# %% tags=["raises-exception"]
guess = None  # which rank?


def log_on_rank_0(rank, world_size):
    loss = torch.tensor([0.5 + rank])
    if rank == 0:
        dist.all_reduce(loss)
        print("mean loss", loss.item() / world_size)


simlib.run(log_on_rank_0, world_size=2)

# %% [markdown]
# The one that made the call. Here the arrow does not close a ring. It leads to a rank in grey,
# which has finished and will never come. All hangs are of these two sorts: **a ring, or an arrow to
# somebody who has left.**
#
# The verdict shows the line where rank 0 waits. It cannot show the line where rank 1 should have
# made the call, because rank 1 never came to one. So ask: why did rank 1 not come to this
# collective? Look for an `if` around the call, a loop that is shorter on some rank (uneven data!),
# a `return`, `break` or `continue` before it, or an exception that somebody swallowed.
#
# The mend: everybody computes, one rank prints.


# %%
def log_by_all(rank, world_size):
    loss = torch.tensor([0.5 + rank])
    dist.all_reduce(loss)
    if rank == 0:
        print("mean loss", loss.item() / world_size)


run = simlib.run(log_by_all, world_size=4)

# %% [markdown]
# ## 4. A swapped order
#
# Collectives carry no names. How does a library know which calls belong together? By counting: the
# first collective of each rank of a group meets the first of all the others, the second the second,
# and so on. Below, rank 1 makes the same two calls in the other order. What happens?

# %% tags=["raises-exception"]
guess = None  # a hang, an error, or wrong numbers?


def swapped(rank, world_size):
    loss, weight = torch.tensor([float(rank)]), torch.tensor([5.0])
    if rank == 0:
        dist.all_reduce(loss)
        dist.broadcast(weight, src=0)
    else:
        dist.broadcast(weight, src=0)
        dist.all_reduce(loss)


simlib.run(swapped, world_size=2)

# %% [markdown]
# A **mismatch**: calls that meet and disagree, here on which collective it is. The verdict begins
# with who differs from whom. Plain Gloo hangs in this program. With other pairs of
# collectives it exchanges bytes that do not belong together.
#
# Now the same mistake in a dangerous form. Both calls are `all_reduce`, and both tensors have two
# numbers. Rank 2 takes them in another order, because its dictionary was filled in another order.
# Each rank brings a weight gradient of 1 and a bias gradient of 100. Right would be 3 and 300
# everywhere.

# %%
guess = None  # what does simlib say? And what does rank 2 hold?


def average(rank, world_size, names_by_rank):
    gradients = {"weight": torch.tensor([1.0, 1.0]), "bias": torch.tensor([100.0, 100.0])}
    for name in names_by_rank[rank]:
        dist.all_reduce(gradients[name])
    return {name: gradients[name][0].item() for name in ("weight", "bias")}


orders = [["weight", "bias"], ["weight", "bias"], ["bias", "weight"]]
run = simlib.run(average, world_size=3, args=(orders,))
for rank, result in enumerate(run.results):
    print("rank", rank, result, "findings:", len(run.findings))

# %% [markdown]
# Nothing was said, and every number is wrong. Rank 2's bias has met the others' weights: 1 + 1 +
# 100 = 102. And nobody *can* say anything. The two calls that met are the same call, with the same
# size, dtype and operation; that you meant different things by them is in your head only. **No
# checker finds this one.** Had weight and bias different sizes, it would have been a mismatch.
#
# The mend: an order that depends on nothing but the names, the same on every rank. And where it
# matters, the ranks compare the names once, before they trust the numbers.


# %%
def average_in_order(rank, world_size, names_by_rank):
    gradients = {"weight": torch.tensor([1.0, 1.0]), "bias": torch.tensor([100.0, 100.0])}
    names = sorted(names_by_rank[rank])
    everyones = [None] * world_size
    dist.all_gather_object(everyones, names)
    assert everyones == [names] * world_size, everyones
    for name in names:
        dist.all_reduce(gradients[name])
    return {name: gradients[name][0].item() for name in ("weight", "bias")}


print(simlib.run(average_in_order, world_size=3, args=(orders,)).results)

# %% [markdown]
# ## 5. Shape, dtype, operation
#
# Three ways to disagree within one call. Rank 0 brings four ones as float32, and SUM. Rank 1 brings
# twos: six of them the first time, then four as int32, then four as float32 with MAX. What does
# `simlib` say? And which of the three would do the most harm, if nobody said anything?

# %%
guess = None  # shape, dtype or op: which is the worst?


def disagree(rank, world_size, on):
    x, op = torch.full((4,), rank + 1.0), dist.ReduceOp.SUM
    if rank == 1 and on == "shape":
        x = torch.full((6,), 2.0)
    if rank == 1 and on == "dtype":
        x = x.int()
    if rank == 1 and on == "op":
        op = dist.ReduceOp.MAX
    dist.all_reduce(x, op=op)
    return x.tolist()


for on in ("shape", "dtype", "op"):
    try:
        simlib.run(disagree, world_size=2, args=(on,))
    except simlib.MismatchError as error:
        print(error, end="\n\n")

# %% [markdown]
# Each verdict says who differs from whom, and then lists what every rank brought. The calls were
# held back before a byte had moved. Now without that: the same three programs, and only Gloo to say
# something.

# %% tags=["nbval-ignore-output"]
guess = None  # three outcomes

for on in ("shape", "dtype", "op"):
    try:
        run = simlib.run(disagree, world_size=2, args=(on,), check=False, timeout_s=1)
        print(f"{on}: no error", *run.results, sep="\n   ")
    except simlib.SimlibError as error:
        print(f"{on}: {type(error).__name__}:", str(error).splitlines()[0])

# %% [markdown]
# A crash is the kindest of these outcomes. With the wrong dtype, bytes were read as what they are
# not: 1065353216 is the bit pattern of the float 1.0, read as an integer, and the twos are lost.
# With two operations each rank worked on one half in its own way, and the result is half a sum and
# half a maximum. It looks plausible, and both ranks even agree on it.
#
# (Your run may differ in the first line: what Gloo does with shapes that differ is chance.) What
# plain Gloo does with wrong programs, measured with torch 2.13 on CPUs:
#
# | program | plain Gloo |
# |---|---|
# | both receive first, a wrong tag, another root | hangs, up to its limit of 30 minutes |
# | both send first, even 4 bytes | hangs |
# | a rank is missing | hangs, or "connection reset" when that rank ends |
# | shapes differ | a rank aborts, or hangs, or **wrong sums without a word** |
# | dtypes or operations differ, two all_reduces swapped | **wrong numbers without a word** |
# | the holder of a receive is too large | **its rest stays as it was, without a word** |
#
# `TORCH_DISTRIBUTED_DEBUG=DETAIL`, PyTorch's own check, finds shapes and dtypes of collectives. It
# looks at no send and no receive, and names no line.
#
# The mend of a dtype or an operation is to write it down once, for all ranks. For shapes the ranks
# have to agree first. Below they find the largest length with one small all_reduce, and fill up
# with zeros, the neutral element of a sum.


# %%
def add_uneven(rank, world_size, lengths):
    x = torch.full((lengths[rank],), rank + 1.0)
    longest = torch.tensor([len(x)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = torch.zeros(longest.item())
    padded[: len(x)] = x
    dist.all_reduce(padded)
    return padded.tolist()


print(simlib.run(add_uneven, world_size=2, args=([4, 6],)).results)

# %% [markdown]
# ## 6. The buffer of a request
#
# The last sort neither hangs nor disagrees. Rank 0 has a message of ones under way with `isend`,
# and meanwhile it prepares the next one in the same tensor. (The barrier is there so that rank 1
# certainly receives after that line.) What arrives at rank 1: ones, or 101s? We ask real ranks, and
# simulated ones.

# %%
guess = None  # ones, or 101s?


def too_early(rank, world_size, own_copy=False):
    x = torch.ones(3)
    if rank == 0:
        request = dist.isend(x.clone() if own_copy else x, dst=1)
        x += 100
        dist.barrier()
        request.wait()
    else:
        dist.barrier()
        dist.recv(x, src=0)
        return x.tolist()


for engine in (simlib.run, simlib.simulate):
    run = engine(too_early, world_size=2)
    print(engine.__name__, "delivers", run.results[1])

# %% [markdown]
# Both are possible, and neither library is at fault. Gloo's `isend` takes no copy: it remembers
# where your tensor is and reads it when the receiver comes. The simulated `isend` reads it at the
# call, as a library that sends eagerly would. Two activities touch the same memory, and their order
# is not fixed: that is a **race**.
#
# A race does not stop the run. It is a *finding*: the line above each result, and an entry in
# `run.findings`. Another finding is `unfinished`: a message that nobody received, or a request that
# nobody waited for. In a test you want findings to be errors. That is what `strict=True` does.

# %% tags=["raises-exception"]
simlib.run(too_early, world_size=2, strict=True)

# %% [markdown]
# Two mends. Either write after `wait`, when the buffer is yours again. Or give the request a copy
# of its own, which costs memory but no time of waiting:

# %%
run = simlib.run(too_early, world_size=2, kwargs={"own_copy": True}, strict=True)
print("rank 1 has", run.results[1])

# %% [markdown]
# ## What nobody tells you
#
# How was the race found? Every torch tensor counts the writes to it, and `simlib` compares the
# count at the call with that at `wait`. So it sees what is counted, and only that. Below, rank 1
# has a receive under way and touches its buffer too early, in six ways. All are wrong: whether the
# line meets the old or the new numbers is chance. Which are found?

# %%
guess = None  # how many of six?


def touch(rank, world_size, line, is_view):
    x = torch.zeros(4)
    buffer = x[:2] if is_view else x
    if rank == 0:
        dist.send(buffer, dst=1)
    else:
        request = dist.irecv(buffer, src=0)
        exec(line)  # too early
        request.wait()


lines = ["x += 1", "x[0] = 1", "x.data += 1", "x.numpy()[0] = 1", "y = x * 2"]
for line, is_view in [(line, False) for line in lines] + [("x += 1", True)]:
    findings = simlib.run(touch, world_size=2, args=(line, is_view)).findings
    under_way = "x[:2]" if is_view else "x"
    print(f"{line:16} ({under_way} under way):", "found" if findings else "NOT found")

# %% [markdown]
# Two of six. Plainly, on real ranks `simlib` does **not** see
#
# - a **read** of a buffer before `wait` (`y` has old numbers, or new ones, or some of both),
# - writes through `.data` or through numpy, which nobody counts,
# - writes where only a **part** of a tensor is under way (torch counts for the whole tensor, and a
#   write to the rest of it is legal),
# - and, from above, calls that are alike and mean different things.
#
# That there is no finding proves nothing. The rule that needs no tool: **between the call and its
# `wait`, the buffer does not belong to you.**
#
# The first of these gaps can be closed by a simulation. Rank 1 below reads its buffer too early,
# but 50 ms after rank 0 has sent ones. Then it waits and reads again. What does the early read show
# on real ranks, and what on simulated ones?

# %% tags=["nbval-ignore-output"]
guess = None  # zeros or ones, twice


def read_early(rank, world_size):
    x = torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
        return None
    request = dist.irecv(x, src=0)
    time.sleep(0.05)
    early = x.tolist()  # too early
    request.wait()
    return early, x.tolist()


for engine in (simlib.run, simlib.simulate):
    print(engine.__name__, engine(read_early, world_size=2).results[1])

# %% [markdown]
# On real ranks the mistake is mostly hidden: the ones had come, and the program looks right, until
# a message is late one day. In a simulation the new values come into the buffer **in `wait`**, and
# never before it. The early read shows the old values, always. So a program that reads too early is
# wrong in every simulation, and its results tell you so: run your tests under `simulate` too.
#
# ### When the order of arrival decides
#
# `dist.recv(x)` without `src` takes the message that comes first, from whoever it is, and returns
# who that was. Task farms need it: the rank that gives out the work takes the answers as they
# come. Below, three workers send 100 million, 1, and minus 100 million, and rank 0 adds them up,
# either in the order of the ranks or as they come. Addition does not mind the order, does it?
#
# `simulate(..., seed=3)` runs the program twice: in the usual order, and in another one that the
# rules allow as well. The seed says which. If anything else comes out, that is a race, and it is
# proven.

# %%
guess = None  # is one of the two a race?


def add_answers(rank, world_size, as_they_come):
    x = torch.tensor([[0.0, 1e8, 1.0, -1e8][rank]])
    if rank > 0:
        dist.send(x, dst=0)
        return None
    came = {}
    for _ in range(world_size - 1):
        src = dist.recv(x)  # from whoever comes first
        came[src] = x.item()
    order = list(came) if as_they_come else sorted(came)
    total = torch.zeros(1)
    for src in order:
        total += came[src]
    return total.item()


for as_they_come in (False, True):
    for seed in (1, 2, 3):
        run = simlib.simulate(add_answers, 4, args=(as_they_come,), seed=seed)
        print("as they come:", as_they_come, "seed", seed, "race" if run.findings else "-")

# %% [markdown]
# Added by rank, no order of arrival changes the result: a receive from anybody is no fault in
# itself. Added as they come, it is 0 or 1. A float32 has room for about 7 digits, so 100 million +
# 1 is 100 million, and the 1 is lost, unless the two large numbers have met before. The finding
# names the result of each order, the line, and the seed with which everybody sees the same again
# (`run.findings[0].run` is that other run).
#
# Seeds 1 and 2 are other orders too, but they did not show it. A seed can prove a race, and none
# proves that there is no race: so take several. On real ranks you would see one of the two results,
# and not know that there is another. The mend is the first version: make the result independent of
# the order, or name the source.
#
# ## What to do when it hangs
#
# | you see | it is | mend |
# |---|---|---|
# | a ring of `recv` | all receive first | one sends first, or `isend` |
# | a ring of `send` | all send first | `isend`, receive, `wait` |
# | an arrow to a rank that has finished | a call some rank never makes | move it out of the `if`, or make the loops equally long |
# | "rank 1 calls ... where rank 0 calls ..." | another order, another branch | the same calls in the same order everywhere |
# | "rank 1 brings ... where rank 0 brings ..." | ranks disagree within one call | agree first, or write it down once |
# | a tag in the hint | two names for one message | one constant for both sides |
# | finding: race, unfinished | `wait` too late, or never | keep every request, wait, then touch |
# | finding: race, with a seed | the order of arrival decides | sort by `src`, or name the source |
# | wrong numbers, and no word | all the rest | compare with one process, at worlds of 1 to 5 |
#
# And where there is no `simlib`, on a cluster at night? Find out where each rank stands (`py-spy
# dump --pid ...` prints the stack of a running Python process), write down rank, call and peer, and
# draw the arrows. Then look for a ring, or for somebody who has left. You have done that several
# times now.
#
# ## Your turn
#
# [Exercises 03](../exercises/03_when_it_hangs.ipynb): six broken programs to mend. Two of them
# raise no error.
#
# ## Exit ticket
#
# 1. Rank 0 waits for 1, rank 1 for 2, rank 2 for 0. Rank 3 waits for 0. Who is stuck, who is in the
#    ring?
# 2. A program that sends first passes all tests on a laptop and hangs on the cluster. Name two
#    reasons.
# 3. Rank 5 has been silent for ten minutes. Is that a deadlock?
# 4. `all_reduce` of float32 `[2, 3]` on rank 0 and float32 `[3, 2]` on rank 1: does anybody notice?
# 5. `request = dist.isend(x, dst=1)`, then `print(x)`, then `request.wait()`: right or wrong?
# 6. Twenty seeds give no finding. What do you know?
#
# <details><summary>Answers</summary>
#
# 1. All four are stuck; 0, 1 and 2 form the ring. Mend the ring, and rank 3 is free too.
# 2. The cluster's library has a smaller eager limit (or none), or the real messages are larger.
# 3. Nobody can say from silence. It is one only if what it waits for can never come.
# 4. Nobody: both bring six numbers, and only these travel. They are added in the order in which they
#    lie in memory.
# 5. Right for `isend`: reading what is being sent does no harm. With `irecv` it would be wrong.
# 6. That twenty orders gave the same results. Another order may still give another one.
#
# </details>
#
# **Next:** [lesson 04, collectives as contracts](04_collectives.ipynb).
