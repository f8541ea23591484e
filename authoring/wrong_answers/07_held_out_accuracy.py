"""Wrong answers to exercise 07.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "held_out_accuracy"


def padding_counted(rank, world_size, right, n):
    """the accuracy that counts the padding"""
    counts = torch.tensor([right.sum(), float(len(right))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def padding_among_the_right(rank, world_size, right, n):
    """the right answers with those of the padding, divided by n"""
    count = right.sum()
    dist.all_reduce(count)
    return count.item() / n


def whole_rounds_only(rank, world_size, right, n):
    """the accuracy without the last, incomplete round of the sampler"""
    count = right[: n // world_size].sum()
    dist.all_reduce(count)
    return count.item() / n


def last_of_a_share_dropped(rank, world_size, right, n):
    """the accuracy that takes a complete last round for padding"""
    count = (right if rank < n % world_size else right[:-1]).sum()
    dist.all_reduce(count)
    return count.item() / n


def mean_of_means(rank, world_size, right, n):
    """the mean over ranks that weighs a short share like a long one"""
    mean = right[rank + world_size * torch.arange(len(right)) < n].mean()
    dist.all_reduce(mean)
    return mean.item() / world_size


def two_counts_in_int64(rank, world_size, right, n):
    """the all_reduce of two 8-byte numbers, 16 bytes a rank"""
    real = right[rank + world_size * torch.arange(len(right)) < n]
    counts = torch.tensor([int(real.sum()), len(real)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def own_share(rank, world_size, right, n):
    """the accuracy over each rank's own share"""
    return right.mean().item()


def two_all_reduces(rank, world_size, right, n):
    """the accuracy by two all_reduces"""
    real = right[rank + world_size * torch.arange(len(right)) < n]
    count, total = real.sum(), torch.tensor(float(len(real)))
    dist.all_reduce(count)
    dist.all_reduce(total)
    return (count / total).item()


def whole_table(rank, world_size, right, n):
    """the all_reduce of a table with a place for each example"""
    table = torch.zeros(n + world_size)
    table[rank + world_size * torch.arange(len(right))] = right
    dist.all_reduce(table)
    return table[:n].mean().item()


def as_a_tensor(rank, world_size, right, n):
    """the accuracy as a tensor, not as a float"""
    count = right[rank + world_size * torch.arange(len(right)) < n].sum()
    dist.all_reduce(count)
    return count / n


def world_of_four(rank, world_size, right, n):
    """the accuracy that takes every world for one of four ranks"""
    count = right[rank + 4 * torch.arange(len(right)) < n].sum()
    dist.all_reduce(count)
    return count.item() / n


def neighbours(rank, world_size, right, n):
    """the accuracy that takes a rank's share for a chunk of neighbours"""
    count = right[rank * len(right) + torch.arange(len(right)) < n].sum()
    dist.all_reduce(count)
    return count.item() / n


def not_divided(rank, world_size, right, n):
    """the number of right answers in place of their share"""
    count = right[rank + world_size * torch.arange(len(right)) < n].sum()
    dist.all_reduce(count)
    return count.item()


WRONG = {
    padding_counted: "You count the padding",
    padding_among_the_right: "though not in what you divide by",
    whole_rounds_only: "the last examples before n are missing",
    last_of_a_share_dropped: "You leave out real examples",
    mean_of_means: "That is a mean of means",
    two_counts_in_int64: "a rank brings 16 bytes",
    own_share: "No rank communicates",
    two_all_reduces: "only one number is not",
    whole_table: "a rank brings 48 bytes",
    world_of_four: "A fixed world_size is written into the answer",
    neighbours: "You treat the share as consecutive examples",
    not_divided: "the number of right answers: divide it",
    as_a_tensor: "has a Tensor, but a number is expected",
}


def by_numbers(rank, world_size, right, n):
    mine = range(rank, n, world_size)
    count = torch.tensor([float(sum(right[k].item() for k in range(len(mine))))])
    dist.all_reduce(count)
    return float(count) / n


ALSO_RIGHT = [by_numbers]
