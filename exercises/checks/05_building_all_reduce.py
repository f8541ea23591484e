"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/05_building_all_reduce.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import Rule, Timed, check, measure, nbytes_of_a_rank, only, rounds, sends_to


# %% 05.1 ring_reduce_scatter
def seven_or_three(rank, world_size):
    length = 3 if world_size == 4 else 7  # three numbers on four ranks: one chunk is empty
    return (torch.arange(float(length)) ** 2 + 10 * rank,)


def eight(rank, world_size):
    return (torch.arange(8.0) * (rank + 2) + 3,)


QUICK = simlib.clusters.ethernet_10g(nodes=8)


def n_rounds_s(xs):
    # A rank may look into a buffer before it waits; on the virtual network nothing is there yet.
    round_s = QUICK.inter.latency_s + xs[0].nbytes / len(xs) / QUICK.inter.bandwidth_Bps
    return (len(xs) - 0.5) * round_s


verdict = check(
    "ring_reduce_scatter",
    ring_reduce_scatter,
    [seven_or_three, eight],
    lambda xs: list(sum(xs).tensor_split(len(xs))),
    only("send", "recv"),
    sends_to(
        lambda rank, n: {(rank + 1) % n},
        hint="Send to the right neighbour only, (rank + 1) % world_size: the sums travel on.",
        turned="That is to the left: everything shall go to the right, to (rank + 1) % world_size.",
    ),
    rounds(lambda xs: len(xs) - 1, hint="All chunks travel at once, and no second trip is needed."),
    nbytes_of_a_rank(
        lambda xs: xs[0].nbytes - 4 * (len(xs[0]) // len(xs)),
        hint="In each round send one chunk, not all of them.",
    ),
    timed=[Timed(QUICK, eight, n_rounds_s, "All chunks travel at once.")],
    mistakes={
        "That is the rank's own chunk twice: add what came, not what was there already.": (
            lambda xs: [2 * x.tensor_split(len(xs))[r] for r, x in enumerate(xs)]
        ),
        "That is the sum of all chunks of x, but only chunk `rank` is asked for.": (
            lambda xs: [sum(xs)] * len(xs)
        ),
        "That is the rank's own chunk, nothing added. If this is the lesson's ring, it has completed "
        "another chunk on this rank, chunk rank + 1: begin one chunk earlier.": (
            lambda xs: [x.tensor_split(len(xs))[r] for r, x in enumerate(xs)]
        ),
        "That is the sum of chunk rank + 1 (of chunk 0 on the last rank): begin one chunk earlier.": (
            lambda xs: [sum(xs).tensor_split(len(xs))[(r + 1) % len(xs)] for r in range(len(xs))]
        ),
        "That is chunk `rank` as it came, without what this rank has of it: add its own chunk to what "
        "comes, also to the last that comes.": (
            lambda xs: [(sum(xs) - x).tensor_split(len(xs))[r] for r, x in enumerate(xs)]
        ),
        "That is the mean over the ranks, but the sum is asked for.": (
            lambda xs: [(sum(xs) / len(xs)).tensor_split(len(xs))[r] for r in range(len(xs))]
        ),
        "Chunks differ in length where the number of ranks does not divide that of x: let the tensor "
        "that receives be as long as the chunk that comes.": "elements of float32 to rank",
    },
    points=3,
)
verdict


# %% 05.2 ring_in_order
ORDERS = {1: [0], 2: [0, 1], 3: [0, 2, 1], 4: [3, 1, 0, 2], 5: [2, 0, 3, 1, 4]}
ORDERS[8] = [5, 2, 7, 0, 3, 6, 1, 4]
QUICK_RING = simlib.clusters.ethernet_10g(nodes=8)


def two_trips_s(xs, orders):
    # A rank may look into a buffer before it waits; on the virtual network nothing is there yet.
    chunk_bytes = max(chunk.nbytes for chunk in xs[0].tensor_split(len(xs)))
    round_s = QUICK_RING.inter.latency_s + chunk_bytes / QUICK_RING.inter.bandwidth_Bps
    return (2 * (len(xs) - 1) + 0.5) * round_s


def seven_or_six(rank, world_size):
    length = {3: 6.0, 4: 8.0}.get(world_size, 7.0)  # on 3 and 4 ranks chunks of the same length
    return torch.arange(length) ** 2 + 10 * rank, ORDERS[world_size]


def missing_tail(xs, orders):
    whole = len(xs[0]) // len(xs) * len(xs)
    return [torch.cat([sum(xs)[:whole], x[whole:]]) for x in xs]


def other_numbers(rank, world_size):
    return torch.arange(9.0) * (rank + 2) + 1, ORDERS[world_size]


def ring_gives(xs, order, place_of=None, adding=None, steps=None):
    """What so many steps of the ring give, of which the first `adding` add.

    Rank r goes by the chunks of place place_of[r]; by default, of its own.
    """
    n, before = len(xs), {rank: order[place - 1] for place, rank in enumerate(order)}
    place_of = place_of or [order.index(rank) for rank in range(n)]
    adding = n - 1 if adding is None else adding
    held = [[chunk.clone() for chunk in x.tensor_split(n)] for x in xs]
    for step in range(2 * (n - 1) if steps is None else steps):
        sent = [held[rank][(place_of[rank] - step) % n].clone() for rank in range(n)]
        for rank in range(n):
            own, came = held[rank][(place_of[rank] - step - 1) % n], sent[before[rank]]
            if own.shape != came.shape:
                return [None] * n  # chunks of different lengths meet, and no value comes out
            own.copy_(came + own * (step < adding))
    return [torch.cat(chunks) for chunks in held]


def another_ring(run, given):
    """Values say little where the ranks stand in another ring: who sends to whom comes first."""
    order, n = given[1][0], run.world_size
    sent = {(op.rank, op.peer) for op in run.trace if op.kind == "send"}
    following = {(rank, order[(place + 1) % n]) for place, rank in enumerate(order)}
    by_number = {(rank, (rank + 1) % n) for rank in range(n)}
    backwards = {(after, rank) for rank, after in following}
    if sent == following or sent not in (by_number, backwards):
        return None
    return (
        f"Rank {order[0]} sends to rank {dict(sent)[order[0]]}, but in order {order} rank {order[1]} comes "
        "after it. Either the neighbours go by number, rank + 1, or the ring runs backwards. With "
        "place = order.index(rank), send to order[(place + 1) % world_size]."
    )


verdict = check(
    "ring_in_order",
    ring_in_order,
    [seven_or_six, other_numbers],
    lambda xs, orders: [sum(xs)] * len(xs),
    only("send", "recv"),
    Rule(another_ring, before_values=True),
    sends_to(lambda rank, n: {ORDERS[n][(ORDERS[n].index(rank) + 1) % n]}, hint="Look at order."),
    nbytes_of_a_rank(
        lambda xs, orders: 2 * (xs[0].nbytes - 4 * (len(xs[0]) // len(xs))),
        hint="Pass chunks round the ring, not whole tensors.",
    ),
    rounds(lambda xs, orders: 2 * (len(xs) - 1), hint="All chunks can travel at the same time."),
    in_place=True,
    timed=[Timed(QUICK_RING, other_numbers, two_trips_s, "All chunks travel at once.")],
    mistakes={
        "That is x twice: add the buffer that came, not the one that was sent.": (
            lambda xs, orders: [2 * x for x in xs]
        ),
        "The last numbers are not summed: the chunks must cover x, also where n does not divide it.": (
            missing_tail
        ),
        "The neighbours go by order, but the chunks by rank: let the chunks go by places, too.": (
            lambda xs, orders: ring_gives(xs, orders[0], place_of=range(len(xs)))
        ),
        "The neighbours go by order.index(rank), but the chunks by order[rank]: that is who stands "
        "at place `rank`.": lambda xs, orders: ring_gives(xs, orders[0], place_of=orders[0]),
        "What comes in the second half is added, too. After n - 1 steps the sums are complete: from "
        "there on, put what comes in place of the chunk.": lambda xs, orders: ring_gives(
            xs, orders[0], adding=99
        ),
        "Each rank has one complete chunk, and nothing new since: n - 1 more steps pass the complete "
        "ones on.": lambda xs, orders: ring_gives(xs, orders[0], steps=len(xs) - 1),
        "The last of the n - 1 steps that add is missing: the ring begins to copy too soon.": (
            lambda xs, orders: ring_gives(xs, orders[0], adding=len(xs) - 2)
        ),
        "Is `order[rank]` in your program? That is who stands at place `rank`. Your rank's own place "
        "is order.index(rank), and its neighbours are one place before and one place after it.": (
            "is the rank itself"
        ),
    },
    points=3,
)
verdict


# %% 05.3 chain_broadcast
EIGHT = simlib.clusters.ethernet_1g(nodes=8)
LATENCY_S, BANDWIDTH_BPS = EIGHT.inter.latency_s, EIGHT.inter.bandwidth_Bps


def numbers(length, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS):
    """Inputs: so many numbers on each rank, and the network."""
    return lambda rank, n: (torch.arange(float(length)) + rank, latency_s, bandwidth_Bps)


QUICKER = simlib.clusters.ethernet_10g(nodes=6)
SLOW = (
    "Two usual causes: the number of chunks (N in bytes, not in numbers), or a rank that does not "
    "receive while it sends."
)


def more_messages_than_bytes(run, given):
    most, nbytes = max(run.messages), given[0][0].nbytes
    if most <= max(nbytes, 1):
        return None
    return (
        f"Rank {run.messages.index(most)} sends {most} messages of a tensor of {nbytes} bytes: too many "
        "chunks. Does what stands under the root divide by the latency and by the bandwidth?"
    )


def nearly_best_s(xs, latencies_s, bandwidths_Bps):
    n, nbytes = len(xs), xs[0].nbytes
    turns = range(1, len(xs[0]) + 1)
    return 1.05 * min(
        (n + s - 2) * (latencies_s[0] + nbytes / s / bandwidths_Bps[0]) for s in turns
    )


verdict = check(
    "chain_broadcast",
    chain_broadcast,
    numbers(7, latency_s=1e-3, bandwidth_Bps=2000.0),
    lambda xs, *network: [xs[0]] * len(xs),
    only("send", "recv"),
    Rule(more_messages_than_bytes, before_values=True),
    sends_to(lambda rank, n: {rank + 1}, hint="This task is about the chain."),
    in_place=True,
    timed=[
        Timed(EIGHT, numbers(25_000), nearly_best_s, SLOW),
        Timed(EIGHT, numbers(500), nearly_best_s, "A short tensor is best in fewer chunks."),
        Timed(
            QUICKER,
            numbers(100_000, QUICKER.inter.latency_s, QUICKER.inter.bandwidth_Bps),
            nearly_best_s,
            "Another network: reckon with the latency and bandwidth that you are given.",
        ),
    ],
    points=3,
)
verdict


# %% 05.4 quick_all_reduce
SIX, EIGHT = (simlib.clusters.ethernet_1g(nodes=n) for n in (6, 8))
SLOWER = simlib.Link(4 * EIGHT.inter.latency_s, EIGHT.inter.bandwidth_Bps)
FAR = simlib.clusters.ethernet_1g(nodes=8, inter=SLOWER)


def seven_numbers_and_a_network(rank, world_size):
    latency_s = (
        1.0 if world_size < 4 else 1e-6
    )  # the first asks for doubling, the second for a ring
    return torch.arange(7.0) + 10 * rank, latency_s, 1e6


TEN = simlib.clusters.ethernet_10g(nodes=8)


def on_ethernet(length, cluster=EIGHT):
    latency_s, bandwidth_Bps = cluster.inter.latency_s, cluster.inter.bandwidth_Bps
    return lambda rank, n: (torch.arange(float(length)) + 10 * rank, latency_s, bandwidth_Bps)


def nearly_best_of_two_s(xs, latencies_s, bandwidths_Bps):
    n, nbytes = len(xs), xs[0].nbytes
    latency_s, bandwidth_Bps = latencies_s[0], bandwidths_Bps[0]
    steps = int(math.log2(n)) + (0 if math.log2(n).is_integer() else 2)
    doubling_s = steps * (latency_s + nbytes / bandwidth_Bps)
    return 1.02 * min(doubling_s, 2 * (n - 1) * (latency_s + nbytes / n / bandwidth_Bps))


verdict = check(
    "quick_all_reduce",
    quick_all_reduce,
    seven_numbers_and_a_network,
    lambda xs, *network: [sum(xs)] * len(xs),
    only("send", "recv"),
    in_place=True,
    timed=[
        Timed(EIGHT, on_ethernet(100_000), nearly_best_of_two_s, "Many bytes: share them."),
        Timed(EIGHT, on_ethernet(1_000), nearly_best_of_two_s, "Few bytes: few steps."),
        Timed(EIGHT, on_ethernet(20_000), nearly_best_of_two_s, "Just above N*: a ring."),
        Timed(EIGHT, on_ethernet(10_000), nearly_best_of_two_s, "Just below N*."),
        Timed(SIX, on_ethernet(1_000), nearly_best_of_two_s, "Fold six ranks to four."),
        Timed(
            TEN,
            on_ethernet(40_000, TEN),
            nearly_best_of_two_s,
            "On another network N* is elsewhere: reckon with the latency and bandwidth you are given.",
        ),
        Timed(
            SIX,
            on_ethernet(6_000),
            nearly_best_of_two_s,
            "Here the ring is quicker: on six ranks doubling takes two steps, and two more to fold.",
        ),
        Timed(
            FAR,
            on_ethernet(20_000, FAR),
            nearly_best_of_two_s,
            "The same bandwidth, and four times the latency: N* is larger.",
        ),
    ],
    mistakes={
        "That is a rank's own x twice: add what came, not x itself.": (
            lambda xs, *network: [2 * x for x in xs]
        ),
        "The ranks that are folded away bring a tensor, too: it is missing in the sum.": (
            lambda xs, *network: [sum(xs[: 1 << (len(xs).bit_length() - 1)])] * len(xs)
        ),
    },
    points={"value": 2, "time": 2},
)
verdict
