"""Wrong answers to exercise 19.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "time_out"


def costs(tried, waits_s, hangs, restart_s):
    return {T: (sum(w > T for w in waits_s) + hangs) * restart_s + hangs * T for T in tried}


def cheapest(found):
    return min(found, key=lambda T: (found[T], T)), min(found.values())


def right(rank, world_size, waits_s, hangs, restart_s):
    return cheapest(costs(range(max(waits_s) + 1), waits_s, hangs, restart_s))


def longest_wait(rank, world_size, waits_s, hangs, restart_s):
    """the longest wait, so that nothing ends wrongly"""
    T = max(waits_s)
    return T, costs([T], waits_s, hangs, restart_s)[T]


def strikes_at_once(rank, world_size, waits_s, hangs, restart_s):
    """a time-out that ends a wait of exactly T"""
    return cheapest(
        {
            T: (sum(w >= T for w in waits_s) + hangs) * restart_s + hangs * T
            for T in range(max(waits_s) + 2)
        }
    )


def hang_without_restart(rank, world_size, waits_s, hangs, restart_s):
    """hangs that cost no restart"""
    T, cost = right(rank, world_size, waits_s, hangs, restart_s)
    return T, cost - hangs * restart_s


def a_single_hang(rank, world_size, waits_s, hangs, restart_s):
    """a month with one hang"""
    return cheapest(costs([0, *waits_s], waits_s, 1, restart_s))


def above_zero(rank, world_size, waits_s, hangs, restart_s):
    """the best of the waits, without 0"""
    return cheapest(costs(waits_s, waits_s, hangs, restart_s))


def agreed_on(rank, world_size, waits_s, hangs, restart_s):
    """the right answer, told by rank 0"""
    found = torch.tensor(right(rank, world_size, waits_s, hangs, restart_s))
    dist.broadcast(found, src=0)
    return tuple(found.tolist())


WRONG = {
    longest_wait: "That T ends no wait wrongly",
    strikes_at_once: "A wait of exactly T",
    hang_without_restart: "A hang costs a restart, too",
    a_single_hang: "That counts one hang",
    above_zero: "T = 0 is allowed",
    agreed_on: "Every rank has all records",
}
ALSO_RIGHT = [right]
