"""Wrong answers to exercise 05.6, each with the words its refusal must hold."""

import itertools

import torch.distributed as dist

QUESTION = "best_ring"


def least(seconds, key, closes=True, turned=False):
    """The order with the least key of its hops."""

    def cost(order):
        after = order[1:] + order[:1] if closes else order[1:]
        hops = [
            seconds[b][a] if turned else seconds[a][b] for a, b in zip(order, after, strict=False)
        ]
        return key(hops or [0], order)

    orders = ([0, *others] for others in itertools.permutations(range(1, len(seconds))))
    return min(orders, key=cost)


def slowest_first(hops, order):
    return max(hops), sum(hops), order


def smallest_sum(rank, world_size, seconds):
    """the ring with the smallest sum of its hops"""
    return least(seconds, lambda hops, order: (sum(hops), order))


def left_open(rank, world_size, seconds):
    """the order that does not count the hop back to rank 0"""
    return least(seconds, slowest_first, closes=False)


def without_sums(rank, world_size, seconds):
    """the ring that ignores the sum of its hops"""
    return least(seconds, lambda hops, order: (max(hops), order))


def other_way_round(rank, world_size, seconds):
    """the ring that reads the table from column to row"""
    return least(seconds, slowest_first, turned=True)


def nearest_next(rank, world_size, seconds):
    """the ring that always goes on to the nearest rank"""
    order = [0]
    while len(order) < len(seconds):
        here, rest = order[-1], [r for r in range(len(seconds)) if r not in order]
        order.append(min(rest, key=lambda r: (seconds[here][r], r)))
    return order


def asks_the_others(rank, world_size, seconds):
    """the best ring, after messages that nobody needs"""
    if rank:
        dist.send(dist.torch.zeros(1), dst=0)
    else:
        for src in range(1, world_size):
            dist.recv(dist.torch.zeros(1), src=src)
    return least(seconds, slowest_first)


def right_in_two_steps(rank, world_size, seconds):
    limit = max(map(max, seconds))
    best = least(seconds, slowest_first)
    assert max(seconds[a][b] for a, b in zip(best, best[1:] + best[:1], strict=True)) <= limit
    return best


WRONG = {
    smallest_sum: "That is the order with the smallest sum",
    left_open: "this hop counts, too",
    without_sums: "choose the smallest sum",
    other_way_round: "not seconds[b][a]",
    nearest_next: "goes on to the nearest rank is not always the best",
    asks_the_others: "Each rank can work this out for itself.",
}
ALSO_RIGHT = [right_in_two_steps]
