"""Wrong answers to exercise 07.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "batch_statistics"


def sums_of(x):
    sums = torch.cat([x.sum(0), (x * x).sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    return sums


def mean_of_means(rank, world_size, x):
    both = torch.stack([x.mean(0), x.var(0, correction=0)])
    dist.all_reduce(both)
    mean, variance = both / world_size
    return mean, variance


def divided_by_one_less(rank, world_size, x):
    sums = sums_of(x)
    mean = sums[:2] / sums[-1]
    return mean, (sums[2:4] / sums[-1] - mean**2) * sums[-1] / (sums[-1] - 1)


def mean_of_squares(rank, world_size, x):
    sums = sums_of(x)
    return sums[:2] / sums[-1], sums[2:4] / sums[-1]


def mean_first(rank, world_size, x):
    sums = torch.cat([x.sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squares = ((x - mean) ** 2).sum(0)
    dist.all_reduce(squares)
    return mean, squares / sums[-1]


def count_per_channel(rank, world_size, x):
    sums = torch.stack([x.sum(0), (x * x).sum(0), torch.full((2,), float(len(x)))])
    dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    return mean, sums[1] / sums[2] - mean**2


def own_batch(rank, world_size, x):
    return x.mean(0), x.var(0, correction=0)


def the_empty_rank_stays_away(rank, world_size, x):
    sums = sums_of(x) if len(x) else torch.ones(5)
    mean = sums[:2] / sums[-1]
    return mean, sums[2:4] / sums[-1] - mean**2


WRONG = {
    mean_of_means: "divided by the number of ranks, or by a count of one rank only",
    divided_by_one_less: "batch norm divides by n here",
    mean_of_squares: "the square of the mean has to be taken off it",
    mean_first: "The variance needs no mean first",
    count_per_channel: "The count is one number for all channels",
    own_batch: "No rank communicates",
    the_empty_rank_stays_away: "wait for rank 2, which has finished",
}
