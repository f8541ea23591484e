"""Wrong answers to exercise 08.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "reduce_in_buckets"


def reduce(rank, world_size, grads, buckets):
    means = [None] * len(grads)
    for bucket in buckets:
        flat = torch.cat([grads[number] for number in bucket])
        dist.all_reduce(flat)
        parts = (flat / world_size).split([len(grads[number]) for number in bucket])
        for number, part in zip(bucket, parts, strict=True):
            means[number] = part
    return means


def fill(grads, numbers, cap_nbytes):
    buckets, nbytes = [[]], 0
    for number in numbers:
        if nbytes >= cap_nbytes:
            buckets.append([])
            nbytes = 0
        buckets[-1].append(number)
        nbytes += grads[number].nbytes
    return buckets


def one_each(rank, world_size, grads, cap_nbytes):
    """the bucket of its own for each gradient"""
    return reduce(rank, world_size, grads, [[number] for number in reversed(range(len(grads)))])


def all_in_one(rank, world_size, grads, cap_nbytes):
    """the one bucket for all gradients"""
    return reduce(rank, world_size, grads, [list(reversed(range(len(grads))))])


def first_gradient_first(rank, world_size, grads, cap_nbytes):
    """the buckets filled with the first gradient first"""
    return reduce(rank, world_size, grads, fill(grads, range(len(grads)), cap_nbytes))


def never_above_the_cap(rank, world_size, grads, cap_nbytes):
    """the buckets closed before they would pass the cap"""
    buckets, nbytes = [[]], 0
    for number in reversed(range(len(grads))):
        if buckets[-1] and nbytes + grads[number].nbytes > cap_nbytes:
            buckets.append([])
            nbytes = 0
        buckets[-1].append(number)
        nbytes += grads[number].nbytes
    return reduce(rank, world_size, grads, buckets)


def in_order_of_buckets(rank, world_size, grads, cap_nbytes):
    """the list of means in the order of the buckets"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes)
    return reduce(rank, world_size, grads, buckets)[::-1]


def not_divided(rank, world_size, grads, cap_nbytes):
    """the list of sums over the ranks in place of the means"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes)
    return [mean * world_size for mean in reduce(rank, world_size, grads, buckets)]


def other_order_on_odd_ranks(rank, world_size, grads, cap_nbytes):
    """the buckets that odd ranks send in the other order"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes)
    return reduce(rank, world_size, grads, buckets[:: -1 if rank % 2 else 1])


def closes_only_above_the_cap(rank, world_size, grads, cap_nbytes):
    """the buckets closed only once they are above the cap"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes + 1)
    return reduce(rank, world_size, grads, buckets)


def knows_one_cap(rank, world_size, grads, cap_nbytes):
    """the buckets with a fixed cap, not with the one given"""
    return reduce(rank, world_size, grads, fill(grads, reversed(range(len(grads))), 32))


def sends_an_empty_bucket(rank, world_size, grads, cap_nbytes):
    """the empty bucket sent after a last one that is full"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes)
    means = reduce(rank, world_size, grads, buckets)
    if sum(grads[number].nbytes for number in buckets[-1]) >= cap_nbytes:
        dist.all_reduce(torch.zeros(0))
    return means


def forgets_the_last_bucket(rank, world_size, grads, cap_nbytes):
    """the last bucket that is never sent"""
    buckets = fill(grads, reversed(range(len(grads))), cap_nbytes)
    return reduce(rank, world_size, grads, buckets[:-1])


WRONG = {
    one_each: "4, then 36, then 12, then 12, then 8, then 24, then 8 bytes",
    all_in_one: "carry 104 bytes",
    first_gradient_first: "carry 32, then 32, then 36, then 4 bytes",
    never_above_the_cap: "4, then 36, then 32, then 32 bytes",
    in_order_of_buckets: "in the order of the buckets",
    not_divided: "sums over the ranks",
    other_order_on_odd_ranks: "brings",
    closes_only_above_the_cap: "carry 40, then 56, then 8 bytes",
    knows_one_cap: "Here cap_nbytes is 16",
    sends_an_empty_bucket: "carry 40, then 32, then 32, then 0 bytes",
    forgets_the_last_bucket: "nothing was put there",
}


def by_views(rank, world_size, grads, cap_nbytes):
    means = [gradient.clone() for gradient in grads]
    bucket = []
    for number in range(len(grads) - 1, -1, -1):
        bucket.append(number)
        if sum(grads[k].nbytes for k in bucket) >= cap_nbytes or number == 0:
            flat = torch.cat([means[k] for k in bucket])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            for k in bucket:
                means[k], flat = flat[: len(means[k])], flat[len(means[k]) :]
            bucket = []
    return means


ALSO_RIGHT = [by_views]
