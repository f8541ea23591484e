"""Wrong answers to review.7, each with the words its refusal must hold."""

import math

import torch
import torch.distributed as dist

QUESTION = "traffic"


def predicted(world_size, share, micro, every, bucket_bytes, steps=None, each=None):
    """Steps, all_reduces and bytes, by somebody who has his own idea of steps or bytes."""
    steps = math.ceil(math.ceil(share / micro) / every) if steps is None else steps
    each = 2 * (world_size - 1) * sum(bucket_bytes) // world_size if each is None else each
    return steps, steps * len(bucket_bytes), steps * each


def every_micro_batch(rank, world_size, n, micro, every, bucket_bytes):
    """a step for every micro-batch"""
    share = math.ceil(n / world_size)
    steps = math.ceil(share / micro)
    return predicted(world_size, share, micro, every, bucket_bytes, steps)


def without_padding(rank, world_size, n, micro, every, bucket_bytes):
    """shares that are rounded down"""
    return predicted(world_size, n // world_size, micro, every, bucket_bytes)


def full_groups_only(rank, world_size, n, micro, every, bucket_bytes):
    """steps for full groups of full micro-batches alone"""
    share = math.ceil(n / world_size)
    return predicted(world_size, share, micro, every, bucket_bytes, share // micro // every)


def all_examples(rank, world_size, n, micro, every, bucket_bytes):
    """an epoch of all examples on each rank"""
    return predicted(world_size, n, micro, every, bucket_bytes)


def bytes_of_all(rank, world_size, n, micro, every, bucket_bytes):
    """the bytes that all ranks send together"""
    each = 2 * (world_size - 1) * sum(bucket_bytes)
    return predicted(world_size, math.ceil(n / world_size), micro, every, bucket_bytes, each=each)


def half_a_ring(rank, world_size, n, micro, every, bucket_bytes):
    """the bytes of a ring that only adds up"""
    each = (world_size - 1) * sum(bucket_bytes) // world_size
    return predicted(world_size, math.ceil(n / world_size), micro, every, bucket_bytes, each=each)


def bytes_brought(rank, world_size, n, micro, every, bucket_bytes):
    """the bytes that a rank brings to its all_reduces"""
    each = sum(bucket_bytes)
    return predicted(world_size, math.ceil(n / world_size), micro, every, bucket_bytes, each=each)


def one_call_a_step(rank, world_size, n, micro, every, bucket_bytes):
    """one all_reduce a step, whatever the buckets"""
    share = math.ceil(n / world_size)
    steps, _, sent = predicted(world_size, share, micro, every, bucket_bytes)
    return steps, steps, sent


def asks_the_others(rank, world_size, n, micro, every, bucket_bytes):
    """the right numbers, agreed on by an all_reduce"""
    share = math.ceil(n / world_size)
    found = torch.tensor(predicted(world_size, share, micro, every, bucket_bytes))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return tuple(found.tolist())


def by_lists(rank, world_size, n, micro, every, bucket_bytes):
    """Goes through the epoch, micro-batch by micro-batch."""
    share = len(range(0, n, world_size))
    starts = list(range(0, share, micro))
    steps = sum((k + 1) % every == 0 or k == len(starts) - 1 for k in range(len(starts)))
    sent = sum(2 * (world_size - 1) * (size // world_size) for size in bucket_bytes)
    return steps, steps * len(bucket_bytes), steps * sent


def without_no_sync(rank, world_size, n, micro, every, bucket_bytes):
    """the right steps, with all_reduces after every micro-batch"""
    share = math.ceil(n / world_size)
    steps, *_ = predicted(world_size, share, micro, every, bucket_bytes)
    number = math.ceil(share / micro)
    return steps, *predicted(world_size, share, micro, every, bucket_bytes, number)[1:]


def unequal_shares(rank, world_size, n, micro, every, bucket_bytes):
    """shares of which the lower ranks' are one larger"""
    share = len(range(rank, n, world_size))
    return predicted(world_size, share, micro, every, bucket_bytes)


WRONG = {
    every_micro_batch: "under no_sync there is none",
    without_padding: "the sampler pads it, so round up",
    full_groups_only: "it is a step, too",
    all_examples: "divide by world_size first",
    bytes_of_all: "Those are the bytes of all ranks",
    half_a_ring: "A ring goes round twice",
    bytes_brought: "Those are the bytes that a rank brings",
    one_call_a_step: "Each bucket has an all_reduce of its own",
    asks_the_others: "A prediction sends nothing",
    without_no_sync: "no_sync is for adding up without sending",
    unequal_shares: "Some ranks have a smaller share there",
}

ALSO_RIGHT = [by_lists]
