# %% [markdown]
# # Exercises 05: building all_reduce
#
# Two of these tasks go with [lesson 05](../notebooks/05_building_all_reduce.ipynb), two go with
# [its second part](../notebooks/05_choosing_all_reduce.ipynb), and two go with
# [its last part](../notebooks/05_networks_of_many_nodes.ipynb). In tasks 1 to 5, use only messages from
# rank to rank: `send`, `recv`, `isend`, `irecv` (also in a `batch_isend_irecv`). Use no collective. A check
# calls your function on worlds of 1 to 5 real ranks, **one** included. For most of its tensors, the
# number of ranks does not divide the length. The check looks at the value on every rank. In tasks 1 to 3
# it also looks at the neighbours. In tasks 1 and 2 it also looks at the bytes of the **busiest** rank
# and at the rounds. In tasks 1 to 4 the check then runs your function on a modelled network. The virtual
# clock of this network shows the same time on every machine, and your function must stay within a time
# budget. If a task asks you to change `x` in place, the check ignores the return value.
#
# Each task has folded hints. `swap` and `ring` are the functions of the lesson, but `ring` has fewer
# lines here. You may call both in task 4.

# %% role="setup"
import itertools
import math

import torch
import torch.distributed as dist

import simlib
from simlib.checks import Rule, Timed, check, measure, nbytes_of_a_rank, only, rounds, sends_to


def swap(outgoing, incoming, partner):
    request = dist.isend(outgoing, dst=partner)
    dist.recv(incoming, src=partner)
    request.wait()


def ring(rank, world_size, x):
    chunks = x.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        chunk = chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % world_size], dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        request.wait()
        chunk.copy_(chunk + incoming if step < world_size - 1 else incoming)


# %% [markdown]
# ## 1. Half an all_reduce (★★, 20 minutes, 3 points)
#
# Every rank brings a tensor `x`, and all tensors have the same length. The chunks of `x` are
# `x.tensor_split(world_size)`. Rank `r` returns the sum over all ranks of chunk `r`. Send only to your
# right neighbour, `(rank + 1) % world_size`, and send one chunk in each of `world_size - 1` rounds. `x`
# must not change.


# %% role="answer" question="ring_reduce_scatter" points=3
def ring_reduce_scatter(rank, world_size, x):
    """Return x.tensor_split(world_size)[rank], summed over all ranks.

    x is one-dimensional and float32, of the same length on every rank. Your function must
    not change x.
    """
    ### BEGIN SOLUTION
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        request = dist.isend(passing, dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        request.wait()
        passing = incoming + mine
    return passing
    ### END SOLUTION


# %% role="check" question="ring_reduce_scatter" points=3
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Follow one chunk. It must end on rank `r` and visit every rank once. On which rank must it begin?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Chunk `r` begins on rank `r + 1`. So rank `r` begins with chunk `r - 1`. In step 0 it receives chunk
# `r - 2` from its left neighbour. In the lesson's `ring`, rank `r` begins with chunk `r`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Use a separate tensor for the chunk that travels. Send this tensor, receive into an empty one, and
# wait. In the next step, send `incoming + own chunk`. So your program never writes to `x`.
#
# </details>

# %% role="hidden" question="ring_reduce_scatter"
seed = 1
print(
    measure(
        ring_reduce_scatter,
        lambda rank, world_size: (
            torch.randint(
                1000, (2 + seed % 11,), generator=torch.Generator().manual_seed(seed + rank)
            ).float(),
        ),
    )
)

# %% [markdown]
# ## 2. A ring in any order (★★, 25 minutes, 3 points)
#
# The cables connect the ranks in some order. `order` lists the ranks in their order in the ring:
# `[0, 2, 1]` means 0 → 2 → 1 → 0. Add up `x` over all ranks, in place. Each rank sends only to the next
# rank of the ring. No rank may send or receive more than $2\frac{n-1}{n}$ of `x`. If the chunks differ
# in length, the limit uses the largest chunk. Use $2(n-1)$ rounds.


# %% role="answer" question="ring_in_order" points=3
def ring_in_order(rank, world_size, x, order):
    """Add up x over all ranks, in place, round the ring of ranks order.

    x is one-dimensional and float32, of the same length on every rank; order is a list that
    contains every rank once.
    """
    ### BEGIN SOLUTION
    place = order.index(rank)
    following, before = order[(place + 1) % world_size], order[place - 1]
    chunks = x.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        chunk = chunks[(place - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(place - step) % world_size], dst=following)
        dist.recv(incoming, src=before)
        request.wait()
        chunk.copy_(chunk + incoming if step < world_size - 1 else incoming)
    ### END SOLUTION


# %% role="check" question="ring_in_order" points=3
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
        "You choose the neighbours by order.index(rank), but the chunks by order[rank], the "
        "rank at place `rank`. Use order.index(rank) for both.": lambda xs, orders: ring_gives(
            xs, orders[0], place_of=orders[0]
        ),
        "What comes in the second half is added, too. After n - 1 steps the sums are complete: from "
        "there on, put what comes in place of the chunk.": lambda xs, orders: ring_gives(
            xs, orders[0], adding=99
        ),
        "Each rank has one complete chunk, and nothing new since: n - 1 more steps pass the complete "
        "ones on.": lambda xs, orders: ring_gives(xs, orders[0], steps=len(xs) - 1),
        "The last of the n - 1 steps that add is missing: the ring begins to copy too soon.": (
            lambda xs, orders: ring_gives(xs, orders[0], adding=len(xs) - 2)
        ),
        "Is `order[rank]` in your program? That is the rank at place `rank`. Your rank's own "
        "place is order.index(rank), and its neighbours are one place before and one place "
        "after it.": ("is the rank itself"),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The lesson's ring uses the number of a rank in two ways. The number gives the neighbours of the rank,
# and it gives the chunk for each step. Which of these two uses must change?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Both uses must change. Let `place = order.index(rank)` be the place of the rank in the ring. Use the
# place to choose the chunk, too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The neighbours are `order[(place + 1) % world_size]` and `order[(place - 1) % world_size]`.
#
# </details>

# %% role="hidden" question="ring_in_order"
seed = 1
ORDERS = {  # the rule about neighbours looks at them, too
    n: torch.randperm(n, generator=torch.Generator().manual_seed(seed + n)).tolist()
    for n in range(1, 6)
}
print(
    measure(
        ring_in_order,
        lambda rank, world_size: (
            torch.randint(
                1000, (6 + seed % 5,), generator=torch.Generator().manual_seed(seed + rank)
            ).float(),
            ORDERS[world_size],
        ),
        in_place=True,
    )
)

# %% [markdown]
# ## 3. The best pipeline (★★, 25 minutes, 3 points)
#
# Broadcast `x` from rank 0, in place, down the chain 0 → 1 → 2 → ...: every rank sends only to `rank
# + 1`. You get the network's latency (seconds) and bandwidth (bytes per second). A chain that
# receives $s$ equal chunks one after the other takes $(n + s - 2)(\alpha + \frac{N}{sB})$. On the
# modelled network, your last rank may take at most 5 % longer than with the best $s$. A program that
# posts receives ahead may be quicker.


# %% role="answer" question="chain_broadcast" points=3
def chain_broadcast(rank, world_size, x, latency_s, bandwidth_Bps):
    """Make x on every rank equal to x on rank 0, in place, down a chain.

    x is one-dimensional and float32, of the same length on every rank.
    """
    ### BEGIN SOLUTION
    hops = max(0, world_size - 2)
    best = math.sqrt(x.nbytes * hops / (latency_s * bandwidth_Bps))
    requests = []
    for chunk in x.tensor_split(max(1, round(best))):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)
        if rank < world_size - 1:
            requests.append(dist.isend(chunk, dst=rank + 1))
    for request in requests:
        request.wait()
    ### END SOLUTION


# %% role="check" question="chain_broadcast" points=3
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
        "chunks. In the formula for the best s, do you divide by the latency and by the bandwidth under the root?"
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
            "This is another network: use the latency and the bandwidth that your function gets.",
        ),
    ],
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Two mistakes cost time: a wrong number of chunks, and a rank that does not receive while it sends.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The lesson's formula gives the best number of chunks: $\sqrt{N (n-2) / (\alpha B)}$, with N in bytes.
# Round this number. What does the formula give for two ranks, and for one rank? Use at least one chunk.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Receive a chunk with `recv`, pass it on with `isend`, and go to the next chunk. Wait for all requests
# at the end.
#
# </details>

# %% role="hidden" question="chain_broadcast"
seed = 1
for length, of_six in (
    (5 + seed % 7, simlib.clusters.ethernet_1g(nodes=6)),
    (10_000 + 1000 * (seed % 9), simlib.clusters.ethernet_1g(nodes=6)),
    (100_000 + 1000 * (seed % 9), simlib.clusters.ethernet_10g(nodes=6)),
):
    network = Timed(of_six, None, None)
    print(
        measure(
            chain_broadcast,
            lambda rank, world_size, length=length, link=of_six.inter: (
                torch.randint(
                    1000, (length,), generator=torch.Generator().manual_seed(seed + rank)
                ).float(),
                link.latency_s,
                link.bandwidth_Bps,
            ),
            worlds=(1, 2, 6),
            in_place=True,
            start=network.start(timeout_s=20),
        )
    )

# %% [markdown]
# ## 4. An all_reduce that chooses (★★★, 35 minutes, 4 points)
#
# Add up `x` over all ranks, in place, on **any** number of ranks, one included. You get the network's
# latency and bandwidth. Choose between the ring and recursive doubling. By the lesson's formulas, one of
# the two is faster. On the modelled network, your function may take 2 % more than the time of the faster
# one. The tensor has up to 400 kB, and there are up to 8 ranks. `ring` and `swap` are given above. The
# value gives you 2 points, and the time gives you 2 points.


# %% role="answer" question="quick_all_reduce" points={"value": 2, "time": 2}
def quick_all_reduce(rank, world_size, x, latency_s, bandwidth_Bps):
    """Add up x over all ranks, in place, by the quicker of ring and recursive doubling."""
    ### BEGIN SOLUTION
    p = 1 << (world_size.bit_length() - 1)  # the largest power of two
    steps = p.bit_length() - 1 + 2 * (p < world_size)
    doubling_s = steps * (latency_s + x.nbytes / bandwidth_Bps)
    ring_s = 2 * (world_size - 1) * (latency_s + x.nbytes / world_size / bandwidth_Bps)
    if ring_s < doubling_s:
        return ring(rank, world_size, x)
    other = torch.empty_like(x)
    if rank >= p:
        dist.send(x, dst=rank - p)
        return dist.recv(x, src=rank - p)
    if rank + p < world_size:
        dist.recv(other, src=rank + p)
        x += other
    for k in range(p.bit_length() - 1):
        swap(x, other, rank ^ 2**k)
        x += other
    if rank + p < world_size:
        dist.send(x, dst=rank + p)
    ### END SOLUTION


# %% role="check" question="quick_all_reduce" points={"value": 2, "time": 2}
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You need no formula for the crossover. Compute both times and compare them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.nbytes` is N in bytes. Let $p$ be the largest power of two with $p \le n$. Recursive doubling takes
# $\log_2 p$ steps, and two more steps if $p < n$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `1 << (world_size.bit_length() - 1)` is $p$. Each rank from $p$ on sends its `x` to rank `rank - p`,
# waits for the sum, and is done.
#
# </details>

# %% role="hidden" question="quick_all_reduce"
seed = 1
slow_and_quick = simlib.clusters.ethernet_1g(nodes=7), simlib.clusters.ethernet_10g(nodes=7)
for length, of_seven in zip(
    (3 + seed % 5, 7500 + 100 * (seed % 9), 21_000 + 1000 * (seed % 9), 21_000 + 1000 * (seed % 7)),
    # The last is long for the slow one, short for the quick; the second asks what folding costs.
    (slow_and_quick[0], slow_and_quick[0], *slow_and_quick),
    strict=True,
):
    network = Timed(of_seven, None, None)
    print(
        measure(
            quick_all_reduce,
            lambda rank, world_size, length=length, link=of_seven.inter: (
                torch.randint(
                    1000, (length,), generator=torch.Generator().manual_seed(seed + rank)
                ).float(),
                link.latency_s,
                link.bandwidth_Bps,
            ),
            worlds=(1, 3, 4, 7),
            in_place=True,
            start=network.start(timeout_s=20),
        )
    )

# %% [markdown]
# ## 5. A budget of bytes between nodes (★★, 25 minutes, 3 points)
#
# `node_of[r]` is the node of rank r, a whole number. Nodes may have different numbers of ranks, and
# the ranks of a node need not have consecutive numbers. Add up `x` over all ranks, in place. There are
# $m$ nodes. All messages between different nodes together may carry at most $2(m-1)$ times the bytes of
# `x`. Messages within a node are free.


# %% role="answer" question="sum_by_node" points=3
def sum_by_node(rank, world_size, x, node_of):
    """Add up x over all ranks, in place, with few bytes between nodes.

    x is one-dimensional and float32, of the same length on every rank; node_of is a list of the
    node of each rank.
    """
    ### BEGIN SOLUTION
    leaders = [node_of.index(node) for node in sorted(set(node_of))]
    leader, other = node_of.index(node_of[rank]), torch.empty_like(x)
    if rank != leader:
        dist.send(x, dst=leader)
        return dist.recv(x, src=leader)
    mates = [r for r in range(world_size) if node_of[r] == node_of[rank] and r != rank]
    for src in mates + (leaders[1:] if rank == leaders[0] else []):
        dist.recv(other, src=src)
        x += other
    if rank != leaders[0]:
        dist.send(x, dst=leaders[0])
        dist.recv(x, src=leaders[0])
    for dst in mates + (leaders[1:] if rank == leaders[0] else []):
        dist.send(x, dst=dst)
    ### END SOLUTION


# %% role="check" question="sum_by_node" points=3
UNEVEN = {1: [0], 2: [0, 0], 3: [1, 0, 1], 4: [0, 1, 1, 1], 5: [2, 0, 1, 0, 2]}
OTHERS = {1: [3], 2: [5, 3], 3: [0, 2, 1], 4: [1, 0, 1, 0], 5: [0, 0, 0, 4, 0]}


def on_uneven_nodes(rank, world_size):
    return torch.arange(7.0) ** 2 + 10.0**rank, UNEVEN[world_size]


def on_other_nodes(rank, world_size):
    return torch.arange(5.0) + 3 * 10.0**rank, OTHERS[world_size]


def bytes_between(run, given):
    """Bytes that travel between nodes, and how many are enough."""
    node_of, nbytes = given[1][0], given[0][0].nbytes
    sends = (op for op in run.trace if op.kind == "send")
    sent = sum(op.nbytes for op in sends if node_of[op.rank] != node_of[op.peer])
    return sent, 2 * (len(set(node_of)) - 1) * nbytes


def over_budget(run, given):
    sent, enough = bytes_between(run, given)
    if sent <= enough:
        return None
    return (
        f"{sent} bytes travel between the nodes {given[1][0]} where {enough} are enough. Add up in "
        "each node first. Then one rank of each node sends its sum to one chosen rank, and gets the "
        "sum of all nodes back from it."
    )


def of_own_node(xs, node_ofs, who=lambda rank, node_of: True):
    """Each rank has the sum of its node, or of some ranks of it."""
    node_of = node_ofs[0]
    return [
        sum(x for r, x in enumerate(xs) if node_of[r] == node_of[rank] and who(r, node_of))
        for rank in range(len(xs))
    ]


def of_first_ranks(xs, node_ofs):
    firsts = {node_ofs[0].index(node) for node in node_ofs[0]}
    return [sum(x for rank, x in enumerate(xs) if rank in firsts)] * len(xs)


def told_to_first_ranks(xs, node_ofs):
    firsts = {node_ofs[0].index(node) for node in node_ofs[0]}
    return [sum(xs) if rank in firsts else x for rank, x in enumerate(xs)]


verdict = check(
    "sum_by_node",
    sum_by_node,
    [on_uneven_nodes, on_other_nodes],
    lambda xs, node_ofs: [sum(xs)] * len(xs),
    only("send", "recv"),
    simlib.checks.somebody_sends(),
    Rule(
        over_budget,
        lambda run, given: "{} bytes between nodes (at most {})".format(*bytes_between(run, given)),
    ),
    in_place=True,
    mistakes={
        "That is the sum of one node: the nodes have to add up their sums, too.": of_own_node,
        "That is the sum of the first rank of each node: the others have numbers, too.": of_first_ranks,
        "The first rank of each node has the sum, but it does not tell the others in its node.": (
            told_to_first_ranks
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Choose one rank of each node as its leader. Which messages between nodes do the leaders need?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The first rank of a node is `node_of.index(node)`. The other ranks of the node send it their tensors.
# Then the leaders add up, as in the naive algorithm of the lesson.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The leader of the first node receives $m-1$ tensors and sends $m-1$ tensors. Then each leader sends the
# sum to the ranks of its node.
#
# </details>

# %% role="hidden" question="sum_by_node"
seed = 1
PLACED = {
    n: torch.randint(3, (n,), generator=torch.Generator().manual_seed(seed + n)).tolist()
    for n in range(1, 6)
}
print(
    measure(
        sum_by_node,
        lambda rank, world_size: (
            torch.randint(
                1000, (3 + seed % 5,), generator=torch.Generator().manual_seed(seed + rank)
            ).float(),
            PLACED[world_size],
        ),
        in_place=True,
    )
)

# %% [markdown]
# ## 6. The ring with the fastest slowest hop (★★, 20 minutes, 2 points)
#
# `seconds[a][b]` is the time of a chunk from rank a to rank b. A step of a ring takes as long as its
# slowest hop. Return the order of all ranks of the table for which the slowest hop is fastest. The table
# has `len(seconds)` ranks, 7 at most, and not `world_size` ranks. The order is a list that begins with 0,
# and the last rank sends to the first one. If there are several such orders, choose the one whose hops
# have the smallest sum. If there are still several, choose the one that comes first when Python sorts
# them. Send nothing.


# %% role="answer" question="best_ring" points=2
def best_ring(rank, world_size, seconds):
    """Return the order of the ring, a list of whole numbers.

    seconds is a list of rows; seconds[a][b] need not equal seconds[b][a].
    """

    ### BEGIN SOLUTION
    def cost(order):
        hops = [seconds[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True)]
        return max(hops), sum(hops), order

    orders = ([0, *others] for others in itertools.permutations(range(1, len(seconds))))
    return min(orders, key=cost)
    ### END SOLUTION


# %% role="check" question="best_ring" points=2
LEAVES = [0, 1, 0, 1, 1, 0]
TABLES = [
    [[0, 3, 2, 5, 2], [8, 0, 8, 8, 7], [4, 2, 0, 8, 1], [7, 7, 1, 0, 8], [5, 4, 2, 6, 0]],
    [[1 if LEAVES[a] == LEAVES[b] else 4 for b in range(6)] for a in range(6)],
    [[0, 9, 2, 7, 5], [3, 0, 8, 4, 9], [9, 4, 0, 9, 1], [2, 9, 6, 0, 8], [9, 5, 3, 4, 0]],
    [[0, 1, 6, 6], [6, 0, 1, 6], [6, 6, 0, 1], [9, 6, 6, 0]],
    [[0]],
    [[0, 5, 5, 2, 8], [5, 0, 2, 5, 5], [5, 2, 0, 5, 3], [2, 5, 5, 0, 4], [8, 5, 3, 4, 0]],
]


def best_of(*given, hops=lambda order: zip(order, order[1:] + order[:1], strict=True),
            cost=lambda times, order: (max(times), sum(times), order)):  # fmt: skip
    """The best order of each rank's table; of a mistake, by another cost."""
    found = []
    for table in given[0]:
        orders = ([0, *rest] for rest in itertools.permutations(range(1, len(table))))
        times = {tuple(o): [table[a][b] for a, b in hops(o)] or [0] for o in orders}
        found.append(list(min(times, key=lambda o: cost(times[o], o))))
    return found


def otherwise(**how):
    return lambda *given: best_of(*given, **how)


def nearest_next(*given):
    found = []
    for table in given[0]:
        order = [0]
        while len(order) < len(table):
            rest = [r for r in range(len(table)) if r not in order]
            order.append(min(rest, key=lambda r: (table[order[-1]][r], r)))
        found.append(order)
    return found


verdict = check(
    "best_ring",
    best_ring,
    lambda rank, world_size: (TABLES[rank],),
    best_of,
    simlib.checks.messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is the order with the smallest sum: its slowest hop is not the fastest.": otherwise(
            cost=lambda times, order: (sum(times), order)
        ),
        "The last rank sends to the first one: this hop counts, too.": otherwise(
            hops=lambda order: zip(order, order[1:], strict=False)
        ),
        "Of several orders with the same slowest hop, choose the smallest sum.": otherwise(
            cost=lambda times, order: (max(times), order)
        ),
        "A ring that always goes on to the nearest rank is not always the best: try all orders.": (
            nearest_next
        ),
        "A hop from a to b takes seconds[a][b], not seconds[b][a].": otherwise(
            hops=lambda order: zip(order[1:] + order[:1], order, strict=True)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `itertools.permutations(range(1, n))` gives all orders of the other ranks. For 7 ranks there are 720.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `zip(order, order[1:] + order[:1])` gives all hops, also the last one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Python compares tuples from left to right. So the best order is the `min` by the key
# `(max(hops), sum(hops), order)`.
#
# </details>

# %% role="hidden" question="best_ring"
seed = 1


def drawn(rank, world_size):
    size = 3 + (seed + rank) % 4
    chance = torch.Generator().manual_seed(seed + rank)
    return ((torch.randint(1, 9, (size, size), generator=chance)).tolist(),)


print(measure(best_ring, drawn))
