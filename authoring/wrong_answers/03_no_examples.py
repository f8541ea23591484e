"""Wrong answers to exercise 03.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "no_examples"


def mean_by(total):
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def stays_away(rank, world_size, losses):
    """the mean that ranks without examples stay away from"""
    if not losses:
        return 0.0
    return mean_by(torch.tensor([sum(losses), len(losses)]))


def mean_of_means(rank, world_size, losses):
    """the mean of the ranks' means"""
    return mean_by(torch.tensor([sum(losses) / max(1, len(losses)), 1.0]))


def counts_as_one(rank, world_size, losses):
    """the mean that counts a rank without examples as one example"""
    return mean_by(torch.tensor([sum(losses), max(1.0, len(losses))]))


def whole_numbers(rank, world_size, losses):
    """the mean of sums that were cut to whole numbers"""
    return mean_by(torch.tensor([sum(losses), len(losses)], dtype=torch.int64))


def one_by_one(rank, world_size, losses):
    """the right mean in two all_reduces where one will do"""
    total, count = torch.tensor([float(sum(losses))]), torch.tensor([float(len(losses))])
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


def every_loss(rank, world_size, losses):
    """the right mean, for which every single loss is sent, not their sum"""
    room = torch.full((world_size, 8), torch.nan)
    room[rank, : len(losses)] = torch.tensor(losses)
    room = torch.stack([room.nan_to_num(), (~room.isnan()).float()])
    dist.all_reduce(room)
    return (room[0].sum() / room[1].sum()).item()


def only_the_empty_rank_differs(rank, world_size, losses):
    """the sum in float64 on ranks without examples, in float32 elsewhere"""
    dtype = torch.float64 if not losses else torch.float32
    return mean_by(torch.tensor([sum(losses), len(losses)], dtype=dtype))


WRONG = {
    stays_away: "which has finished",
    mean_of_means: "mean of the ranks' means",
    counts_as_one: "A rank without examples was counted as one example",
    whole_numbers: "The sums were cut to whole numbers",
    one_by_one: "Sum and count can travel together",
    every_loss: "Add up before you communicate",
    only_the_empty_rank_differs: "every rank must use the same dtype",
}


def by_numpy(rank, world_size, losses):
    import numpy as np

    total = torch.from_numpy(np.array([np.sum(losses), len(losses)], dtype=np.float64))
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=None)
    return float(np.divide(*total.numpy()))


ALSO_RIGHT = [by_numpy]
