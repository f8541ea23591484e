"""Checkpoints and failures: against a machine that is followed, and numeric minima."""

from __future__ import annotations

import time
from math import inf, sqrt

import numpy as np
import pytest
import torch.distributed as dist
from sampled import SEED

import simlib
from simlib.core.scale import (
    Failures,
    Jitter,
    checkpoint_interval,
    checkpoints,
    goodput,
    time_with_failures,
)

FIXED = 14
RUNS = 2000


def seconds_of_a_run(random, work_s, interval_s, checkpoint_s, mtbf_s, ranks, restart_s):
    """One run, followed from failure to failure."""

    def next_failure(now_s):
        return now_s + random.exponential(mtbf_s, ranks).min()

    now_s, done_s = 0.0, 0.0
    fails_s = next_failure(now_s)
    while done_s < work_s:
        piece_s = min(interval_s, work_s - done_s)
        if now_s + piece_s + checkpoint_s <= fails_s:
            now_s += piece_s + checkpoint_s
            done_s += piece_s
            continue
        while True:  # until a restart comes to its end
            now_s, fails_s = fails_s, next_failure(fails_s)
            if now_s + restart_s <= fails_s:
                now_s += restart_s
                break
    return now_s


@pytest.mark.parametrize(
    "machine",
    [
        (100.0, 10.0, 1.0, 400.0, 8, 5.0),
        (100.0, 30.0, 2.0, 50.0, 1, 0.0),
        (50.0, 80.0, 0.0, 300.0, 4, 20.0),
        (60.0, 7.0, 3.0, 40.0, 2, 10.0),
    ],
)
def test_a_run_takes_as_long_as_when_it_is_followed(machine):
    work_s, interval_s, checkpoint_s, mtbf_s, ranks, restart_s = machine
    random = np.random.default_rng(FIXED)
    drawn = np.array([seconds_of_a_run(random, *machine) for _ in range(RUNS)])
    found = time_with_failures(work_s, interval_s, checkpoint_s, mtbf_s, ranks, restart_s=restart_s)
    assert abs(found - drawn.mean()) < 4 * drawn.std() / sqrt(RUNS)


def test_a_long_run_has_the_goodput():
    random = np.random.default_rng(FIXED)
    taken_s = seconds_of_a_run(random, 400_000.0, 20.0, 2.0, 1000.0, 8, 10.0)
    found = goodput(20.0, 2.0, 1000.0, 8, restart_s=10.0)
    # Of some 4,000 failures the count is off by a hundredth and a half, and they cost a quarter.
    assert 400_000.0 / taken_s == pytest.approx(found, rel=0.02)
    work_s = 20.0 * 17
    assert work_s / time_with_failures(work_s, 20.0, 2.0, 1000.0, 8, restart_s=10.0) == (
        pytest.approx(found, rel=1e-12)
    )


def test_without_failures_checkpoints_are_all_that_is_lost():
    assert goodput(9.0, 1.0, 1e15, 1000, restart_s=5.0) == pytest.approx(0.9, rel=1e-9)
    assert time_with_failures(20.0, 9.0, 1.0, 1e15) == pytest.approx(23.0, rel=1e-9)
    assert 4.2 - 6 * 0.7 > 0  # what rounding leaves over is no piece
    assert time_with_failures(4.2, 0.7, 1.0, 1e15) == pytest.approx(4.2 + 6, rel=1e-9)
    assert time_with_failures(0.3, 0.1, 1.0, 1e15) == pytest.approx(0.3 + 3, rel=1e-9)
    # And with failures only, nothing gets done.
    assert goodput(1e6, 1.0, 1.0) == 0.0
    assert time_with_failures(1e6, 1e6, 1.0, 1.0) == inf


# -- the best interval -----------------------------------------------------------------------------

SHARES = [1e-5, 1e-3, 0.02, 0.1, 0.5]
"""C / M."""


def numeric_best(checkpoint_s, mtbf_s, ranks, restart_s=0.0):
    """The interval of the largest goodput, on grids that are finer and finer."""
    low, high = 1e-3 * checkpoint_s, 4 * mtbf_s / ranks
    for _ in range(12):
        grid = np.linspace(low, high, 101)
        best = np.argmax(goodput(grid, checkpoint_s, mtbf_s, ranks, restart_s=restart_s))
        low, high = grid[max(0, best - 1)], grid[min(100, best + 1)]
        if high - low < 1e-6 * high:  # then the top is flat to all digits
            break
    return (low + high) / 2


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("ranks, restart_s", [(1, 0.0), (10_000, 300.0)])
def test_the_best_interval_is_that_of_the_largest_goodput(share, ranks, restart_s):
    machine_s = 3000.0
    given = share * machine_s, ranks * machine_s, ranks
    best = numeric_best(*given, restart_s)
    assert checkpoint_interval(*given, formula="exact") == pytest.approx(best, rel=1e-4)
    assert checkpoint_interval(*given) == pytest.approx(best, rel=0.01)
    too_long = checkpoint_interval(*given, formula="young") / best - 1
    assert too_long == pytest.approx(sqrt(2 * share) / 3, rel=0.3, abs=1e-4)


@pytest.mark.parametrize("mtbf_minutes, known", [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_own_examples(mtbf_minutes, known):
    """His figures 3 to 5, with checkpoints of 5 minutes."""
    found = checkpoint_interval(5, mtbf_minutes)
    assert found == pytest.approx(known, abs=0.5 if known > 10 else 0.05)


def test_intervals_by_hand():
    # Where saving takes longer than two failures the interval is the MTBF.
    assert checkpoint_interval(201.0, 1000.0, 10) == 100.0
    assert checkpoint_interval(60.0, 1e6, 8, formula="young") == sqrt(2 * 60 * 1e6 / 8)


def test_many_at_once():
    numbers = (8, 64, 512)
    for formula in checkpoints.FORMULAS:
        found = checkpoint_interval(10.0, 1e6, np.array(numbers), formula=formula)
        wanted = [checkpoint_interval(10.0, 1e6, r, formula=formula) for r in numbers]
        assert found.tolist() == wanted
    shares = goodput(found, 10.0, 1e6, np.array(numbers))
    wanted = [goodput(each, 10.0, 1e6, r) for each, r in zip(found, numbers, strict=True)]
    assert shares.tolist() == wanted
    assert goodput(100.0, 10.0, 1e6, np.array(numbers)).shape == (3,)
    assert time_with_failures(1e4, [50.0, 70.0], 10.0, 1e6, 8).shape == (2,)
    assert isinstance(goodput(100.0, 10.0, 1e6), float)
    assert isinstance(checkpoint_interval(10.0, 1e6), float)
    assert isinstance(time_with_failures(1e4, 50.0, 10.0, 1e6), float)


# -- failures that are drawn -----------------------------------------------------------------------


def test_a_ranks_failures_depend_on_seed_and_rank_alone():
    every = Failures(100.0, SEED).next(200)
    assert list(every) == list(range(200)) and len(set(every.values())) == 200
    assert Failures(100.0, SEED).next(50) == {rank: every[rank] for rank in range(50)}
    twice = Failures(200.0, SEED).next(200)
    assert [twice[rank] for rank in every] == [2 * time_s for time_s in every.values()]
    assert not set(every.values()) & set(Failures(100.0, SEED + 1).next(200).values())


def test_a_rank_fails_again_and_the_next_is_the_first_after():
    failures, now_s, times_s = Failures(100.0, SEED), 0.0, []
    for _ in range(50):
        now_s = failures.next(4, now_s)[3]
        times_s.append(now_s)
    assert sorted(set(times_s)) == times_s
    for asked_s in (0.0, 77.7, times_s[10], times_s[30] - 1e-6):
        assert failures.next(4, asked_s)[3] == min(t for t in times_s if t > asked_s)


def test_failures_are_exponential_and_not_the_noise_of_the_same_seed():
    drawn = np.array(list(Failures(50.0, SEED).next(20_000).values()))
    assert abs(drawn.mean() - 50) < 5 * 50 / sqrt(20_000)
    for time_s in (10.0, 50.0, 150.0):
        share = np.exp(-time_s / 50)
        assert abs((drawn > time_s).mean() - share) < 5 * sqrt(share * (1 - share) / 20_000)
    first = drawn.reshape(2000, 10).min(axis=1)
    assert abs(first.mean() - 5) < 5 * 5 / sqrt(2000)
    factors = Jitter("exponential", spread=1.0, seed=SEED).factors(1, 20_000)[0]
    assert abs(np.corrcoef(factors, drawn)[0, 1]) < 6 / sqrt(20_000)


def test_the_first_of_them_ends_a_run():
    def main(rank, n):
        for _ in range(1000):
            simlib.compute(1.0)
            dist.barrier()

    failures = Failures(100.0, SEED)
    times_s = failures.next(4)
    first = min(times_s, key=times_s.get)
    with pytest.raises(simlib.RankDiedError) as caught:
        simlib.simulate(main, 4, kill=failures)
    assert f"rank {first} died because kill= asked for it" in str(caught.value)
    assert caught.value.run.deaths == {first: times_s[first]}


def test_restarts_lose_ranks_again_and_again():
    def main(rank, n):
        simlib.compute(20.0)
        dist.barrier()

    def lost():
        run = simlib.simulate(main, 4, kill=Failures(30.0, seed=7), restarts=1000, restart_s=3.0)
        return [attempt.deaths for attempt in run.attempts]

    deaths = lost()
    assert deaths == lost() and deaths[-1] == {}
    assert len(deaths) > 3 and all(len(dead) == 1 for dead in deaths[:-1])


def test_real_ranks_die_of_them_too():
    with pytest.raises(simlib.RankDiedError, match="SIGKILL"):
        simlib.run(lambda rank, n: dist.barrier(time.sleep(60)), 2, kill=Failures(0.1, seed=1))


# -- refusals, examples ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: checkpoint_interval(0, 10), "checkpoint_s is 0: give a number above 0"),
        (lambda: checkpoint_interval(1, 0), "mtbf_s is 0: give a number above 0"),
        (lambda: checkpoint_interval(1, inf), "mtbf_s is inf: give a finite number"),
        (lambda: checkpoint_interval(1, 10, 0), "ranks is 0: give a whole number of at least 1"),
        (lambda: checkpoint_interval(1, 10, formula="best"), "give one of young, daly, exact"),
        (lambda: goodput(0, 1, 10), "interval_s is 0: give seconds, all above 0"),
        (lambda: goodput([1, -1], 1, 10), "give seconds, all above 0"),
        (lambda: goodput(1, -1, 10), "checkpoint_s is -1: give a number of at least 0"),
        (lambda: goodput(1, 1, 10, restart_s=-1), "restart_s is -1: give a number of at least 0"),
        (lambda: time_with_failures(-1, 1, 1, 10), "work_s is -1: give a number of at least 0"),
        (lambda: Failures(0), "mtbf_s is 0: give a number above 0"),
        (lambda: Failures(1).next(0), "ranks is 0: give a whole number"),
        (lambda: Failures(1).next(2, inf), "after_s is inf: give a finite number"),
        (lambda: Failures(1, seed=-1), "seed is -1: give a whole number"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(simlib.InvalidCallError) as caught:
        call()
    assert words in str(caught.value)
