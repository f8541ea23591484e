"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/review.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import (
    OneOf,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    nbytes_of_a_rank,
    only,
)


def drawn(seed, world_size, rank=0):
    """A generator of its own for every seed, world and rank."""
    return torch.Generator().manual_seed(1000 * seed + 10 * world_size + rank)


# %% review.1 ring_mean
def a_tensor(seed):
    """Inputs: every world draws its own tensors."""

    def inputs(rank, world_size):
        return (torch.randn(3, generator=drawn(seed, world_size, rank)),)

    return inputs


def ring_means(xs, ends_meet=True):
    """What each rank returns; without the last swap its ends take their own x."""
    n, means = len(xs), []
    for rank, x in enumerate(xs):
        left = xs[rank - 1] if ends_meet or rank > 0 else x
        right = xs[(rank + 1) % n] if ends_meet or rank < n - 1 else x
        means.append((left + x + right) / 3)
    return means


verdict = check(
    "ring_mean",
    ring_mean,
    a_tensor(21),
    ring_means,
    only("send", "recv"),
    messages(
        lambda xs: 2 * len(xs) if len(xs) > 1 else 0,
        hint="A rank has two neighbours, and each of them needs its x once.",
    ),
    nbytes(lambda xs: 2 * sum(x.nbytes for x in xs) if len(xs) > 1 else 0),
    mistakes={
        "The last rank and rank 0 do not swap, and take their own x: a ring has no ends.": (
            lambda xs: ring_means(xs, ends_meet=False)
        ),
        "That is the mean over all ranks: only three tensors count.": (
            lambda xs: [sum(xs) / len(xs)] * len(xs)
        ),
        "That is the sum of the three: divide it by 3.": (
            lambda xs: [3 * mean for mean in ring_means(xs)]
        ),
        "Left and right are the same neighbour there: one of the two tensors came twice.": (
            lambda xs: OneOf(
                [
                    [(2 * xs[(r + side) % len(xs)] + x) / 3 for r, x in enumerate(xs)]
                    for side in (-1, 1)
                ]
            )
        ),
    },
    as_given="8953fc8f",
    points=1,
)
verdict


# %% review.2 perplexity
def some_tokens(seed):
    """Inputs: losses in eighths; rank 0 has a token that counts, the last of many only padding."""

    def inputs(rank, world_size):
        draw = drawn(seed, world_size, rank)
        length = int(torch.randint(0, 7, (), generator=draw)) + 2 * (rank == 0)
        losses = torch.randint(1, 33, (length,), generator=draw) / 8
        targets = torch.randint(0, 50, (length,), generator=draw)
        is_padding = torch.randint(0, 3, (length,), generator=draw) == 0
        is_padding |= torch.tensor(rank == world_size - 1 > 1)
        is_padding[:1] &= torch.tensor(rank != 0)
        return losses, targets.masked_fill(is_padding, -100)

    return inputs


def kept(losses, targets):
    """The losses that count, by rank."""
    return [one[target != -100] for one, target in zip(losses, targets, strict=True)]


def mean_over(tensors):
    return torch.cat(list(tensors)).mean()


def of_each(losses, targets):
    """Mean losses of the ranks that have a token."""
    return torch.stack([one.mean() for one in kept(losses, targets) if len(one)])


verdict = check(
    "perplexity",
    perplexity,
    some_tokens(7),
    lambda losses, targets: [mean_over(kept(losses, targets)).exp().item()] * len(losses),
    only("all_reduce"),
    collectives(lambda losses, targets: 1, hint="Sum and count can travel together."),
    collective_nbytes(lambda losses, targets: 8, hint="Add up before you communicate."),
    mistakes={
        "The padding is among the tokens: a target of -100 does not count.": (
            lambda losses, targets: [mean_over(losses).exp().item()] * len(losses)
        ),
        "That is the mean loss: the perplexity is exp of it.": (
            lambda losses, targets: [mean_over(kept(losses, targets)).item()] * len(losses)
        ),
        "That is the mean of the tokens' exp: first the mean of the losses, then exp.": (
            lambda losses, targets: (
                [mean_over(kept(losses, targets)[r].exp() for r in range(len(losses))).item()]
                * len(losses)
            )
        ),
        "The ranks' perplexities are averaged: exp of a mean is no mean of exps, and a rank with "
        "few tokens has too much weight.": (
            lambda losses, targets: OneOf(
                [
                    [(of_each(losses, targets).exp().sum() / n).item()] * len(losses)
                    for n in {len(losses), len(of_each(losses, targets))}
                ]
            )
        ),
        "The ranks' mean losses are averaged: a rank with few tokens has too much weight.": (
            lambda losses, targets: OneOf(
                [
                    [(of_each(losses, targets).sum() / n).exp().item()] * len(losses)
                    for n in {len(losses), len(of_each(losses, targets))}
                ]
            )
        ),
        "All is nan: a rank without tokens has brought the mean of nothing, which is nan.": (
            lambda losses, targets: [math.nan] * len(losses)
        ),
        "Its losses are left out, but padding is in the number that you divide by.": (
            lambda losses, targets: (
                [(torch.cat(kept(losses, targets)).sum() / sum(map(len, losses))).exp().item()]
                * len(losses)
            )
        ),
    },
    points=1,
)
verdict


# %% review.3 swap_blocks
def blocks_for_all(seed):
    def inputs(rank, world_size):
        return (list(torch.randn(world_size, 3, generator=drawn(seed, world_size, rank))),)

    return inputs


def transposed(lists):
    return [[blocks[rank] for blocks in lists] for rank in range(len(lists))]


verdict = check(
    "swap_blocks",
    swap_blocks,
    blocks_for_all(33),
    transposed,
    only("send", "recv"),
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
        "Every rank has sent block `rank`, the one for itself: block j goes to rank j.": (
            lambda lists: [[lists[j][j] for j in range(len(lists))]] * len(lists)
        ),
        "The rank's own block is missing in its place.": lambda lists: OneOf(
            [
                [
                    [b if j != r else fill(b) for j, b in enumerate(mine)]
                    for r, mine in enumerate(transposed(lists))
                ]
                for fill in (torch.zeros_like, lambda block: None)
            ]
            + [
                [
                    [b for j, b in enumerate(mine) if j != r]
                    for r, mine in enumerate(transposed(lists))
                ]
            ]
        ),
        "The right blocks, but in the order in which they came: place j is that of rank j.": (
            lambda lists: OneOf(
                [
                    [
                        [mine[(r + sign * k) % len(mine)] for k in range(len(mine))]
                        for r, mine in enumerate(transposed(lists))
                    ]
                    for sign in (1, -1)
                ]
            )
        ),
    },
    points=1,
)
verdict


# %% review.4 step_end
def a_backward(seed):
    """Inputs: four buckets; the first is small and waits for the second, which keeps the third."""

    def inputs(rank, world_size):
        mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
        gaps_ms = torch.randint(2, 9, (4,), generator=mine) + torch.tensor([0, 4, 0, 2])
        sizes = torch.randint(100, 200, (4,), generator=all_ranks) * torch.tensor([10, 400, 60, 20])
        rate = 1e6 * float(torch.randint(2, 5, (), generator=all_ranks))
        ready_s = (gaps_ms.double().cumsum(0) / 1000).tolist()
        return ready_s, sizes.tolist(), 2e-4, rate

    return inputs


def the_end(readies, sizes, latencies_s, rates, factor=2, chunk=None, latest=max):
    """What every rank returns: as `expected`, or as somebody who reckons otherwise."""
    R, end_s = len(readies), 0.0
    for k, N in enumerate(sizes[0]):
        ring_s = factor * (R - 1) * (latencies_s[0] + N / (chunk or R) / rates[0])
        end_s = max(end_s, latest([ready[k] for ready in readies])) + ring_s
    return [end_s] * R


def rings_s(readies, sizes, latencies_s, rates):
    R = len(readies)
    return [2 * (R - 1) * (latencies_s[0] + N / R / rates[0]) for N in sizes[0]]


verdict = check(
    "step_end",
    step_end,
    a_backward(44),
    the_end,
    only("all_reduce"),
    collectives(lambda readies, *rest: 1, hint="All buckets' times fit into one tensor."),
    collective_nbytes(
        lambda readies, *rest: 8 * len(readies[0]), hint="A bucket needs one number."
    ),
    mistakes={
        "Each rank reckons with its own times: an all_reduce begins when the last rank is there.": (
            lambda readies, *rest: [the_end([own] * len(readies), *rest)[0] for own in readies]
        ),
        "That is right for the first rank that has a bucket full: all wait for the last.": (
            lambda *given: the_end(*given, latest=min)
        ),
        "That is right for the mean of the times, or their sum: an all_reduce waits for the "
        "last rank.": lambda *given: OneOf(
            [the_end(*given, latest=sum)]
            + [the_end(*given, latest=lambda times_s: sum(times_s) / len(times_s))]
        ),
        "Nothing overlaps there: the first bucket need not wait for the end of backward.": (
            lambda readies, *rest: (
                [max(one[-1] for one in readies) + sum(rings_s(readies, *rest))] * len(readies)
            )
        ),
        "There all rings run at once: a bucket also waits for the bucket before it.": (
            lambda readies, *rest: (
                [
                    max(
                        max(ready[k] for ready in readies) + ring_s
                        for k, ring_s in enumerate(rings_s(readies, *rest))
                    )
                ]
                * len(readies)
            )
        ),
        "That is the larger of backward and all rings together: the last bucket is full when backward "
        "ends, and its ring comes after that.": lambda readies, *rest: (
            [max(sum(rings_s(readies, *rest)), *(one[-1] for one in readies))] * len(readies)
        ),
        "That is the last bucket alone: is the network still busy when it is full?": (
            lambda readies, *rest: (
                [max(one[-1] for one in readies) + rings_s(readies, *rest)[-1]] * len(readies)
            )
        ),
        "A step of the ring sends an R-th of the bucket, not all of it.": (
            lambda *given: the_end(*given, chunk=1)
        ),
        "A ring has 2 (R - 1) steps: half add up, half hand round.": (
            lambda *given: the_end(*given, factor=1)
        ),
    },
    points=1,
)
verdict


# %% review.5 still_to_see
def a_stopped_epoch(seed):
    def inputs(rank, world_size):
        draw = drawn(seed, world_size)
        batch, steps, more, first_seed, epoch = (
            int(torch.randint(low, high, (), generator=draw))
            for low, high in ((2, 4), (2, 4), (6, 16), (1, 50), (1, 9))
        )
        old = world_size % 5 + 2
        n = (old + 1) * batch * steps + more + world_size
        return n, first_seed, epoch, old, batch, steps

    return inputs


def order_of(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def left_of(given, with_epoch=True):
    """What nobody has seen, in its order."""
    n, seed, epoch, old, batch, steps = (one[0] for one in given)
    return order_of(n, seed + epoch * with_epoch)[old * batch * steps :]


def dealt(left, R):
    return [left[rank::R] for rank in range(R)]


def other_start(start):
    """What the ranks return who leave out another number of elements."""
    return lambda *given: dealt(
        order_of(given[0][0], given[1][0] + given[2][0])[
            start(len(given[0]), *(one[0] for one in given[3:])) :
        ],
        len(given[0]),
    )


verdict = check(
    "still_to_see",
    still_to_see,
    a_stopped_epoch(55),
    lambda *given: dealt(left_of(given), len(given[0])),
    messages(lambda *given: 0, hint="Every rank can work out the order for itself."),
    collectives(lambda *given: 0, hint="Every rank can work out the order for itself."),
    mistakes={
        "The seed of the order is seed + epoch: each epoch has its own.": (
            lambda *given: dealt(left_of(given, with_epoch=False), len(given[0]))
        ),
        "Each of the `old` ranks has seen batch * steps examples: not one rank alone, and not "
        "world_size of them.": lambda *given: OneOf(
            [
                other_start(lambda R, old, batch, steps: R * batch * steps)(*given),
                other_start(lambda R, old, batch, steps: batch * steps)(*given),
            ]
        ),
        "A step takes a batch on every rank, not one example.": (
            other_start(lambda R, old, batch, steps: old * steps)
        ),
        "That is the whole epoch once more: some of it has been seen.": (
            other_start(lambda R, old, batch, steps: 0)
        ),
        "The rest is cut into blocks: deal it out in turn, as the sampler does.": (
            lambda *given: [
                part.tolist() for part in torch.tensor(left_of(given)).tensor_split(len(given[0]))
            ]
        ),
        "The ranks have equally many, so some examples are padding, or some are lost.": (
            lambda *given: OneOf(
                [
                    dealt(left + left[: -len(left) % R], R)
                    for left, R in [(left_of(given), len(given[0]))]
                ]
                + [
                    dealt(left[: len(left) // R * R], R)
                    for left, R in [(left_of(given), len(given[0]))]
                ]
            )
        ),
    },
    points=1,
)
verdict


# %% review.6 mean_where_used
def some_gradients(seed):
    """Inputs: one rank has the first, one the second, all the next two, nobody the last."""

    def inputs(rank, world_size):
        draw = drawn(seed, world_size, rank)
        used = torch.randint(0, 2, (6,), generator=draw).tolist()
        used = [rank == 0, rank == world_size - 1, True, True, *used[4:-1], False]
        numbers = torch.randn(6, 3, generator=draw)
        numbers[3] = 0  # used, and behind a ReLU that let nothing through
        return ([g.clone() if one else None for g, one in zip(numbers, used, strict=True)],)

    return inputs


def means_by(divisor, nobody=None):
    """What every rank returns who divides by ``divisor(ranks, users)``."""

    def by_rank(lists):
        means = []
        for column in zip(*lists, strict=True):
            mine = [one for one in column if one is not None]
            means.append(sum(mine) / divisor(len(lists), len(mine)) if mine else nobody)
        return [means] * len(lists)

    return by_rank


right_means = means_by(lambda ranks, users: ranks)


def own_places_only(lists):
    """The right means, but None where a rank has none itself."""
    return [
        [mean if own is not None else None for mean, own in zip(right, mine, strict=True)]
        for right, mine in zip(right_means(lists), lists, strict=True)
    ]


def none_for_zeros(lists):
    return [
        [mean if mean is not None and mean.any() else None for mean in mine]
        for mine in right_means(lists)
    ]


def own_only(lists, n):
    return [[None if one is None else one / n for one in mine] for mine in lists]


verdict = check(
    "mean_where_used",
    mean_where_used,
    [some_gradients(66), some_gradients(67)],
    right_means,
    only("all_reduce"),
    collectives(
        lambda lists: 1 if len(lists) > 1 else len(lists[0]),
        hint="Who has a gradient can travel beside it, as a number of 0 or 1.",
    ),
    collective_nbytes(lambda lists: 16 * len(lists[0]), hint="A sum needs no room for each rank."),
    mistakes={
        "A weight that no rank uses has no gradient: None, not zeros. An optimizer with momentum "
        "would move it.": means_by(lambda ranks, users: ranks, nobody=torch.zeros(3)),
        "A gradient of zeros is a gradient: who has one must be told, and not guessed from the sum.": (
            none_for_zeros
        ),
        "You divide by the ranks that use the weight: a rank that does not brings zeros, and counts.": (
            means_by(lambda ranks, users: users)
        ),
        "Those are sums: divide by world_size.": means_by(lambda ranks, users: 1),
        "A rank without a gradient of its own keeps None, and would not make the others' step.": (
            own_places_only
        ),
        "Those are the rank's own gradients: nothing came from the others.": lambda lists: OneOf(
            [own_only(lists, n) for n in (1, len(lists))]
        ),
    },
    as_given="9e22ead2",
    points=1,
)
verdict


# %% review.7 traffic
def an_epoch(seed, rest):
    """Inputs: ``rest(R, micro)`` examples more than full steps take; they make one step more."""

    def inputs(rank, world_size):
        draw = drawn(seed, world_size)
        micro, every, groups, number = (
            int(torch.randint(low, high, (), generator=draw))
            for low, high in ((2, 5), (2, 5), (3, 7), (2, 5))
        )
        n = world_size * micro * every * groups + rest(world_size, micro)
        sizes = 60 * torch.randint(10, 99, (number,), generator=draw)
        return n, micro, every, sizes.tolist()

    return inputs


def shares(n, R):
    return math.ceil(n / R)


def groups_of(share, micro, every):
    return math.ceil(math.ceil(share / micro) / every)


def counted(share=shares, steps=groups_of):
    """What the ranks return who count examples or steps like this."""

    def by_rank(ns, micros, everys, lists):
        R, size = len(ns), sum(lists[0])
        number = steps(share(ns[0], R), micros[0], everys[0])
        sent = number * 2 * (R - 1) * size // R
        return [(number, number * len(lists[0]), sent)] * R

    return by_rank


def with_bytes(bytes_of):
    """What they return who have the steps right, and ``bytes_of(R, size)`` for each."""

    def by_rank(*given):
        R, size = len(given[0]), sum(given[3][0])
        return [(s, calls, s * bytes_of(R, size)) for s, calls, _ in counted()(*given)]

    return by_rank


verdict = check(
    "traffic",
    traffic,
    # without padding, then with it: there one example more makes one step more
    [an_epoch(77, lambda R, micro: R * (micro + 1)), an_epoch(78, lambda R, micro: 1)],
    counted(),
    messages(lambda *given: 0, hint="A prediction sends nothing."),
    collectives(lambda *given: 0, hint="A prediction sends nothing."),
    mistakes={
        "Every micro-batch is a step there: under no_sync there is none.": (
            counted(steps=lambda share, m, k: math.ceil(share / m))
        ),
        "The share was rounded down: the sampler pads it, so round up.": (
            counted(share=lambda n, R: n // R)
        ),
        "The last group of micro-batches is shorter than `every`, or its last micro-batch smaller; "
        "it is a step, too.": counted(steps=lambda share, m, k: share // m // k),
        "All ranks together work on n examples: divide by world_size first.": (
            counted(share=lambda n, R: n)
        ),
        "Those are the bytes of all ranks: this one sends an R-th of them.": (
            with_bytes(lambda R, size: 2 * (R - 1) * size)
        ),
        "A ring goes round twice: R - 1 steps to add up, R - 1 to hand round.": (
            with_bytes(lambda R, size: (R - 1) * size // R)
        ),
        "Those are the bytes that a rank brings, not those that a ring sends for it.": (
            with_bytes(lambda R, size: size)
        ),
        "Each bucket has an all_reduce of its own, in each step.": lambda *given: OneOf(
            [
                [(s, calls, sent) for s, _, sent in counted()(*given)]
                for calls in (counted()(*given)[0][0], len(given[3][0]))
            ]
        ),
    },
    points=1,
)
verdict


# %% review.8 largest_batch
def a_split_model(seed):
    """Inputs: on four ranks one of them has no room for its parameters."""

    def inputs(rank, world_size):
        draw = drawn(seed, world_size, rank)
        params = int(torch.randint(1000, 2500, (), generator=draw))
        example_bytes = int(torch.randint(300, 900, (), generator=draw))
        params += 5000 * (world_size == 4 and rank == seed % 4)
        return params, example_bytes, 60_000

    return inputs


def batches(params, sizes, capacities, per_param=16, round_up=0):
    """What fits on each rank, which may be less than nothing."""
    return [
        (capacity - per_param * p) // size + round_up
        for p, size, capacity in zip(params, sizes, capacities, strict=True)
    ]


def on_all(value_of, **how):
    """What every rank returns: ``value_of`` what fits on each."""
    return lambda *given: [value_of(batches(*given, **how))] * len(given[0])


verdict = check(
    "largest_batch",
    largest_batch,
    a_split_model(88),
    on_all(lambda each: max(0, min(each))),
    only("all_reduce"),
    collectives(lambda *given: 1, hint="One number of each rank says it all."),
    collective_nbytes(lambda *given: 8, hint="First work out what fits on your own rank."),
    mistakes={
        "That is what fits on this rank alone: a batch goes through all of them.": batches,
        "That fits on the rank with most room; the tightest one decides.": on_all(max),
        "Those are all ranks' batches together: they do not add up, each example visits every rank.": (
            on_all(sum)
        ),
        "That is the mean of what fits, and does not fit on the tightest.": (
            on_all(lambda each: sum(each) // len(each))
        ),
        "Only the parameters are counted: gradients and Adam's two states are as large.": (
            on_all(min, per_param=4)
        ),
        "Parameters and gradients are counted, but not Adam's two states.": on_all(
            min, per_param=8
        ),
        "Adam keeps two states for each parameter, not one.": on_all(min, per_param=12),
        "Less than nothing does not fit: return 0.": on_all(min),
    },
    points=1,
)
verdict


# %% review.9 clip_split
def a_split_gradient(seed, stretch=0.0):
    """Inputs: with a stretch, a gradient that is short enough."""

    def inputs(rank, world_size):
        mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
        length = int(torch.randint(1, 6, (), generator=mine))
        own = 1 + torch.rand(length, generator=mine)
        shared = 1 + torch.rand(4, generator=all_ranks)
        return own, shared, 1.0 + float(torch.rand((), generator=all_ranks)) + stretch

    return inputs


def clipped(length_of, stretch=False):
    """What the ranks return who measure ``length_of(owns, shared, rank)``."""

    def by_rank(owns, shareds, mosts):
        pairs = []
        for rank, (own, shared, most) in enumerate(zip(owns, shareds, mosts, strict=True)):
            scale = most / float(length_of(owns, shared, rank))
            scale = scale if stretch else min(1.0, scale)
            pairs.append((own * scale, shared * scale))
        return pairs

    return by_rank


def of_the_whole(owns, shared, rank):
    return torch.cat([*owns, shared]).norm()


verdict = check(
    "clip_split",
    clip_split,
    [a_split_gradient(99), a_split_gradient(99, stretch=20.0)],
    clipped(of_the_whole),
    only("all_reduce"),
    collectives(lambda *given: 1, hint="What is the same on all ranks, each can add for itself."),
    collective_nbytes(
        lambda *given: 8, hint="Squares add up: a rank's part of the length is one number."
    ),
    mistakes={
        "Each rank measures what it holds, so ranks scale differently, and the direction turns.": (
            clipped(lambda owns, shared, rank: torch.cat([owns[rank], shared]).norm())
        ),
        "`shared` is counted once for each rank: it is one embedding, with one gradient.": (
            clipped(lambda owns, shared, rank: torch.cat([*owns, *[shared] * len(owns)]).norm())
        ),
        "`shared` is missing in the length: it is a part of the whole model.": (
            clipped(lambda owns, shared, rank: torch.cat(owns).norm())
        ),
        "Lengths do not add up, their squares do.": lambda *given: OneOf(
            [
                clipped(
                    lambda owns, shared, rank, n=n: sum(g.norm() for g in owns) + n * shared.norm()
                )(*given)
                for n in (1, len(given[0]))
            ]
            + [
                clipped(
                    lambda owns, shared, rank: sum(torch.cat([g, shared]).norm() for g in owns)
                )(*given)
            ]
        ),
        "`own` and `shared` are cut each for itself, and the direction turns: scale both alike.": (
            lambda owns, shareds, mosts: [
                tuple(g * min(1.0, most / float(g.norm())) for g in pair)
                for *pair, most in zip(owns, shareds, mosts, strict=True)
            ]
        ),
        "That is the square of the length: take the root.": (
            clipped(lambda owns, shared, rank: of_the_whole(owns, shared, rank) ** 2)
        ),
        "The mean of the squares is no length: here every rank holds another part.": (
            clipped(
                lambda owns, shared, rank: (
                    sum((g**2).sum() for g in owns) / len(owns) + (shared**2).sum()
                ).sqrt()
            )
        ),
        "A gradient that was short enough is made longer: cut, but never stretch.": (
            clipped(of_the_whole, stretch=True)
        ),
    },
    points=1,
)
verdict


# %% review.10 train
def uneven_rows(seed):
    """Inputs: no two ranks have equally many rows, and from 3 ranks on one has none."""

    def inputs(rank, world_size):
        mine, all_ranks = drawn(seed, world_size, rank), drawn(seed, world_size, 9)
        counts = torch.randperm(7, generator=all_ranks)[:world_size] + 1
        if world_size > 2:
            counts[torch.randint(world_size, (), generator=all_ranks)] = 0
        number = int(counts[rank])
        theta, rows, targets = (
            torch.randn(*shape, generator=mine) for shape in ((3,), (number, 3), (number,))
        )
        return theta, rows, targets, 3, 0.1

    return inputs


def descent(weights_of, from_rank_0=True):
    """What the ranks come to who give rank r's mean gradient the weight ``weights_of(counts)[r]``."""

    def by_rank(thetas, rows, targets, steps, lrs):
        counts = [len(mine) for mine in rows]
        weights = weights_of(counts)
        thetas = [thetas[0]] * len(counts) if from_rank_0 else list(thetas)
        for _ in range(steps[0]):
            step = sum(
                weight * cost_gradient(*mine)
                for weight, *mine in zip(weights, thetas, rows, targets, strict=True)
                if len(mine[1])
            )
            thetas = [theta - lrs[0] * step for theta in thetas]
        return thetas

    return by_rank


def by_rows(counts):
    return [count / sum(counts) for count in counts]


def alike(counts):
    return [1 / len(counts)] * len(counts)


def alike_where_rows(counts):
    return [1 / sum(map(bool, counts))] * len(counts)


verdict = check(
    "train",
    train,
    uneven_rows(111),
    descent(by_rows),
    only("broadcast", "all_reduce"),
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
            descent(by_rows, from_rank_0=False)
        ),
        "Every rank still has the same weight: one with few rows counts too much.": (
            lambda *given: OneOf([descent(alike)(*given), descent(alike_where_rows)(*given)])
        ),
        "Two mistakes are left: each rank's own theta at first, and the same weight for every rank.": (
            lambda *given: OneOf(
                [
                    descent(alike, from_rank_0=False)(*given),
                    descent(alike_where_rows, from_rank_0=False)(*given),
                ]
            )
        ),
        "The gradients are weighted by rows, but what divides is not the number of all rows.": (
            lambda *given: OneOf(
                [
                    descent(lambda counts, n=n: [count / n for count in counts])(*given)
                    for n in (1, len(given[0]))
                ]
            )
        ),
        "All is nan: a rank without rows has brought its gradient, which is nan.": (
            lambda thetas, *rest: [theta * torch.nan for theta in thetas]
        ),
    },
    as_given="22f5c1ca",
    points=1,
)
verdict
