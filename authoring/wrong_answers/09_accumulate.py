"""Wrong answers to exercise 09.3, each with the words its refusal must hold."""

import math

import torch
import torch.distributed as dist

import simlib

QUESTION = "accumulate"


def size(compute_s, sync_s, efficiency, rounded=math.ceil):
    return max(1, rounded(sync_s / compute_s * efficiency / (1 - efficiency)))


def accumulated(gradients, k, compute_s, divisor):
    rows = []
    for group in gradients.split(k):
        for _ in group:
            simlib.compute(compute_s)
        total = group.sum(0)
        dist.all_reduce(total)
        rows.append(total / divisor(group))
    return torch.stack(rows)


def every_micro_batch(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the accumulation with more all_reduces than groups"""
    k = size(compute_s, sync_s, efficiency)
    for gradient in gradients:
        simlib.compute(compute_s)
        dist.all_reduce(gradient.clone())
    total = gradients.clone()
    dist.all_reduce(total)
    return torch.stack([group.mean(0) for group in (total / world_size).split(k)])


def all_at_once(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the all_reduce of all micro-batches' gradients at once"""
    for _ in gradients:
        simlib.compute(compute_s)
    total = gradients.clone()
    dist.all_reduce(total)
    k = size(compute_s, sync_s, efficiency)
    return torch.stack([group.mean(0) for group in (total / world_size).split(k)])


def rounds_down(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the k rounded down"""
    k = size(compute_s, sync_s, efficiency, math.floor)
    return accumulated(gradients, k, compute_s, lambda group: len(group) * world_size)


def always_one(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the all_reduce after every micro-batch, as if k were 1"""
    return accumulated(gradients, 1, compute_s, lambda group: len(group) * world_size)


def divides_by_k(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the mean that divides the last, shorter group by k, too"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, compute_s, lambda group: k * world_size)


def forgets_the_ranks(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the mean over the micro-batches, summed over the ranks"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, compute_s, len)


def forgets_the_micro_batches(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the mean over the ranks, summed over the micro-batches"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, compute_s, lambda group: world_size)


def sums(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the sum over micro-batches and ranks, which nothing divides"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, compute_s, lambda group: 1)


def only_the_last_counts(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the mean over ranks of each group's last micro-batch alone"""
    rows = []
    for group in gradients.split(size(compute_s, sync_s, efficiency)):
        for _ in group:
            simlib.compute(compute_s)
        total = group[-1].clone()
        dist.all_reduce(total)
        rows.append(total / world_size)
    return torch.stack(rows)


def drops_the_rest(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the result without the last, shorter group"""
    k = size(compute_s, sync_s, efficiency)
    whole = len(gradients) // k * k
    if not whole:
        whole = len(gradients)
    kept = gradients[:whole]
    return accumulated(kept, k, compute_s, lambda group: len(group) * world_size)


def nothing_to_compute(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the run that does not compute every micro-batch"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, 0.0, lambda group: len(group) * world_size)


def computes_for_all_ranks(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the compute of all ranks' micro-batches on each rank"""
    k = size(compute_s, sync_s, efficiency)
    return accumulated(gradients, k, world_size * compute_s, lambda group: len(group) * world_size)


def accumulates_in_place(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the accumulation that changes the gradients it was given"""
    rows = []
    for group in gradients.split(size(compute_s, sync_s, efficiency)):
        total = group[0]
        simlib.compute(compute_s)
        for gradient in group[1:]:
            simlib.compute(compute_s)
            total += gradient
        dist.all_reduce(total)
        rows.append(total / (len(group) * world_size))
    return torch.stack(rows)


def always_one_more(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """the k rounded down and 1 added, even where it is whole"""
    k = size(compute_s, sync_s, efficiency, lambda exact: int(exact) + 1)
    return accumulated(gradients, k, compute_s, lambda group: len(group) * world_size)


WRONG = {
    always_one_more: "If the formula gives a whole number, do not add 1",
    every_micro_batch: "communicate once per group",
    all_at_once: "One sum of the length of a gradient is enough",
    rounds_down: "With k rounded down the efficiency is missed",
    always_one: "That is k = 1",
    divides_by_k: "by how many micro-batches it has, not by k",
    forgets_the_ranks: "Those are sums over the ranks",
    forgets_the_micro_batches: "Those are sums over the micro-batches:",
    sums: "Those are sums over micro-batches and ranks",
    only_the_last_counts: "This is not a usual mistake",
    drops_the_rest: "The last, shorter group is missing",
    nothing_to_compute: "The run is shorter than its compute",
    computes_for_all_ranks: "Compute every micro-batch once",
    accumulates_in_place: "Rank 0 changed the tensor it was given",
}


def by_slices(rank, world_size, gradients, compute_s, sync_s, efficiency):
    k = 1
    while k * compute_s < efficiency * (k * compute_s + sync_s) * (1 - 1e-12):
        k += 1
    means = []
    for first in range(0, len(gradients), k):
        some = gradients[first : first + k]
        for _ in some:
            simlib.compute(compute_s)
        mean = some.sum(0) / len(some)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        means.append(mean)
    return torch.stack(means)


ALSO_RIGHT = [by_slices]
