"""Lesson 09's inequality in `simulate`: the break-even lies where the formula says, to 1e-6."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

import simlib

LATENCY_S, BANDWIDTH_BPS = 1e-3, 1e6
NUMEL = 1680  # whole chunks on all these numbers of ranks
NBYTES = 4 * NUMEL
WHOLE_S = LATENCY_S + NBYTES / BANDWIDTH_BPS
CLOSE = 1e-6

ALGORITHMS = {  # name in simulate: T_sync(R) by the formulas of lesson 05
    "naive": lambda n: 2 * (n - 1) * WHOLE_S,
    "binomial": lambda n: 2 * math.ceil(math.log2(n)) * WHOLE_S,
    "ring": lambda n: 2 * (n - 1) * (LATENCY_S + NBYTES / n / BANDWIDTH_BPS),
}


def epoch(rank, world_size, batches, compute_s):
    """So many batches of one size, shared out among the ranks; each step sums the gradients."""
    gradient = torch.zeros(NUMEL)
    for _ in range(batches // world_size):
        simlib.compute(compute_s)
        dist.all_reduce(gradient)


def shared_epoch(rank, world_size, steps, compute_s):
    """So many steps, the compute of each shared out among the ranks."""
    gradient = torch.zeros(NUMEL)
    for _ in range(steps):
        simlib.compute(compute_s / world_size)
        dist.all_reduce(gradient)


def epoch_s(function, world_size, count, compute_s, algorithm, bandwidth_Bps=BANDWIDTH_BPS):
    """Virtual seconds of an epoch."""
    cluster = simlib.Cluster(world_size, 1, simlib.Link(LATENCY_S, bandwidth_Bps))
    args = count, compute_s
    run = simlib.simulate(function, world_size, args, cluster=cluster, all_reduce=algorithm)
    return run.time_s


def turns_at(pays, boundary):
    """Whether distribution pays just above the boundary, and not just below it, to `CLOSE`."""
    return not pays(boundary * (1 - CLOSE)) and pays(boundary * (1 + CLOSE))


def test_one_rank_computes_and_has_nothing_to_synchronise():
    assert epoch_s(epoch, 1, 24, 0.015, "ring") == pytest.approx(24 * 0.015, rel=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_distribution_pays_from_where_the_inequality_says(algorithm, n):
    """T_sync / T_comp < R - 1, solved for T_comp."""

    def pays(compute_s):
        return epoch_s(epoch, n, 2 * n, compute_s, algorithm) < 2 * n * compute_s

    boundary_s = ALGORITHMS[algorithm](n) / (n - 1)
    assert turns_at(pays, boundary_s)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sharing_a_batch_pays_from_where_the_other_inequality_says(algorithm):
    """T_sync / T_comp < 1 - 1 / R, with T_comp of the whole batch."""
    n = 4

    def pays(compute_s):
        return epoch_s(shared_epoch, n, 3, compute_s, algorithm) < 3 * compute_s

    boundary_s = ALGORITHMS[algorithm](n) / (1 - 1 / n)
    assert turns_at(pays, boundary_s)


def test_the_bandwidth_from_which_a_ring_pays():
    """T_comp = 2 latency + 2 N / (R bandwidth): what R - 1 leaves of the inequality for a ring."""
    n, compute_s = 4, 0.01

    def pays(bandwidth_Bps):
        return epoch_s(epoch, n, n, compute_s, "ring", bandwidth_Bps) < n * compute_s

    assert turns_at(pays, 2 * NBYTES / n / (compute_s - 2 * LATENCY_S))


@pytest.mark.parametrize(
    "algorithm, n, gain",
    [
        ("naive", 2, 0.857143),
        ("naive", 4, 0.8),
        ("naive", 8, 0.774194),
        ("naive", 16, 0.761905),
        ("ring", 16, 7.111111),
    ],
)
def test_the_lessons_example_of_what_never_pays(algorithm, n, gain):
    """T_comp = 1.5, a message of one second: T_sync = 2 (R - 1) at one rank."""
    cluster = simlib.Cluster(16, 1, simlib.Link(0.0, NBYTES))
    args = 16, 1.5
    run = simlib.simulate(epoch, n, args, cluster=cluster, all_reduce=algorithm)
    assert 16 * 1.5 / run.time_s == pytest.approx(gain, rel=CLOSE)
