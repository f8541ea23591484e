# %% [markdown]
# # Exercises 02: send and recv
#
# These three tasks go with [lesson 02](../notebooks/02_send_and_recv.ipynb). Write each function in its
# cell, run that cell, then run the check below it. A check calls your function on worlds of 1 to 5
# ranks. It looks at the value on every rank and at every message that the ranks sent. If the value is
# right but your ranks sent too many messages or bytes, the task is not solved yet.
#
# Use `dist.send`, `dist.recv`, `dist.isend` and `dist.irecv` in your functions. You need nothing else of
# `dist`. If you are stuck, open the folded hints of the task. Each hint says more than the hint before
# it.

# %% role="setup"
import torch
import torch.distributed as dist

from simlib.checks import check, measure, messages, nbytes, only, somebody_sends

# %% [markdown]
# ## 1. Running total (★, 10 minutes, 2 points)
#
# Every rank is given a tensor `x`, which has the same shape and dtype on every rank. Return the sum of
# the tensors of rank 0 up to your own rank, with your own tensor included. So rank 0 returns its own
# `x`, and the last rank returns the sum of all tensors. `x` itself must not change. All ranks together
# may send at most `world_size - 1` messages.


# %% role="answer" question="running_total" points=2
def running_total(rank, world_size, x):
    """Return the sum of the tensors x of ranks 0, 1, ..., rank.

    x has the same shape and dtype on every rank. Your function must not change x.
    """
    ### BEGIN SOLUTION
    total = x.clone()
    if rank > 0:
        so_far = torch.empty_like(x)
        dist.recv(so_far, src=rank - 1)
        total += so_far
    if rank < world_size - 1:
        dist.send(total, dst=rank + 1)
    return total
    ### END SOLUTION


# %% role="check" question="running_total" points=2
verdict = check(
    "running_total",
    running_total,
    # the x of one rank, in two draws; `xs` below holds the x of every rank
    [
        lambda rank, world_size: (torch.arange(3) + 10 * rank,),
        lambda rank, world_size: (torch.arange(4) * (rank + 2),),
    ],
    # what each rank must return
    lambda xs: [sum(xs[: rank + 1]) for rank in range(len(xs))],
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs: len(xs) - 1, hint="Each rank needs one tensor from one neighbour."),
    nbytes(lambda xs: sum(x.nbytes for x in xs[1:])),
    mistakes={
        "That is the sum of the ranks before this one: its own x is missing.": (
            lambda xs: [sum(xs[:rank], 0 * xs[0]) for rank in range(len(xs))]
        ),
        "That is only this rank's x and its left neighbour's: pass the sum on, not x.": (
            lambda xs: [sum(xs[max(0, rank - 1) : rank + 1]) for rank in range(len(xs))]
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# What does rank 2 need to know about ranks 0 and 1? Does it need two tensors, or only one?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The ranks can pass one value from rank to rank, and each rank can add its own tensor to this value.
# Rank 0 only sends, the last rank only receives, and all other ranks do both. Do these ranks send first,
# or do they receive first?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `x.clone()` makes a tensor that you may change. `torch.empty_like(x)` makes a holder of the same shape
# and dtype.
#
# </details>

# %% role="hidden" question="running_total"
seed = 1
print(
    measure(
        running_total,
        lambda rank, world_size: (
            torch.randint(0, 100, (4,), generator=torch.Generator().manual_seed(seed + rank)),
        ),
    )
)

# %% [markdown]
# ## 2. Shift to the right (★★, 15 minutes, 2 points)
#
# The ranks form a ring. Every rank sends its tensor `x` to the rank on its right, `rank + 1`, and the
# last rank sends to rank 0. Every rank returns the tensor that it receives from the rank on its left.
# All tensors have the same shape and dtype. In a world of one, return a copy of `x`. `x` itself must not
# change. All ranks together may send at most `world_size` messages, and none in a world of one.


# %% role="answer" question="shift_right" points=2
def shift_right(rank, world_size, x):
    """Return the tensor x of the rank on the left; the left of rank 0 is the last rank.

    x has the same shape and dtype on every rank. Your function must not change x.
    """
    ### BEGIN SOLUTION
    if world_size == 1:
        return x.clone()
    from_left = torch.empty_like(x)
    request = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(from_left, src=(rank - 1) % world_size)
    request.wait()
    return from_left
    ### END SOLUTION


# %% role="check" question="shift_right" points=2
verdict = check(
    "shift_right",
    shift_right,
    [
        lambda rank, world_size: (torch.arange(world_size + 1) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3) + 7 * rank,),
    ],
    lambda xs: [xs[rank - 1] for rank in range(len(xs))],
    only("send", "recv"),
    somebody_sends(),
    messages(
        lambda xs: len(xs) if len(xs) > 1 else 0,
        hint="Send each tensor straight to the rank that returns it.",
    ),
    nbytes(lambda xs: sum(x.nbytes for x in xs) if len(xs) > 1 else 0),
    mistakes={
        "You swap rank 0 with rank 1, and rank 2 with rank 3. In a ring, send to the right rank"
        " and receive from the left rank.": (
            lambda xs: [xs[rank ^ 1] if rank ^ 1 < len(xs) else xs[rank] for rank in range(len(xs))]
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If every rank first sends and then receives, which rank is ready to receive? Lesson 02 shows two
# solutions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `isend` returns at once and gives you a request. Before you call `request.wait()`, your rank can do
# something else. For example, it can receive.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(rank + 1) % world_size` is the rank on the right. This is also true for the last rank. A rank cannot
# send to itself.
#
# </details>

# %% role="hidden" question="shift_right"
seed = 1
print(
    measure(
        shift_right,
        lambda rank, world_size: (
            torch.randint(0, 100, (4,), generator=torch.Generator().manual_seed(seed + rank)),
        ),
    )
)

# %% [markdown]
# ## 3. Collect tensors of different lengths (★★★, 20 minutes, 3 points)
#
# Every rank is given a one-dimensional float32 tensor `x`. The tensors have different lengths, and a
# length may be 0. A rank knows only the length of its own tensor. Rank 0 returns the list of all tensors
# in the order of the ranks, its own tensor included. The other ranks return `None`. `x` must not change.
# Each other rank may send two messages: the length of its tensor as one int64 number (8 bytes), and the
# numbers in its tensor.


# %% role="answer" question="collect" points=3
def collect(rank, world_size, x):
    """On rank 0 return the list of every rank's x, by rank; on the other ranks return None.

    x is one-dimensional and float32. Its length differs from rank to rank. Your function must not
    change x.
    """
    ### BEGIN SOLUTION
    if rank > 0:
        dist.send(torch.tensor([len(x)]), dst=0)
        dist.send(x, dst=0)
        return None
    everything = [x.clone()]
    for src in range(1, world_size):
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, src=src)
        holder = torch.empty(length.item())
        dist.recv(holder, src=src)
        everything.append(holder)
    return everything
    ### END SOLUTION


# %% role="check" question="collect" points=3
def uneven(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 7, (1,), generator=draw).item()
        return (torch.randint(0, 100, (length,), generator=draw).float(),)

    return inputs


verdict = check(
    "collect",
    collect,
    [uneven(2), uneven(3)],  # two draws: every world is tried with both
    lambda xs: [list(xs)] + [None] * (len(xs) - 1),
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs: 2 * (len(xs) - 1), hint="One message can carry all the numbers of a rank."),
    nbytes(
        lambda xs: sum(8 + x.nbytes for x in xs[1:]),
        hint="Do not send more numbers than a rank has: send its length first, so that rank 0 can "
        "make a holder of this length.",
    ),
    mistakes={
        "The tensors without a number are missing: return an empty tensor for a rank that has "
        "no number.": (lambda xs: [[x for x in xs if len(x)]] + [None] * (len(xs) - 1)),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Rank 0 needs a holder of the right length before it can receive. Which rank knows that length, and how
# does rank 0 learn it?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Messages from one rank to another arrive in the order in which they were sent. So a rank can send the
# length first and the numbers second.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.tensor([len(x)])` is an int64 tensor of one number. `.item()` turns this tensor back into a
# Python int.
#
# </details>

# %% role="hidden" question="collect"
seed = 1
print(
    measure(
        collect,
        lambda rank, world_size: (
            torch.randn(
                (3 * rank + 1 + seed % 6) % 7,  # rank 0 has some: it may be alone
                generator=torch.Generator().manual_seed(seed + rank),
            ),
        ),
    )
)
