"""Noise on computing: `slow=` with a `Jitter` or a function, the same in every engine."""

from __future__ import annotations

import doctest
import importlib
import os
import random
import sys
import time
from math import inf, sqrt

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

import simlib
from simlib import Cluster, Device, Link
from simlib.core.model import chance
from simlib.scale import Jitter, jitter_factors

SEED = int(os.environ["SEED"])
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FREE = Cluster(8, 1, Link(0.0, inf))
COUNTED = Cluster(4, 1, Link(0.0, inf), device=Device(flops_per_s=1000.0))
STEPS = 70
"""More than are drawn together."""


def lasted(seconds, steps, other_work=None):
    """What this rank's calls of `compute` took."""
    found = []
    for _ in range(steps):
        before_s = time.perf_counter()
        simlib.compute(seconds)
        found.append(time.perf_counter() - before_s)
        if other_work is not None:
            other_work()
    return found


def calls_of_compute(rank, n, steps=STEPS):
    return lasted(1.0, steps)


def with_all_sorts_of_numbers(rank, n):
    def other_work():
        torch.rand(3)
        np.random.default_rng().random()
        np.random.rand(rank)
        random.seed(1)
        time.sleep(0.25)
        dist.barrier()

    return lasted(1.0, STEPS, other_work)


def own_factor(rank, k, random):
    return 1 + k + 100 * rank + random.random() / 2


# -- what is drawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "lognormal", "exponential", own_factor])
def test_the_factor_of_a_piece_depends_on_seed_rank_and_number_alone(kind):
    slow = Jitter(kind, spread=0.4, seed=SEED)
    factors = slow.factors(STEPS, 4).T
    for function in (calls_of_compute, with_all_sorts_of_numbers):
        for cluster in (FREE, simlib.clusters.ethernet_1g(nodes=8)):
            run = simlib.simulate(function, 3, cluster=cluster, slow=slow)
            assert np.array(run.results) == pytest.approx(factors[:3], rel=1e-9)
    one, same = (simlib.simulate(with_all_sorts_of_numbers, 4, slow=slow, seed=1) for _ in range(2))
    assert one.results == same.results and one.time_s == same.time_s
    assert one.findings == []  # noise is no race
    other = simlib.simulate(calls_of_compute, 4, slow=Jitter(kind, spread=0.4, seed=SEED + 1))
    assert ((np.array(other.results) != factors) | (factors == 0)).all()  # a normal ends at 0


@pytest.mark.parametrize("mean", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["normal", "lognormal", "exponential"])
def test_mean_and_spread_are_those_asked_for(kind, mean):
    factors = Jitter(kind, spread=0.25, mean=mean, seed=SEED).factors(640, 300)
    assert factors.mean() == pytest.approx(mean, abs=5 * 0.25 * mean / sqrt(factors.size))
    assert factors.std() == pytest.approx(0.25 * mean, rel=0.05)
    assert (Jitter(kind, spread=0.0).factors(3, 2) == 1).all()


def test_ranks_and_blocks_draw_numbers_of_their_own():
    factors = Jitter("normal", seed=SEED).factors(640, 40)
    assert len(np.unique(factors)) == factors.size
    correlations = np.corrcoef(factors.T)[~np.eye(40, dtype=bool)]
    assert abs(correlations).max() < 6 / sqrt(640)


def test_a_functions_random_numbers_belong_to_seed_rank_and_piece():
    def take(rank, k, random):
        random.random(k)  # how many were drawn before does not matter
        return random.random()

    factors = Jitter(take, seed=SEED).factors(20, 3)
    assert len(np.unique(factors)) == 60
    assert (Jitter(take, seed=SEED).factors(5, 2) == factors[:5, :2]).all()
    for rank, k in ((0, 0), (2, 19)):
        own = chance.generator(SEED, chance.COMPUTING, rank, k)
        own.random(k)
        assert factors[k, rank] == own.random()


# -- pieces ----------------------------------------------------------------------------------------


def test_one_factor_for_all_that_is_counted_before_an_op():
    def main(rank, n):
        x, ends = torch.ones(5, 10), []
        for _ in range(3):
            for _ in range(4):
                x @ torch.ones(10, 10)  # 1,000 operations: a second
            ends.append(time.perf_counter())
            dist.barrier()
        request = dist.barrier(async_op=True)
        x @ torch.ones(10, 10)
        request.wait()
        x @ torch.ones(10, 10)
        return [*ends, time.perf_counter()]

    slow = Jitter("exponential", spread=0.5, seed=SEED)
    found = simlib.simulate(main, 4, cluster=COUNTED, slow=slow).results
    factors = slow.factors(5, 4)
    starts = np.zeros(4)
    for step in range(3):
        ends = starts + 4 * factors[step]
        assert [rank[step] for rank in found] == pytest.approx(ends, rel=1e-9)
        starts = ends.max()
    assert [rank[3] for rank in found] == pytest.approx(starts + 2 * factors[4], rel=1e-9)


def test_calls_of_compute_are_counted_for_themselves():
    def main(rank, n):
        simlib.compute(1.0)
        torch.ones(5, 10) @ torch.ones(10, 10)
        simlib.compute(1.0)
        dist.barrier()
        torch.ones(5, 10) @ torch.ones(10, 10)

    run = simlib.simulate(main, 1, cluster=COUNTED, slow=lambda rank, k, random: 10.0**k)
    assert run.time_s == pytest.approx((1 + 10) + (1 + 10), rel=1e-12)


def test_computing_that_is_measured_is_stretched():
    def main(rank, n):
        sum(range(100_000))
        dist.barrier()
        sum(range(100_000))

    options = {"cluster": FREE, "compute": "measured"}
    assert simlib.simulate(main, 2, **options, slow=lambda *piece: 0.0).time_s == 0.0
    assert simlib.simulate(main, 2, **options).time_s > 0.0


def test_some_ranks_may_be_noisy_and_others_slow_and_sleeping_takes_as_long_as_before():
    slow = {0: 3, 1: own_factor, 2: Jitter("normal", seed=SEED)}
    found = simlib.simulate(calls_of_compute, 4, (2,), slow=slow).results
    assert found[0] == [3.0, 3.0] and found[3] == [1.0, 1.0]
    assert found[1] == pytest.approx(Jitter(own_factor).factors(2, 2)[:, 1], rel=1e-12)
    assert found[2] == pytest.approx(Jitter("normal", seed=SEED).factors(2, 3)[:, 2], rel=1e-12)
    assert simlib.simulate(lambda rank, n: time.sleep(3), 2, slow=own_factor).time_s == 3.0
    measured = [2.0, 3.0, 5.0]  # and never a fourth
    run = simlib.simulate(calls_of_compute, 2, (3,), slow=lambda rank, k, random: measured[k])
    assert run.results == [measured] * 2


def test_a_replay_draws_as_the_simulation_does():
    def main(rank, n):
        dist.new_group([0, 1])
        for _ in range(3):
            simlib.compute(1.0)
            dist.barrier()
        simlib.compute(1.0)

    def by_number(rank, k, random):
        return (k + 1) * (rank + 1)

    plain = simlib.simulate(main, 4, cluster=FREE)
    there = simlib.simulate(main, 4, cluster=FREE, slow=by_number)
    assert there.time_s == 4 * (1 + 2 + 3 + 4)
    # The op before the first piece counts: a replay knows nothing of calls of compute.
    assert plain.replay(FREE, slow=by_number).time_s == 4 * (2 + 3 + 4 + 5)

    def without_it(rank, n):
        for _ in range(STEPS):
            simlib.compute(1.0)
            dist.barrier()

    slow = Jitter("lognormal", spread=0.5, seed=SEED)
    plain = simlib.simulate(without_it, 4, cluster=FREE)
    there = simlib.simulate(without_it, 4, cluster=FREE, slow=slow)
    assert plain.replay(FREE, slow=slow).time_s == pytest.approx(there.time_s, rel=1e-9)


def test_steps_in_closed_form_have_the_same_factors():
    def main(rank, n):
        for _ in range(4):
            simlib.compute(1e-3)
            dist.all_reduce(torch.zeros(1000))

    slow = Jitter("exponential", spread=0.5, seed=SEED)
    assert (jitter_factors(slow, 4, 8) == slow.factors(4, 8)).all()
    cluster = simlib.clusters.ethernet_10g(nodes=8)
    run = simlib.simulate(main, 8, cluster=cluster, slow=slow, all_reduce="ring")
    found = simlib.scale.jittered_time(
        4000, 8, cluster, forward_s=0.0, backward_s=1e-3, jitter=slow, steps=4
    )
    assert found.time_s == pytest.approx(run.time_s, rel=1e-9)


# -- functions travel ------------------------------------------------------------------------------


def test_a_function_of_the_learners_own_module_travels(tmp_path, monkeypatch):
    simlib.simulate(calls_of_compute, 1)  # the process that simulates is there, and serves again
    name = f"own_noise_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("def noise(rank, k, random):\n    return 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    noise = importlib.import_module(name).noise
    assert simlib.simulate(calls_of_compute, 2, (1,), slow=noise).results == [[2.0], [2.0]]


def test_an_error_in_the_function_is_the_ranks():
    with pytest.raises(simlib.RankError, match="rank 1 raised ZeroDivisionError"):
        simlib.simulate(calls_of_compute, 2, slow={1: lambda rank, k, random: 1 / 0})


class Unsendable:
    """A function that holds what has no copy."""

    def __init__(self):
        self.generator = (i for i in range(3))

    def __call__(self, rank, k, random):
        return 1.0


# -- refusals, examples ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slow, words",
    [
        (3, "slow=3 must be a dict by rank, such as {0: 1.5}, or a simlib.scale.Jitter, or a"),
        ({5: Jitter()}, "slow: 5 is not a rank: ranks are 0 to 1"),
        ({0: "lognormal"}, "slow: rank 0 has 'lognormal': give a number"),
        (lambda rank, k: 1.0, "<lambda> is called as <lambda>(rank, k, random), but takes (rank,"),
        (lambda rank, k, random: -1.0, "<lambda> returned -1.0 for piece 0 of rank 0: give a"),
        (lambda rank, k, random: inf, "<lambda> returned inf for piece 0 of rank 0"),
        (lambda rank, k, random: "1", "<lambda> returned '1' for piece 0 of rank 0"),
        (
            Unsendable(),
            "slow: Unsendable cannot be sent to the ranks, which are other processes",
        ),
    ],
)
def test_refusals_of_slow(slow, words):
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.simulate(calls_of_compute, 2, slow=slow)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"kind": "uniform"}, "kind is 'uniform': give one of normal, lognormal, exponential, or"),
        ({"spread": -0.1}, "spread is -0.1: give a number of at least 0"),
        ({"spread": inf}, "spread is inf: give a finite number"),
        ({"mean": "2"}, "mean is '2': give a number of at least 0"),
        ({"kind": "exponential", "spread": 1.5}, "give at most 1 for an exponential jitter"),
        ({"seed": 0.5}, "seed is 0.5: give a whole number of at least 0"),
    ],
)
def test_refusals_of_a_jitter(given, words):
    with pytest.raises(simlib.InvalidCallError) as caught:
        Jitter(**given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_examples_in_docstrings():
    assert doctest.testmod(chance).failed == 0
