"""Wrong answers to exercise 07.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "batch_statistics"


def sums_of(x):
    sums = torch.cat([x.sum(0), (x * x).sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    return sums


def mean_of_means(rank, world_size, x):
    """the plain mean of the ranks' means and variances"""
    both = torch.stack([x.mean(0), x.var(0, correction=0)])
    dist.all_reduce(both)
    mean, variance = both / world_size
    return mean, variance


def mean_of_moments(rank, world_size, x):
    """the plain mean of the ranks' means of x and x * x"""
    both = torch.stack([x.mean(0), (x * x).mean(0)])
    dist.all_reduce(both)
    mean, squares = both / world_size
    return mean, squares - mean**2


def divided(sums, count):
    mean, squares = sums[:-1].view(2, -1) / count
    return mean, squares - mean**2


def by_the_right_count(x):
    sums = sums_of(x)
    return divided(sums, sums[-1])


def by_world_size(rank, world_size, x):
    """the sums of all ranks, divided by the number of ranks"""
    return divided(sums_of(x), world_size)


def by_the_own_count(rank, world_size, x):
    """the sums of all ranks, divided by each rank's own count"""
    return divided(sums_of(x), len(x))


def by_a_guessed_count(rank, world_size, x):
    """the count guessed as world_size times each rank's own"""
    return divided(sums_of(x), len(x) * world_size)


def between_the_ranks_lost(rank, world_size, x):
    """the variance within ranks, without that between their means"""
    within = ((x - x.mean(0)) ** 2).sum(0) if len(x) else torch.zeros(x.shape[1])
    sums = torch.cat([x.sum(0), within, torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean, variance = sums[:-1].view(2, -1) / sums[-1]
    return mean, variance


def deviation(rank, world_size, x):
    """the standard deviation in place of the variance"""
    mean, variance = by_the_right_count(x)
    return mean, variance.sqrt()


def the_other_way_round(rank, world_size, x):
    """the right mean and variance in the other order"""
    return by_the_right_count(x)[::-1]


def in_one_tensor(rank, world_size, x):
    """the mean and variance in one tensor, not as a tuple"""
    return torch.stack(by_the_right_count(x))


def divided_by_one_less(rank, world_size, x):
    """the variance that divides by n - 1"""
    sums = sums_of(x)
    mean, variance = divided(sums, sums[-1])
    return mean, variance * sums[-1] / (sums[-1] - 1)


def mean_of_squares(rank, world_size, x):
    """the mean of the squares in place of the variance"""
    sums = sums_of(x)
    mean, squares = sums[:-1].view(2, -1) / sums[-1]
    return mean, squares


def mean_first(rank, world_size, x):
    """the mean and variance by two all_reduces"""
    sums = torch.cat([x.sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squares = ((x - mean) ** 2).sum(0)
    dist.all_reduce(squares)
    return mean, squares / sums[-1]


def count_per_channel(rank, world_size, x):
    """the count of examples sent once for each channel"""
    sums = torch.stack([x.sum(0), (x * x).sum(0), torch.full((x.shape[1],), float(len(x)))])
    dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    return mean, sums[1] / sums[2] - mean**2


def own_batch(rank, world_size, x):
    """the mean and variance of each rank's own examples"""
    return x.mean(0), x.var(0, correction=0)


def the_empty_rank_stays_away(rank, world_size, x):
    """the all_reduce that a rank without examples skips"""
    sums = sums_of(x) if len(x) else torch.ones(2 * x.shape[1] + 1)
    return divided(sums, sums[-1])


WRONG = {
    mean_of_means: "means and variances are averaged",
    mean_of_moments: "means of x and x * x are averaged",
    by_world_size: "divided by the number of ranks, not by that of the examples",
    by_the_own_count: "but the count is of one rank only",
    by_a_guessed_count: "The count is guessed from one rank",
    between_the_ranks_lost: "how far their means lie apart is lost",
    deviation: "the root of the variance",
    the_other_way_round: "returned in the other order",
    in_one_tensor: "a Tensor where a tuple is expected",
    divided_by_one_less: "batch norm divides by n here",
    mean_of_squares: "the square of the mean has to be taken off it",
    mean_first: "The variance needs no mean first",
    count_per_channel: "The count is one number for all channels",
    own_batch: "No rank communicates",
    the_empty_rank_stays_away: "wait for rank 2, which has finished",
}
