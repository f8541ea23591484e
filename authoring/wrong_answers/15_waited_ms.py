"""Wrong answers to exercise 15.6, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "waited_ms"


def walk(nodes, begins=max, blocks="wait", least=0, of_all=False, moves=True):
    """The total wait, and the end."""
    now = free = waited = 0
    ends = {}
    for kind, name, ms in nodes:
        if kind == "compute":
            now += ms
        if kind == "all_reduce":
            free = ends[name] = begins(free, now) + ms
        if kind == blocks:
            end = max(ends.values()) if of_all else ends[name]
            wait = end - now if least is None else max(least, end - now)
            waited += wait
            now += wait if moves else 0
    return waited, now


def all_at_once(rank, world_size, nodes):
    """the network that works on all sums at once"""
    return walk(nodes, begins=lambda free, now: now)[0]


def at_the_start(rank, world_size, nodes):
    """the rank that waits where it starts a sum"""
    return walk(nodes, blocks="all_reduce")[0]


def below_zero(rank, world_size, nodes):
    """the total with negative waits"""
    return walk(nodes, least=None)[0]


def for_all(rank, world_size, nodes):
    """the rank that waits for all sums so far"""
    return walk(nodes, of_all=True)[0]


def stopped_clock(rank, world_size, nodes):
    """the clock that stops while the rank waits"""
    return walk(nodes, moves=False)[0]


def never_idle(rank, world_size, nodes):
    """the network that is never idle"""
    return walk(nodes, begins=lambda free, now: free)[0]


def the_end(rank, world_size, nodes):
    """the time at which the rank ends"""
    return walk(nodes)[1]


def after_a_barrier(rank, world_size, nodes):
    """the total after a barrier"""
    dist.barrier()
    return walk(nodes)[0]


WRONG = {
    all_at_once: "The network works on several sums at once",
    at_the_start: "The rank waits where it starts a sum",
    below_zero: "such a wait takes 0 ms",
    for_all: "it is only for the sum that it names",
    stopped_clock: "The clock does not move while the rank waits",
    never_idle: "A sum begins before its start",
    the_end: "That is when the rank ends",
    after_a_barrier: "1 collective takes place",
}


def by_time(rank, world_size, nodes):
    """Total time less computing."""
    return walk(nodes)[1] - sum(ms for kind, _, ms in nodes if kind == "compute")


ALSO_RIGHT = (by_time,)
