"""Wrong answers to exercise 04.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "mean_of_all"


def mean_of_means(rank, world_size, x):
    """the mean of the ranks' means"""
    mean = x.mean().reshape(1)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean.item()


def sum_by_ranks(rank, world_size, x):
    """the sum of all numbers, divided by the number of ranks"""
    total = x.sum().reshape(1)
    dist.all_reduce(total)
    return (total / world_size).item()


def reduce_to_rank_0(rank, world_size, x):
    """the mean that only rank 0 has"""
    both = torch.tensor([x.sum(), float(len(x))])
    dist.reduce(both, dst=0)
    return (both[0] / both[1]).item()


def two_all_reduces(rank, world_size, x):
    """the right mean in two all_reduces where one will do"""
    total, length = x.sum().reshape(1), torch.tensor([float(len(x))])
    dist.all_reduce(total)
    dist.all_reduce(length)
    return (total / length).item()


def whole_vectors(rank, world_size, x):
    """the all_reduce of whole vectors, added up only after they travelled"""
    room = torch.zeros(2, 10)
    room[0, : len(x)] = x
    room[1, : len(x)] = 1
    dist.all_reduce(room)
    return (room[0].sum() / room[1].sum()).item()


def a_tensor(rank, world_size, x):
    """the right mean as a tensor, not as a number"""
    both = torch.tensor([x.sum(), float(len(x))])
    dist.all_reduce(both)
    return both[0] / both[1]


def in_float64(rank, world_size, x):
    """the all_reduce of two float64 numbers, which weigh twice as much"""
    both = torch.tensor([x.sum(), float(len(x))], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def own_mean(rank, world_size, x):
    """each rank's own mean"""
    return x.mean().item()


def without_the_empty(rank, world_size, x):
    """the mean that ranks without numbers stay away from"""
    both = torch.tensor([x.sum(), float(len(x))])
    if len(x):
        dist.all_reduce(both)
    return (both[0] / both[1]).item()


WRONG = {
    mean_of_means: "the mean of the ranks' means",
    sum_by_ranks: "divided by the number of ranks",
    reduce_to_rank_0: "calls reduce",
    two_all_reduces: "Two numbers can travel in one tensor",
    whole_vectors: "Add up what you can before you communicate",
    in_float64: "A float64 has 8 bytes, a float32 has 4",
    a_tensor: "has a Tensor, but a number is expected",
    own_mean: "No rank communicates",
    without_the_empty: "wait for rank 2, which has finished",
}


def by_numpy(rank, world_size, x):
    import numpy as np

    both = torch.tensor(np.array([x.numpy().sum(), x.numel()], dtype=np.float32))
    dist.all_reduce(both)
    return float(both[0]) / float(both[1])


ALSO_RIGHT = [by_numpy]
