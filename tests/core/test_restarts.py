"""Runs that go on after a death: the function is called again, with as many ranks or fewer."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from jobs import by_job

import simlib

STEPS, STEP_S = 10, 0.1
HERE = [simlib.run, simlib.simulate]
ENGINES = pytest.mark.parametrize("engine", [*HERE, pytest.param(by_job, marks=pytest.mark.slow)])


def resume(path):
    return torch.load(path) if os.path.exists(path) else (0, torch.zeros(1))


def main(rank, world_size, path):
    """Adds 1 + 2 + ... + 10; saved after every second step, so that a restart loses one at most."""
    step, total = begun, _ = resume(path)
    while step < STEPS:
        time.sleep(STEP_S)
        mean = torch.ones(1) * (step + 1) / world_size
        dist.all_reduce(mean)
        total, step = total + mean, step + 1
        if rank == 0 and step % 2 == 0:
            torch.save((step, total), f"{path}.new")
            os.replace(f"{path}.new", path)
        dist.barrier()
    return os.environ["TORCHELASTIC_RESTART_COUNT"], world_size, begun, round(total.item(), 3)


@ENGINES
def test_training_goes_on_from_its_checkpoint(engine, tmp_path):
    run = engine(main, 4, (tmp_path / "saved",), kill={2: 0.55}, restarts=2)
    assert run.results == [("1", 4, run.results[0][2], 55.0)] * 4
    assert 0 < run.results[0][2] < STEPS
    first, last = run.attempts
    assert last is run
    assert list(first.deaths) == [2]
    assert run.deaths == {}


@pytest.mark.parametrize("engine", HERE)  # what on_restart sees of a job, test_submit shows
def test_it_goes_on_with_those_that_are_left(engine, tmp_path):
    seen = []
    run = engine(
        main, 4, (tmp_path / "saved",), kill={2: 0.55}, restarts=1, min_ranks=2,
        on_restart=seen.append,
    )  # fmt: skip
    assert [result[1] for result in run.results] == [3] * 3
    assert run.results[0][3] == 55.0
    (restart,) = seen
    assert (restart.count, restart.world_size, list(restart.run.deaths)) == (1, 3, [2])
    assert restart.time_s == pytest.approx(0.55, abs=3.0)
    assert isinstance(restart.error, simlib.RankDiedError)


def test_virtual_time_goes_on_counting_and_repeats():
    """Steps of 0.1 s: the deaths come at 0.55 s, and 1.25 s after the second beginning."""

    def main(rank, world_size):
        began = time.monotonic()
        for _ in range(20):
            time.sleep(STEP_S)
            dist.barrier()
        return round(began, 9), os.environ["TORCHELASTIC_MAX_RESTARTS"]

    free = simlib.Cluster(4, 1, inter=simlib.Link(0, float("inf")))
    options = {"cluster": free, "kill": {2: 0.55, 1: 4.0}, "restarts": 3, "restart_s": 2.2}
    runs = [simlib.simulate(main, 4, **options) for _ in range(2)]
    run = runs[0]
    assert [attempt.deaths for attempt in run.attempts] == [{2: 0.55}, {1: pytest.approx(1.25)}, {}]
    assert [attempt.began_s for attempt in run.attempts] == pytest.approx([0, 2.75, 6.2])
    assert run.results == [(6.2, "3")] * 4
    assert run.time_s == pytest.approx(2.0)
    assert runs[1].results == run.results


@ENGINES
def test_a_rank_that_raises_is_tried_again(engine):
    def main(rank, world_size):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
            raise ValueError("once")
        dist.barrier()
        return rank

    run = engine(main, 2, restarts=1)
    assert run.results == [0, 1]
    assert [attempt.results for attempt in run.attempts] == [[None, None], [0, 1]]


def dies(rank, world_size):
    os._exit(3) if rank == 1 else dist.barrier()


def waits_for_ever(rank, world_size):
    dist.recv(torch.zeros(1), src=1 - rank)


@ENGINES
@pytest.mark.parametrize(
    ("function", "options", "error", "attempts"),
    [
        (dies, {"restarts": 2}, simlib.RankDiedError, 3),
        (dies, {"restarts": 5, "min_ranks": 2}, simlib.RankDiedError, 1),
        (waits_for_ever, {"restarts": 3}, simlib.DeadlockError, 1),
    ],
    ids=["none is left", "too few ranks are left", "a deadlock is no reason"],
)
def test_the_last_error_is_raised_where_it_is_not_tried_again(
    engine, function, options, error, attempts
):
    with pytest.raises(error) as caught:
        engine(function, 2, **options)
    assert len(caught.value.run.attempts) == attempts


@ENGINES
def test_a_run_without_restarts_is_its_own_only_attempt(engine):
    run = engine(lambda rank, world_size: os.environ.get("TORCHELASTIC_RESTART_COUNT"), 2)
    assert (run.results, run.attempts, run.began_s) == ([None, None], [run], 0.0)


@ENGINES
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"restarts": 1, "min_ranks": 5}, "min_ranks=5 must be a whole number from 1 to 2"),
        ({"restarts": 1, "on_restart": 3}, "on_restart=3 must be a function"),
    ],
)
def test_options_that_make_no_sense(engine, options, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        engine(main, 2, **options)


def test_all_ranks_may_be_killed():
    with pytest.raises(simlib.RankDiedError, match="rank 1"):
        simlib.simulate(lambda rank, world_size: time.sleep(9), 2, kill={0: 1.0, 1: 2.0})


def test_measured_computing_before_a_wait_takes_time():
    def main(rank, world_size):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        began = time.thread_time()
        while time.thread_time() < began + 0.05:
            pass
        work.wait()
        return time.monotonic()

    run = simlib.simulate(main, 2, compute="measured")
    assert min(run.results) >= 0.05
