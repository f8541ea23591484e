# %% [markdown]
# # 03 When it hangs
#
# A wrong distributed program seldom fails with an error. Often it hangs, and prints nothing for half an
# hour. Or it continues with wrong numbers on some ranks, and prints nothing at all. In this lesson (80
# minutes) you will see six kinds of such programs:
#
# 1. both ranks receive first,
# 2. both ranks send first (and why this may work elsewhere),
# 3. a rank is missing from a collective,
# 4. the order of two collectives is swapped,
# 5. shape, dtype or operation differ,
# 6. a race: a buffer is used before `wait`, or the result depends on the order of arrival.
#
# The last part shows mistakes that no tool reports. Many cells of this lesson are meant to fail. Go on
# with the next cell, as Run All does.

# %%
import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## 1. Both receive first
#
# Two ranks swap a number. Each rank receives the other's number, then sends its own. Every line is legal,
# and both ranks run the same lines. Which number does rank 0 have in the end?

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
# Rank 0 never gets a number. It waits for a message that rank 1 would send in its next line, but rank 1
# never reaches that line. Rank 1 waits for rank 0 in the same way. This is a **deadlock**.
#
# In the picture, a circle is a rank, and an arrow from rank 0 to rank 1 means that rank 0 *waits for*
# rank 1. Next to each circle you see the call in which the rank waits, and the number of its line. If
# the arrows form a **ring**, no rank in the ring can continue. Below the picture, the **verdict** says
# the same in words: one sentence, one line per rank, and a hint.
#
# `simlib` gives this verdict at once. It does not wait for a long silence and then guess. A rank that
# computes may still send something, so `simlib` lets it continue. A waiting rank is **stuck** if all
# ranks that could help it are stuck too, or have finished. So `simlib` never takes a slow rank for a
# deadlock.
#
# Other tools only have a time limit. When the limit ends, nobody knows whether the message would have
# come a moment later. So the limit has to be long: PyTorch's default for Gloo is 30 minutes. If a job on
# 512 GPUs hangs for 30 minutes, that costs 512 x 0.5 h = 256 GPU hours. Then the log says "timeout",
# often for a rank that made no mistake.
#
# The fix: the two ranks must not both receive first. One of them sends first. **Now you write it.**


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
# Is it enough to send first? Below, four ranks form a ring. Each sends 1,000 numbers to the right, then
# receives from the left. No rank waits for a message before it sends one.

# %% tags=["raises-exception"]
guess = None  # does it pass? If not, who waits for whom?


def send_first(rank, world_size, length=1000):
    mine, other = torch.full((length,), float(rank)), torch.zeros(length)
    dist.send(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    return other[0].item()


simlib.run(send_first, world_size=4)

# %% [markdown]
# The picture shows a ring of four arrows. Gloo follows the **rendezvous** rule: the two sides of a
# message have to meet. So `send` returns only when the receiver has taken the message (lesson 02). But no
# rank receives yet, because all are still sending.
#
# With another library, such as MPI, the same program may finish. Many libraries send small messages
# **eagerly**: the library copies the message, and `send` returns at once. It uses rendezvous only for
# messages above a limit. The limit is usually between a few kB and a few tens of kB.
#
# `simlib.simulate` runs the same function on a modelled cluster (lesson 00), and lets you choose the
# rule. `sends="eager"` copies every message. `eager_limit_bytes=1024` copies only messages of at most
# 1,024 bytes. Below, we try four rules with messages of 10, 1,000 and 100,000 numbers of 4 bytes each.
# (`check=False` avoids a picture for each hang. We need no time limit: if no simulated rank can continue,
# `simulate` knows this at once.)

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
# The same program gave a different row for each rule. Look at the second row. If your tests send 10
# numbers, they pass. If the program then sends 1,000 numbers in production, it hangs. MPI's standard
# calls such a program **unsafe**: it is right only if the library happens to copy the message. The first
# row is the strictest rule. `simulate` uses it by default, to make the mistake visible.
#
# The next fix works for every message size. Each rank starts its message with `isend`, then receives, and
# calls `wait` at the end.


# %%
def shift(rank, world_size, length=1000):
    mine, other = torch.full((length,), float(rank)), torch.zeros(length)
    request = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(other, src=(rank - 1) % world_size)
    request.wait()
    return other[0].item()


print(simlib.run(shift, world_size=4).results)

# %% [markdown]
# There is another fix: the even ranks send first, and the odd ranks receive first. So only one of two
# neighbours sends first. But in a ring of 5, the neighbours 4 and 0 are both even. Does this ring hang?
# In the simulation, a message of 1 MB takes T = 0.83 ms. How many T does a ring of 4 take? How many T
# does a ring of 5 take?

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
# The ring of 5 does not hang, but it takes longer. Rank 4 waits in its `send` until rank 0 has finished
# its own. So a ring with an odd number of ranks takes 3 T, and a ring with an even number takes 2 T. If
# only one rank receives first, this is enough to break a ring of waiting ranks. With `isend` every ring
# takes one T.
#
# ## 3. A missing rank
#
# Only rank 0 writes the log, so somebody also put the line that adds up the losses inside the `if`. Which
# rank will hang: the rank that makes the call, or the rank that does not?

# %% tags=["raises-exception"]
guess = None  # which rank: 0 or 1?


def log_on_rank_0(rank, world_size):
    loss = torch.tensor([0.5 + rank])
    if rank == 0:
        dist.all_reduce(loss)
        print("mean loss", loss.item() / world_size)


simlib.run(log_on_rank_0, world_size=2)

# %% [markdown]
# Rank 0, which made the call, waits for ever. Here the arrow does not close a ring. It leads to a rank
# with a grey rim. This rank has finished and will never make the call. If ranks wait for ever, the
# picture shows one of two things: **a ring, or an arrow to a rank that has finished.** (Section 6 shows a
# third case: a rank that asks again and again, without an end.)
#
# The verdict shows the line where rank 0 waits. It cannot show where rank 1 should have made the call,
# because rank 1 never made it. Look for an `if` around the call, or for a loop that is shorter on one
# rank, for example because that rank has less data. Also look for a `return`, `break` or `continue`
# before the call, and for an exception that was caught and ignored.
#
# The fix: all ranks add up the losses, and only one rank prints. **Now you write it**, in two lines.


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
# All ranks call `dist.all_reduce(loss)`. The line after it is `if rank == 0: print(...)`.
#
# </details>
#
# ### A call skipped in the middle
#
# How does a library know which collectives belong together? The calls have no names, so the library
# counts them. It matches the first call of each rank in the group with the first calls of all others.
# Then it matches the second calls, and so on. Below, each rank has three batches, and skips a batch that
# is not a number (nan). Rank 1's second batch is nan. Which sums do the ranks get, and in which call does
# the program hang?

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
# Rank 1 brought its third batch in its *second* call. The library matched this call with rank 0's second
# call, so the sum 32 is 2 + 30. This sum is wrong, and nothing reports it. The hang comes later, when
# rank 0 makes one call more than rank 1. The verdict names that last call. **You see a skipped call where
# the calls run out, not where it was skipped.** So also check the values before the hang. The fix: a rank
# that skips a batch still makes the call, and brings a 0.
#
# ## 4. A swapped order
#
# The library matches calls by counting. Below, rank 1 makes the same two calls in the other order.
# (`broadcast` copies the tensor of rank `src` to all ranks; see lesson 04.) What happens?

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
# Matched calls that disagree are a **mismatch**. Here they are different collectives. The first sentence
# of the verdict names the two ranks and their calls. Without `simlib`, plain Gloo hangs in this program.
# With other pairs of collectives, Gloo exchanges bytes that do not belong together.
#
# The next cell contains the same mistake in a more dangerous form. Both calls are `all_reduce`, and both
# tensors have two numbers. Rank 2 adds up the bias first and the weight second. (In a real program, this
# happens if a dictionary was filled in another order.) On each rank the weight gradients are 1 and the
# bias gradients are 100. The right sums are 3 and 300 on every rank.

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
# Nothing was reported, and every number is wrong. The sum 1 + 1 + 100 = 102 adds rank 2's bias to the
# others' weights. No tool *can* report this: the matched calls have the same size, dtype and operation,
# and only you know that they mean different things. **No checker finds this mistake.** If weight and bias
# had different sizes, `simlib` would report a mismatch.
#
# The fix: use an order that depends only on the names, because it is the same on every rank. The next
# cell sorts the names, and the ranks also compare them once. (`all_gather_object` gives every rank a list
# with one Python object from each rank.)


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
# Ranks can disagree within one call in three ways. Rank 0 always brings four ones as float32, and uses
# SUM. Rank 1 brings twos. In the first run it brings six numbers instead of four. In the second run its
# numbers are int32. In the third run it uses MAX. What does `simlib` report? Which of the three would do
# the most harm if nothing reported it?

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
# Each verdict says which ranks differ. Then it lists the tensor and the operation of every rank. `simlib`
# stopped the calls before any byte moved. Now run the same three programs with `check=False`, which turns
# this check off. (`timeout_s=1` ends a run after one second without progress.) Now only Gloo itself can
# report something.

# %% tags=["nbval-ignore-output"]
guess = None  # three outcomes

for on in ("shape", "dtype", "op"):
    try:
        run = simlib.run(disagree, world_size=2, args=(on,), check=False, timeout_s=1)
        print(f"{on}: no error", *run.results, sep="\n   ")
    except simlib.SimlibError as error:
        print(f"{on}: {type(error).__name__}:", str(error).splitlines()[0])

# %% [markdown]
# A crash does the least harm, because you notice it. In the run with two dtypes, rank 1 reads the bits of
# the float 1.0 as the integer 1065353216. The library added one half of the tensor as integers, so the
# value 2 of rank 1 changed the last digit of 1065353216 from 6 to 8. It added the other half as floats.
# Read as a float, the integer 2 is almost 0, so the two is lost. In the run with two operations each rank
# computed one half of the result in its own way. One half is a sum, and the other half is a maximum. The
# result looks plausible, and both ranks even have the same numbers.
#
# (Your first line may differ, because chance decides what Gloo does with different shapes.) We ran more
# wrong programs on plain Gloo, with torch 2.13 on CPUs. The table shows what happened:
#
# | program | plain Gloo |
# |---|---|
# | both receive first, a wrong tag, another root (`src` or `dst` of a collective) | hangs, up to its limit of 30 minutes |
# | both send first, even 4 bytes | hangs |
# | a rank is missing | hangs, or "connection reset" when that rank ends |
# | shapes differ | a rank aborts, or hangs, or **silently wrong sums** |
# | dtypes or operations differ, two all_reduces swapped | **silently wrong numbers** |
# | the tensor of a `recv` is larger than the message | **the rest of the tensor silently keeps its old numbers** |
#
# The environment variable `TORCH_DISTRIBUTED_DEBUG=DETAIL` turns on PyTorch's own check. It finds wrong
# shapes and dtypes of collectives. But it does not check `send` and `recv`, and it names no line.
#
# The fix for a dtype or an operation: write it once in the program, for all ranks. If shapes differ, the
# ranks first have to agree on the largest length. Then each rank fills its tensor up with zeros, which do
# not change a sum. **Now you write it**: which line makes `longest` the largest length of all ranks?


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
# The last kind of program does not hang, and its calls match. Rank 0 sends ones with `isend`. Before it
# calls `wait`, it prepares the next message in the same tensor: it adds 100. Then both ranks meet in a
# **barrier**: no rank leaves `dist.barrier()` before the other has come. So rank 1 receives after rank 0
# has added 100. What arrives at rank 1: ones, or 101s? We run the program on real and on simulated ranks.

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
# Both are possible. Gloo's `isend` makes no copy: it reads your tensor when the receiver comes. The
# simulated `isend` reads the tensor at the call, as an eager library would. If two activities use the
# same memory, and their order is not fixed, this is a **race**.
#
# A race does not stop the run. `simlib` reports it as a *finding*: it prints the line above each result,
# and adds an entry to `run.findings`. Another finding is `unfinished`. It reports a message that no rank
# received, or a request without a `wait`. In a test, use `strict=True`, which turns findings into errors.
#
# There are two fixes. Write to the buffer only after `wait`. Or give the request its own copy, as below.
# The copy costs memory, but nobody has to wait for it:

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
# A request has a method `is_completed()`. So rank 1 can work while the message travels: it works for 1
# ms, asks, and works again. (`simlib.compute` imitates work and takes virtual time.) The message arrives
# after 30 us. How often will rank 1 ask?

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
# It asks for ever. With Gloo, `is_completed()` of an `isend` or `irecv` returns False until you call
# `wait`, even if the numbers arrived long ago. So the loop never ends. `simlib` reports this after
# 100,000 questions in a row. The fix: do all the work, then call `wait`. Real ranks show the same. But a
# request of a *collective* does become complete:


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
# ## What no checker finds
#
# How did `simlib` find the race? Every torch tensor counts the writes to it, and `simlib` compares the
# count at the call with the count at `wait`. So `simlib` sees only the writes that torch counts. Below,
# rank 1 has started an `irecv` and uses its buffer too early, in six ways. (`lambda x: ...` is a function
# of x without a name. `x[:2] under way` means that the `irecv` fills only the first two numbers.) All six
# are wrong, because chance decides whether they use the old or the new numbers. How many does `simlib`
# find?

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
# `simlib` finds two of six. On real ranks it does **not** see
#
# - a **read** of a buffer before `wait` (`y` has old numbers, or new ones, or some of both),
# - writes through `.data` or through numpy, which torch does not count,
# - writes to a tensor if the request uses only a **part** of it (torch counts for the whole tensor, and a
#   write to the other part is legal),
# - and, as you saw in section 4, calls that match but mean different things.
#
# So a run without findings proves nothing. One rule needs no tool: **between the call and its `wait`, do
# not touch the buffer.**
#
# A simulation can find the first of these mistakes. Below, rank 0 sends ones, and then both ranks meet in
# a barrier. After the barrier rank 1 reads its buffer too early. Then it calls `wait` and reads the
# buffer again. Does the early read find the ones, on real ranks and on simulated ranks?

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
# A barrier makes *ranks* meet. It does not complete messages: only `wait` tells you that a message is
# here. On real ranks you usually do not see the mistake. Here the ones had already arrived. The program
# looks right until one day a message is late. A simulation writes the new values into the buffer **in
# `wait`**, never earlier. So a program that reads too early gets the old values in every simulation. Run
# your tests under `simulate`, too.
#
# ### When the order of arrival decides
#
# `dist.recv(x)` without `src` takes the message that comes first, from any rank, and returns the sender's
# rank. Below, three workers send 100 million, 1, and minus 100 million. Rank 0 adds them up, either in
# the order of the ranks or in the order of arrival. Does the order change the sum?
#
# `simulate(..., seed=3)` runs the program twice: in the usual order, and in another order that the rules
# also allow. The seed chooses the second order. If the results differ, this proves a race.

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
# If rank 0 adds by rank, the order of arrival does not change the result. If it adds in the order of
# arrival, the result is 0 or 1. A float32 has room for about 7 digits, so 100 million + 1 is 100 million.
# The 1 is lost, unless the two large numbers are added first. The finding names the result of each order,
# the line, and the seed that shows the race again on any machine. (`run.findings[0].run` is the run in
# the second order.)
#
# Seeds 1 and 5 chose other orders, too, but these did not show the race. A seed can prove a race, but no
# seed proves that there is none. So try several seeds. The fix: make the result independent of the order,
# as the first version does, or name the source in `recv`.
#
# ## What to do when it hangs
#
# | you see | it is | fix |
# |---|---|---|
# | a ring of `recv` | all receive first | one sends first, or `isend` |
# | a ring of `send` | all send first | `isend`, receive, `wait` |
# | an arrow to a rank that has finished | a call that some rank never makes | move it out of the `if`, or make the loops equally long |
# | "rank 1 calls ..., but rank 0 calls ..." | another order, another branch | the same calls in the same order everywhere |
# | "rank 1 brings ..., but rank 0 brings ..." | ranks disagree within one call | agree first, or write it down once |
# | a tag in the hint | the two sides of a message use different tags | one constant for both sides |
# | finding: race, unfinished | `wait` too late, or never | keep every request, and touch the buffer only after `wait` |
# | finding: race, with a seed | the result depends on the order of arrival | sort by `src`, or name the source |
# | silently wrong numbers | something else | compare the result with that of one process, for world sizes 1 to 5 |
#
# On a cluster you may have no `simlib`. Then find out where each rank waits (`py-spy dump --pid ...`
# prints the stack of a running Python process), and draw the arrows. Look for a ring, or for a rank that
# has finished.
#
# ## Your turn
#
# [Exercises 03](../exercises/03_when_it_hangs.ipynb): fix six broken programs.
#
# ## Exit ticket
#
# 1. Rank 0 waits for rank 1, rank 1 waits for rank 2, and rank 2 waits for rank 0. Rank 3 also waits for
#    rank 0. Which ranks are stuck, and which are in the ring?
# 2. Rank 0 calls `all_reduce` with a float32 tensor of shape 2 x 3, and rank 1 with one of shape 3 x 2.
#    Does `simlib` or Gloo report it?
# 3. A program calls `request = dist.isend(x, dst=1)`, then `print(x)`, then `request.wait()`. Is this
#    right or wrong?
#
# <details><summary>Answers</summary>
#
# 1. All four are stuck; 0, 1 and 2 form the ring. If you fix the ring, rank 3 continues too.
# 2. No. Both ranks have six numbers, and only the numbers travel, without the shape. Gloo adds them in
#    their order in memory.
# 3. It is right for `isend`, because you may read a buffer while it is being sent. With `irecv` it would
#    be wrong.
#
# </details>
#
# **Next:** [lesson 04, collectives as contracts](04_collectives.ipynb).
