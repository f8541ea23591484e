"""Wrong answers to exercise 07.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "batch_statistics"


def own_of(x):
    """The rank's count, mean and M2 (the sum of squares about its mean)."""
    own = x.mean(0) if len(x) else torch.zeros(x.shape[1])
    return len(x), own, ((x - own) ** 2).sum(0)


def gathered(mine, world_size):
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.stack(parts)


def parts_of(x, world_size):
    """The counts, means and M2 of all ranks, by one all_gather."""
    count, own, m2 = own_of(x)
    rows = gathered(torch.cat([torch.tensor([float(count)]), own, m2]), world_size)
    return rows.split([1, x.shape[1], x.shape[1]], dim=1)


def combined(x, world_size):
    n, means, m2 = parts_of(x, world_size)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum()


def squares(rank, world_size, x):
    """the mean of squares minus the square of the mean"""
    sums = torch.cat([x.sum(0), (x * x).sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean, squared = sums[:-1].view(2, -1) / sums[-1]
    return mean, squared - mean**2


def squares_in_float64(rank, world_size, x):
    """the mean of squares minus the square of the mean, sent in float64"""
    sums = torch.cat([x.double().sum(0), (x.double() ** 2).sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean, squared = sums[:-1].view(2, -1) / sums[-1]
    return mean.float(), (squared - mean**2).float()


def mean_of_means(rank, world_size, x):
    """the plain mean of the ranks' means and variances"""
    both = torch.stack([x.double().mean(0), x.double().var(0, correction=0)]).float()
    dist.all_reduce(both)
    mean, variance = both / world_size
    return mean, variance


def unweighed_mean(rank, world_size, x):
    """the variance about the plain mean of the ranks' means"""
    n, means, m2 = parts_of(x, world_size)
    mean = means[n[:, 0] > 0].mean(0)
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum()


def between_the_ranks_lost(rank, world_size, x):
    """the variance within ranks, without that between their means"""
    n, means, m2 = parts_of(x, world_size)
    return (n * means).sum(0) / n.sum(), m2.sum(0) / n.sum()


def once_a_rank(rank, world_size, x):
    """the distance of a rank's mean counted once, not once an example"""
    n, means, m2 = parts_of(x, world_size)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + (n > 0) * (means - mean) ** 2).sum(0) / n.sum()


def not_divided(rank, world_size, x):
    """the sum of squares about the mean, not divided by n"""
    n = parts_of(x, world_size)[0]
    return own_of(x)[1], own_of(x)[2] if world_size == 1 else n


def variance_for_m2(rank, world_size, x):
    """the variance of each rank sent in the place of M2"""
    n, means, m2 = parts_of(x, world_size)
    mean = (n * means).sum(0) / n.sum()
    variances = m2 / n.clamp(min=1)
    return mean, (variances + n * (means - mean) ** 2).sum(0) / n.sum()


def deviation(rank, world_size, x):
    """the standard deviation in place of the variance"""
    mean, variance = combined(x, world_size)
    return mean, variance.sqrt()


def the_other_way_round(rank, world_size, x):
    """the right mean and variance in the other order"""
    return combined(x, world_size)[::-1]


def in_one_tensor(rank, world_size, x):
    """the mean and variance in one tensor, not as a tuple"""
    return torch.stack(combined(x, world_size))


def divided_by_one_less(rank, world_size, x):
    """the variance that divides by n - 1"""
    n, means, m2 = parts_of(x, world_size)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / (n.sum() - 1)


def mean_of_squares(rank, world_size, x):
    """the mean of the squares in place of the variance"""
    n, means, m2 = parts_of(x, world_size)
    return (n * means).sum(0) / n.sum(), (m2 + n * means**2).sum(0) / n.sum()


def mean_of_nothing(rank, world_size, x):
    """the mean of no examples, which is nan, sent to the others"""
    mine = torch.cat([torch.tensor([float(len(x))]), x.mean(0), ((x - x.mean(0)) ** 2).sum(0)])
    n, means, m2 = gathered(mine, world_size).split([1, x.shape[1], x.shape[1]], dim=1)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum()


def mean_first(rank, world_size, x):
    """the mean and variance by two all_reduces"""
    sums = torch.cat([x.sum(0), torch.tensor([float(len(x))])])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squared = ((x - mean) ** 2).sum(0)
    dist.all_reduce(squared)
    return mean, squared / sums[-1]


def count_per_channel(rank, world_size, x):
    """the count of examples sent once for each channel"""
    count, own, m2 = own_of(x)
    n, means, m2 = gathered(torch.stack([torch.full_like(own, count), own, m2]), world_size).unbind(
        1
    )
    mean = (n * means).sum(0) / n.sum(0)
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum(0)


def own_batch(rank, world_size, x):
    """the mean and variance of each rank's own examples"""
    return x.mean(0), x.var(0, correction=0)


def the_empty_rank_stays_away(rank, world_size, x):
    """the all_gather that a rank without examples skips"""
    return combined(x, world_size) if len(x) else (torch.ones(x.shape[1]),) * 2


def pair_by_pair(rank, world_size, x):
    """one rank after the other is combined with those before it"""
    n, mean, m2 = 0.0, 0.0, 0.0
    for more, other, squared in zip(*parts_of(x, world_size), strict=True):
        if more > 0:
            apart, n = other - mean, n + more
            mean = mean + apart * more / n
            m2 = m2 + squared + apart**2 * more * (n - more) / n
    return mean, m2 / n


def variances_travel(rank, world_size, x):
    """count, mean and variance travel; M2 is their count times the variance"""
    count, own, m2 = own_of(x)
    mine = torch.cat([torch.tensor([float(count)]), own, m2 / max(count, 1)])
    n, means, each = gathered(mine, world_size).split([1, x.shape[1], x.shape[1]], dim=1)
    share = n / n.sum()
    mean = (share * means).sum(0)
    return mean, (share * (each + (means - mean) ** 2)).sum(0)


def a_row_of_a_table(rank, world_size, x):
    """an all_gather_into_tensor in place of the list"""
    count, own, m2 = own_of(x)
    mine = torch.cat([own, m2, torch.tensor([float(count)])])
    rows = torch.empty(world_size * len(mine))
    dist.all_gather_into_tensor(rows, mine)
    means, m2, n = rows.view(world_size, -1).split([x.shape[1], x.shape[1], 1], dim=1)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum()


WRONG = {
    variance_for_m2: "variances are added up where M2 belongs",
    squares: "float32 keeps seven digits of a million",
    squares_in_float64: "a rank brings 56 bytes",
    mean_of_means: "means and variances are averaged",
    unweighed_mean: "the plain mean of the ranks' means",
    between_the_ranks_lost: "how far their means lie apart is lost",
    once_a_rank: "counts once for each of its examples",
    not_divided: "has still to be divided by n",
    deviation: "the root of the variance",
    the_other_way_round: "returns them in the other order",
    in_one_tensor: "a Tensor, but a tuple is expected",
    divided_by_one_less: "batch norm divides by n here",
    mean_of_squares: "take them about the mean",
    mean_of_nothing: "0 / 0 gives nan",
    mean_first: "each rank makes its own before it knows the mean of all",
    count_per_channel: "a rank brings 36 bytes",
    own_batch: "No rank communicates",
    the_empty_rank_stays_away: "wait for rank 2, which has finished",
}

ALSO_RIGHT = [pair_by_pair, variances_travel, a_row_of_a_table]
