"""The expected maximum: against known values, Monte Carlo, and steps that are drawn."""

from __future__ import annotations

import itertools
from math import inf, nan, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from sampled import sampled

import simlib
from simlib import Cluster, Link
from simlib.core.scale import Jitter, expected_max, jittered_time

SEED = 14
DRAWS = 20_000


@pytest.mark.parametrize(
    "ranks, known",
    [
        (1, 0.0), (2, 1 / sqrt(np.pi)), (3, 1.5 / sqrt(np.pi)), (10, 1.53875), (100, 2.50759),
        (1000, 3.24144),
    ],
)  # fmt: skip
def test_of_normal_values_as_in_tables(ranks, known):
    found = expected_max(ranks, "normal", spread=0.01)
    assert found == pytest.approx(1 + 0.01 * known, abs=0.01 * 6e-6)


def test_of_exponential_values_it_is_a_harmonic_number():
    for ranks in (1, 2, 10, 999, 1000, 5000):
        known = sum(1 / k for k in range(1, ranks + 1))
        assert expected_max(ranks, "exponential", spread=1.0) == pytest.approx(known, rel=1e-12)
        found = expected_max(ranks, "exponential", mean_s=3.0, spread=0.2)
        assert found == pytest.approx(3 * (0.8 + 0.2 * known), rel=1e-12)


@pytest.mark.parametrize(
    "kind, spread, ranks",
    sampled(("normal", "lognormal", "exponential"), (0.1, 1.0), (1, 8, 100), times=2),
)
def test_as_drawn(kind, spread, ranks):
    slow = Jitter(kind, spread=spread, mean=2.0, seed=SEED)
    largest = simlib.scale.jitter_factors(kind, DRAWS, ranks, spread=spread, seed=SEED).max(axis=1)
    error = largest.std() / sqrt(DRAWS)
    assert abs(expected_max(ranks, kind, spread=spread) - largest.mean()) < 4 * error
    assert expected_max(ranks, slow, mean_s=0.5) == pytest.approx(
        expected_max(ranks, kind, spread=spread), rel=1e-12
    )


def test_steps_take_the_expected_maximum_on_average():
    slow = Jitter("lognormal", spread=0.3, seed=SEED)
    free = Cluster(64, 1, Link(0.0, inf))
    more = {"forward_s": 0.0, "backward_s": 0.1, "steps": 1000, "algorithm": "binomial"}
    found = jittered_time(4, 64, free, jitter=slow, **more)
    error_s = found.times_s.std() / sqrt(1000)
    assert abs(found.step_s - expected_max(64, slow, mean_s=0.1)) < 4 * error_s


DEVIATION = sqrt(np.log(1.49))
QUANTILES = {
    "normal": lambda u: max(0.0, 1 + 0.7 * NormalDist().inv_cdf(u)),
    "lognormal": lambda u: float(np.exp(DEVIATION * NormalDist().inv_cdf(u) - DEVIATION**2 / 2)),
    "exponential": lambda u: 0.3 - 0.7 * float(np.log1p(-u)),
}


@pytest.mark.parametrize("name, ranks", sampled(QUANTILES, (1, 2, 7, 1000, 1_000_000)))
def test_by_a_quantile_function_as_by_name(name, ranks):
    known = expected_max(ranks, name, spread=0.7)
    assert expected_max(ranks, QUANTILES[name]) == pytest.approx(known, rel=1e-8)


@pytest.mark.parametrize("ranks", [1, 3, 64, 10_000])
def test_quantile_functions_may_jump_or_be_uniform(ranks):
    all_fast = 0.99**ranks
    found = expected_max(ranks, lambda u: 1.0 if u < 0.99 else 10.0)
    assert found == pytest.approx(all_fast + 10 * (1 - all_fast), rel=1e-9)
    assert expected_max(ranks, lambda u: u) == pytest.approx(ranks / (ranks + 1), rel=1e-12)


def test_of_measured_seconds_every_draw_counts_alike():
    seconds = [0.3, 0.1, 0.7, 0.1]
    for ranks in (1, 2, 4):
        all_draws = itertools.product(seconds, repeat=ranks)
        known = np.mean([max(drawn) for drawn in all_draws])
        assert expected_max(ranks, seconds) == pytest.approx(known, rel=1e-12)
    assert expected_max(100_000, seconds) == pytest.approx(0.7)


def test_many_numbers_of_ranks_at_once():
    several = expected_max([1, 16, 256], "normal", mean_s=0.1)
    assert several.tolist() == [expected_max(r, "normal", mean_s=0.1) for r in (1, 16, 256)]
    assert isinstance(expected_max(16), float)
    for kind in QUANTILES:  # without spread nobody is late
        found = expected_max([1, 1000], kind, mean_s=2.0, spread=0.0)
        assert found == pytest.approx([2.0, 2.0], rel=1e-12)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"ranks": 0}, "ranks is 0: give a whole number of at least 1"),
        ({"ranks": 2.5}, "ranks is 2.5: give a whole number"),
        ({"times": "uniform"}, "times is 'uniform': give one of normal, lognormal, exponential, a"),
        ({"times": []}, "times is empty"),
        ({"times": [1.0, nan]}, "contains nan or inf"),
        ({"times": lambda u: nan}, "returned nan: return a number of seconds"),
        ({"times": Jitter(lambda rank, k, random: 1.0)}, "give values of this Jitter"),
        ({"spread": -1}, "spread is -1: give a number of at least 0"),
        ({"mean_s": -1}, "mean_s is -1: give a number of at least 0"),
        ({"times": "exponential", "spread": 2}, "give at most 1 for an exponential jitter"),
    ],
)
def test_refusals(given, words):
    with pytest.raises(simlib.InvalidCallError) as caught:
        expected_max(**{"ranks": 8} | given)
    assert words in str(caught.value)
