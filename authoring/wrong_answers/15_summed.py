"""Wrong answers to exercise 15.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

QUESTION = "summed"


def in_buckets(tensors, most, full=lambda held, new, most: held + new > most):
    buckets = []
    for tensor in tensors:
        held = sum(one.nbytes for one in buckets[-1]) if buckets else 0
        if not buckets or full(held, tensor.nbytes, most):
            buckets.append([])
        buckets[-1].append(tensor)
    return buckets


def sent(buckets):
    found = []
    for bucket in buckets:
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in bucket])
        found += [part.view_as(one) for part, one in zip(parts, bucket, strict=True)]
    return found


def one_by_one(rank, world_size, tensors, most):
    """the sums with an all_reduce for each tensor"""
    return sent([[tensor] for tensor in tensors])


def one_bucket(rank, world_size, tensors, most):
    """the sums in a single bucket"""
    return sent([tensors])


def over_the_limit(rank, world_size, tensors, most):
    """the sums in buckets that close when they are too large"""
    return sent(in_buckets(tensors, most, lambda held, new, most: held >= most))


def below_the_limit(rank, world_size, tensors, most):
    """the sums in buckets of fewer bytes than most"""
    return sent(in_buckets(tensors, most, lambda held, new, most: held + new >= most))


def from_the_end(rank, world_size, tensors, most):
    """the sums in buckets that are filled from the last tensor on"""
    return sent(in_buckets(tensors[::-1], most))[::-1]


def reversed_sums(rank, world_size, tensors, most):
    """the sums in the reverse order"""
    return sent(in_buckets(tensors, most))[::-1]


def means(rank, world_size, tensors, most):
    """the means over the ranks"""
    return [total / world_size for total in sent(in_buckets(tensors, most))]


def flat_sums(rank, world_size, tensors, most):
    """the sums without their shapes"""
    return [total.flatten() for total in sent(in_buckets(tensors, most))]


def own_only(rank, world_size, tensors, most):
    """a rank's own tensors"""
    return [tensor.clone() for tensor in tensors]


def in_place(rank, world_size, tensors, most):
    """the sums in the tensors themselves"""
    for tensor, total in zip(tensors, sent(in_buckets(tensors, most)), strict=True):
        tensor.copy_(total)
    return tensors


def gathered(rank, world_size, tensors, most):
    """the sums of gathered tensors"""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    parts = [torch.empty_like(flat) for _ in range(world_size)]
    dist.all_gather(parts, flat)
    totals = sum(parts).split([tensor.numel() for tensor in tensors])
    return [total.view_as(one) for total, one in zip(totals, tensors, strict=True)]


WRONG = {
    one_by_one: "7 collectives take place",
    one_bucket: "carry 212 bytes",
    over_the_limit: "carry 40, then 140, then 32 bytes",
    below_the_limit: "5 collectives take place",
    from_the_end: "carry 32, then 120, then 20, then 40 bytes",
    reversed_sums: "in the reverse order",
    means: "Those are means over the ranks",
    flat_sums: "give each its shape back",
    own_only: "Each rank has its own tensors only",
    in_place: "leave the input as it is",
    gathered: "calls all_gather",
}


def functionally(rank, world_size, tensors, most):
    buckets = in_buckets(tensors, most)
    flats = [torch.cat([tensor.flatten() for tensor in bucket]) for bucket in buckets]
    totals = [functional.all_reduce(flat, "sum", dist.group.WORLD) for flat in flats]
    found = []
    for bucket, total in zip(buckets, totals, strict=True):
        parts = (total + 0).split([tensor.numel() for tensor in bucket])
        found += [part.view_as(one).clone() for part, one in zip(parts, bucket, strict=True)]
    return found


ALSO_RIGHT = (functionally,)
