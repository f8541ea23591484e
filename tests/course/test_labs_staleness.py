"""The lab of staleness: its model against simulate, number by number; its picture."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lab_pictures import check_places_of_words, outlines, texts_of
from lesson_programs import names_of
from matplotlib.patches import FancyArrowPatch
from sampled import sampled

import simlib
from simlib import labs
from simlib.course.labs.staleness import GRADIENTS, apart, together, trainings_of

SEED = int(os.environ["SEED"])
CONSTANTS = {"SHAPES", "SIZES", "images", "labels"}
LESSON = names_of("13_asynchronous_training", CONSTANTS.issuperset)
P = 196 * 32 + 32 + 32 * 10 + 10


# ---- the model


def with_server(rank, world_size, n_fetch, rate, count):
    """Rank 0 serves `count` pushes, and lets the others end then; returns what it has seen."""
    theta = LESSON["start"]()
    if rank == 0:
        came, seen, versions, own = torch.zeros(P + 1), [], {}, {}
        living, pushed = world_size - 1, 0
        while living:
            src = dist.recv(came)
            pushed += 1
            if pushed <= count:
                theta -= rate * came[:-1]
                age = pushed - 1 - versions.get(src, 0) - own.get(src, 0)
                own[src] = own.get(src, 0) + 1
                loss = LESSON["loss_of"](theta).item() if pushed % 16 == 0 else None
                seen.append((src, age, time.perf_counter(), loss))
            if came[-1]:
                versions[src], own[src] = pushed, 0
                living -= pushed >= count
                dist.send(torch.cat([theta, torch.tensor([float(pushed < count)])]), dst=src)
        return seen
    gradient, go_on, steps = LESSON["gradients"](rank), True, 0
    while go_on:
        move = gradient(theta)
        theta, steps = theta - rate * move, steps + 1
        wants = steps % n_fetch == 0
        dist.send(torch.cat([move, torch.tensor([float(wants)])]), dst=0)
        if wants:
            answer = torch.zeros(P + 1)
            dist.recv(answer, src=0)
            theta, go_on = answer[:-1], bool(answer[-1])


def options(ranks, slow, message_s, seed, numbers):
    link = simlib.Link(0.0, 4 * numbers / message_s if message_s else float("inf"))
    noise = {
        rank: simlib.scale.Jitter("lognormal", 0.1, slow if rank == 1 else 1.0, seed)
        for rank in range(ranks)
    }
    return {"cluster": simlib.Cluster(ranks, 1, link), "slow": noise}


STATES = [
    (4, 1, 1, 0.2, 0.03e-3),
    (4, 3, 1, 0.2, 0.0),
    (2, 8, 4, 0.4, 0.1e-3),
    (8, 2, 2, 0.1, 0.2e-3),
    (16, 5, 1, 0.05, 0.5e-3),
    (16, 1.5, 8, 0.05, 0.03e-3),
]


SOME = [state for (state,) in sampled(STATES, count=3)]


@pytest.mark.parametrize("state", SOME)
def test_training_apart_is_what_simulate_says(state):
    workers, slow, n_fetch, rate, message_s = state
    found = apart(*state, SEED)
    how = options(workers + 1, slow, message_s, SEED, P + 1)
    run = simlib.simulate(with_server, workers + 1, (n_fetch, rate, 256), **how)
    ranks, ages, times_s, losses = zip(*run.results[0], strict=True)
    assert found.workers == ranks
    assert found.ages == ages
    assert found.times_s == pytest.approx(times_s[15::16], rel=1e-9)
    assert found.losses == pytest.approx(losses[15::16], rel=0.02)  # rounding grows with each step


@pytest.mark.parametrize("state", SOME)
def test_training_together_is_what_simulate_says(state):
    workers, slow, _, rate, message_s = state
    found = together(workers, slow, rate, message_s, SEED)
    how = options(workers, slow, message_s, SEED, P)
    args = "gradients", 256 // workers, rate
    log = simlib.simulate(LESSON["together"], workers, args, **how, all_reduce="ring").results[0]
    curve = {done: each for done, *each in zip(*found[:3], strict=True)}
    both = [(curve[done], each) for done, *each in log if done % 16 == 0]
    assert len(both) == GRADIENTS // max(16, 4 * workers)  # the lesson tells every 4th step
    for (time_s, loss), (right_s, right) in both:
        assert time_s == pytest.approx(right_s, rel=5e-4)
        assert loss == pytest.approx(right, rel=1e-4)


def test_without_a_slow_rank_the_mean_age_is_that_of_the_others():
    for workers in (2, 4, 8, 16):
        for slow in (1, 5):
            ages = apart(workers, slow, 1, 0.05, 3e-5, SEED).ages
            # Each of the last gradients that are on their way has not come, each first is fresher.
            missing = workers * (workers + slow)
            assert abs(sum(ages) - (workers - 1) * GRADIENTS) <= missing


def test_who_fetches_seldom_is_stale_and_diverges():
    often, seldom = (apart(8, 1, n_fetch, 0.1, 3e-5, SEED) for n_fetch in (1, 8))
    assert np.mean(seldom.ages) > 3 * np.mean(often.ages)
    assert often.loss < 1 < seldom.loss


def test_a_slow_rank_holds_up_only_those_who_wait_for_it():
    equal, slow = (trainings_of(4, slow, 1, 0.1, 0.03, SEED) for slow in (1, 8))
    assert slow[0].times_s[-1] < 1.4 * equal[0].times_s[-1]
    assert slow[1].times_s[-1] > 6 * equal[1].times_s[-1]
    assert slow[1].losses == equal[1].losses


def test_a_training_that_ends_as_no_number_has_diverged():
    assert apart(16, 1, 16, 1e6, 0.0, 0).loss == float("inf")
    assert "apart diverged at" in title_of(labs.draw_staleness(16, 1, 16, 1e6))


# ---- its picture

PICTURES = {
    "default": (),
    "slow": (4, 3, 4, 0.2, 0.03, 3),
    "diverged": (16, 8, 8, 0.8, 0.5),
    "two": (2, 8, 1, 0.1, 0.2, 5),
    "never comes": (2, 1000, 1, 0.1),
    "long names": (16, 1.5, 16, 0.025, 0.01, 12345),
}
STATE = (4, 1, 1, 0.2, 0.03, 0)


def title_of(figure):
    return figure.texts[0].get_text()


def end_of(axes):
    """The number at the right end of the horizontal axis."""
    texts = [drawn.get_label() for drawn in axes.collections if drawn.get_label()[:2] == "0\n"]
    return float(texts[0].split("\n")[-1])


@pytest.mark.parametrize("name", PICTURES)
def test_curves_are_those_of_the_model(name):
    state = (*PICTURES[name], *STATE[len(PICTURES[name]) :])
    figure = labs.draw_staleness(*PICTURES[name])
    curves = figure.axes[0]
    lines = [line for line in curves.lines if len(line.get_xdata()) == 17]
    for line, training in zip(lines, reversed(trainings_of(*state)), strict=True):
        times_ms = np.array(line.get_xdata()) * end_of(curves)
        losses = np.array(line.get_ydata()) * 3
        assert times_ms[1:] == pytest.approx(1e3 * np.array(training.times_s))
        assert losses[1:] == pytest.approx(np.minimum(training.losses, 3.3))


@pytest.mark.parametrize("name", PICTURES)
def test_bars_are_all_gradients(name):
    state = (*PICTURES[name], *STATE[len(PICTURES[name]) :])
    bars = labs.draw_staleness(*PICTURES[name]).axes[1]
    training, end = trainings_of(*state)[0], end_of(bars)
    on_the_left = [text for axes, text, box in outlines(bars.figure) if box.x1 < bars.bbox.x0 - 3]
    most = max(float(text) for text in on_the_left[-6:])
    width, drawn = max(1, end // 40), {}
    for collection in bars.collections:
        for path in collection.get_paths() if collection.get_zorder() == 3 else ():
            (left, low), (_, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            age = round((left * end + 0.5 - 0.1 * width) / width) * width
            drawn[age] = drawn.get(age, 0) + (high - low) * most
    wanted = {}
    for age in training.ages:
        wanted[age // width * width] = wanted.get(age // width * width, 0) + 100 / GRADIENTS
    assert drawn == pytest.approx(wanted)


def test_words_are_the_figures_of_the_model():
    state = (4, 3, 4, 0.2, 0.03, 3)
    figure = labs.draw_staleness(*state)
    one, other = trainings_of(*state)
    title = title_of(figure)
    assert title.startswith("4 workers, learning rate 0.2, 256 gradients: apart ")
    assert f"apart {one.loss:.3f} at" in title and f"together {other.loss:.3f} at" in title
    notes = " | ".join(text for _, text, _ in outlines(figure))
    of_first = [age for age, worker in zip(one.ages, one.workers, strict=True) if worker == 1]
    assert f"mean {np.mean(one.ages):.1f}, rank 1's {np.mean(of_first):.1f}; largest" in notes
    first_ms = next(1e3 * t for t, loss in zip(one.times_s, one.losses, strict=True) if loss <= 0.5)
    assert f"first at a loss of 0.5: apart after {first_ms:.1f} ms" in notes
    never = labs.draw_staleness(16, 8, 8, 0.8)
    assert any("apart never, together never" in text for _, text, _ in outlines(never))


# ---- what lesson 13 tells of it: (workers, slow, n_fetch, rate, message, seed)


@pytest.mark.parametrize(
    "state, loss, end_ms, age",
    [
        ((4, 3, 1, 0.2, 0.03, 0), 0.143, 82, 3.0),
        ((4, 8, 1, 0.2, 0.03, 0), 0.142, 88, 2.9),
        ((4, 3, 8, 0.2, 0.03, 0), 0.795, 80, 12.8),
        ((4, 3, 8, 0.1, 0.03, 0), 0.355, 80, 12.8),
        ((16, 3, 1, 0.05, 0.03, 0), 0.762, 19, 14.5),
        ((4, 3, 1, 0.1, 0.5, 0), 0.242, 256, 3.0),
        ((4, 3, 4, 0.1, 0.5, 0), 0.247, 163, 7.5),
    ],
)
def test_figures_of_the_lesson_are_those_of_the_lab(state, loss, end_ms, age):
    found = trainings_of(*state)[0]
    assert found.loss == pytest.approx(loss, abs=6e-4)
    assert 1e3 * found.times_s[-1] == pytest.approx(end_ms, abs=0.6)
    assert np.mean(found.ages) == pytest.approx(age, abs=0.06)


def test_the_seed_moves_the_loss_apart_alone():
    one, other = zip(*(trainings_of(4, 3, 1, 0.2, 0.03, seed) for seed in range(20)), strict=True)
    losses = [each.loss for each in one]
    assert (min(losses), max(losses)) == pytest.approx((0.140, 0.231), abs=6e-4)
    assert {each.losses for each in other} == {other[0].losses}
    assert other[0].loss == pytest.approx(0.175, abs=6e-4)
    slow, slower = (trainings_of(4, slow, 1, 0.2, 0.03, 0)[1] for slow in (3, 8))
    ends_ms = [1e3 * each.times_s[-1] for each in (slow, slower)]
    assert ends_ms == pytest.approx([193, 509], abs=0.6)


# ---- the server in shards


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("shards, replicas", sampled((2, 3, 6), (2, 4, 6), count=3))
def test_each_replica_talks_to_each_shard_of_the_picture(shards, replicas, dark):
    figure = labs.draw_shards(shards, replicas, P)
    check_places_of_words(figure, dark)
    arrows = [drawn for drawn in figure.axes[0].patches if isinstance(drawn, FancyArrowPatch)]
    assert len(arrows) == 2 * shards * replicas + 2  # and those of the key
    parts = torch.arange(P).tensor_split(shards)
    held = [f"numbers {part[0]:,} to {part[-1]:,}" for part in parts]
    assert [t.get_text() for t in texts_of(figure) if "numbers" in t.get_text()] == held
    assert f"Ranks {shards} to {shards + replicas - 1} are replicas" in figure.in_words()


@pytest.mark.parametrize("state", [(1, 4), (7, 4), (3, 7), (3, 4, 2), (2.5, 4)])
def test_shards_that_no_picture_has_room_for_are_refused(state):
    with pytest.raises(simlib.errors.InvalidCallError):
        labs.draw_shards(*state)
