"""The lab of rollouts: its model against the program of lesson 20; its picture."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from lesson_programs import names_of
from sampled import sampled

import simlib
from simlib import labs
from simlib.course.labs import rollouts
from simlib.course.labs.rollouts import BATCHES, SPREADS, TRAINERS, B, split_of, tokens_of

LESSON = names_of("20_rollouts_and_trainers", lambda names: all(name.isupper() for name in names))
STATES = (13, 0, 1.0), (13, 2, 1.0), (44, 8, 0.5), (8, 1, 1.5), (21, 3, 0.0)


def test_the_lengths_are_those_of_the_lesson():
    assert tokens_of(1.0) == LESSON["TOKENS"][: B * BATCHES].tolist()


@pytest.mark.parametrize("state", [state for (state,) in sampled(STATES, count=2)])
def test_a_split_is_what_simulate_says(state, monkeypatch):
    trainers, k, spread = state
    tokens = LESSON["torch"].tensor(tokens_of(spread))
    monkeypatch.setitem(LESSON["generator"].__globals__, "TOKENS", tokens)
    args = LESSON["control"], trainers, k, BATCHES, B
    cluster = simlib.Cluster(65, 1, simlib.Link(0, inf))
    run = simlib.simulate(LESSON["main"], 65, args, cluster=cluster)
    ends_s = [0.0, *(end_s for end_s, _ in run.results[1])]
    found, busy = split_of(*state), run.states.computing_s / run.time_s
    assert found.batch_s == pytest.approx((ends_s[-1] - ends_s[2]) / (BATCHES - 2))
    assert list(found.ages) == LESSON["staleness"](run, trainers, B)[: B * BATCHES]
    assert found.trainers_busy == pytest.approx(busy[1 : trainers + 1].mean())
    assert found.generators_busy == pytest.approx(busy[trainers + 1 :].mean())


@pytest.mark.parametrize("state", STATES)
def test_the_picture_is_that_of_the_model(state):
    figure = labs.draw_rollouts(*state)
    left, right = figure.axes
    drawn = next(line for line in left.lines if line.get_linestyle() == "-")
    seconds = [split_of(trainers, *state[1:]).batch_s for trainers in TRAINERS]
    assert drawn.get_ydata() == pytest.approx(seconds)
    found, place = split_of(*state), next(line for line in left.lines if line.get_marker() == "o")
    assert (place.get_xdata()[0], place.get_ydata()[0]) == (state[0], pytest.approx(found.batch_s))
    heights = [np.ptp(path.vertices[:, 1]) for path in right.collections[0].get_paths()]
    assert f"k = {state[1]}: {found.batch_s:.1f} s a batch" in figure.in_words()
    counts = np.bincount(found.ages)
    assert heights == pytest.approx(counts[counts > 0] * 100 / len(found.ages))


def test_all_curves_have_room_and_no_rollout_is_older_than_the_bound():
    for spread in SPREADS.values():
        for k in (0, 1, 8):
            for trainers in (TRAINERS[0], 21, TRAINERS[-1]):
                found = split_of(trainers, k, spread)
                assert found.batch_s < rollouts.HIGHEST_S
                assert max(found.ages) <= k


def test_figures_of_the_lesson_are_those_of_the_lab():
    best = {
        k: min(TRAINERS, key=lambda trainers, k=k: split_of(trainers, k, 1.0).batch_s)
        for k in (0, 1, 4)
    }
    assert best == {0: 24, 1: 23, 4: 13}
    assert min(TRAINERS, key=lambda trainers: split_of(trainers, 0, 0.0).batch_s) == 21
    fresh, old = split_of(8, 2, 1.0), split_of(8, 8, 1.0)
    assert fresh.batch_s == pytest.approx(38.8, abs=0.05) == old.batch_s
    assert (np.mean(fresh.ages), np.mean(old.ages)) == pytest.approx((1.62, 2.80), abs=0.005)
