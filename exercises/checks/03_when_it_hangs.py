"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/03_when_it_hangs.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import (
    OneOf,
    Rule,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
)


# %% 03.1 two_by_two
def partners(xs):
    return [xs[rank ^ 1] if rank ^ 1 < len(xs) else xs[rank] for rank in range(len(xs))]


verdict = check(
    "two_by_two",
    two_by_two,
    # the x of one rank, in two draws; `xs` holds the x of every rank
    [
        lambda rank, world_size: (torch.arange(3.0) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3.0) + 10 * rank + 7,),
    ],
    partners,
    only("send", "recv"),
    messages(lambda xs: len(xs) // 2 * 2, hint="A swap is one message each way."),
    mistakes={
        "Nothing was swapped: that is each rank's own x.": lambda xs: list(xs),
    },
    as_given="72bb36f6",
    points=1,
)
verdict


# %% 03.2 edges
def neighbours(xs):
    row = [torch.zeros(1), *xs, torch.zeros(1)]
    return [torch.cat([row[r][-1:], row[r + 2][:1]]) for r in range(len(xs))]


verdict = check(
    "edges",
    edges,
    [  # two draws: every world is tried with both
        lambda rank, world_size: (torch.arange(1.0, 4.0 + rank) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3.0, 6.0 + rank) + 10 * rank,),
    ],
    neighbours,
    only("send", "recv"),
    messages(lambda xs: 2 * (len(xs) - 1), hint="Each neighbour needs one message from you."),
    nbytes(lambda xs: 8 * (len(xs) - 1), hint="A neighbour needs one number, not the strip."),
    mistakes={
        "The two numbers are in the wrong order: first the one before x, then the one after it.": (
            lambda xs: [pair.flip(0) for pair in neighbours(xs)]
        ),
        "That is all zeros: nothing was received.": lambda xs: [torch.zeros(2)] * len(xs),
        "Each neighbour sent its far end: before x lies the **last** number of the left one, after "
        "it the **first** of the right one.": (
            lambda xs: [
                torch.cat(
                    [
                        xs[r - 1][:1] if r > 0 else torch.zeros(1),
                        xs[r + 1][-1:] if r < len(xs) - 1 else torch.zeros(1),
                    ]
                )
                for r in range(len(xs))
            ]
        ),
        "The row was closed to a ring: beyond its two ends lies 0.": (
            lambda xs: [
                torch.cat([xs[r - 1][-1:], xs[(r + 1) % len(xs)][:1]]) for r in range(len(xs))
            ]
        ),
    },
    as_given="d56fab30",
    points=1,
)
verdict


# %% 03.3 one_batch_fewer
def step_sums(lists):
    longest = max(len(batches) for batches in lists)
    return [sum(batches[k] for batches in lists if k < len(batches)) for k in range(longest)]


def some_batches(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 6, (1,), generator=draw).item()
        return (torch.randint(0, 4, (length,), generator=draw).float().tolist(),)

    return inputs


def zeros_left_out(lists):
    """The sums where a rank makes no call for a batch of zero; None where that hangs."""
    steps = range(max(map(len, lists)))
    called = [[k for k in steps if k >= len(one) or one[k]] for one in lists]
    if len(set(map(len, called))) > 1:
        return [None] * len(lists)
    brought = [
        [one[k] if k < len(one) else 0 for k in mine]
        for one, mine in zip(lists, called, strict=True)
    ]
    sums = [sum(meet) for meet in zip(*brought, strict=True)]
    return [[sums[mine.index(k)] if k in mine else 0 for k in steps] for mine in called]


verdict = check(
    "one_batch_fewer",
    one_batch_fewer,
    [some_batches(630), some_batches(7)],  # two draws: every world is tried with both
    lambda lists: [step_sums(lists)] * len(lists),
    only("all_reduce"),
    collectives(lambda lists: 1 + len(step_sums(lists)), hint="One question, then the steps."),
    collective_nbytes(lambda lists: 8),
    mistakes={
        "Those are the steps that every rank has a batch for: the rest is lost.": (
            lambda lists: [step_sums(lists)[: min(map(len, lists))]] * len(lists)
        ),
        "A rank left out a call in the middle: from there on its calls meet the others' next ones, "
        "for calls are matched by count. A batch of zero is a batch, too.": zeros_left_out,
    },
    as_given="3ed12095",
    points=1,
)
verdict


# %% 03.4 without_a_word
NAMES = ["weight", "bias", "scale"]


def filled(rank, world_size):
    names = NAMES[rank % 3 :] + NAMES[: rank % 3]
    return ({name: torch.tensor([len(name) + 10.0 * rank, rank]) for name in names},)


def filled_again(rank, world_size):
    """Other numbers, and which name has the largest differs from rank to rank."""
    names = NAMES[: rank % 3] + NAMES[rank % 3 :][::-1]
    return ({n: torch.tensor([(NAMES.index(n) + rank) % 3 * 5.0, rank + 1]) for n in names},)


def means(dicts):
    return [sum(one[name] for one in dicts) / len(dicts) for name in sorted(NAMES)]


def called_by(order):
    """What comes out where each rank calls in the order of names that `order` gives it."""

    def values(dicts):
        names = [order(one) for one in dicts]
        met = [
            [one[own[k]] for one, own in zip(dicts, names, strict=True)] for k in range(len(NAMES))
        ]
        return [[sum(met[own.index(n)]) / len(dicts) for n in sorted(NAMES)] for own in names]

    return values


verdict = check(
    "without_a_word",
    without_a_word,
    [filled, filled_again],  # two draws: every world is tried with both
    lambda dicts: [means(dicts)] * len(dicts),
    only("all_reduce"),
    collectives(lambda dicts: len(NAMES), hint="A name needs one all_reduce."),
    mistakes={
        "The gradients are mixed up: calls met that are not for the same name.": called_by(list),
        "The gradients are mixed up: each rank calls in an order of its own numbers, and these differ "
        "from rank to rank.": called_by(
            lambda one: sorted(one, key=lambda name: one[name][0].item())
        ),
        "Those are the rank's own gradients: nothing came from the others.": (
            lambda dicts: [[one[name] for name in sorted(NAMES)] for one in dicts]
        ),
        "Those are the right means in the order in which each dictionary was filled: return them in "
        "alphabetical order of the names.": (
            lambda dicts: [
                [means(dicts)[sorted(NAMES).index(name)] for name in one] for one in dicts
            ]
        ),
        "Those are sums over the ranks, not means.": (
            lambda dicts: [[len(dicts) * mean for mean in means(dicts)]] * len(dicts)
        ),
    },
    as_given="283acebf",
    points=1,
)
verdict


# %% 03.5 no_examples
def some_losses(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 4, (1,), generator=draw).item()
        return ((torch.randint(1, 40, (length,), generator=draw) / 8).tolist(),)

    return inputs


def mean_of_sums(cut):
    """What every rank returns where each rank's sum is first cut to a whole number."""
    return lambda lists: [sum(map(cut, lists)) / sum(map(len, lists))] * len(lists)


verdict = check(
    "no_examples",
    no_examples,
    [some_losses(2), some_losses(3)],  # two draws: every world is tried with both
    lambda lists: [sum(map(sum, lists)) / sum(map(len, lists))] * len(lists),
    only("all_reduce"),
    collectives(lambda lists: 1, hint="Sum and count can travel together."),
    collective_nbytes(lambda lists: 16, hint="Add up before you communicate."),
    mistakes={
        "The sums were cut to whole numbers: an integer dtype has no room for a fraction.": (
            lambda lists: OneOf(
                [
                    mean_of_sums(cut)(lists)
                    for cut in (
                        lambda losses: int(sum(losses)),
                        lambda losses: sum(map(int, losses)),
                        lambda losses: round(sum(losses)),
                    )
                ]
            )
        ),
        "That is the mean of the ranks' means: a rank with few examples has too much weight.": (
            lambda lists: (
                [sum(sum(one) / max(1, len(one)) for one in lists) / len(lists)] * len(lists)
            )
        ),
        "A rank without examples was counted as one example: it counts as none.": (
            lambda lists: (
                [sum(map(sum, lists)) / sum(max(1, len(one)) for one in lists)] * len(lists)
            )
        ),
    },
    as_given="a6c6abf2",
    points=1,
)
verdict


# %% 03.6 one_buffer
def in_one_piece(run, given):
    (most,) = {block.nbytes for blocks in given[0] for block in blocks}
    for message in run.trace.messages:
        if message.nbytes != most:
            return (
                f"In this world of {run.world_size} the values are right, but rank {message.src} "
                f"sends a message of {message.nbytes} bytes where a block has {most}: one message "
                "for each block, so that the right neighbour has the first before the last is made."
            )


verdict = check(
    "one_buffer",
    one_buffer,
    [  # two draws: every world is tried with both
        lambda rank, world_size: ([torch.full((2,), 10.0 * rank + k) for k in range(3)],),
        lambda rank, world_size: ([torch.full((2,), 10.0 * rank + 4 + k) for k in range(3)],),
    ],
    lambda lists: [[2 * block for block in lists[rank - 1]] for rank in range(len(lists))],
    only("send", "recv"),
    messages(
        lambda lists: sum(map(len, lists)) if len(lists) > 1 else 0,
        hint="A block needs one message.",
    ),
    Rule(in_one_piece),
    nbytes(lambda lists: sum(block.nbytes for blocks in lists for block in blocks)),
    mistakes={
        "Those are the blocks of the left rank as they were: they are to be doubled.": (
            lambda lists: [list(lists[rank - 1]) for rank in range(len(lists))]
        ),
        "All entries are the same: each block was received into the same tensor, and the last one "
        "is left. A holder for each.": (
            lambda lists: [
                [2 * lists[rank - 1][-1]] * len(lists[rank - 1]) for rank in range(len(lists))
            ]
        ),
        "Those are the rank's own blocks, doubled: nothing came from the left.": (
            lambda lists: [[2 * block for block in blocks] for blocks in lists]
        ),
    },
    as_given="3c0c23c3",
    points=1,
)
verdict
