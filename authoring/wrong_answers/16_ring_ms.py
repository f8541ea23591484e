"""Wrong answers to exercise 16.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "ring_ms"


def line(points):
    """The latency in ms, and ms per byte."""
    (a, a_ms), *_, (b, b_ms) = points
    slope = (b_ms - a_ms) / (b - a)
    return a_ms - a * slope, slope


def over_ranks(number, op=dist.ReduceOp.MAX):
    x = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(x, op=op)
    return x.item()


def step(points, nbytes):
    latency, slope = line(points)
    return latency + nbytes * slope


def own_link(rank, world_size, points, nbytes):
    """the time over the rank's own link, not over the slowest"""
    return 2 * (world_size - 1) * step(points, nbytes / world_size)


def whole_tensors(rank, world_size, points, nbytes):
    """the time of a ring that sends the whole tensor in every step"""
    return 2 * (world_size - 1) * over_ranks(step(points, nbytes))


def half_the_steps(rank, world_size, points, nbytes):
    """the time of half the ring, n - 1 steps"""
    return (world_size - 1) * over_ranks(step(points, nbytes / world_size))


def mean_link(rank, world_size, points, nbytes):
    """the time by the mean of all links, not by the slowest"""
    total = over_ranks(step(points, nbytes / world_size), dist.ReduceOp.SUM)
    return 2 * (world_size - 1) * total / world_size


def worst_of_both(rank, world_size, points, nbytes):
    """the time by the worst latency and the worst bandwidth of any link"""
    worst = torch.tensor(line(points), dtype=torch.float32)  # 8 bytes
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    latency, slope = worst.tolist()
    return 2 * (world_size - 1) * (latency + nbytes / world_size * slope)


def greatest_latency(rank, world_size, points, nbytes):
    """the time over the link of the greatest latency"""
    lines = [torch.zeros(2) for _ in range(world_size)]  # float32: 8 bytes
    dist.all_gather(lines, torch.tensor(line(points), dtype=torch.float32))
    latency, slope = max(one.tolist() for one in lines)
    return 2 * (world_size - 1) * (latency + nbytes / world_size * slope)


def smallest_message(rank, world_size, points, nbytes):
    """the time in which the smallest message counts as the latency"""
    step_ms = points[0][1] + nbytes / world_size * line(points)[1]
    return 2 * (world_size - 1) * over_ranks(step_ms)


def no_latency(rank, world_size, points, nbytes):
    """the time of the bytes alone, without the latency"""
    return 2 * (world_size - 1) * over_ranks(nbytes / world_size * line(points)[1])


def in_two_collectives(rank, world_size, points, nbytes):
    """the right time in two collectives where one will do"""
    over_ranks(line(points)[0])
    return 2 * (world_size - 1) * over_ranks(step(points, nbytes / world_size))


def both_numbers_of_all(rank, world_size, points, nbytes):
    """the right time from two numbers of each rank where one will do"""
    lines = [torch.zeros(2, dtype=torch.float64) for _ in range(world_size)]
    dist.all_gather(lines, torch.tensor(line(points), dtype=torch.float64))
    steps = [latency + nbytes / world_size * slope for latency, slope in lines]
    return 2 * (world_size - 1) * max(steps).item()


WRONG = {
    own_link: "That is this rank's own link",
    whole_tensors: "A step sends a chunk, not the whole tensor",
    half_the_steps: "as many more hand the sums round",
    mean_link: "That is the mean link",
    worst_of_both: "no chunk pays both",
    greatest_latency: "The greatest latency is not the slowest step",
    smallest_message: "The smallest message still has its bytes",
    no_latency: "Each step also pays the latency",
    in_two_collectives: "What a rank can work out alone need not be sent",
    both_numbers_of_all: "A link comes down to one number here",
}


def by_polyfit(rank, world_size, points, nbytes):
    import numpy as np

    slope, start = np.polyfit(*zip(*points, strict=True), 1)
    slowest = torch.tensor([start + slope * nbytes / world_size], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return (world_size - 1) * 2 * float(slowest)


ALSO_RIGHT = [by_polyfit]
