"""Steps whose compute varies: against simulations with the same times, and closed forms."""

from __future__ import annotations

import sys
import time
from math import inf, log, sqrt

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from sampled import SEED, sampled

import simlib
from simlib import Cluster, Link, scale
from simlib.core.model.errors import InvalidCallError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FREE = Cluster(64, 1, Link(0.0, inf))
NODES = Cluster(2, 4, Link(3e-5, 1.25e9), Link(2e-6, 20e9))
SIZES = [400_000, 100_004, 80_000]


def two_levels(random, shape):
    return random.choice([0.5, 2.0], shape)


# -- the same as a simulation ----------------------------------------------------------------------


def steps_of_buckets(rank, n, sizes, forward_s, backward_s, overlap):
    """Hand-written steps: when this rank has done each. ``forward_s[step][rank]``."""
    ends, began_s = [], time.perf_counter()
    for forward, backward in zip(forward_s, backward_s, strict=True):
        simlib.compute(seconds=forward[rank])
        requests = []
        for nbytes in sizes:
            simlib.compute(seconds=backward[rank] * nbytes / sum(sizes))
            if overlap:
                requests.append(dist.all_reduce(torch.zeros(nbytes // 4), async_op=True))
        if not overlap:
            requests = [dist.all_reduce(torch.zeros(size // 4), async_op=True) for size in sizes]
        for request in requests:
            request.wait()
        ends.append(time.perf_counter() - began_s)
    return ends


@pytest.mark.parametrize(
    "kind, algorithm, overlap",
    sampled(
        ("normal", "lognormal", "exponential", two_levels),
        ("ring", "leader", "hierarchical"),
        (True, False),
    ),
)
def test_jittered_steps_take_as_long_as_simulated(kind, algorithm, overlap):
    forward_s, backward_s = 4e-4, 1e-3
    factors = scale.jitter_factors(kind, 4, 8, spread=0.4, seed=SEED)
    args = SIZES, (forward_s * factors).tolist(), (backward_s * factors).tolist(), overlap
    run = simlib.simulate(steps_of_buckets, 8, args, cluster=NODES, all_reduce=algorithm)
    found = scale.jittered_time(
        SIZES, 8, NODES, forward_s=forward_s, backward_s=backward_s, jitter=kind, spread=0.4,
        seed=SEED, steps=4, overlap=overlap, algorithm=algorithm,
    )  # fmt: skip
    assert found.end_s.T == pytest.approx(np.array(run.results), rel=1e-9)
    assert found.time_s == pytest.approx(run.time_s, rel=1e-9)


def test_without_spread_all_steps_are_those_of_step_time():
    more = {"forward_s": np.arange(8) * 1e-4, "backward_s": 1e-3}
    step = scale.step_time(SIZES, 8, NODES, **more)
    found = scale.jittered_time(SIZES, 8, NODES, spread=0.0, steps=1, **more)
    assert found.time_s == pytest.approx(step.time_s, rel=1e-12)
    assert found.steady_s == pytest.approx(step.time_s, rel=1e-12)
    assert found.slowdown == pytest.approx(1, rel=1e-12)
    # Where one rank begins late its first step is longer than the others, jitter or not.
    late = {"forward_s": [0.12] + [0.06] * 15, "backward_s": 0.1, "algorithm": "double_tree"}
    cluster = simlib.clusters.ethernet_10g(16)
    found = scale.jittered_time(100_000_000, 16, cluster, spread=0.0, steps=5, **late)
    assert found.slowdown == pytest.approx(1, rel=1e-12)


def test_ready_times_vary_with_the_compute():
    # Messages take no time, so a step ends with the slowest rank; the last bucket is ready then.
    ready_s = [0.5, 0.6, 0.7]
    more = {"forward_s": 0.4, "backward_s": 0.3, "ready_s": ready_s, "spread": 0.2, "steps": 5}
    found = scale.jittered_time(SIZES, 4, FREE, seed=SEED, **more)
    assert found.times_s == pytest.approx(0.7 * found.factors.max(axis=1), rel=1e-9)


# -- closed forms ----------------------------------------------------------------------------------


def normal_maximum(ranks):
    """Mean of the largest of so many standard normal values, by its integral."""
    x = np.linspace(-12, 12, 200_001)
    density = np.exp(-(x**2) / 2) / sqrt(2 * np.pi)
    below = np.cumsum(density) * (x[1] - x[0])
    return float((x * ranks * density * below ** (ranks - 1)).sum() * (x[1] - x[0]))


def harmonic(ranks):
    return sum(1 / k for k in range(1, ranks + 1))


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize(
    "kind, spread, largest",
    [
        ("exponential", 1.0, harmonic),
        ("exponential", 0.2, lambda ranks: 0.8 + 0.2 * harmonic(ranks)),
        ("normal", 0.1, lambda ranks: 1 + 0.1 * normal_maximum(ranks)),
    ],
)
def test_a_step_takes_as_long_as_the_slowest_is_expected_to(kind, spread, largest, ranks):
    found = scale.jittered_time(
        4, ranks, FREE, forward_s=0.1, backward_s=0.2, jitter=kind, spread=spread, seed=SEED,
        steps=1000, algorithm="binomial",
    )  # fmt: skip
    error_s = found.times_s.std() / sqrt(1000)
    assert abs(found.step_s - 0.3 * largest(ranks)) < 5 * error_s
    assert found.slowdown == pytest.approx(found.step_s / 0.3, rel=1e-9)


@pytest.mark.parametrize("kind", ["normal", "lognormal", "exponential"])
def test_factors_have_the_mean_and_the_spread_that_were_asked_for(kind):
    factors = scale.jitter_factors(kind, 500, 400, spread=0.25, seed=SEED)
    assert factors.mean() == pytest.approx(1, abs=5 * 0.25 / sqrt(200_000))
    assert factors.std() == pytest.approx(0.25, rel=0.05)
    assert factors.min() >= (0.75 if kind == "exponential" else 0)
    if kind == "lognormal":
        assert np.median(np.log(factors)) == pytest.approx(-log(1 + 0.25**2) / 2, abs=5e-3)


def test_the_same_seed_gives_the_same_steps():
    times = {"forward_s": 1e-3, "backward_s": 2e-3, "steps": 3}
    one, same, other = (
        scale.jittered_time(SIZES, 8, NODES, seed=seed, **times) for seed in (SEED, SEED, SEED + 1)
    )
    assert (one.end_s == same.end_s).all() and (one.end_s != other.end_s).any()
    few, more = (scale.jitter_factors("normal", steps, 8, seed=SEED) for steps in (2, 5))
    assert (few == more[:2]).all()
    assert "3 steps on 8 ranks: +" in repr(one)


def test_servers_take_the_factors():
    factors = scale.jitter_factors("exponential", 3, 4, spread=0.5, seed=SEED)
    steps = scale.parameter_server_time(
        4, 4, 1, FREE, forward_s=0.1 * factors, backward_s=0.0, steps=3
    )
    assert steps.time_s == pytest.approx(0.1 * factors.max(axis=1).sum(), rel=1e-9)


# -- refusals, examples ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more, words",
    [
        ({"jitter": np.ones((2, 3))}, "give one of normal, lognormal"),
        ({"jitter": "uniform"}, "give one of normal, lognormal, exponential, or a function"),
        ({"spread": -0.1}, "spread is -0.1: give a number of at least 0"),
        ({"jitter": "exponential", "spread": 1.5}, "give at most 1 for an exponential jitter"),
        ({"steps": 0}, "steps is 0: give a whole number of at least 1"),
        ({"seed": -1}, "seed is -1: give a whole number of at least 0"),
        ({"jitter": lambda random, shape: random.random(3)}, r"return shape \(100, 4\), a factor"),
        ({"jitter": lambda random, shape: np.full(shape, -1.0)}, "must be finite and at least 0"),
        ({"overlap": 2}, "the share of backward, from 0 to 1"),
        ({"ready_s": [3.0]}, "give moments within backward"),
    ],
)
def test_refusals(more, words):
    with pytest.raises(InvalidCallError, match=words):
        scale.jittered_time(400, 4, FREE, forward_s=1, backward_s=1, **more)
