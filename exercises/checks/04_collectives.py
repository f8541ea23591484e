"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/04_collectives.py, which is what grading reads; nobody edits this file.
"""

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


# %% 04.1 mean_of_all
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


# %% 04.2 own_broadcast
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


# %% 04.3 ring_all_gather
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
        hint="Hand on what came just before.",
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
