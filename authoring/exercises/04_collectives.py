# %% [markdown]
# # Exercises 04: collectives as contracts
#
# These three tasks go with [lesson 04](../notebooks/04_collectives.ipynb). In the first task you choose
# a collective for a job. In the other two tasks you write a collective yourself: you build it from
# `send` and `recv`, and you keep its contract.
#
# A check calls your function on worlds of 1 to 5 ranks. It looks at the value on every rank, at every
# message and at every collective. Each task has folded hints.

# %% role="setup"
import math

import torch
import torch.distributed as dist

from simlib.checks import (
    Timed,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
    rounds,
    sends_to,
    somebody_sends,
)

# %% [markdown]
# ## 1. The mean of everything (★, 10 minutes, 2 points)
#
# Every rank is given a one-dimensional float32 tensor `x`. The tensors have different lengths, and one
# may be empty. Every rank returns the mean of all numbers of all ranks, as a Python float. Use only
# `all_reduce`, and call it once. No rank may bring more than two float32 numbers (8 bytes) to it. `x`
# must not change.


# %% role="answer" question="mean_of_all" points=2
def mean_of_all(rank, world_size, x):
    """Return the mean of all the numbers in the tensors x of all ranks, as a float.

    x is one-dimensional and float32. Its length differs from rank to rank. Your function must not
    change x.
    """
    ### BEGIN SOLUTION
    sum_and_count = torch.tensor([x.sum(), float(len(x))])
    dist.all_reduce(sum_and_count)
    return (sum_and_count[0] / sum_and_count[1]).item()
    ### END SOLUTION


# %% role="check" question="mean_of_all" points=2
def uneven(rank, world_size):
    length = [3, 1, 0, 5, 2][rank]
    return (torch.arange(float(length)) + 10 * rank,)


def uneven_too(rank, world_size):
    length = [2, 4, 1, 0, 3][rank]
    return (torch.arange(float(length)) * 2 - 5 * rank,)


verdict = check(
    "mean_of_all",
    mean_of_all,
    [uneven, uneven_too],  # two draws: every world is tried with both
    # what each rank must return; `xs` holds the x of every rank
    lambda xs: [torch.cat(xs).mean().item()] * len(xs),
    only("all_reduce"),
    somebody_sends(),
    collectives(lambda xs: 1, hint="Two numbers can travel in one tensor."),
    collective_nbytes(lambda xs: 8, hint="Add up what you can before you communicate."),
    mistakes={
        "That is the mean of the ranks' means: a rank with few numbers has too much weight.": (
            lambda xs: [sum(x.mean().item() for x in xs) / len(xs)] * len(xs)
        ),
        "That is the sum over all ranks divided by the number of ranks.": (
            lambda xs: [torch.cat(xs).sum().item() / len(xs)] * len(xs)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A mean is a sum divided by a count. Which of the two can each rank compute alone?
#
# </details>
# <details><summary>Hint 2</summary>
#
# No rank can compute the sum or the count alone. But each rank knows its own part of both, and
# `all_reduce` can add these parts.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.tensor([a, b])` puts two numbers into one tensor. `.item()` turns a tensor of one number into a
# Python number.
#
# </details>

# %% role="hidden" question="mean_of_all"
seed = 1
print(
    measure(
        mean_of_all,
        lambda rank, world_size: (
            torch.randn(
                (3 * rank + 1 + seed % 6) % 7,  # rank 0 has some: it may be alone
                generator=torch.Generator().manual_seed(seed + rank),
            ),
        ),
    )
)

# %% [markdown]
# ## 2. Your own broadcast (★★, 25 minutes, 3 points)
#
# When your function returns, `x` on every rank must have the value that `x` had on rank `root`. Use only
# `send` and `recv`, with at most `world_size - 1` messages in all. Your function must also be quick. A
# rank sends one message at a time, and each message takes one round. `ceil(log2(world_size))` rounds are
# enough, because a rank that has received the value can send it on. The check also runs your function on
# a modelled network of 8 ranks and reads its virtual clock. The value, the traffic and the time give you
# 1 point each.


# %% role="answer" question="own_broadcast" points={"value": 1, "traffic": 1, "time": 1}
def own_broadcast(rank, world_size, x, root):
    """Make x on every rank equal to x on rank root, in place; return None.

    x has the same shape and dtype on every rank.
    """
    ### BEGIN SOLUTION
    distance = (rank - root) % world_size
    step = 1  # ranks at a distance below step know the value
    while step < world_size:
        if distance < step and distance + step < world_size:
            dist.send(x, dst=(rank + step) % world_size)
        if step <= distance < 2 * step:
            dist.recv(x, src=(rank - step) % world_size)
        step *= 2
    ### END SOLUTION


# %% role="check" question="own_broadcast" points={"value": 1, "traffic": 1, "time": 1}
from simlib.clusters import ethernet_10g


def from_last_but_one(rank, world_size):
    return torch.arange(3.0) + 10 * rank, max(0, world_size - 2)


def from_the_last(rank, world_size):
    return torch.arange(4.0) * (rank + 2), world_size - 1


EIGHT = ethernet_10g(nodes=8)


def half_a_round_more_s(xs, roots):
    # Few bytes: messages that a rank begins at once share the bandwidth, not the latency.
    round_s = EIGHT.inter.latency_s + xs[0].nbytes / EIGHT.inter.bandwidth_Bps
    return (math.ceil(math.log2(len(xs))) + 0.5) * round_s


verdict = check(
    "own_broadcast",
    own_broadcast,
    [from_last_but_one, from_the_last],
    lambda xs, roots: [xs[root] for root in roots],
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs, roots: len(xs) - 1, hint="Nobody needs to be told twice."),
    nbytes(lambda xs, roots: sum(x.nbytes for x in xs[1:])),
    rounds(lambda xs, roots: math.ceil(math.log2(len(xs))), hint="Let more ranks send at once."),
    in_place=True,
    timed=[  # there a rank has what comes when it waits, not when it looks into the buffer
        Timed(EIGHT, from_the_last, half_a_round_more_s, "Let more ranks send at once.")
    ],
    mistakes={
        "That is the tensor of rank 0, but here the root is another rank.": (
            lambda xs, roots: [xs[0]] * len(xs)
        ),
    },
    points={"value": 1, "traffic": 1, "time": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# After one round two ranks have the value. How many ranks can have it after two rounds? How many can
# have it after three?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Start with the case `root = 0`. In round 1 rank 0 sends to rank 1. In round 2 ranks 0 and 1 send to
# ranks 2 and 3. In round 3 four ranks send to ranks 4 to 7, if these ranks exist.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For another root, work with the distance of each rank from the root, `(rank - root) % world_size`. Turn
# a distance back into a rank only when you send or receive.
#
# </details>

# %% role="hidden" question="own_broadcast"
seed = 1
print(
    measure(
        own_broadcast,
        lambda rank, world_size: (
            torch.randn(4, generator=torch.Generator().manual_seed(seed + rank)),
            seed % world_size,
        ),
        in_place=True,
    )
)

# %% [markdown]
# ## 3. A ring that gathers (★★★, 25 minutes, 3 points)
#
# Every rank returns the tensors `x` of all ranks, joined in the order of the ranks. The tensors have
# different lengths, and every rank knows all lengths: `lengths[r]` is the length on rank `r`. Each piece
# is the `x` of one rank. There are `world_size - 1` steps. In each step a rank sends one piece to its
# right neighbour, `(rank + 1) % world_size`, and receives one piece from its left neighbour. It sends to
# no other rank. `x` must not change.


# %% role="answer" question="ring_all_gather" points=3
def ring_all_gather(rank, world_size, x, lengths):
    """Return torch.cat of the tensors x of ranks 0, 1, ..., world_size - 1, on every rank.

    x is one-dimensional and float32, of length lengths[rank]. Your function must not change x.
    """
    ### BEGIN SOLUTION
    pieces = [torch.empty(length) for length in lengths]
    pieces[rank] = x.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        request = dist.isend(pieces[(rank - step) % world_size], dst=right)
        dist.recv(pieces[(left - step) % world_size], src=left)
        request.wait()
    return torch.cat(pieces)
    ### END SOLUTION


# %% role="check" question="ring_all_gather" points=3
def uneven_and_told(rank, world_size):
    lengths = [3, 1, 0, 5, 2][:world_size]
    return torch.arange(float(lengths[rank])) + 10 * rank, lengths


def otherwise_uneven_and_told(rank, world_size):
    lengths = [2, 4, 1, 0, 3][:world_size]
    return torch.arange(float(lengths[rank])) * 2 - 5 * rank, lengths


verdict = check(
    "ring_all_gather",
    ring_all_gather,
    [uneven_and_told, otherwise_uneven_and_told],
    lambda xs, lengths: [torch.cat(xs)] * len(xs),
    only("send", "recv"),
    somebody_sends(),
    sends_to(
        lambda rank, n: {(rank + 1) % n},
        hint="Send the piece that you received in the step before.",
        turned="The ring runs the other way: send to (rank + 1) % world_size, receive from the left.",
    ),
    messages(lambda xs, lengths: len(xs) * (len(xs) - 1)),
    nbytes(
        lambda xs, lengths: (len(xs) - 1) * sum(x.nbytes for x in xs),
        hint="Send one piece per step, not all you have.",
    ),
    mistakes={
        "Those are the pieces in the order of arrival: put each at its owner's place.": (
            lambda xs, lengths: [torch.cat(xs[r::-1] + xs[:r:-1]) for r in range(len(xs))]
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In step 0 a rank sends its own piece and receives another piece. What does it send in step 1?
#
# </details>
# <details><summary>Hint 2</summary>
#
# In step `step`, rank `rank` sends the piece of the rank that is `step` places to its left. It receives
# the piece of the rank that is one place further to the left.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make one holder per rank with `[torch.empty(n) for n in lengths]`. Put your own `x` in its place, and
# join the holders at the end. In each step, send with `isend`, receive, then wait.
#
# </details>

# %% role="hidden" question="ring_all_gather"
seed = 1


def hidden_lengths(rank, world_size):
    lengths = [(3 * other + 1 + seed % 4) % 5 for other in range(world_size)]  # rank 0 has some
    numbers = torch.randn(lengths[rank], generator=torch.Generator().manual_seed(seed + rank))
    return numbers, lengths


print(measure(ring_all_gather, hidden_lengths))
