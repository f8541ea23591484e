"""Wrong answers to exercise 19.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "who_waits"


def ended(orders, groups, share=1.0):
    """How many calls each rank ends, if a call needs this share of its group."""
    todo = [list(own) for own in orders]
    goes_on = True
    while goes_on:
        goes_on = False
        for name, ranks in groups.items():
            there = [r for r in ranks if todo[r] and todo[r][0] == name]
            if there and len(there) >= share * len(ranks):
                goes_on = True
                for r in there:
                    del todo[r][0]
    return [len(own) - len(rest) for own, rest in zip(orders, todo, strict=True)]


def open_calls(orders, groups, **more):
    counts = ended(orders, groups, **more)
    return {r: orders[r][n] for r, n in enumerate(counts) if n < len(orders[r])}


def right(rank, world_size, orders, groups):
    return open_calls(orders, groups)


def unlike_order(rank, world_size, orders, groups):
    """the ranks whose order is unlike that of others, whether they hang or not"""
    usual, found = {}, {}
    for r, own in enumerate(orders):
        first = usual.setdefault(frozenset(own), own)
        if own != first:
            found[r] = [a for a, b in zip(own, first, strict=False) if a != b][0]
    return found


def last_ended(rank, world_size, orders, groups):
    """the last call that ended on each rank"""
    counts = ended(orders, groups)
    return {r: orders[r][n - 1] for r, n in enumerate(counts) if n < len(orders[r])}


def by_majority(rank, world_size, orders, groups):
    """a call that ends when more than half of its group are there"""
    return open_calls(orders, groups, share=0.501)


def needed_ones(rank, world_size, orders, groups):
    """only those ranks for which others wait"""
    waits = open_calls(orders, groups)
    return {
        r: name
        for r, name in waits.items()
        if any(r in groups[other] and other != name for other in waits.values())
    }


def last_calls(rank, world_size, orders, groups):
    """the right ranks, with the last group of each"""
    return {r: orders[r][-1] for r in open_calls(orders, groups)}


def shared(rank, world_size, orders, groups):
    """the right answer, after a barrier"""
    dist.all_reduce(torch.ones(1))
    return open_calls(orders, groups)


WRONG = {
    unlike_order: "whose order differs",
    last_ended: "the last call that each rank has ended",
    by_majority: "when most ranks of its group",
    needed_ones: "Ranks behind the circle",
    last_calls: "not in its last",
    shared: "Every rank has all records",
}
ALSO_RIGHT = [right]
