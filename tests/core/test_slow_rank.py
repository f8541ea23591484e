"""`run(slow=...)`: real ranks that compute slower, or with noise.

Sleeps are written down in place of being slept, so nothing depends on how fast the machine is.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from sampled import SEED

import simlib
from simlib.core.engines.rank_process import slow_rank
from simlib.core.model.chance import Pace
from simlib.scale import Jitter

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def burn(seconds):
    """Compute for at least so long on this thread's processor; how long it was."""
    begin_s = time.thread_time()
    while time.thread_time() - begin_s < seconds:
        pass
    return time.thread_time() - begin_s


class written_down:  # noqa: N801 (used like a function)
    """``with written_down() as sleeps:`` nobody sleeps, and the seconds stand in the list."""

    def __enter__(self):
        self.sleep, sleeps = time.sleep, []
        time.sleep = sleeps.append
        return sleeps

    def __exit__(self, *_):
        time.sleep = self.sleep


# -- by an injected clock --------------------------------------------------------------------------


class OnAClock(slow_rank.SlowRank):
    """A `SlowRank` whose processor's time and next op are what the test says."""

    def __init__(self, factor):
        self.now_s, self.op = 5.0, 0
        super().__init__(Pace(factor, 0), lambda: self.op, lambda: self.now_s)

    def computed(self, seconds):
        self.now_s += seconds
        self.stretch()


@pytest.fixture
def sleeps():
    with written_down() as found:
        yield found


def test_what_was_computed_since_is_stretched_once(sleeps):
    rank = OnAClock(3.0)
    rank.computed(2.0)
    rank.stretch()
    rank.computed(0.5)
    assert sleeps == [4.0, 1.0]


def test_a_factor_below_one_shortens_calls_of_compute_alone_and_pays_for_no_later_one(sleeps):
    rank = OnAClock(Jitter(lambda rank, k, random: (0.5, 3.0)[k]))
    rank.computed(2.0)
    rank.compute(3.0)
    rank.computed(1.0)
    rank.op = 1
    rank.computed(1.0)
    assert sleeps == [1.5, 2.0]


def test_short_sleeps_are_kept_until_they_are_worth_it(sleeps):
    rank = OnAClock(2.0)
    for _ in range(3):
        rank.computed(0.4 * slow_rank.LEAST_S)
    assert sleeps == [pytest.approx(1.2 * slow_rank.LEAST_S)]


def test_calls_and_ops_are_counted_for_themselves(sleeps):
    rank = OnAClock(Jitter(lambda rank, k, random: 10.0 + k))
    rank.op = 7
    rank.computed(1.0)
    rank.compute(1.0)
    rank.compute(1.0)
    assert sleeps == [16.0, 10.0, 11.0]


def test_other_threads_are_left_alone(sleeps):
    rank = OnAClock(3.0)
    other = threading.Thread(target=rank.computed, args=(2.0,))
    other.start()
    other.join()
    assert sleeps == []
    rank.stretch()
    assert sleeps == [4.0]


# -- on real ranks ---------------------------------------------------------------------------------


def calls_of_compute(rank, n, steps=5, least_s=0.1):
    """The sleeps of at least so long: shorter ones are for Python's own work."""
    with written_down() as sleeps:
        for _ in range(steps):
            simlib.compute(2.0)
            burn(0.001)
            dist.barrier()
    return [seconds for seconds in sleeps if seconds >= least_s]


def test_calls_of_compute_take_the_factor_longer_in_that_run_alone():
    slept = simlib.run(calls_of_compute, 3, slow={1: 4, 2: 0.25}).results
    assert slept == [[2.0] * 5, [8.0] * 5, [0.5] * 5]
    assert simlib.run(calls_of_compute, 3, kwargs={"least_s": 0.0}).results == [[2.0] * 5] * 3


def test_noise_is_that_of_a_simulation():
    def by_the_clock(rank, n):
        found = []
        for _ in range(5):
            before_s = time.perf_counter()
            simlib.compute(2.0)
            found.append(time.perf_counter() - before_s)
        return found

    slow = Jitter("lognormal", spread=0.3, seed=SEED)
    wanted = 2.0 * slow.factors(5, 3).T
    assert simlib.run(calls_of_compute, 3, slow=slow).results == wanted.tolist()
    simulated = simlib.simulate(by_the_clock, 3, slow=slow).results
    assert simulated == [pytest.approx(rank, rel=1e-9) for rank in wanted]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_what_is_really_computed_takes_longer(factor):
    def main(rank, n):
        first_s = burn(0.01)
        dist.barrier()
        with written_down() as sleeps:
            computed_s = [burn(0.01)]
            dist.barrier()
            before_op = sum(sleeps)
            x = torch.ones(3)
            request = dist.all_reduce(x, async_op=True)
            computed_s.append(burn(0.02))
            request.wait()
            before_wait = sum(sleeps) - before_op
        return computed_s, [before_op, before_wait], first_s, burn(0.01)

    run = simlib.run(main, 2, slow={1: factor})
    assert run.results[0][1] == [0, 0]
    computed_s, slept_s, first_s, last_s = run.results[1]
    for computed, slept in zip(computed_s, slept_s, strict=True):
        assert slept >= (factor - 1) * computed - slow_rank.LEAST_S
    assert factor > 1 or slept_s == [0, 0]
    # The record shows the stretch as computing; a sleep is never shorter.
    ops, (entered_s, left_s) = run.trace.of_rank(1), run.trace.spans[1]
    assert ops[0].post_s - entered_s >= factor * first_s - slow_rank.LEAST_S
    assert left_s - ops[-1].end_s >= factor * last_s - slow_rank.LEAST_S


def test_the_factor_of_what_is_computed_is_that_of_its_op():
    def main(rank, n):
        found = []
        with written_down() as sleeps:
            for _ in range(3):
                burn(0.005)
                dist.barrier()
                found.append(sum(sleeps) >= 0.005)
                sleeps.clear()
        return found

    run = simlib.run(main, 1, slow=lambda rank, k, random: 2.0 if k == 1 else 1.0)
    assert run.results == [[False, True, False]]


# -- functions travel, refusals --------------------------------------------------------------------


def test_a_function_of_the_learners_own_module_travels(tmp_path, monkeypatch):
    simlib.run(calls_of_compute, 2)
    name = f"real_noise_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("def noise(rank, k, random):\n    return 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    noise = importlib.import_module(name).noise
    assert simlib.run(calls_of_compute, 2, (1,), slow=noise).results == [[4.0], [4.0]]


def test_an_error_in_the_function_is_the_ranks():
    with pytest.raises(simlib.RankError, match="rank 1 raised ZeroDivisionError"):
        simlib.run(calls_of_compute, 2, slow={1: lambda rank, k, random: 1 / 0})


@pytest.mark.parametrize(
    "slow, words",
    [
        ([1, 2], "slow=[1, 2] must be a dict by rank"),
        ({2: 3.0}, "slow: 2 is not a rank: ranks are 0 to 1"),
        ({0: -1}, "slow: rank 0 has -1: give a number, 0 or more"),
        (lambda rank, k, random: -1.0, "<lambda> returned -1.0 for piece 0 of rank 0"),
    ],
)
def test_refusals(slow, words):
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.run(calls_of_compute, 2, slow=slow)
    assert words in str(caught.value)
