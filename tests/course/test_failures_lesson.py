"""Lesson 14: the slowest of many, the best interval, a training that outlives deaths."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lesson_programs import names_of, written
from quick import one_of
from sampled import SEED, sampled

import simlib
from simlib import scale

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import record_failures  # noqa: E402

CONSTANTS = {"STEP_S", "SAVE_S", "RESTART_S", "STEPS", "images", "labels", "X"}
PARTS = "14_stragglers_and_failures", "14_when_ranks_die", "14_when_to_save"
LESSON = {
    name: value for part in PARTS for name, value in names_of(part, CONSTANTS.issuperset).items()
}
SAVE_S, RESTART_S = LESSON["SAVE_S"], LESSON["RESTART_S"]
FREE = simlib.Link(0, math.inf)
WRITTEN = [
    *((PARTS[0], name) for name in ("harmonic", "queue")),
    *((PARTS[1], name) for name in ("my_share", "restarting")),
    *((PARTS[2], name) for name in ("interval", "story")),
]


@pytest.mark.parametrize("part, name", one_of(3, {pair[1]: pair for pair in WRITTEN}, first=SEED))
def test_a_folded_answer_is_right_in_its_place(part, name, capsys):
    exec(written(part, name)[1], names_of(part, CONSTANTS.issuperset))
    said = capsys.readouterr().out
    assert "right" in said and "not yet" not in said


@pytest.mark.parametrize("kind, R", sampled(("exponential", "lognormal"), (2, 5, 16)))
def test_a_step_takes_the_expected_maximum(kind, R):
    """The mean of 400 steps, within four of its standard errors."""
    spread = {"exponential": 1.0, "lognormal": 0.2}[kind]
    jitter = scale.Jitter(kind, spread=spread, seed=5)
    seen = LESSON["noisy"](R, jitter, steps=400) / 0.01
    error = jitter.factors(400, R).max(axis=1).std() / 20
    assert abs(seen - scale.expected_max(R, kind, spread=spread)) < 4 * error


@pytest.mark.parametrize("seed, every", sampled(range(4), (5, 17), count=3))
def test_the_story_is_that_of_the_simulation(seed, every, tmp_path):
    kill = scale.Failures(150, seed)
    run = simlib.simulate(
        LESSON["saving"], 4, (tmp_path / "saved", 60, every), kill=kill, restarts=99,
        restart_s=RESTART_S, cluster=simlib.Cluster(4, 1, FREE),
    )  # fmt: skip
    deaths = [one.began_s + s for one in run.attempts for s in one.deaths.values()]
    took_s = LESSON["lasts"](60, every, deaths)
    assert run.began_s + run.time_s == pytest.approx(took_s)


@pytest.mark.parametrize("M", [100, 400, 1600])
def test_the_best_interval_is_the_predicted_one(M):
    random, work = np.random.default_rng(3), 10 * M
    lives = [np.cumsum(random.exponential(M, 60)).tolist() for _ in range(200)]
    predicted = scale.checkpoint_interval(SAVE_S, M)
    every = [round(predicted * factor) for factor in np.geomspace(0.35, 3, 11)]
    seen = [work / np.mean([LESSON["lasts"](work, each, life) for life in lives]) for each in every]
    smooth, fine = np.polyfit(np.log(every), seen, 3), np.linspace(*np.log(every)[[0, -1]], 999)
    best = math.exp(fine[np.polyval(smooth, fine).argmax()])
    for formula in ("young", "daly"):
        assert scale.checkpoint_interval(SAVE_S, M, formula=formula) == pytest.approx(
            best, rel=0.15
        )
    assert seen == pytest.approx(scale.goodput(every, SAVE_S, M, restart_s=RESTART_S), rel=0.03)


@pytest.mark.parametrize("whole_step", [True, False])
def test_lower_rates_save_no_time_and_part_the_replicas(whole_step):
    """Whole steps name victims as slow, too; own seconds only the slow rank. Rank 0 validates."""
    rates, ends = {}, {}
    for slow in ({}, {3: 2}):
        run = simlib.simulate(LESSON["listing"], 4, (whole_step, 0), slow=slow)
        ends[bool(slow)] = run
        rates[bool(slow)] = [rate for _, rate in run.results]
    even = simlib.simulate(LESSON["train_shards"], 4, ([20] * 4, True), slow={3: 2})
    assert ends[True].time_s > even.time_s  # not a millisecond is won
    if not whole_step:
        assert rates == {False: [0.5] * 4, True: [0.5] * 3 + [pytest.approx(0.5 * 0.9**10)]}
        weights = [w for w, _ in ends[True].results]
        assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[3])
        validates = simlib.simulate(LESSON["listing"], 4, (False, 5e-3))
        assert validates.time_s == pytest.approx(ends[False].time_s + 10 * 5e-3, rel=1e-3)
    else:
        as_printed = simlib.simulate(LESSON["listing"], 4, (True, 5e-3), slow={3: 2})
        assert [rate < 0.5 for _, rate in as_printed.results] == [False, True, True, True]


def test_only_weighted_means_of_uneven_shards_are_those_of_one_process():
    alone = simlib.simulate(LESSON["train_shards"], 1, ([80], True)).results[0]
    for weigh, expected in ((True, True), (False, False)):
        args = [23, 23, 23, 11], weigh
        run = simlib.simulate(LESSON["train_shards"], 4, args, slow={3: 2})
        off = max((W - alone).abs().max() for W in run.results)
        assert (off < 1e-5) == expected


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (lambda w, g: LESSON["flip"](w, 10), ["step 3, weights differ: ranks [2]"]),
        (lambda w, g: LESSON["flip"](g, 30), ["step 3, norm before the sum: ranks [2]"]),
        (
            lambda w, g: g.fill_(math.nan),
            [
                "step 3, norm before the sum: ranks [2]",
                "step 3, not finite after it: ranks [0, 1, 2, 3]",
            ],
        ),
        (lambda w, g: LESSON["flip"](g, 10), []),
        (lambda w, g: None, []),
    ],
)  # fmt: skip
def test_a_silent_fault_is_seen_where_the_lesson_says(fault, seen):
    for engine in (simlib.simulate, simlib.run):
        told = engine(LESSON["faulty"], 4, (fault,)).results
        assert told[0] == told[3]
        assert [line for line in told[0] if "step 3" in line] == seen


def test_what_four_ranks_saved_three_can_load(tmp_path):
    four, three = (
        simlib.simulate(LESSON["sharded"], n, (tmp_path / "parts", n == 3)).results[0]
        for n in (4, 3)
    )
    assert torch.equal(four, three)


def test_an_asynchronous_checkpoint_is_of_the_moment_of_its_call(tmp_path):
    for told in simlib.run(LESSON["saves"], 2, (tmp_path,)).results:
        assert told.endswith("in the file: [1.0]")


def ends_like(run, undisturbed):
    """Whether all ranks have the weights of the run without deaths."""
    (*_, expected), *_ = undisturbed.results
    return all((weights - expected).abs().max() < 1e-6 for *_, weights in run.results)


@pytest.mark.parametrize(("fewest", "left"), [(None, 4), (2, 2)])
def test_a_training_outlives_two_deaths(fewest, left, tmp_path):
    undisturbed = simlib.simulate(LESSON["train"], 4, (tmp_path / "a",))
    run = simlib.simulate(
        LESSON["train"], 4, (tmp_path / "b",), kill={2: 0.55, 1: 2.8}, restarts=2,
        restart_s=2, min_ranks=fewest,
    )  # fmt: skip
    assert [list(attempt.deaths) for attempt in run.attempts] == [[2], [1], []]
    assert len(run.results) == left
    assert ends_like(run, undisturbed)


def test_real_ranks_outlive_a_death(tmp_path):
    """Rank 2 is killed; in another run rank 1 ends itself before step 5."""
    undisturbed = simlib.simulate(LESSON["train"], 4, (tmp_path / "a",))
    for kill, dies in (({2: 0.35}, False), ({}, True)):
        path = tmp_path / f"b{dies}"
        run = simlib.run(LESSON["train"], 4, (path, dies), kill=kill, restarts=1, min_ranks=3)
        assert [attempt.world_size for attempt in run.attempts] == [4, 3]
        assert ends_like(run, undisturbed)


def test_only_what_is_not_saved_is_done_again(tmp_path):
    run = simlib.simulate(LESSON["train"], 4, (tmp_path / "a",), kill={2: 0.55}, restarts=1)
    assert [result[:3] for result in run.results] == [(1, 4, 4)] * 4


@pytest.mark.parametrize("name", ["elastic", "requeue"])
def test_recorded_restarts_end_with_the_weights_of_a_run_without(name):
    path = ROOT / "notebooks" / "recorded" / "failures" / f"{name}.txt"
    holds_three_equal(path.read_text())


@pytest.mark.slow
def test_torchrun_goes_on_with_three_of_four(tmp_path):
    text = "\n".join(record_failures.elastic(tmp_path))
    assert "exit codes of the launchers: [0, 0, 0, -9]" in text
    holds_three_equal(text)


def holds_three_equal(text):
    results = record_failures.results_of(text)
    assert [result[:3] for result in results] == [(rank, 1, 3) for rank in range(3)]
    for _, _, _, began, weights in results:
        assert 4 <= began < 10
        off = torch.tensor(weights) - record_failures.undisturbed()
        assert off.abs().max() < 1e-6
