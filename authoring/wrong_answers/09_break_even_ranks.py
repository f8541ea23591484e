"""Wrong answers to exercise 09.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "break_even_ranks"


def first(compute_s, nbytes, latency_s, bandwidth_Bps, bound=lambda R: R - 1):
    for R in range(2, 4097):
        if 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps) < bound(R) * compute_s:
            return R
    return 0


def of_all(compute_s, op):
    x = torch.tensor([compute_s], dtype=torch.float64)
    dist.all_reduce(x, op=op)
    return x.item()


def own_time(rank, world_size, compute_s, *network):
    """the smallest R for each rank's own compute time"""
    return first(compute_s, *network)


def fastest(rank, world_size, compute_s, *network):
    """the smallest R for the fastest rank"""
    return first(of_all(compute_s, dist.ReduceOp.MIN), *network)


def mean(rank, world_size, compute_s, *network):
    """the smallest R for the mean of the compute times"""
    return first(of_all(compute_s, dist.ReduceOp.SUM) / world_size, *network)


def sum_of_times(rank, world_size, compute_s, *network):
    """the smallest R for the sum of the compute times"""
    return first(of_all(compute_s, dist.ReduceOp.SUM), *network)


def significantly_less(rank, world_size, compute_s, *network):
    """the smallest R for which T_sync is below one T_comp"""
    return first(of_all(compute_s, dist.ReduceOp.MAX), *network, bound=lambda R: 1)


def shared_batch(rank, world_size, compute_s, *network):
    """the smallest R for strong scaling, with a batch that ranks share"""
    return first(of_all(compute_s, dist.ReduceOp.MAX), *network, bound=lambda R: 1 - 1 / R)


def no_latency(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the smallest R for a ring without latency"""
    return first(of_all(compute_s, dist.ReduceOp.MAX), nbytes, 0.0, bandwidth_Bps)


def whole_gradient_in_each_message(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the ring whose every message carries the whole gradient"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    return 2 if slowest > 2 * (latency_s + nbytes / bandwidth_Bps) else 0


def no_integer(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the R, no whole number, at which a ring is as fast as one rank"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    if slowest <= 2 * latency_s:
        return 0
    return 2 * nbytes / bandwidth_Bps / (slowest - 2 * latency_s)


def everybody_tells_everybody(rank, world_size, compute_s, *network):
    """the all_reduce of a compute time for each rank"""
    x = torch.zeros(world_size, dtype=torch.float64)
    x[rank] = compute_s
    dist.all_reduce(x)
    return first(x.max().item(), *network)


def gathers(rank, world_size, compute_s, *network):
    """the all_gather of the compute times"""
    x = torch.tensor([compute_s], dtype=torch.float64)
    parts = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(parts, x)
    return first(max(part.item() for part in parts), *network)


def asks_for_every_R(rank, world_size, compute_s, *network):
    """the search that takes more than one all_reduce"""
    for R in range(2, 200):
        of_all(compute_s, dist.ReduceOp.MAX)
        if first(of_all(compute_s, dist.ReduceOp.MAX), *network) == R:
            return R
    return 0


def within_the_world(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the search that ends at world_size"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    for R in range(2, world_size + 1):
        if 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps) < (R - 1) * slowest:
            return R
    return 0


def without_a_limit(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the search that goes on above 4,096 ranks"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    if slowest <= 2 * latency_s:
        return 0
    return max(2, int(2 * nbytes / bandwidth_Bps / (slowest - 2 * latency_s)) + 1)


def one_is_enough(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the search in which R may be 1"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    if slowest <= 2 * latency_s:
        return 0
    found = int(2 * nbytes / bandwidth_Bps / (slowest - 2 * latency_s)) + 1
    return found if found <= 4096 else 0


def as_fast_will_do(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """the smallest R that is as fast as one rank, not faster"""
    slowest = of_all(compute_s, dist.ReduceOp.MAX)
    for R in range(2, 4097):
        if 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps) <= (R - 1) * slowest:
            return R
    return 0


WRONG = {
    within_the_world: "R may be larger than your world",
    without_a_limit: "Only an R up to 4,096 counts",
    one_is_enough: "One rank alone is no distribution",
    as_fast_will_do: "as fast as one rank, not faster",
    own_time: "Each rank decided by its own time",
    fastest: "right for the fastest rank",
    mean: "right for the mean of the times",
    sum_of_times: "right for the sum of the times",
    significantly_less: "That asks for T_sync < T_comp",
    shared_batch: "That is inequality (7)",
    no_latency: "That is without the latency",
    whole_gradient_in_each_message: "a message carries nbytes / R",
    no_integer: "Return the next whole number",
    everybody_tells_everybody: "One number is enough",
    gathers: "Rank 0 calls all_gather",
    asks_for_every_R: "is all you need from the others",
}


def by_next(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    slowest = torch.tensor(compute_s, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)

    def pays(R):
        return 2 * (latency_s + nbytes / (R * bandwidth_Bps)) < slowest.item()

    return next(filter(pays, range(2, 4097)), 0)


ALSO_RIGHT = [by_next]
