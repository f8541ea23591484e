"""Wrong answers to exercise 14.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "by_speed"


def all_times(world_size, example_s):
    times = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(times, torch.tensor([example_s]))
    return [each.item() for each in times]


def handed_out(B, times, one_more=1):
    shares = [0] * len(times)
    for _ in range(B):
        done = [(n + one_more) * time for n, time in zip(shares, times, strict=True)]
        shares[done.index(min(done))] += 1
    return shares


def mine(rank, xs, shares):
    return xs[: shares[rank]]


def summed(rank, xs, shares):
    mean = mine(rank, xs, shares).sum(0) / len(xs)
    dist.all_reduce(mean)
    return shares[rank], mean


def weighted_means(rank, world_size, xs, example_s):
    """Right: the mean of the part, weighted by its share."""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    part = mine(rank, xs, shares)
    mean = part.mean(0) * len(part) / len(xs) if len(part) else torch.zeros_like(xs[0])
    dist.all_reduce(mean)
    return shares[rank], mean


def plain_mean(rank, world_size, xs, example_s):
    """the plain mean of the ranks' means"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    part = mine(rank, xs, shares)
    mean = part.mean(0).nan_to_num() / world_size
    dist.all_reduce(mean)
    return shares[rank], mean


def equal_shares(rank, world_size, xs, example_s):
    """equal shares for all ranks"""
    all_times(world_size, example_s)
    shares = [len(part) for part in torch.arange(len(xs)).tensor_split(world_size)]
    return summed(rank, xs, shares)


def in_proportion(rank, world_size, xs, example_s):
    """shares in proportion to the speeds, the last one with the rest"""
    speeds = [1 / time for time in all_times(world_size, example_s)]
    shares = [int(len(xs) * speed / sum(speeds)) for speed in speeds]
    return summed(rank, xs, [*shares[:-1], len(xs) - sum(shares[:-1])])


def by_slowness(rank, world_size, xs, example_s):
    """the largest shares for the slowest ranks"""
    times = all_times(world_size, example_s)
    return summed(rank, xs, handed_out(len(xs), [1 / time for time in times]))


def with_nan(rank, world_size, xs, example_s):
    """weighted means, of which an empty one is nan"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    mean = mine(rank, xs, shares).mean(0) * shares[rank] / len(xs)
    dist.all_reduce(mean)
    return shares[rank], mean


def free_first(rank, world_size, xs, example_s):
    """each example for the rank that is free first"""
    return summed(rank, xs, handed_out(len(xs), all_times(world_size, example_s), one_more=0))


def remainder(rank, world_size, xs, example_s):
    """shares in proportion to the speeds, the rest to those cut most"""
    speeds = [1 / time for time in all_times(world_size, example_s)]
    exact = [len(xs) * speed / sum(speeds) for speed in speeds]
    shares = [int(each) for each in exact]
    for r in sorted(range(world_size), key=lambda r: shares[r] - exact[r])[: len(xs) - sum(shares)]:
        shares[r] += 1
    return summed(rank, xs, shares)


def without_talk(rank, world_size, xs, example_s):
    """the mean that each rank works out for itself"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    return shares[rank], xs.mean(0)


def of_its_own(rank, world_size, xs, example_s):
    """the mean of this rank's part alone"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    return shares[rank], mine(rank, xs, shares).mean(0)


def all_of_all(rank, world_size, xs, example_s):
    """the mean of all examples of all ranks"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    mean = xs.mean(0) / world_size
    dist.all_reduce(mean)
    return shares[rank], mean


def in_floats(rank, world_size, xs, example_s):
    """the share as a float"""
    share, mean = weighted_means(rank, world_size, xs, example_s)
    return float(share), mean


def with_a_barrier(rank, world_size, xs, example_s):
    """the right mean, with a barrier before it"""
    dist.barrier()
    return weighted_means(rank, world_size, xs, example_s)


def count_beside(rank, world_size, xs, example_s):
    """the right mean, with an all_reduce of the counts beside it"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    total, count = mine(rank, xs, shares).sum(0), torch.tensor([float(shares[rank])])
    dist.all_reduce(total)
    dist.all_reduce(count)
    return shares[rank], total / count


def whole_batch(rank, world_size, xs, example_s):
    """the right mean, by an all_reduce as large as the batch"""
    shares = handed_out(len(xs), all_times(world_size, example_s))
    whole, first = torch.zeros_like(xs), sum(shares[:rank])
    whole[first : first + shares[rank]] = xs[: shares[rank]]
    dist.all_reduce(whole)
    return shares[rank], whole.mean(0)


WRONG = {
    plain_mean: "weigh",
    equal_shares: "equal shares, whatever the speeds",
    in_proportion: "the last rank gets what rounding left",
    by_slowness: "speed is one over time",
    with_nan: "a sum over nothing is 0",
    free_first: "to the rank that is free first",
    remainder: "the rest to those cut most",
    without_talk: "the others have examples, too",
    of_its_own: "the mean is that of this rank's part alone",
    all_of_all: "only B are taken",
    in_floats: "an int is asked for",
    with_a_barrier: "this question allows only",
    count_beside: "3 collectives take place where 2",
    whole_batch: "a part of the mean has the size of one example",
}
ALSO_RIGHT = [weighted_means]
