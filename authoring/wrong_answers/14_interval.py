"""Wrong answers to exercise 14.3, each with the words its refusal must hold."""

import math

import torch
import torch.distributed as dist

QUESTION = "interval"


def summed(number):
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def goodput(n, M, step_s, save_s):
    return n * step_s / (M * math.expm1((n * step_s + save_s) / M))


def best(M, step_s, save_s):
    n = max(range(1, int(M / step_s) + 2), key=lambda n: goodput(n, M, step_s, save_s))
    return n, goodput(n, M, step_s, save_s)


def right(rank, world_size, mtbf_s, step_s, save_s):
    return best(1 / summed(1 / mtbf_s), step_s, save_s)


def weakest_rank(rank, world_size, mtbf_s, step_s, save_s):
    """the interval of the weakest rank alone"""
    least = torch.tensor([mtbf_s], dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return best(least.item(), step_s, save_s)


def mean_of_the_means(rank, world_size, mtbf_s, step_s, save_s):
    """the mean of the ranks' times, over their number"""
    return best(summed(mtbf_s) / world_size**2, step_s, save_s)


def one_rank(rank, world_size, mtbf_s, step_s, save_s):
    """the interval of one rank with the average of the mean times"""
    return best(summed(mtbf_s) / world_size, step_s, save_s)


def young(rank, world_size, mtbf_s, step_s, save_s):
    """the interval by Young's formula"""
    M = 1 / summed(1 / mtbf_s)
    n = round(math.sqrt(2 * save_s * M) / step_s)
    return n, goodput(n, M, step_s, save_s)


def in_seconds(rank, world_size, mtbf_s, step_s, save_s):
    """the interval in seconds"""
    M = 1 / summed(1 / mtbf_s)
    n = round(math.sqrt(2 * save_s * M))
    return n, goodput(n, M, step_s, save_s)


def harmonic_mean(rank, world_size, mtbf_s, step_s, save_s):
    """the interval of one rank with the harmonic mean of the times"""
    return best(world_size / summed(1 / mtbf_s), step_s, save_s)


def sum_of_times(rank, world_size, mtbf_s, step_s, save_s):
    """the interval with the sum of the mean times"""
    return best(summed(mtbf_s), step_s, save_s)


def n_in_seconds(rank, world_size, mtbf_s, step_s, save_s):
    """the right n times the seconds of a step"""
    n, share = right(rank, world_size, mtbf_s, step_s, save_s)
    return n * step_s, share


def in_floats(rank, world_size, mtbf_s, step_s, save_s):
    """the right n as a float"""
    n, share = right(rank, world_size, mtbf_s, step_s, save_s)
    return float(n), share


def up_to_100(rank, world_size, mtbf_s, step_s, save_s):
    """the best of 99 intervals"""
    M = 1 / summed(1 / mtbf_s)
    n = max(range(1, 100), key=lambda n: goodput(n, M, step_s, save_s))
    return n, goodput(n, M, step_s, save_s)


def all_times(rank, world_size, mtbf_s, step_s, save_s):
    """the right interval, for which all times are gathered"""
    times = [torch.zeros(1, dtype=torch.float64) for _ in range(world_size)]
    dist.all_gather(times, torch.tensor([mtbf_s], dtype=torch.float64))
    return best(1 / sum(1 / each.item() for each in times), step_s, save_s)


def a_place_for_each(rank, world_size, mtbf_s, step_s, save_s):
    """the right interval, with a number for each rank in the all_reduce"""
    rates = torch.zeros(world_size + 1, dtype=torch.float64)
    rates[rank] = 1 / mtbf_s
    dist.all_reduce(rates)
    return best(1 / rates.sum().item(), step_s, save_s)


def twice(rank, world_size, mtbf_s, step_s, save_s):
    """the right interval, with a second all_reduce"""
    found = right(rank, world_size, mtbf_s, step_s, save_s)
    summed(found[1])
    return found


WRONG = {
    weakest_rank: "any rank ends it",
    mean_of_the_means: "Mean times are no rates",
    one_rank: "R ranks fail more often",
    young: "Young's interval",
    in_seconds: "Those are seconds",
    harmonic_mean: "the mean *rate*",
    sum_of_times: "fail more seldom",
    n_in_seconds: "n times step_s",
    in_floats: "an int is asked for",
    up_to_100: "That is the best n below 100",
    all_times: "this question allows only",
    a_place_for_each: "One number is enough",
    twice: "2 collectives take place where 1",
}
ALSO_RIGHT = [right]
