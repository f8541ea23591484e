# %% [markdown]
# # 03 When it hangs
#
# A wrong distributed program seldom fails with an error. It stands still, and says nothing for half
# an hour. Or it goes on, with numbers that are wrong on some ranks, and says nothing at all. In
# this lesson (80 minutes) you will meet six sorts of such programs:
#
# 1. both ranks receive first,
# 2. both ranks send first (and why this may pass elsewhere),
# 3. a rank is missing from a collective,
# 4. the order of two collectives is swapped,
# 5. shape, dtype or operation differ,
# 6. a race: a buffer is used before `wait`, or the order of arrival decides.
#
# At the end stands what no tool will tell you.

# %%
import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## 1. Both receive first
#
# Two ranks swap a number. Each receives the other's, then sends its own. Every line of it is legal,
# and each rank does the same. What does rank 0 hold in the end? (If the cell fails, it is meant to; Run All goes on.)

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
# This verdict came at once; it is not guessed from silence. A rank that computes may still send
# something, so `simlib` lets it. A rank that waits is **stuck** if what it needs can only come from
# ranks that are stuck as well, or have finished. So a slow rank is never taken for a deadlock.
#
# Other tools have only a time limit, which cannot know whether the message would have come a
# moment later. So it has to be long: PyTorch's own for Gloo is 30 minutes. A job on 512 GPUs that hangs
# until then costs 512 x 0.5 h = 256 GPU hours. Then the log says "timeout", often on a rank that had done
# nothing wrong.
#
# The mend: the two ranks must not do the same. One of them sends first. **Now you write it.**


# %%
def exchange(rank, mine, other, partner):
    # mine goes to the partner, the partner's number comes into other
    pass  # your lines


def swap(rank, world_size):
    mine, other = torch.tensor([10.0 * rank]), torch.zeros(1)
    exchange(rank, mine, other, partner=1 - rank)
    return other.item()


results = simlib.run(swap, world_size=2).results
print(results, "right" if results == [10.0, 0.0] else "is not yet swapped")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     if rank == 0:
#         dist.send(mine, dst=partner)
#         dist.recv(other, src=partner)
#     else:
#         dist.recv(other, src=partner)
#         dist.send(mine, dst=partner)
#
# </details>
#
# ## 2. Both send first
#
# So the cure is to send first? Below, four ranks stand in a ring. Each sends 1,000 numbers to the
# right, then receives from the left. Nobody waits for a message before sending one. (If the cell fails,
# it is meant to: go on with the next one.)

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
# With another library, MPI for one, the same program may run to its end. Many send small messages
# **eagerly**: the message is copied away, and `send` returns at once. Only above a limit, commonly
# between some kB and some tens of kB, do they use rendezvous.
#
# `simlib.simulate` runs the same function on a modelled cluster (lesson 00), and lets you choose
# the rule. `sends="eager"` copies every message; `eager_limit_bytes=1024` only those of at most
# 1,024 bytes. Below, four rules meet messages of 10, 1,000 and 100,000 numbers, 4 bytes each.
# (`check=False` spares you a picture for each hang. No time limit is needed: when no simulated rank
# can go on, that is certain at once.)

# %%
guess = None  # how many of twelve pass?

rules = {
    "always rendezvous": {"sends": "rendezvous"},
    "eager up to 1,024 bytes": {"eager_limit_bytes": 1024},
    "eager up to 65,536 bytes": {"eager_limit_bytes": 65536},
    "always eager": {"sends": "eager"},
}
passing = 0
for name, rule in rules.items():
    verdicts = []
    for length in (10, 1000, 100_000):
        try:
            simlib.simulate(send_first, 4, args=(length,), check=False, **rule)
            verdicts.append("passes")
        except simlib.SimlibError:
            verdicts.append("hangs ")
    print(f"{name:26}", *verdicts)
    passing += verdicts.count("passes")
simlib.guess(guess, passing)

# %% [markdown]
# One program, four rules, four answers. Read the second row: with 10 numbers in the tests the
# program passes, and with 1,000 in production it hangs. MPI's standard calls such a program
# **unsafe**: it is right only where somebody else happens to keep a copy. The first row is the
# strictest rule, and the default of `simulate`, so that the trap shows.
#
# The mend works for every size of message. `isend` has the message under way while the rank
# receives, and `wait` comes after that.


# %%
def shift(rank, world_size, length=1000):
    mine, other = torch.full((length,), float(rank)), torch.zeros(length)
    request = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    request.wait()
    return other[0].item()


print(simlib.run(shift, world_size=4).results)

# %% [markdown]
# Another mend: the even ranks send first, the odd ones receive first. So of two neighbours just one
# sends first. But in a ring of 5, the neighbours 4 and 0 are both even. Does it hang? Simulated, a
# message of 1 MB takes T = 0.83 ms. How many T does a ring of 4 take, how many one of 5?

# %%
guess = None  # how many T in a ring of 5? (0: it hangs)


def even_first(rank, world_size):
    mine, other = torch.full((250_000,), float(rank)), torch.zeros(250_000)
    if rank % 2 == 0:
        dist.send(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    if rank % 2 == 1:
        dist.send(mine, dst=(rank + 1) % world_size)
    return other[0].item()


in_T = {}
for world_size in (2, 3, 4, 5, 6, 7):
    time_s = simlib.simulate(even_first, world_size).time_s
    with_isend_s = simlib.simulate(shift, world_size, args=(250_000,)).time_s
    print(f"{world_size} ranks: {time_s * 1e3:.2f} ms, with isend {with_isend_s * 1e3:.2f} ms")
    in_T[world_size] = round(time_s / with_isend_s, 3)
simlib.guess(guess, in_T[5])

# %% [markdown]
# It does not hang, it is late. Rank 4 waits in its send until rank 0 has sent: one more T, 3 in the
# place of 2, in every odd ring. One rank that goes the other way round breaks a ring of waiting.
# The `isend` needs one T, in all rings.
#
# ## 3. A missing rank
#
# Only rank 0 writes the log, so somebody put the line that adds up the losses inside the `if` too.
# Which rank is in trouble, the one that makes the call or the one that does not? It is meant to fail:
# go on with the next cell.

# %% tags=["raises-exception"]
guess = None  # which rank: 0 or 1?


def log_on_rank_0(rank, world_size):
    loss = torch.tensor([0.5 + rank])
    if rank == 0:
        dist.all_reduce(loss)
        print("mean loss", loss.item() / world_size)


simlib.run(log_on_rank_0, world_size=2)

# %% [markdown]
# The one that made the call. Here the arrow does not close a ring. It leads to a rank with a grey rim,
# which has finished and will never come. Ranks that wait for ever are of these two sorts: **a ring, or an
# arrow to somebody who has left.** (A rank that asks for ever is a third; section 6.)
#
# The verdict shows the line where rank 0 waits. It cannot show the line where rank 1 should have
# made the call, because rank 1 never came to one. Look for an `if` around the call, a loop that is
# shorter on some rank (uneven data!), a `return`, `break` or `continue` before it, or an exception
# that somebody swallowed.
#
# The mend: everybody computes, one rank prints. **Now you write it**, two lines.


# %%
def log_by_all(rank, world_size):
    loss = torch.tensor([0.5 + rank])
    # your lines: the loss is added up, and printed once
    return loss.item() / world_size


run = simlib.run(log_by_all, world_size=4)
lines = sum(bool(text.strip()) for text in run.output)
print("mean loss", run.results, f"{lines} ranks printed:", end=" ")
print("right" if run.results == [2.0] * 4 and lines == 1 else "not yet everybody's mean, once")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `dist.all_reduce(loss)`, for all, and `if rank == 0: print(...)` after it.
#
# </details>
#
# ### A call skipped in the middle
#
# How does a library know which collectives belong together? They carry no names. It counts: the
# first of each rank of a group meets the first of all others, the second the second. Below, each rank
# has three batches, and a batch that is not a number (nan) is left out. Rank 1's second is. What do
# the ranks add up, and where do they hang? It is meant to fail: go on with the next cell.

# %% tags=["raises-exception"]
guess = None  # which sums, and where does it hang?


def leave_out_nan(rank, world_size):
    for batch in [[1.0, 2.0, 3.0], [10.0, float("nan"), 30.0]][rank]:
        total = torch.tensor([batch])
        if total.isnan():
            continue  # and no call
        dist.all_reduce(total)
        print(f"{batch} became {total.item()}")


simlib.simulate(leave_out_nan, world_size=2)

# %% [markdown]
# 32 is 2 + 30: rank 1's *second* call, with its third batch, met rank 0's second. This sum is wrong, and
# nobody says so. Only at the end one call is too many, and the verdict names that one: **a skipped call
# shows where the calls run out, not where it was skipped.** So compare the values before it. The
# mend: a rank with nothing to bring makes the call all the same, and brings a 0.
#
# ## 4. A swapped order
#
# Calls are matched by count. Below, rank 1 makes the same two calls in the other order. What happens?
# (If the cell fails, it is meant to: go on with the next one.)

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
# with who differs from whom. (`broadcast` gives all ranks what rank `src` has; lesson 04.) Plain Gloo hangs in this program. With other pairs of
# collectives it exchanges bytes that do not belong together.
#
# Now the same mistake in a dangerous form. Both calls are `all_reduce`, and both tensors have two
# numbers. Rank 2 takes them in another order, because its dictionary was filled in another order.
# Each rank brings a weight gradient of 1 and a bias gradient of 100. Right would be 3 and 300
# everywhere.

# %%
guess = None  # rank 2's bias? And what does simlib say?


def average(rank, world_size, names_by_rank):
    gradients = {"weight": torch.tensor([1.0, 1.0]), "bias": torch.tensor([100.0, 100.0])}
    for name in names_by_rank[rank]:
        dist.all_reduce(gradients[name])
    return {name: gradients[name][0].item() for name in ("weight", "bias")}


orders = [["weight", "bias"], ["weight", "bias"], ["bias", "weight"]]
run = simlib.run(average, world_size=3, args=(orders,))
for rank, result in enumerate(run.results):
    print("rank", rank, result, "findings:", len(run.findings))
simlib.guess(guess, run.results[2]["bias"])

# %% [markdown]
# Nothing was said, and every number is wrong. Rank 2's bias has met the others' weights: 1 + 1 +
# 100 = 102. And nobody *can* say anything: the calls that met are alike in size, dtype and operation;
# that you meant different things is in your head only. **No checker finds this one.** Had weight and
# bias different sizes, it would have been a mismatch.
#
# The mend: an order that depends on nothing but the names, the same on every rank. And where it
# matters, the ranks compare the names once, before they trust the numbers. (`all_gather_object` gives every
# rank the list of what all brought; lesson 04.)


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
guess = None  # in how many of the three does simlib raise an error?
raised = 0


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
        raised += 1
simlib.guess(guess, raised)

# %% [markdown]
# Each verdict says who differs from whom, and then lists what every rank brought. The calls were
# held back before a byte had moved. Now without that (`check=False`, and an end after one second of
# silence): the same three programs, and only Gloo to say something.

# %% tags=["nbval-ignore-output"]
guess = None  # three outcomes

for on in ("shape", "dtype", "op"):
    try:
        run = simlib.run(disagree, world_size=2, args=(on,), check=False, timeout_s=1)
        print(f"{on}: no error", *run.results, sep="\n   ")
    except simlib.SimlibError as error:
        print(f"{on}: {type(error).__name__}:", str(error).splitlines()[0])

# %% [markdown]
# A crash is the kindest of these. With the wrong dtype, 1065353216 is the bit pattern of the float 1.0,
# read as an integer. One half was added as integers (its last digit is 8, for the two), the other as
# floats, where the two is lost. With two operations each rank worked on one half in its own
# way: half a sum, half a maximum. It looks plausible, and both ranks even agree on it.
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
# have to agree first, on the largest length; then each fills up with zeros, the neutral element of a
# sum. **Now you write it**, one line: how does `longest` become the largest of all ranks?


# %%
def add_uneven(rank, world_size, lengths):
    x = torch.full((lengths[rank],), rank + 1.0)
    longest = torch.tensor([len(x)])
    # your line
    padded = torch.zeros(longest.item())
    padded[: len(x)] = x
    dist.all_reduce(padded)
    return padded.tolist()


try:
    both = [
        simlib.run(add_uneven, world_size=2, args=(given,)).results for given in ([4, 6], [6, 4])
    ]
    want = [[[3.0] * 4 + [rest] * 2] * 2 for rest in (2.0, 1.0)]
    print("right" if both == want else f"not yet: {both}")
except simlib.SimlibError as error:
    print("not yet:", str(error).splitlines()[0])

# %% [markdown]
# <details><summary>Answer</summary>
#
# `dist.all_reduce(longest, op=dist.ReduceOp.MAX)`
#
# </details>
#
# ## 6. The buffer of a request
#
# The last sort neither hangs nor disagrees. Rank 0 has a message of ones under way with `isend`,
# and meanwhile it prepares the next one in the same tensor. (The barrier is there so that rank 1
# certainly receives after that line.) What arrives at rank 1: ones, or 101s? We ask real ranks, and
# simulated ones.

# %%
guesses = {"run": None, "simulate": None}  # 1 or 101?


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
    simlib.guess(guesses[engine.__name__], run.results[1][0], of=(1, 101))

# %% [markdown]
# Both are possible. Gloo's `isend` takes no copy: it reads your tensor when the receiver comes. The
# simulated one reads it at the call, as an eager library would. Two activities touch the same memory,
# and their order is not fixed: that is a **race**.
#
# A race does not stop the run. It is a *finding*: the line above each result, and an entry in
# `run.findings`. Another finding is `unfinished`: a message that nobody received, or a request that
# nobody waited for. In a test you want findings to be errors. That is what `strict=True` does.
#
# Two mends. Either write after `wait`, when the buffer is yours again. Or give the request a copy
# of its own, which costs memory but no time of waiting:

# %%
try:
    simlib.run(too_early, world_size=2, strict=True)
except simlib.SimlibError as error:
    print(type(error).__name__, "by strict=True:", str(error).splitlines()[0])
run = simlib.run(too_early, world_size=2, kwargs={"own_copy": True}, strict=True)
print("mended, rank 1 has", run.results[1])

# %% [markdown]
# ### "Ask until it is complete"
#
# A request has `is_completed()`. So rank 1 need not stand still: it works for 1 ms, asks, works
# again. (`simlib.compute` is work that takes virtual time.) The message comes after 30 us. How
# often will rank 1 ask? (If the cell fails, it is meant to: go on with the next one.)

# %% tags=["raises-exception"]
guess = None  # how often?


def ask_and_work(rank, world_size):
    x = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1), dst=1)
    else:
        request = dist.irecv(x, src=0)
        while not request.is_completed():
            simlib.compute(0.001)
        request.wait()


simlib.simulate(ask_and_work, world_size=2)

# %% [markdown]
# For ever. With Gloo a request of `isend` or `irecv` says False until `wait` has been called, with the
# numbers long there, and the loop works on in silence. `simlib` tells it after 100,000 questions in a
# row. The mend: work as much as there is, then `wait`. On real ranks it is the same; a request of a
# *collective* does become complete:


# %%
def in_200_ms(request):
    for _ in range(200):
        if request.is_completed():
            return True
        simlib.compute(0.001)
    return False


def receive_and_sum(rank, world_size):
    requests = {}
    if rank == 0:
        dist.send(torch.ones(1), dst=1)
    else:
        requests["irecv"] = dist.irecv(torch.zeros(1), src=0)
    requests["all_reduce"] = dist.all_reduce(torch.ones(1), async_op=True)
    found = {name: in_200_ms(request) for name, request in requests.items()}
    for request in requests.values():
        request.wait()
    return found


for is_checked in (True, False):
    print("complete on rank 1:", simlib.run(receive_and_sum, 2, check=is_checked).results[1])

# %% [markdown]
# ## What nobody tells you
#
# How was the race found? Every torch tensor counts the writes to it, and `simlib` compares the
# count at the call with that at `wait`. So it sees what is counted, and only that. Below, rank 1
# has a receive under way and touches its buffer too early, in six ways (`lambda x: ...` is a function
# of x without a name). All are wrong: whether they meet the old or the new numbers is chance. Which
# are found?

# %%
guess, found = None, 0  # your guess: how many of the six are found?


def touch(rank, world_size, too_early, is_view):
    x = torch.zeros(4)
    buffer = x[:2] if is_view else x
    if rank == 0:
        dist.send(buffer, dst=1)
    else:
        request = dist.irecv(buffer, src=0)
        too_early(x)
        request.wait()


ways = {
    "x.add_(1)": lambda x: x.add_(1),
    "x.fill_(1)": lambda x: x.fill_(1),
    "x.data.add_(1)": lambda x: x.data.add_(1),
    "x.numpy().fill(1)": lambda x: x.numpy().fill(1),
    "y = x * 2": lambda x: x * 2,
}
for line, view in [*((line, False) for line in ways), ("x.add_(1)", True)]:
    found += (seen := len(simlib.run(touch, 2, args=(ways[line], view)).findings))
    print(f"{line:17} ({'x[:2]' if view else 'x'} under way):", "found" if seen else "NOT found")
simlib.guess(guess, found)

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
# The first of these gaps can be closed by a simulation. Below, rank 0 sends ones, and then both ranks
# meet in a **barrier**: nobody leaves it before the other has come. After it rank 1 reads its buffer,
# then waits and reads again. Has the barrier brought the message? On real ranks, on simulated ones?

# %% tags=["nbval-ignore-output"]
guesses = {"run": None, "simulate": None}  # does the early read find 0 or 1?


def read_early(rank, world_size):
    x = torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
        dist.barrier()
        return None
    request = dist.irecv(x, src=0)
    dist.barrier()
    early = x.tolist()  # too early
    request.wait()
    return early, x.tolist()


for engine in (simlib.run, simlib.simulate):
    found = engine(read_early, world_size=2).results[1]
    print(engine.__name__, found)
    simlib.guess(guesses[engine.__name__], found[0][0], of=(0, 1))

# %% [markdown]
# A barrier makes *ranks* meet. It does not flush messages: only `wait` says that one is here. On real
# ranks the mistake is mostly hidden: the ones had come, and the program looks right, until a message
# is late one day. In a simulation the new values come into the buffer **in `wait`**, never before it. So
# a program that reads too early is wrong in every simulation, and its results tell you so: run your tests
# under `simulate` too.
#
# ### When the order of arrival decides
#
# `dist.recv(x)` without `src` takes the message that comes first, from whoever it is, and returns
# who that was. Below, three workers send 100 million, 1, and minus 100 million, and rank 0 adds them up,
# either in the order of the ranks or as they come. Addition does not mind the order, does it?
#
# `simulate(..., seed=3)` runs the program twice: in the usual order, and in another one that the
# rules allow as well. The seed says which. If anything else comes out, that is a race, and it is
# proven.

# %%
guess, races = None, set()  # your guess: how many of the two are a race?


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
    for seed in (1, 5, 3):
        run = simlib.simulate(add_answers, 4, args=(as_they_come,), seed=seed)
        print("as they come:", as_they_come, "seed", seed, "race" if run.findings else "-")
        races |= {as_they_come} if run.findings else set()
simlib.guess(guess, len(races))

# %% [markdown]
# Added by rank, no order of arrival changes the result. Added as they come, it is 0 or 1. A float32 has
# room for about 7 digits, so 100 million + 1 is 100 million, and the 1 is lost, unless the two large
# numbers have met before. The finding names the result of each order, the line, and the seed with which
# everybody sees the same again (`run.findings[0].run` is that other run).
#
# Seeds 1 and 5 are other orders too, but they did not show it. A seed can prove a race, and none
# proves that there is none: so take several. The mend is the first version: make the result
# independent of the order, or name the source.
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
# dump --pid ...` prints the stack of a running Python process), and draw the arrows. Then look for a
# ring, or for somebody who has left.
#
# ## Your turn
#
# [Exercises 03](../exercises/03_when_it_hangs.ipynb): six broken programs to mend.
#
# ## Exit ticket
#
# 1. Rank 0 waits for 1, rank 1 for 2, rank 2 for 0. Rank 3 waits for 0. Who is stuck, who is in the
#    ring?
# 2. `all_reduce` of a float32 tensor of shape `[2, 3]` on rank 0 and `[3, 2]` on rank 1: does anybody notice?
# 3. `request = dist.isend(x, dst=1)`, then `print(x)`, then `request.wait()`: right or wrong?
#
# <details><summary>Answers</summary>
#
# 1. All four are stuck; 0, 1 and 2 form the ring. Mend the ring, and rank 3 is free too.
# 2. Nobody: both bring six numbers, and only these travel. They are added in the order in which they
#    lie in memory.
# 3. Right for `isend`: reading what is being sent does no harm. With `irecv` it would be wrong.
#
# </details>
#
# **Next:** [lesson 04, collectives as contracts](04_collectives.ipynb).
