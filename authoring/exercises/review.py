# %% [markdown]
# # Review: ten short tasks that mix the lessons
#
# Take this review about two weeks after lesson 10, when you have forgotten a part of the lessons. A task
# takes 5 to 8 minutes and 1 to 8 lines of code. The last task takes 15 minutes. Each task mixes several
# lessons, and its heading names them. No task repeats an exercise. Do a few tasks on one day, in any
# order. Try each task before you look anything up, because recalling helps you to remember. A check
# calls your function on worlds of 1 to 5 ranks, and it draws new inputs for each world.
#
# In some tasks you fix a program, and in other tasks you predict a result. Each task has folded hints.
# The last hint says which lessons explain the task. Use `cost_gradient` in task 10.

# %% role="setup"
import math

import torch
import torch.distributed as dist

from simlib.checks import (
    OneOf,
    Rule,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    nbytes_of_a_rank,
    only,
    somebody_sends,
)


def cost_gradient(theta, rows, targets):
    """Gradient, at the weights theta, of the mean squared error of rows @ theta."""
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def drawn(seed, world_size, rank=0):
    """A generator of its own for every seed, world and rank."""
    return torch.Generator().manual_seed(1000 * seed + 10 * world_size + rank)


def draws(inputs, *seeds, **how):
    """Of ``inputs(rank, world_size, seed)`` one function for each seed: worlds are tried with each."""
    return [lambda *place, seed=seed: inputs(*place, seed, **how) for seed in seeds]


def whole(low, high, draw):
    """An int from low to high - 1."""
    return int(torch.randint(low, high, (), generator=draw))


def either(*ways):
    """The values of any of these, for a mistake that is made in several ways."""
    return lambda *given: OneOf([way(*given) for way in ways])


def on_all(value_of):
    """The same value, ``value_of(*given)``, on every rank."""
    return lambda *given: [value_of(*given)] * len(given[0])


def alike(counts):
    """For every rank the same weight."""
    return [1 / len(counts)] * len(counts)


# %% [markdown]
# ## 1. Only odd rings hang: lessons 02 and 03 (★★, 7 minutes, 1 point)
#
# The ranks form a ring. Each rank needs the mean of three tensors: its own tensor, its left neighbour's
# and its right neighbour's. Even ranks swap with the right neighbour first, and odd ranks swap with the
# left neighbour first. So every rank has a partner in an even world. In an odd world the program hangs.
# Find out why. Fix the program, but do not send more messages: each rank sends two. Use only sends and
# receives, and do not change `x`.


# %% role="answer" question="ring_mean" points=1
def ring_mean(rank, world_size, x):
    """Return the mean of x, the left neighbour's x and the right neighbour's x.

    x is float32, of the same shape on every rank. In a world of two both neighbours are the same
    rank, in a world of one they are the rank itself.
    """
    if world_size == 1:
        return x.clone()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    from_left, from_right = torch.empty_like(x), torch.empty_like(x)
    ### BEGIN BROKEN
    if rank % 2 == 0:
        for partner, holder in ((right, from_right), (left, from_left)):
            dist.send(x, dst=partner)
            dist.recv(holder, src=partner)
    else:
        for partner, holder in ((left, from_left), (right, from_right)):
            dist.recv(holder, src=partner)
            dist.send(x, dst=partner)
    ### END BROKEN
    ### BEGIN SOLUTION
    requests = [dist.isend(x, dst=partner) for partner in (left, right)]
    dist.recv(from_left, src=left)
    dist.recv(from_right, src=right)
    for request in requests:
        request.wait()
    ### END SOLUTION
    return (from_left + x + from_right) / 3


# %% role="check" question="ring_mean" points=1
def a_tensor(rank, world_size, seed):
    """Inputs: every world draws its own tensors."""
    return (torch.randn(3, generator=drawn(seed, world_size, rank)),)


def of_three(left, own, right):
    """What each rank returns who gives the three tensors these weights."""
    return lambda xs: [
        left * xs[rank - 1] + own * x + right * xs[(rank + 1) % len(xs)]
        for rank, x in enumerate(xs)
    ]


def ends_apart(xs):
    """Without the last swap: the ends of the ring take their own x in its place."""
    padded = [xs[0], *xs, xs[-1]]
    return [sum(padded[rank : rank + 3]) / 3 for rank in range(len(xs))]


verdict = check(
    "ring_mean",
    ring_mean,
    draws(a_tensor, 21, 22),
    of_three(1 / 3, 1 / 3, 1 / 3),
    only("send", "recv"),
    somebody_sends(),
    messages(
        lambda xs: 2 * len(xs) if len(xs) > 1 else 0,
        hint="A rank has two neighbours, and each of them needs its x once.",
    ),
    nbytes(lambda xs: 2 * sum(x.nbytes for x in xs) if len(xs) > 1 else 0),
    mistakes={
        "The last rank and rank 0 do not swap, and take their own x: a ring has no ends.": ends_apart,
        "That is the mean over all ranks: three tensors count, and in a world of two the neighbour's "
        "counts twice.": on_all(lambda xs: sum(xs) / len(xs)),
        "That is the sum of the three: divide it by 3.": of_three(1, 1, 1),
        "The sum of three tensors is divided by another number: it is 3 in every world.": either(
            of_three(1 / 2, 1 / 2, 1 / 2), lambda xs: of_three(*[1 / len(xs)] * 3)(xs)
        ),
        "The rank's own x is left out.": either(
            of_three(1 / 2, 0, 1 / 2), of_three(1 / 3, 0, 1 / 3)
        ),
        "One neighbour's tensor counts twice, the other's not at all. Did both messages go into one "
        "tensor? Make a holder for each.": either(
            of_three(2 / 3, 1 / 3, 0), of_three(0, 1 / 3, 2 / 3)
        ),
    },
    as_given="8953fc8f",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In a ring of five, ranks 4 and 0 are neighbours, and both are even. With which neighbour does rank 4
# swap first? With which neighbour does rank 0 swap first?
#
# </details>
# <details><summary>Hint 2</summary>
#
# No rank has to wait for a send before it receives. Use `isend`, and wait at the end. Look up requests
# in [lesson 02](../notebooks/02_send_and_recv.ipynb) and rings of waiting in
# [lesson 03](../notebooks/03_when_it_hangs.ipynb).
#
# </details>

# %% role="hidden" question="ring_mean"
seed = 1
print(measure(ring_mean, *draws(a_tensor, seed)))

# %% [markdown]
# ## 2. How perplexed are all? Lessons 04 and 07 (★, 6 minutes, 1 point)
#
# The perplexity of a language model is `exp` of the mean loss over its tokens. Every rank is given the
# `losses` of its own tokens and their `targets`. A token with target -100 is padding and does not count.
# A rank may have only padding, or no tokens at all. Every rank returns the perplexity over all tokens of
# all ranks, as a float. Use one `all_reduce` of at most 8 bytes.


# %% role="answer" question="perplexity" points=1
def perplexity(rank, world_size, losses, targets):
    """Return exp of the mean loss over the tokens of all ranks, as a float.

    losses (float32) and targets (int64) are one-dimensional and equally long; the length differs
    from rank to rank. Your function must not change them.
    """
    ### BEGIN SOLUTION
    counts = targets != -100
    total = torch.stack([losses[counts].sum(), counts.sum().float()])
    dist.all_reduce(total)
    return (total[0] / total[1]).exp().item()
    ### END SOLUTION


# %% role="check" question="perplexity" points=1
def some_tokens(rank, world_size, seed):
    """Inputs: losses in eighths; rank 0 has a token that counts, the last of many only padding."""
    draw = drawn(seed, world_size, rank)
    length = int(torch.randint(0, 7, (), generator=draw)) + 2 * (rank == 0)
    losses = torch.randint(1, 33, (length,), generator=draw) / 8
    targets = torch.randint(0, 50, (length,), generator=draw)
    is_padding = torch.randint(0, 3, (length,), generator=draw) == 0
    is_padding |= torch.tensor(rank == world_size - 1 > 1)
    is_padding[:1] &= torch.tensor(rank != 0)
    return losses, targets.masked_fill(is_padding, -100)


def kept(losses, targets):
    """The losses that count, by rank."""
    return [one[target != -100] for one, target in zip(losses, targets, strict=True)]


def perplexity_of(mean):
    """The exp of ``mean(losses, those that count)``, on all ranks; both by rank."""
    return on_all(lambda losses, targets: mean(losses, kept(losses, targets)).exp().item())


def means(some):
    """Mean losses of the ranks that have a token that counts."""
    return torch.stack([one.mean() for one in some if len(one)])


def log(number):
    return torch.as_tensor(number).log()


verdict = check(
    "perplexity",
    perplexity,
    draws(some_tokens, 7, 8),
    perplexity_of(lambda losses, some: torch.cat(some).mean()),
    only("all_reduce"),
    somebody_sends(),
    collectives(lambda losses, targets: 1, hint="Sum and count can travel together."),
    collective_nbytes(lambda losses, targets: 8, hint="Add up before you communicate."),
    mistakes={
        "The padding is among the tokens: a target of -100 does not count.": (
            perplexity_of(lambda losses, some: torch.cat(losses).mean())
        ),
        "That is the mean loss: the perplexity is exp of it.": (
            perplexity_of(lambda losses, some: log(torch.cat(some).mean()))
        ),
        "That is the mean of the tokens' exp: first the mean of the losses, then exp.": (
            perplexity_of(lambda losses, some: log(torch.cat(some).exp().mean()))
        ),
        "The ranks' perplexities are averaged: exp of a mean is no mean of exps, and a rank with "
        "few tokens has too much weight.": either(
            perplexity_of(lambda losses, some: log(means(some).exp().mean())),
            perplexity_of(lambda losses, some: log(means(some).exp().sum() / len(some))),
        ),
        "The ranks' mean losses are averaged: a rank with few tokens has too much weight.": either(
            perplexity_of(lambda losses, some: means(some).mean()),
            perplexity_of(lambda losses, some: means(some).sum() / len(some)),
        ),
        "All is nan: a rank without tokens has brought the mean of nothing, which is nan.": (
            perplexity_of(lambda losses, some: torch.tensor(math.nan))
        ),
        "Its losses are left out, but padding is in the number that you divide by.": (
            perplexity_of(lambda losses, some: torch.cat(some).sum() / len(torch.cat(losses)))
        ),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which two numbers of each rank must you add up to compute the mean over all tokens?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `losses[targets != -100]` gives you the losses that count. Call `exp` last, and call it once. Look up
# sums over all ranks in [lesson 04](../notebooks/04_collectives.ipynb) and uneven numbers of examples in
# [lesson 07](../notebooks/07_data_parallel_training.ipynb).
#
# </details>

# %% role="hidden" question="perplexity"
seed = 1
print(measure(perplexity, *draws(some_tokens, seed + 100)))

# %% [markdown]
# ## 3. Everybody has something for everybody: lessons 02 and 04 (★★, 7 minutes, 1 point)
#
# Every rank has a list of `world_size` blocks, and block j is meant for rank j. Return the blocks that
# are meant for this rank, its own block included, as a list in the order of the ranks that had them. The
# collective `all_to_all` promises the same result. Use only sends and receives. Each rank sends
# `world_size - 1` messages, each straight to the rank for which it is meant. Take care that the ranks do
# not wait for each other for ever. `blocks` must not change.


# %% role="answer" question="swap_blocks" points=1
def swap_blocks(rank, world_size, blocks):
    """Return the list whose place j holds block `rank` of rank j.

    blocks is a list of world_size float32 tensors, all of the same shape on every rank.
    """
    ### BEGIN SOLUTION
    others = [other for other in range(world_size) if other != rank]
    received = [block.clone() for block in blocks]
    requests = [dist.isend(blocks[dst], dst=dst) for dst in others]
    for src in others:
        dist.recv(received[src], src=src)
    for request in requests:
        request.wait()
    return received
    ### END SOLUTION


# %% role="check" question="swap_blocks" points=1
def blocks_for_all(rank, world_size, seed):
    return (list(torch.randn(world_size, 3, generator=drawn(seed, world_size, rank))),)


def transposed(lists):
    return [[blocks[rank] for blocks in lists] for rank in range(len(lists))]


def swapped_by(arrange):
    """What the ranks return of whom ``arrange(right, rank)`` makes the list out of the right one."""
    return lambda lists: [arrange(right, rank) for rank, right in enumerate(transposed(lists))]


def with_own(fill):
    """The right list with ``fill(block)`` in the rank's own place."""
    return swapped_by(lambda right, rank: [*right[:rank], fill(right[rank]), *right[rank + 1 :]])


def without_own(right, rank):
    return right[:rank] + right[rank + 1 :]


def round_from(step):
    """From the rank itself round the ring, by this step."""
    return swapped_by(
        lambda right, r: [right[(r + step * k) % len(right)] for k in range(len(right))]
    )


def one_holder(last):
    """The block of rank ``last(rank, world_size)``, which came last, in all places but the own."""

    def all_the_same(right, rank):
        held = right[last(rank, len(right))]
        return [own if place == rank else held for place, own in enumerate(right)]

    return swapped_by(all_the_same)


def whoever_comes(run, lists):
    """A sentence where a rank took messages from anybody, and its list is not in order."""
    takers = sorted({op.rank for op in run.trace if "recv(src=any" in op.call})
    for rank in takers:
        got, right = run.results[rank], list(map(repr, transposed(lists)[rank]))
        got = list(map(repr, got)) if isinstance(got, list) else right
        if got != right and sorted(got) == sorted(right):
            return (
                f"Rank {rank} receives without src, so it gets whatever comes first, and its list "
                "is not in order: say src, or put each block where its sender's rank is."
            )
    return None


verdict = check(
    "swap_blocks",
    swap_blocks,
    draws(blocks_for_all, 33, 34),
    transposed,
    only("send", "recv"),
    Rule(lambda run, given: whoever_comes(run, *given), before_values=True),
    somebody_sends(),
    messages(
        lambda lists: len(lists) * (len(lists) - 1),
        hint="Each rank has one block for each other rank.",
    ),
    nbytes_of_a_rank(
        lambda lists: (len(lists) - 1) * lists[0][0].nbytes,
        hint="A block goes straight to the one rank that it is for.",
    ),
    mistakes={
        "Those are the rank's own blocks: nothing was swapped.": lambda lists: list(lists),
        "Every rank has sent block `rank`, the one for itself: block j goes to rank j.": on_all(
            lambda lists: [mine[rank] for rank, mine in enumerate(lists)]
        ),
        "The rank's own block is missing in its place.": either(
            with_own(torch.zeros_like), with_own(lambda block: None), swapped_by(without_own)
        ),
        "All places but its own hold the same block, which came last: make a holder for each.": either(
            one_holder(lambda rank, n: n - 1 - (rank == n - 1)),
            one_holder(lambda rank, n: int(rank == 0)),
            one_holder(lambda rank, n: (rank + 1) % n),
            one_holder(lambda rank, n: rank - 1),
        ),
        "That is the list turned round: place 0 is that of rank 0.": (
            swapped_by(lambda right, rank: right[::-1])
        ),
        "The rank's own block stands last: its place is `rank`.": (
            swapped_by(lambda right, rank: [*without_own(right, rank), right[rank]])
        ),
        "The right blocks, but in the order in which they came: place j is that of rank j.": either(
            round_from(1),
            round_from(-1),
            swapped_by(lambda right, rank: [right[rank], *without_own(right, rank)]),
        ),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If all ranks begin with a blocking send, which rank receives?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Post all sends as requests, receive from each other rank, and wait for the requests. Look up `isend` in
# [lesson 02](../notebooks/02_send_and_recv.ipynb) and the promise of each collective in
# [lesson 04](../notebooks/04_collectives.ipynb).
#
# </details>

# %% role="hidden" question="swap_blocks"
seed = 1
print(measure(swap_blocks, *draws(blocks_for_all, seed + 200)))

# %% [markdown]
# ## 4. Predict the end of a step: lessons 05, 08 and 09 (★★, 8 minutes, 1 point)
#
# In backward, every rank measured the time `ready_s[k]` when its bucket k was full. These times differ
# from rank to rank. The ring `all_reduce` of a bucket begins when two things are true: the bucket is
# full on **all** ranks, and the `all_reduce` of the previous bucket is over. Every rank returns the time
# when the last `all_reduce` is over, as a float. A ring takes $2(R-1)(\alpha + N/(R\beta))$. Your
# program may call `all_reduce` once. Its tensor may have 8 bytes for each bucket.


# %% role="answer" question="step_end" points=1
def step_end(rank, world_size, ready_s, bucket_bytes, latency_s, bandwidth_Bps):
    """Return the second at which the last bucket's all_reduce is over.

    ready_s is a list of growing floats, which differ from rank to rank. bucket_bytes is a list of
    ints, as long as ready_s. bucket_bytes and the network are the same on all ranks.
    """
    ### BEGIN SOLUTION
    ready = torch.tensor(ready_s, dtype=torch.float64)
    dist.all_reduce(ready, op=dist.ReduceOp.MAX)
    end_s = 0.0
    for full_s, N in zip(ready.tolist(), bucket_bytes, strict=True):
        ring_s = 2 * (world_size - 1) * (latency_s + N / world_size / bandwidth_Bps)
        end_s = max(end_s, full_s) + ring_s
    return end_s
    ### END SOLUTION


# %% role="check" question="step_end" points=1
def a_backward(rank, world_size, seed):
    """Inputs: four buckets; the first is small and waits for the second, which keeps the third."""
    mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
    gaps_ms = torch.randint(2, 9, (4,), generator=mine) + torch.tensor([0, 4, 0, 2])
    sizes = torch.randint(100, 200, (4,), generator=all_ranks) * torch.tensor([10, 400, 60, 20])
    rate = 1e6 * float(whole(2, 5, all_ranks))
    ready_s = (gaps_ms.double().cumsum(0) / 1000).tolist()
    return ready_s, sizes.tolist(), 2e-4, rate


def rings_s(R, sizes, latencies_s, rates, factor=2, chunk=None):
    """Seconds of each bucket's ring."""
    return [factor * (R - 1) * (latencies_s[0] + N / (chunk or R) / rates[0]) for N in sizes[0]]


def one_by_one(readies_s, rings_s):
    end_s = 0.0
    for ready_s, ring_s in zip(readies_s, rings_s, strict=True):
        end_s = max(end_s, ready_s) + ring_s
    return end_s


def end_by(reckon, latest=max, **ring):
    """On every rank: ``reckon(when the buckets are full, seconds of their rings)``."""

    def value(readies, *rest):
        full_s = [latest(times_s) for times_s in zip(*readies, strict=True)]
        return reckon(full_s, rings_s(len(readies), *rest, **ring))

    return on_all(value)


def by_own_times(readies, *rest):
    return [one_by_one(own_s, rings_s(len(readies), *rest)) for own_s in readies]


verdict = check(
    "step_end",
    step_end,
    draws(a_backward, 44, 45),
    end_by(one_by_one),
    only("all_reduce"),
    somebody_sends(),
    collectives(lambda readies, *rest: 1, hint="All buckets' times fit into one tensor."),
    collective_nbytes(
        lambda readies, *rest: 8 * len(readies[0]), hint="A bucket needs one number."
    ),
    mistakes={
        "Each rank reckons with its own times: an all_reduce begins when the last rank is there.": (
            by_own_times
        ),
        "That is right for the first rank that has a bucket full: all wait for the last.": (
            end_by(one_by_one, latest=min)
        ),
        "That is right for the mean of the times, or their sum: an all_reduce waits for the "
        "last rank.": either(
            end_by(one_by_one, latest=sum),
            end_by(one_by_one, latest=lambda times_s: sum(times_s) / len(times_s)),
        ),
        "Nothing overlaps there: the first bucket need not wait for the end of backward.": (
            end_by(lambda full_s, rings_s: full_s[-1] + sum(rings_s))
        ),
        "There all rings run at once: a bucket also waits for the bucket before it.": (
            end_by(lambda full_s, rings_s: max(map(sum, zip(full_s, rings_s, strict=True))))
        ),
        "That is the larger of backward and all rings together: the last bucket is full when backward "
        "ends, and its ring comes after that.": (
            end_by(lambda full_s, rings_s: max(full_s[-1], sum(rings_s)))
        ),
        "Those are the rings alone, one after the other: none begins before its bucket is full.": (
            end_by(lambda full_s, rings_s: sum(rings_s))
        ),
        "That is the last bucket alone: is the network still busy when it is full?": (
            end_by(lambda full_s, rings_s: full_s[-1] + rings_s[-1])
        ),
        "A step of the ring sends an R-th of the bucket, not all of it.": (
            end_by(one_by_one, chunk=1)
        ),
        "A ring has 2 (R - 1) steps: half add up, half hand round.": end_by(one_by_one, factor=1),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# For each bucket, all ranks must first learn the time when the last rank has filled it. Which operation
# gives them this time?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Go through the buckets and keep one number: the time when the network is free. A ring begins when the
# network is free and the bucket is full, so take the later of the two times. Look up the ring in
# [lesson 05](../notebooks/05_building_all_reduce.ipynb), overlap in
# [lesson 08](../notebooks/08_from_loops_to_ddp.ipynb), and times in
# [lesson 09](../notebooks/09_when_does_it_pay.ipynb).
#
# </details>

# %% role="hidden" question="step_end"
seed = 1
print(measure(step_end, *draws(a_backward, seed + 300)))

# %% [markdown]
# ## 5. Go on with another number of ranks: lessons 01 and 07 (★★, 6 minutes, 1 point)
#
# An epoch began on `old` ranks. The examples were shuffled: `order` was `torch.randperm(n)` made by a
# generator with the seed `seed + epoch`. Rank r took elements r, r + `old`, r + 2 `old`, ... of `order`.
# In each step it took `batch` elements. After `steps` steps the job stopped. Now there are `world_size`
# ranks. Return the examples that this rank has yet to see. To find them, take the examples that no rank
# has seen, in the order of `order`. Deal these examples out in turn as before, without padding. Send
# nothing.


# %% role="answer" question="still_to_see" points=1
def still_to_see(rank, world_size, n, seed, epoch, old, batch, steps):
    """Return the list of examples (ints) that this rank still has to see in this epoch."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    return order[old * batch * steps :][rank::world_size]
    ### END SOLUTION


# %% role="check" question="still_to_see" points=1
def a_stopped_epoch(rank, world_size, seed):
    draw = drawn(seed, world_size)
    batch, steps, more, first_seed, epoch = (
        whole(low, high, draw) for low, high in ((2, 4), (2, 4), (6, 16), (1, 50), (1, 9))
    )
    old = world_size % 5 + 2
    n = (old + 1) * batch * steps + more + world_size
    return n, first_seed, epoch, old, batch, steps


def rest_by(
    pick=lambda left, order, R: left,
    seen=lambda R, old, batch, steps: old * batch * steps,
    with_epoch=True,
    deal=lambda rest, R: [rest[rank::R] for rank in range(R)],
):
    """What the ranks return who leave out ``seen(...)`` elements, and ``deal`` what they ``pick``."""

    def by_rank(*given):
        (n, seed, epoch, old, batch, steps), R = (one[0] for one in given), len(given[0])
        generator = torch.Generator().manual_seed(seed + epoch * with_epoch)
        order = torch.randperm(n, generator=generator).tolist()
        return deal(pick(order[seen(R, old, batch, steps) :], order, R), R)

    return by_rank


def in_blocks(rest, R):
    return [part.tolist() for part in torch.tensor(rest).tensor_split(R)]


def by_places(left, order, R):
    """A list that gives each rank those of its places of the whole order that are left, dealt out."""
    return [None] * (len(order) - len(left)) + left


def without_none(rest, R):
    return [[one for one in rest[rank::R] if one is not None] for rank in range(R)]


verdict = check(
    "still_to_see",
    still_to_see,
    draws(a_stopped_epoch, 55, 56),
    rest_by(),
    messages(lambda *given: 0, hint="Every rank can work out the order for itself."),
    collectives(lambda *given: 0, hint="Every rank can work out the order for itself."),
    mistakes={
        "The seed of the order is seed + epoch: each epoch has its own.": rest_by(with_epoch=False),
        "You count the examples of one rank, or of world_size ranks. Count those of all `old` "
        "ranks.": either(
            rest_by(seen=lambda R, old, batch, steps: R * batch * steps),
            rest_by(seen=lambda R, old, batch, steps: batch * steps),
        ),
        "A step takes a batch on every rank, not one example.": (
            rest_by(seen=lambda R, old, batch, steps: old * steps)
        ),
        "That is the whole epoch once more: some of it has been seen.": rest_by(seen=lambda *_: 0),
        "The rest is cut into blocks: deal it out in turn, as the sampler does.": (
            rest_by(deal=in_blocks)
        ),
        "You repeat or drop some examples. Deal out each example once.": either(
            rest_by(lambda left, order, R: left + left[: -len(left) % R]),
            rest_by(lambda left, order, R: left + order[: -len(left) % R]),
            rest_by(lambda left, order, R: left + order[: -len(order) % R]),  # padded before
            rest_by(lambda left, order, R: left[: len(left) // R * R]),
        ),
        "You deal by the place in `order`. Deal by the place in the rest: rank 0 gets the first"
        " example of the rest.": (rest_by(by_places, deal=without_none)),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Write down `order` for n = 12 and the elements that 2 ranks see in 2 steps with batches of 2. At which
# places of `order` are these elements?
#
# </details>
# <details><summary>Hint 2</summary>
#
# All `old` ranks together have seen the front of `order`. `rest[rank::world_size]` deals out the rest.
# Look up the division of work in [lesson 01](../notebooks/01_ranks_and_clusters.ipynb), and the sampler
# and `set_epoch` in [lesson 07](../notebooks/07_data_parallel_training.ipynb).
#
# </details>

# %% role="hidden" question="still_to_see"
seed = 1
print(measure(still_to_see, *draws(a_stopped_epoch, seed + 400)))

# %% [markdown]
# ## 6. Not every rank uses every weight: lessons 03 and 08 (★★, 8 minutes, 1 point)
#
# `gradients` has one entry for each weight: three numbers, or `None` if the forward pass of this rank
# did not use the weight. The program hangs, or its calls meet the calls for another weight. Return the
# list of means over **all** ranks. If a rank has `None`, it brings zeros. If no rank has a gradient, the
# entry stays `None`. Use one `all_reduce`, of at most four numbers per weight.


# %% role="answer" question="mean_where_used" points=1
def mean_where_used(rank, world_size, gradients):
    """Return the means over all ranks, a tensor or None for each weight; the same on every rank.

    gradients is a list, equally long on every rank, of float32 tensors of three numbers, or None.
    """
    ### BEGIN BROKEN
    means = list(gradients)
    for k, gradient in enumerate(gradients):
        if gradient is not None:
            means[k] = gradient.clone()
            dist.all_reduce(means[k])
            means[k] /= world_size
    return means
    ### END BROKEN
    ### BEGIN SOLUTION
    table = torch.zeros(len(gradients), 4)
    for row, gradient in zip(table, gradients, strict=True):
        if gradient is not None:
            row[:3], row[3] = gradient, 1
    dist.all_reduce(table)
    return [row[:3] / world_size if row[3] else None for row in table]
    ### END SOLUTION


# %% role="check" question="mean_where_used" points=1
def some_gradients(rank, world_size, seed):
    """Inputs: one rank has the first, one the second, all the next two, nobody the last."""
    draw = drawn(seed, world_size, rank)
    used = torch.randint(0, 2, (6,), generator=draw).tolist()
    used = [rank == 0, rank == world_size - 1, True, True, *used[4:-1], False]
    numbers = torch.randn(6, 3, generator=draw)
    numbers[3] = 0  # used, and behind a ReLU that let nothing through
    return ([g.clone() if one else None for g, one in zip(numbers, used, strict=True)],)


def means_by(divisor, nobody=None):
    """What every rank returns who divides by ``divisor(ranks, users)``."""

    def mean_of(column):
        mine = [one for one in column if one is not None]
        return sum(mine) / divisor(len(column), len(mine)) if mine else nobody

    return on_all(lambda lists: [mean_of(column) for column in zip(*lists, strict=True)])


def over_ranks(ranks, users):
    return ranks


def none_where(is_none):
    """The right means, but None where ``is_none(mean, the rank's own gradient)``."""

    def by_rank(lists):
        pairs = [zip(means_by(over_ranks)(lists)[0], mine, strict=True) for mine in lists]
        return [[None if is_none(*pair) else pair[0] for pair in of_rank] for of_rank in pairs]

    return by_rank


def own_only(divisor):
    return lambda lists: [
        [None if one is None else one / divisor(len(lists)) for one in mine] for mine in lists
    ]


verdict = check(
    "mean_where_used",
    mean_where_used,
    draws(some_gradients, 66, 67),
    means_by(over_ranks),
    only("all_reduce"),
    somebody_sends(),
    collectives(
        lambda lists: 1 if len(lists) > 1 else len(lists[0]),
        hint="Whether a rank has a gradient can travel with it, as a number 0 or 1.",
    ),
    collective_nbytes(lambda lists: 16 * len(lists[0]), hint="A sum needs no room for each rank."),
    mistakes={
        "A weight that no rank uses has no gradient: None, not zeros. An optimizer with momentum "
        "would move it.": means_by(over_ranks, nobody=torch.zeros(3)),
        "A gradient of zeros is a gradient: who has one must be told, and not guessed from the sum.": (
            none_where(lambda mean, own: mean is None or not mean.any())
        ),
        "You divide by the ranks that use the weight: a rank that does not brings zeros, and counts.": (
            means_by(lambda ranks, users: users)
        ),
        "Those are sums: divide by world_size.": means_by(lambda ranks, users: 1),
        "A rank without a gradient of its own keeps None, and would not make the others' step.": (
            none_where(lambda mean, own: own is None)
        ),
        "Those are the rank's own gradients: nothing came from the others.": either(
            own_only(lambda n: 1), own_only(lambda n: n)
        ),
    },
    as_given="9e22ead2",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# How many calls does each rank make? How are the calls of the ranks paired?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make a table of zeros with a row for each weight. Write the three numbers into the row, and write a 1
# behind them if there is a gradient. Look up wrongly paired calls in
# [lesson 03](../notebooks/03_when_it_hangs.ipynb), and `find_unused_parameters` in
# [lesson 08](../notebooks/08_from_loops_to_ddp.ipynb).
#
# </details>

# %% role="hidden" question="mean_where_used"
seed = 1
print(measure(mean_where_used, *draws(some_gradients, seed + 500)))

# %% [markdown]
# ## 7. Count before you run: lessons 05, 07 and 08 (★★, 6 minutes, 1 point)
#
# `DistributedSampler` deals out `n` examples, padded to equal shares. Each rank cuts its share into
# micro-batches of `micro` examples, and the last micro-batch may be smaller. The rank runs an optimizer
# step after every `every`-th micro-batch and after the last one. It runs the other micro-batches under
# `no_sync`. In a step, DDP reduces each bucket with a ring of its own. Predict this rank's epoch: return
# `(optimizer steps, all_reduces, bytes it sends)` as three ints. Send nothing.


# %% role="answer" question="traffic" points=1
def traffic(rank, world_size, n, micro, every, bucket_bytes):
    """Return (optimizer steps, all_reduces, bytes that this rank sends in them) of an epoch.

    bucket_bytes is a list of ints that world_size divides.
    """
    ### BEGIN SOLUTION
    share = math.ceil(n / world_size)
    steps = math.ceil(math.ceil(share / micro) / every)
    sent = 2 * (world_size - 1) * sum(bucket_bytes) // world_size
    return steps, steps * len(bucket_bytes), steps * sent
    ### END SOLUTION


# %% role="check" question="traffic" points=1
def an_epoch(rank, world_size, seed, rest):
    """Inputs: ``rest(R, micro)`` examples more than full steps take; they make one step more."""
    draw = drawn(seed, world_size)
    micro, every, groups, number = (
        whole(low, high, draw) for low, high in ((2, 5), (2, 5), (3, 7), (2, 5))
    )
    n = world_size * micro * every * groups + rest(world_size, micro)
    sizes = 60 * torch.randint(10, 99, (number,), generator=draw)
    return n, micro, every, sizes.tolist()


def groups_of(share, micro, every):
    return math.ceil(math.ceil(share / micro) / every)


def micro_batches(share, micro, every):
    return math.ceil(share / micro)


def counted(
    share=lambda n, R, rank: math.ceil(n / R),
    steps=groups_of,
    reduced=None,
    calls=lambda times, buckets: times * buckets,
    bytes_of=lambda R, size: 2 * (R - 1) * size // R,
):
    """What the ranks return who count like this; ``reduced`` says how often, if not in steps."""

    def by_rank(ns, micros, everys, lists):
        R, sizes, found = len(ns), lists[0], []
        for rank in range(R):
            given = share(ns[0], R, rank), micros[0], everys[0]
            times = (reduced or steps)(*given)
            calls_made = calls(times, len(sizes))
            found.append((steps(*given), calls_made, times * bytes_of(R, sum(sizes))))
        return found

    return by_rank


verdict = check(
    "traffic",
    traffic,
    # without padding, then with it: there one example more makes one step more
    draws(an_epoch, 77, rest=lambda R, micro: R * (micro + 1))
    + draws(an_epoch, 78, rest=lambda R, micro: 1),
    counted(),
    messages(lambda *given: 0, hint="A prediction sends nothing."),
    collectives(lambda *given: 0, hint="A prediction sends nothing."),
    mistakes={
        "Every micro-batch is a step there: under no_sync there is none.": (
            counted(steps=micro_batches)
        ),
        "The steps are right, but every micro-batch reduces there: no_sync is for adding up without "
        "sending.": counted(reduced=micro_batches),
        "The share was rounded down: the sampler pads it, so round up.": (
            counted(share=lambda n, R, rank: n // R)
        ),
        "Some ranks have a smaller share there: the sampler pads, so that all have equally many.": (
            counted(share=lambda n, R, rank: n // R + (rank < n % R))
        ),
        "The last group of micro-batches is shorter than `every`, or its last micro-batch smaller; "
        "it is a step, too.": counted(steps=lambda share, m, k: share // m // k),
        "All ranks together work on n examples: divide by world_size first.": (
            counted(share=lambda n, R, rank: n)
        ),
        "Those are the bytes of all ranks: this one sends an R-th of them.": (
            counted(bytes_of=lambda R, size: 2 * (R - 1) * size)
        ),
        "A ring goes round twice: R - 1 steps to add up, R - 1 to hand round.": (
            counted(bytes_of=lambda R, size: (R - 1) * size // R)
        ),
        "Those are the bytes that a rank brings, not those that a ring sends for it.": (
            counted(bytes_of=lambda R, size: size)
        ),
        "Each bucket has an all_reduce of its own, in each step.": either(
            counted(calls=lambda times, buckets: times),
            counted(calls=lambda times, buckets: buckets),
        ),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You need three divisions, and you must round each result up. Divide the examples by the ranks, a share
# by `micro`, and the micro-batches by `every`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In a ring each rank sends $2\frac{R-1}{R}N$ bytes. Look up the ring in
# [lesson 05](../notebooks/05_building_all_reduce.ipynb), padding in
# [lesson 07](../notebooks/07_data_parallel_training.ipynb), and buckets and `no_sync` in
# [lesson 08](../notebooks/08_from_loops_to_ddp.ipynb).
#
# </details>

# %% role="hidden" question="traffic"
seed = 1
print(measure(traffic, *draws(an_epoch, seed + 600, rest=lambda R, micro: R * (micro + 1))))
print(measure(traffic, *draws(an_epoch, seed + 600, rest=lambda R, micro: 1)))

# %% [markdown]
# ## 8. What fits on all? Lessons 04 and 10 (★, 5 minutes, 1 point)
#
# A model is split by layers. This rank's layers have `params` parameters, and the layers keep
# `example_bytes` of activations for each example of the batch. All numbers are float32, and the
# optimizer is Adam. Ignore Adam's work space. Every rank may keep `capacity` bytes. Return the largest
# batch that fits on **every** rank, as an int. It must be the same int on every rank. Return 0 if no
# batch fits. Use one `all_reduce` of at most 8 bytes.


# %% role="answer" question="largest_batch" points=1
def largest_batch(rank, world_size, params, example_bytes, capacity):
    """Return the largest number of examples (int) with which no rank holds more than capacity.

    params and example_bytes are ints that differ from rank to rank; capacity is the same.
    """
    ### BEGIN SOLUTION
    own = (capacity - 16 * params) // example_bytes
    fits = torch.tensor([max(0, own)])
    dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    return fits.item()
    ### END SOLUTION


# %% role="check" question="largest_batch" points=1
def a_split_model(rank, world_size, seed):
    """Inputs: on four ranks one of them has no room for its parameters."""
    draw = drawn(seed, world_size, rank)
    params, example_bytes = whole(1000, 2500, draw), whole(300, 900, draw)
    params += 5000 * (world_size == 4 and rank == seed % 4)
    return params, example_bytes, 60_000


def batches(params, sizes, capacities, per_param=16, rounded=math.floor):
    """What fits on each rank, which may be less than nothing."""
    return [
        rounded((capacity - per_param * p) / size)
        for p, size, capacity in zip(params, sizes, capacities, strict=True)
    ]


def of_all(choose, **how):
    """What every rank returns: ``choose`` of what fits on each."""
    return on_all(lambda *given: choose(batches(*given, **how)))


verdict = check(
    "largest_batch",
    largest_batch,
    draws(a_split_model, 88, 89),
    of_all(lambda each: max(0, min(each))),
    only("all_reduce"),
    somebody_sends(),
    collectives(lambda *given: 1, hint="One number of each rank says it all."),
    collective_nbytes(lambda *given: 8, hint="First work out what fits on your own rank."),
    mistakes={
        "That is what fits on this rank alone: a batch goes through all of them.": batches,
        "That fits on the rank with most room; the tightest one decides.": of_all(max),
        "Those are all ranks' batches together: they do not add up, each example visits every rank.": (
            of_all(sum)
        ),
        "That is the mean of what fits, and does not fit on the tightest.": (
            of_all(lambda each: sum(each) // len(each))
        ),
        "Only the parameters are counted: gradients and Adam's two states are as large.": (
            of_all(min, per_param=4)
        ),
        "Parameters and gradients are counted, but not Adam's two states.": of_all(
            min, per_param=8
        ),
        "Adam keeps two states for each parameter, not one.": of_all(min, per_param=12),
        "Less than nothing does not fit: return 0.": of_all(min),
        "A batch has whole examples: round down to an int.": of_all(min, rounded=float),
        "That is rounded up: the last example does not fit any more.": of_all(
            min, rounded=math.ceil
        ),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A rank keeps each parameter, its gradient, and some numbers of Adam. How many numbers are these for one
# parameter?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Each parameter needs 16 bytes, and the rest of `capacity` is for activations. Then find the smallest
# batch over all ranks. Look up the ledger in [lesson 10](../notebooks/10_splitting_the_model.ipynb), and
# other operations than the sum in [lesson 04](../notebooks/04_collectives.ipynb).
#
# </details>

# %% role="hidden" question="largest_batch"
seed = 1
print(measure(largest_batch, *draws(a_split_model, seed + 700)))

# %% [markdown]
# ## 9. Clip what is split: lessons 06 and 10 (★★, 7 minutes, 1 point)
#
# A model is split over the ranks: `own` is the gradient of this rank's layers. Every rank also has the
# same embedding. Its gradient `shared` has been added up already, so it is the same on all ranks. Clip
# the gradient of the **whole** model to the norm `most`, and return this rank's `(own, shared)`. A
# gradient with a smaller norm must not change. Use one `all_reduce` of at most 8 bytes. The inputs
# must not change.


# %% role="answer" question="clip_split" points=1
def clip_split(rank, world_size, own, shared, most):
    """Return (own, shared), scaled so that the norm of the whole gradient is at most `most`.

    own and shared are one-dimensional and float32, and not all 0. `own` has a different number of
    elements on each rank.
    """
    ### BEGIN SOLUTION
    squares = (own**2).sum()
    dist.all_reduce(squares)
    length = (squares + (shared**2).sum()).sqrt()
    scale = min(1.0, most / length.item())
    return own * scale, shared * scale
    ### END SOLUTION


# %% role="check" question="clip_split" points=1
def a_split_gradient(rank, world_size, seed, stretch=0.0):
    """Inputs: with a stretch, a gradient that is short enough."""
    mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
    length = whole(1, 6, mine)
    own = 1 + torch.rand(length, generator=mine)
    shared = 1 + torch.rand(4, generator=all_ranks)
    return own, shared, 1.0 + float(torch.rand((), generator=all_ranks)) + stretch


def cut_by(cut):
    """What the ranks return: ``cut(own, shared, most, owns)``; ``owns`` are all ranks' gradients."""
    return lambda owns, *rest: [cut(*mine, owns) for mine in zip(owns, *rest, strict=True)]


def clipped(length_of, stretch=False):
    """What the ranks return who measure ``length_of(own, shared, owns)``."""

    def cut(own, shared, most, owns):
        scale = most / float(length_of(own, shared, owns))
        scale = scale if stretch else min(1.0, scale)
        return own * scale, shared * scale

    return cut_by(cut)


def norm(*parts):
    """The length of these, laid end to end."""
    return torch.cat(parts).norm()


def of_the_whole(own, shared, owns):
    return norm(*owns, shared)


def by_squares(choose):
    """The length by ``choose`` of the ranks' squares."""
    return lambda own, shared, owns: (
        choose([(g**2).sum() for g in owns]) + norm(shared) ** 2
    ).sqrt()


verdict = check(
    "clip_split",
    clip_split,
    draws(a_split_gradient, 99) + draws(a_split_gradient, 99, stretch=20.0),
    clipped(of_the_whole),
    only("all_reduce"),
    somebody_sends(),
    collectives(
        lambda *given: 1,
        hint="Do not send `shared`: every rank has it and can add it without a call.",
    ),
    collective_nbytes(
        lambda *given: 8, hint="Send one number: the sum of the squares of the rank's own gradient."
    ),
    mistakes={
        "Each rank measures only its own part, so ranks scale differently, and the direction "
        "changes: measure the whole gradient.": (
            clipped(lambda own, shared, owns: norm(own, shared))
        ),
        "You count `shared` once for each rank: count it once, because it is one embedding.": (
            clipped(lambda own, shared, owns: norm(*owns, *[shared] * len(owns)))
        ),
        "`shared` is missing in the norm: count it, because it is a part of the whole model.": (
            clipped(lambda own, shared, owns: norm(*owns))
        ),
        "You did not scale `shared`: it belongs to the whole gradient, so scale it by the same "
        "factor.": cut_by(
            lambda own, shared, most, owns: (own * min(1, most / norm(*owns, shared)), shared)
        ),
        "You add up norms: add up their squares.": either(
            clipped(lambda own, shared, owns: sum(map(norm, owns)) + norm(shared)),
            clipped(lambda own, shared, owns: sum(map(norm, owns)) + len(owns) * norm(shared)),
            clipped(lambda own, shared, owns: sum(norm(g, shared) for g in owns)),
        ),
        "You clip `own` and `shared` separately, and the direction changes: scale both by one "
        "factor.": (
            cut_by(
                lambda own, shared, most, owns: tuple(
                    g * min(1.0, most / float(norm(g))) for g in (own, shared)
                )
            )
        ),
        "You clip each number by itself, and the direction changes: scale all by one factor.": cut_by(
            lambda own, shared, most, owns: (own.clamp(-most, most), shared.clamp(-most, most))
        ),
        "That is the square of the norm: take the root.": (
            clipped(lambda *given: of_the_whole(*given) ** 2)
        ),
        "You take the mean of the squares: add them up, because every rank holds another part.": (
            clipped(by_squares(lambda squares: sum(squares) / len(squares)))
        ),
        "You measure only the longest part: every rank holds another part, and the squares of "
        "all parts add up.": (clipped(by_squares(max))),
        "You make a gradient longer whose norm was small enough: scale it down, but never up.": (
            clipped(of_the_whole, stretch=True)
        ),
    },
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Join all parts of the model's gradient to one vector, and use each part once. What is the square of
# this vector's length?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Add up `(own**2).sum()` over the ranks, and add the squares of `shared` once. Look up clipping in
# [lesson 06](../notebooks/06_synchronous_sgd.ipynb) and split models in
# [lesson 10](../notebooks/10_splitting_the_model.ipynb).
#
# </details>

# %% role="hidden" question="clip_split"
seed = 1
print(measure(clip_split, *draws(a_split_gradient, seed + 800)))
print(measure(clip_split, *draws(a_split_gradient, seed + 800, stretch=20.0)))

# %% [markdown]
# ## 10. Three mistakes: lessons 03, 06 and 07 (★★★, 15 minutes, 1 point)
#
# Fix this training. Every rank should return the `theta` that one process with all rows would reach from
# the `theta` of rank 0. The program has three mistakes, each from another lesson. The ranks have
# different numbers of rows. A rank may have no rows, and then its `cost_gradient` is nan. Use only
# `broadcast` and `all_reduce`, with at most `steps + 2` calls in all. No call may carry more than a
# `theta` and one more number. The inputs must not change.


# %% role="answer" question="train" points=1
def train(rank, world_size, theta, rows, targets, steps, lr):
    """Return theta after `steps` steps of gradient descent over the rows of all ranks.

    theta differs from rank to rank at first; the gradient of the mean loss over this rank's rows
    is cost_gradient(theta, rows, targets).
    """
    ### BEGIN BROKEN
    theta = theta.clone()
    for _ in range(steps):
        if len(rows):
            gradient = cost_gradient(theta, rows, targets)
            dist.all_reduce(gradient)
            theta -= lr * gradient / world_size
    return theta
    ### END BROKEN
    ### BEGIN SOLUTION
    theta = theta.clone()
    dist.broadcast(theta, src=0)
    for _ in range(steps):
        total = torch.zeros(len(theta) + 1)
        if len(rows):
            total[:-1] = cost_gradient(theta, rows, targets) * len(rows)
            total[-1] = len(rows)
        dist.all_reduce(total)
        theta -= lr * total[:-1] / total[-1]
    return theta
    ### END SOLUTION


# %% role="check" question="train" points=1
def uneven_rows(rank, world_size, seed):
    """Inputs: no two ranks have equally many rows, and from 3 ranks on one has none."""
    mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
    counts = torch.randperm(7, generator=all_ranks)[:world_size] + 1
    if world_size > 2:
        counts[torch.randint(world_size, (), generator=all_ranks)] = 0
    number = int(counts[rank])
    theta, rows, targets = (
        torch.randn(*shape, generator=mine) for shape in ((3,), (number, 3), (number,))
    )
    return theta, rows, targets, 3, 0.1


def by_rank_0(thetas):
    return [thetas[0]] * len(thetas)


def by_their_mean(thetas):
    return [sum(thetas) / len(thetas)] * len(thetas)


def descent(weights_of, begin=by_rank_0):
    """What the ranks come to who give rank r's mean gradient the weight ``weights_of(counts)[r]``."""

    def by_rank(thetas, rows, targets, steps, lrs):
        weights, thetas = weights_of([len(mine) for mine in rows]), begin(list(thetas))
        for _ in range(steps[0]):
            step = sum(
                weight * cost_gradient(*mine)
                for weight, *mine in zip(weights, thetas, rows, targets, strict=True)
                if len(mine[1])
            )
            thetas = [theta - lrs[0] * step for theta in thetas]
        return thetas

    return by_rank


def averaged_at_the_end(weights_of, begin=by_rank_0):
    """What they come to who train alone, and then give rank r's theta such a weight."""

    def by_rank(thetas, rows, targets, steps, lrs):
        ends = begin(list(thetas))
        for rank, mine in enumerate(rows):
            for _ in range(steps[0] if len(mine) else 0):
                ends[rank] = ends[rank] - lrs[0] * cost_gradient(ends[rank], mine, targets[rank])
        weights = weights_of([len(mine) for mine in rows])
        mean = sum(weight * end for weight, end in zip(weights, ends, strict=True))
        return [mean] * len(ends)

    return by_rank


def by_rows(counts):
    return [count / sum(counts) for count in counts]


def alike_where_rows(counts):
    return [1 / sum(map(bool, counts))] * len(counts)


verdict = check(
    "train",
    train,
    draws(uneven_rows, 111, 112),
    descent(by_rows),
    only("broadcast", "all_reduce"),
    somebody_sends(),
    collectives(
        lambda thetas, rows, targets, steps, lrs: steps[0] + 2,
        hint="One at the beginning, then one in each step: the number of rows travels with the "
        "gradient, or once before.",
    ),
    collective_nbytes(
        lambda thetas, *rest: thetas[0].nbytes + 4, hint="A sum needs no room for each rank."
    ),
    mistakes={
        "Every rank still begins with its own theta: rank 0's is to be everybody's.": (
            descent(by_rows, begin=list)
        ),
        "The ranks begin with the mean of their thetas: rank 0's is to be everybody's.": either(
            descent(by_rows, begin=by_their_mean), descent(alike, begin=by_their_mean)
        ),
        "Every rank still has the same weight: one with few rows counts too much.": either(
            descent(alike), descent(alike_where_rows)
        ),
        # Both of these: what is said is no more than what is seen.
        "In this world the ranks do not even agree with each other.": either(
            descent(alike, begin=list), descent(alike_where_rows, begin=list)
        ),
        "The gradients are weighted by rows, but what divides is not the number of all rows.": either(
            descent(lambda counts: counts),
            descent(lambda counts: [count / len(counts) for count in counts]),
        ),
        "Each rank trains alone there, and their thetas are averaged: one process goes along the "
        "gradient of all rows in each step.": either(
            *(
                averaged_at_the_end(weights, begin)
                for weights in (alike, alike_where_rows, by_rows)
                for begin in (by_rank_0, list)
            )
        ),
        "All is nan: a rank without rows has brought its gradient, which is nan.": (
            lambda thetas, *rest: [theta * torch.nan for theta in thetas]
        ),
    },
    as_given="c226d160",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# With which `theta` does rank 1 begin? Which collectives does a rank without rows call? Does a rank with
# one row count as much as a rank with seven?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Every rank must call `all_reduce` in every step. It brings the sum over its rows, or zeros, and then
# the number of its rows as one more number. Look up more in
# [lesson 03](../notebooks/03_when_it_hangs.ipynb), [lesson 06](../notebooks/06_synchronous_sgd.ipynb)
# and [lesson 07](../notebooks/07_data_parallel_training.ipynb).
#
# </details>

# %% role="hidden" question="train"
seed = 1
print(measure(train, *draws(uneven_rows, seed + 900)))
