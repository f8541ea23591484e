"""Wrong answers to exercise 06.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "uneven_shards"


def plain_mean(rank, world_size, gradient, num_examples):
    """the mean over ranks that weighs a short shard like a long one"""
    mean = gradient.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean


def plain_sum(rank, world_size, gradient, num_examples):
    """the sum of the ranks' mean gradients"""
    total = gradient.clone()
    dist.all_reduce(total)
    return total


def weighted_by_ranks(rank, world_size, gradient, num_examples):
    """the weighted sum, divided by the number of ranks"""
    total = gradient * num_examples
    dist.all_reduce(total)
    return total / world_size


def weighted_not_divided(rank, world_size, gradient, num_examples):
    """the weighted sum, which nothing divides"""
    total = gradient * num_examples
    dist.all_reduce(total)
    return total


def nan_times_nothing(rank, world_size, gradient, num_examples):
    """the weighted mean that lets the nan of an empty shard through"""
    buffer = torch.cat([gradient, torch.ones(1)]) * num_examples
    dist.all_reduce(buffer)
    return buffer[:-1] / buffer[-1]


def empty_ranks_stay_away(rank, world_size, gradient, num_examples):
    """the all_reduce that a rank without examples skips"""
    buffer = torch.cat([gradient, torch.ones(1)]) * num_examples
    if num_examples:
        dist.all_reduce(buffer)
    return buffer[:-1] / buffer[-1]


def counts_first(rank, world_size, gradient, num_examples):
    """the number of examples in an all_reduce of its own"""
    total = torch.tensor([float(num_examples)])
    dist.all_reduce(total)
    part = gradient * num_examples / total if num_examples else torch.zeros_like(gradient)
    dist.all_reduce(part)
    return part


def a_row_for_each_rank(rank, world_size, gradient, num_examples):
    """the all_reduce of a table with a row for each rank"""
    room = torch.zeros(world_size, len(gradient) + 1)
    if num_examples:
        room[rank] = torch.cat([gradient, torch.ones(1)]) * num_examples
    dist.all_reduce(room)
    total = room.sum(dim=0)
    return total[:-1] / total[-1]


def writes_into_the_gradient(rank, world_size, gradient, num_examples):
    """the weighted mean that changes the gradient it was given"""
    if not num_examples:
        gradient.zero_()
    gradient *= num_examples
    buffer = torch.cat([gradient, torch.tensor([float(num_examples)])])
    dist.all_reduce(buffer)
    return buffer[:-1] / buffer[-1]


def nan_made_0_too_late(rank, world_size, gradient, num_examples):
    """the nan of an empty shard, made 0 only after the all_reduce"""
    buffer = torch.cat([gradient, torch.ones(1)]) * num_examples
    dist.all_reduce(buffer)
    return torch.nan_to_num(buffer[:-1]) / buffer[-1]


def counts_copied(rank, world_size, gradient, num_examples):
    """the weighted sum, divided by counts out of a table"""
    total = gradient * num_examples if num_examples else torch.zeros_like(gradient)
    dist.all_reduce(total)
    return total / sum([1, 6, 0, 20, 2][:world_size])


def counts_as_if_equal(rank, world_size, gradient, num_examples):
    """the weighted sum, divided by world_size times the rank's own count"""
    total = gradient * num_examples if num_examples else torch.zeros_like(gradient)
    dist.all_reduce(total)
    return total / (world_size * num_examples)


def unweighed_by_the_count(rank, world_size, gradient, num_examples):
    """the sum of the mean gradients, divided by the number of all examples"""
    buffer = torch.cat([gradient, torch.tensor([float(num_examples)])])
    buffer = buffer if num_examples else torch.zeros_like(buffer)
    dist.all_reduce(buffer)
    return buffer[:-1] / buffer[-1]


WRONG = {
    plain_mean: "gives every rank the same weight",
    plain_sum: "the sum of the ranks' mean gradients",
    weighted_by_ranks: "you divide by the number of ranks, not of examples",
    weighted_not_divided: "nothing divides by the number of all examples",
    nan_times_nothing: "brought by a rank without examples",
    counts_copied: "by a number of examples that this run does not have",
    unweighed_by_the_count: "a mean has to become a sum first",
    counts_as_if_equal: "as if all ranks had as many examples as it",
    empty_ranks_stay_away: "which has finished",
    counts_first: "The count can travel with the gradient",
    a_row_for_each_rank: "A sum needs no room for each rank",
    writes_into_the_gradient: "but the input has changed",
    nan_made_0_too_late: "Replace it before the all_reduce",
}


def cleaned(rank, world_size, gradient, num_examples):
    weighed = torch.nan_to_num(gradient) * num_examples
    both = torch.cat([weighed, torch.tensor([float(num_examples)])])
    dist.all_reduce(both)
    return both[: len(gradient)].div(both[-1])


ALSO_RIGHT = [cleaned]
