"""Wrong answers to exercise 05.4, each with the words its refusal must hold."""

import math

import torch
import torch.distributed as dist

QUESTION = "quick_all_reduce"


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


def doubling(rank, world_size, x):
    other, p = torch.empty_like(x), 1 << (world_size.bit_length() - 1)
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


def crossover_nbytes(world_size, latency_s, bandwidth_Bps):
    steps = math.ceil(math.log2(world_size)) + 1e-9
    even = 2 * (world_size - 1) / world_size
    if steps <= even:
        return math.inf
    return latency_s * bandwidth_Bps * (2 * (world_size - 1) - steps) / (steps - even)


def divides_by_zero_where_nobody_else_is(rank, world_size, x, latency_s, bandwidth_Bps):
    """the crossover that divides by zero in a world of one"""
    lg, even = math.log2(world_size), 2 * (world_size - 1) / world_size
    crossover = latency_s * bandwidth_Bps * (2 * (world_size - 1) - lg) / (lg - even)
    (doubling if x.nbytes < crossover else ring)(rank, world_size, x)


def always_the_ring(rank, world_size, x, latency_s, bandwidth_Bps):
    """the all_reduce that always takes the ring"""
    ring(rank, world_size, x)


def always_doubling(rank, world_size, x, latency_s, bandwidth_Bps):
    """the all_reduce that always takes recursive doubling"""
    doubling(rank, world_size, x)


def counts_elements_for_bytes(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice whose crossover is too large, as if elements were bytes"""
    is_short = len(x) < crossover_nbytes(world_size, latency_s, bandwidth_Bps)
    (doubling if is_short else ring)(rank, world_size, x)


def crosses_where_latency_is_bandwidth(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice whose crossover is too small, as latency times bandwidth is"""
    is_short = x.nbytes < latency_s * bandwidth_Bps
    (doubling if is_short else ring)(rank, world_size, x)


def ring_unless_a_power_of_two(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice that takes the ring on all but powers of two"""
    is_short = x.nbytes < crossover_nbytes(world_size, latency_s, bandwidth_Bps)
    is_power = world_size & (world_size - 1) == 0
    (doubling if is_short and is_power else ring)(rank, world_size, x)


def crosses_at_55_kB_on_any_network(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice at a number of bytes that was found by trying, on one network"""
    is_short = x.nbytes <= 55_000 or world_size == 1
    (doubling if is_short else ring)(rank, world_size, x)


def at_a_root(rank, world_size, x, latency_s, bandwidth_Bps):
    """the sum made on rank 0, which then sends it to one rank after another"""
    other = torch.empty_like(x)
    for peer in range(1, world_size):
        if rank == 0:
            dist.recv(other, src=peer)
            x += other
        elif rank == peer:
            dist.send(x, dst=0)
    for peer in range(1, world_size):
        if rank == 0:
            dist.send(x, dst=peer)
        elif rank == peer:
            dist.recv(x, src=0)


def does_not_fold(rank, world_size, x, latency_s, bandwidth_Bps):
    """the recursive doubling that works on powers of two only"""
    if x.nbytes >= crossover_nbytes(world_size, latency_s, bandwidth_Bps):
        return ring(rank, world_size, x)
    other, distance = torch.empty_like(x), 1
    while distance < world_size:
        swap(x, other, rank ^ distance)
        x += other
        distance *= 2


def adds_the_wrong_buffer(rank, world_size, x, latency_s, bandwidth_Bps):
    """the recursive doubling that adds x to itself, not what came"""
    other, distance = torch.empty_like(x), 1
    while distance < world_size:
        swap(x, other, rank ^ distance)
        x += x
        distance *= 2


def by_steps(rank, world_size, x, latency_s, bandwidth_Bps, steps):
    doubling_s = steps * (latency_s + x.nbytes / bandwidth_Bps)
    ring_s = 2 * (world_size - 1) * (latency_s + x.nbytes / world_size / bandwidth_Bps)
    (ring if ring_s < doubling_s else doubling)(rank, world_size, x)


def folding_is_free(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice that reckons with nothing for folding"""
    by_steps(rank, world_size, x, latency_s, bandwidth_Bps, world_size.bit_length() - 1)


def folding_costs_one(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice that reckons with one step for folding"""
    by_steps(rank, world_size, x, latency_s, bandwidth_Bps, math.ceil(math.log2(world_size)))


def folding_by_the_logarithm(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice that reckons with log2(n) steps on any number of ranks"""
    by_steps(rank, world_size, x, latency_s, bandwidth_Bps, math.log2(world_size))


def by_the_bandwidth_alone(rank, world_size, x, latency_s, bandwidth_Bps):
    """the choice that takes the latency for that of the network tried first"""
    p = 1 << (world_size.bit_length() - 1)
    steps = p.bit_length() - 1 + 2 * (p < world_size)
    known = {1.25e8: 50e-6, 1.25e9: 30e-6}.get(bandwidth_Bps, latency_s)
    by_steps(rank, world_size, x, known, bandwidth_Bps, steps)


def folds_and_forgets(rank, world_size, x, latency_s, bandwidth_Bps):
    """the recursive doubling that does not add what is folded to it"""
    p = 1 << (world_size.bit_length() - 1)
    kept = x.clone()
    if rank >= p:
        dist.send(x, dst=rank - p)
        return dist.recv(x, src=rank - p)
    if rank + p < world_size:
        dist.recv(kept, src=rank + p)
    for k in range(p.bit_length() - 1):
        swap(x, kept, rank ^ 2**k)
        x += kept
    if rank + p < world_size:
        dist.send(x, dst=rank + p)


WRONG = {
    folding_is_free: "Here the ring is quicker",
    folding_costs_one: "Here the ring is quicker",
    folding_by_the_logarithm: "Here the ring is quicker",
    by_the_bandwidth_alone: "The same bandwidth, and four times the latency",
    folds_and_forgets: "The ranks that are folded away bring a tensor, too",
    divides_by_zero_where_nobody_else_is: "division by zero",
    always_the_ring: "Few bytes: few steps",
    always_doubling: "done after 9.75 ms",
    counts_elements_for_bytes: "Just above N*: a ring",
    crosses_where_latency_is_bandwidth: "Just below N*",
    ring_unless_a_power_of_two: "Fold six ranks to four",
    crosses_at_55_kB_on_any_network: "On another network N* is elsewhere",
    at_a_root: "done after 45.5 ms",
    does_not_fold: "is not a rank of this group",
    adds_the_wrong_buffer: "own x twice: add what came",
}


def folds_neighbours(rank, world_size, x, latency_s, bandwidth_Bps):
    p = 1 << (world_size.bit_length() - 1)
    more = world_size - p
    steps = (p.bit_length() - 1) + (2 if more else 0)
    byte_s = x.nbytes / bandwidth_Bps
    if 2 * (world_size - 1) * (latency_s + byte_s / world_size) <= steps * (latency_s + byte_s):
        return ring(rank, world_size, x)
    incoming = torch.zeros_like(x)
    if rank < 2 * more and rank % 2 == 0:  # an even rank hands its tensor to the odd one after it
        dist.send(x, dst=rank + 1)
        return dist.recv(x, src=rank + 1)
    if rank < 2 * more:
        dist.recv(incoming, src=rank - 1)
        x += incoming
    place = rank // 2 if rank < 2 * more else rank - more
    for bit in reversed(range(p.bit_length() - 1)):
        other = place ^ 1 << bit
        other = 2 * other + 1 if other < more else other + more
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, incoming, other)]
        )
        for request in requests:
            request.wait()
        x += incoming
    if rank < 2 * more:
        dist.send(x, dst=rank - 1)


ALSO_RIGHT = [folds_neighbours]

EARNS = {
    folding_is_free: 2,
    folding_costs_one: 2,
    folding_by_the_logarithm: 2,
    by_the_bandwidth_alone: 2,
    always_the_ring: 2,
    always_doubling: 2,
    counts_elements_for_bytes: 2,
    crosses_where_latency_is_bandwidth: 2,
    ring_unless_a_power_of_two: 2,
    crosses_at_55_kB_on_any_network: 2,
    at_a_root: 2,
}
"""Points of parts whose rules they keep, by `points=` of the question."""
