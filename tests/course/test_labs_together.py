"""What holds for every lab: words have room, sliders move the picture, nonsense is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest
import torch
import torch.distributed as dist
from IPython.core.formatters import DisplayFormatter
from lab_pictures import check_places_of_words, check_shown, move_at_random, shown

import simlib
from simlib import Cluster, Device, Link, labs
from simlib.core.model.errors import InvalidCallError
from simlib.course.labs import sliders
from simlib.course.labs.mesh import machine

SEED = int(os.environ["SEED"])
YEAR_S = 365 * 86_400
POINTS = [(4 * 4**k, 30e-6 + 4 * 4**k / 1.25e9) for k in range(11)]
JOB = labs.Training(
    layers=32, hidden=4096, heads=32, sequence=2048, batch=1024, vocabulary=51_200, tokens=1e11,
    ranks=64, cluster=machine(), hours=500, price=3, mtbf_s=1e7, checkpoint_Bps=5e9, restart_s=300,
)  # fmt: skip


def draw_ping_pong(*state, points=POINTS, **named):
    return labs.draw_ping_pong(points, *state, **named)


def ping_pong_lab(*state, points=POINTS):
    return labs.ping_pong_lab(points, *state)


JOBS = {"job": JOB, "other": replace(JOB, batch=512, tokens=1e9)}


def draw_plan(name="job", **named):
    return labs.draw_plan(JOBS[name], **named)


def plan_lab(**named):
    return labs.plan_lab(JOBS, **named)


def compute_and_meet(rank, world_size):
    simlib.compute(seconds=1e-3 * (rank + 1))
    dist.all_reduce(torch.ones(1))


@cache
def runs():
    return labs.simulate_sizes(compute_and_meet, (2, 3), slow=(1, 3))


def draw_world_size(world_size=2, slow=1):
    return labs.draw_world_size(runs(), world_size, slow)


def world_size_lab(world_size=2, slow=1):
    return labs.world_size_lab(runs(), world_size, slow)


LABS = {
    "ping_pong": (draw_ping_pong, ping_pong_lab),
    "rollouts": (labs.draw_rollouts, labs.rollouts_lab),
    "rounds": (labs.draw_rounds, labs.rounds_lab),
    "crossover": (labs.draw_crossover, labs.crossover_lab),
    "break_even": (labs.draw_break_even, labs.break_even_lab),
    "hybrid": (labs.draw_hybrid, labs.hybrid_lab),
    "pipeline": (labs.draw_pipeline, labs.pipeline_lab),
    "mesh": (labs.draw_mesh, labs.mesh_lab),
    "staleness": (labs.draw_staleness, labs.staleness_lab),
    "checkpoint": (labs.draw_checkpoint, labs.checkpoint_lab),
    "plan": (draw_plan, plan_lab),
    "serving": (labs.draw_serving, labs.serving_lab),
    "world_size": (draw_world_size, world_size_lab),
}
STATES = {
    "hybrid": [(), (2, 2, 1e6, 1e-6, 1e12, 1), (1024, 16, 1e12, 1e-3, 1e8, 32), (2, 16, 1e9)],
    "rollouts": [(), (4, 0, 1.5), (44, 8, 0.0), (13, 1, 0.5)],
    "mesh": [
        (), (1, 1, 1, 256, 0, False), (64, 1, 1, 16, 0, False), (4096, 8, 16, 64),
        (4096, 32, 32, 256, 3, True, "pp dp tp"), (64, 8, 2, 16, 3, True, "dp pp tp"),
    ],
    "pipeline": [
        (), (1, 1), (4, 8, "1f1b", 2, 1.5, 2, 0.2), (4, 8, "interleaved", 2),
        (8, 32, "1f1b", 2, 1, 0, 0.3), (8, 8, "interleaved", 4, 3, 17, 2),
        (3, 3, "gpipe", 2, 3, 1, 2),
    ],
    "staleness": [
        (), (4, 3, 4, 0.2, 0.03, 3), (16, 8, 8, 0.8, 0.5), (2, 8, 1, 0.1, 0.2, 5),
        (2, 1000, 1, 0.1), (16, 1.5, 16, 0.025, 0.01, 12345),
    ],
    "checkpoint": [
        (), (10_000, 5 * YEAR_S), (1, 86_400, 0.1, 0.0), (500_000, 30 * 86_400, 60, 300),
        (50_000, 50 * YEAR_S, 600, 0.0),
    ],
    "serving": [(), (5, 500_000, 8), (80, 13_000), (40, 30_000, 2)],
    "plan": [
        {}, {"tp": 8, "pp": 2, "sequences": 4}, {"tp": 8, "pp": 8, "minutes": 1440},
        {"tp": 32, "pp": 4},
        {"tp": 8, "sequences": 16, "zero": 3, "recompute": False, "minutes": 5},
    ],
}  # fmt: skip


def called(function, state):
    """With positions or names."""
    return function(**state) if isinstance(state, dict) else function(*state)


@pytest.mark.parametrize("name", STATES)
def test_no_text_covers_another_or_is_cut(name):
    for k, state in enumerate(STATES[name]):
        for dark in (False, True)[: 1 + (k == 0)]:
            check_places_of_words(called(LABS[name][0], state), dark)


@pytest.fixture(scope="module", params=LABS)
def first(request):
    """A lab as it stands first: nobody moves its sliders."""
    return LABS[request.param][1]()


@pytest.mark.parametrize("name", LABS)
def test_however_sliders_are_moved_the_picture_is_that_of_their_state(name):
    draw, make = LABS[name]
    lab = make()
    check_shown(lab, draw())
    check_shown(lab, draw(**move_at_random(lab, np.random.default_rng(SEED), moves=15)))


@pytest.mark.parametrize("name", LABS)
def test_every_slider_moves_its_picture(name):
    lab = LABS[name][1]()
    for label, control in lab.controls.items():
        if control.disabled:  # it counts for interleaved stages only
            lab.controls["schedule"].value = "interleaved"
        before = lab.image.value
        if hasattr(control, "index"):
            control.index += 1 if control.index == 0 else -1
        else:
            control.value += control.step if control.value < control.max else -control.step
        assert lab.image.value != before, label


def test_a_picture_has_a_white_rim_and_nothing_is_cut_off(first):
    pixels = shown(first)
    rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (rim == 255).all()


def test_a_notebook_stores_a_sentence_instead_of_a_widget(first):
    data, _ = DisplayFormatter().format(first)
    widget = data.pop("application/vnd.jupyter.widget-view+json")
    assert widget["model_id"] == first.model_id
    assert data == {"text/plain": sliders.FALLBACK}


def test_names_of_controls_have_their_room(first):
    room = int(sliders.NAME_WIDTH.removesuffix("px"))
    for control in first.controls.values():
        assert 7 * len(control.description) <= room  # pixels a letter in JupyterLab's font
        assert control.style.description_width == sliders.NAME_WIDTH
        assert getattr(control, "continuous_update", True)


def with_points(points):
    return {"points": points}


REFUSED = {
    "rollouts": [
        ((3,), "trainers is 3: choose one of 4, 5, 6"),
        ((13, 9), "k is 9: choose one of 0, 1, 2"),
        ((13, 2, 0.7), "spread is 0.7: choose one of 0.0, 0.5, 1.0, 1.5"),
    ],
    "ping_pong": [
        (with_points([]), "points has \\[\\]: give two or more pairs \\(nbytes"),
        (with_points([(4, 1e-5)]), "two or more"),
        (with_points([(4, 1e-5), (8, 0)]), "with numbers above 0"),
        (with_points([(4, 1e-5), (4, 2e-5)]), "all points have the same size"),
        (with_points([(4, 1e-5), "ab"]), "points cannot be read"),
        ((0,), "latency_s is 0: give a number above 0"),
        ((1e-5, -1), "bandwidth_Bps is -1"),
        ((1e-5, 1e9, "4 kB"), "nbytes is '4 kB'"),
    ],
    "rounds": [
        (("rings",), "algorithm is 'rings': choose one of naive, binomial, ring"),
        (("hierarchical",), "algorithm is 'hierarchical'"),
        (("ring", 9), "n is 9: choose one of 2, 3"),
        (("ring", 1), "n is 1"),
        (("ring", 4, 7), "rounds_done is 7: give a number from 0 to 6"),
        (("ring", 4, -1), "rounds_done is -1"),
    ],
    "crossover": [
        ((1, 1), "nodes times ranks_per_node is 1: give a whole number of at least 2"),
        ((2.5,), "nodes is 2.5: give a whole number"),
        ((8, 0), "ranks_per_node is 0"),
        ((8, 1, -1e-6), "latency_s is -1e-06"),
        ((8, 1, 1e-6, 0), "bandwidth_Bps is 0"),
    ],
    "break_even": [
        ((0,), "compute_s is 0: give a number above 0"),
        ((1, -1), "nbytes is -1"),
        ((1, 1, 0), "latency_s is 0"),
        ((1, 1, 1, 0), "bandwidth_Bps is 0"),
        ((1, 1, 1, 1, 1), "ranks is 1: give a whole number of at least 2"),
        ((1, 1, 1, 1, 1025), "ranks is 1025: give at most 1,024"),
        ((1, 1, 1, 1, 2, "rings"), "algorithm is 'rings': choose one of ring, tree, linear"),
        ((1, 1, 1, 1, 2, "ring", "both"), "scaling is 'both'"),
        ((1, 1, 1, 1, 2, "ring", "weak", "all"), "overlap is 'all'"),
    ],
    "pipeline": [
        ((0,), "K is 0: give a whole number of at least 1"),
        ((9,), "K is 9: give at most 8"),
        ((4, 33), "M is 33: give at most 32"),
        ((4, 8, "gp"), "schedule is 'gp': choose one of gpipe, 1f1b, interleaved"),
        ((4, 9, "interleaved"), "M is 9: interleaved stages take micro-batches in groups of K=4"),
        ((8, 32, "interleaved", 2), "512 forwards: the picture has room for at most 256"),
        ((4, 8, "gpipe", 5), "v is 5: give at most 4"),
        ((4, 8, "gpipe", 2, 0), "slow is 0: give a number above 0"),
        ((4, 8, "gpipe", 2, 2, 4), "slow_stage is 4: choose one of 0, 1, 2, 3"),
        ((4, 8, "gpipe", 2, 1, 0, -1), "link is -1"),
        ((4, 8, "gpipe", 2, 1, 0, inf), "slow and link must be finite"),
    ],
    "mesh": [
        ((48,), "ranks is 48: choose one of 1, 2, 4"),
        ((64, 3), "tp is 3: choose one of 1, 2, 4"),
        ((64, 8, 64), "pp is 64: choose one of 1, 2"),
        ((64, 8, 2, 0), "num_microbatches is 0"),
        ((64, 8, 2, 8, 4), "zero is 4: choose one of 0, 1, 2, 3"),
        ((64, 8, 2, 8, 1, 2), "recompute is 2"),
        ((64, 8, 2, 8, 1, True, "tp pp"), "order is 'tp pp': choose one of tp dp pp"),
        ({"hidden": 0}, "hidden is 0: give a whole number of at least 1"),
        ({"cluster": Cluster(1, 8, Link(0, 1))}, "cluster has no device"),
        (
            {"cluster": Cluster(1, 8, Link(0, 1), device=Device(1e12))},
            "8 ranks of a node share 1 network card: give each rank its own card, rails=8",
        ),
        (
            {"cluster": Cluster(1, 6, Link(0, 1), device=Device(1e12), rails=6)},
            "ranks_per_node is 6: give a power of two",
        ),
        (
            {
                "cluster": Cluster(
                    1, 1, Link(0, 1), device=Device(1e12), nodes_per_leaf=1, uplink=Link(0, 1)
                )
            },
            "a plan knows no leaf switches",
        ),
        ({"cluster": Cluster(1, 1, Link(0, 1), device=Device())}, "computes in zero time"),
    ],
    "staleness": [
        ((3,), "workers is 3: choose one of 2, 4, 8, 16"),
        ((4, 0), "slow is 0: give a number above 0"),
        ((4, 1, 0), "n_fetch is 0: give a whole number of at least 1"),
        ((4, 1, 257), "n_fetch is 257: give at most 256"),
        ((4, 1, 1, -0.1), "rate is -0.1"),
        ((4, 1, 1, 0.1, -1), "message is -1"),
        ((4, 1, 1, inf), "rate and message must be finite"),
        ((4, 1, 1, 0.1, 0.0, -1), "seed is -1"),
    ],
    "checkpoint": [
        ((0,), "ranks is 0: give a whole number of at least 1"),
        ((2_000_000,), "ranks is 2000000: give at most 1,000,000"),
        ((8, 0), "mtbf_s is 0: give a number above 0"),
        ((8, 1e6, -1), "checkpoint_s is -1"),
        ((8, 1e6, 60, -1), "restart_s is -1"),
        ((8, inf), "mtbf_s is inf"),
        ((8, 1e6, inf), "checkpoint_s is inf"),
    ],
    "serving": [
        ((0,), "per_s is 0: give a number above 0"),
        ((20, 5000), "most is 5000: the longest request needs 12,000 tokens"),
        ((20, 100_000, 3), "tp is 3: choose one of 1, 2, 4, 8"),
    ],
    "plan": [
        ({"tp": 3}, "tp is 3: choose one of 1, 2, 4"),
        ({"pp": 64}, "pp is 64: choose one of 1, 2"),
        ({"sequences": 0}, "sequences is 0: choose one of 1, 2"),
        ({"zero": 4}, "zero is 4: choose one of 0, 1, 2, 3"),
        ({"recompute": 2}, "recompute is 2"),
        ({"minutes": 0}, "minutes is 0"),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused(name):
    for state, sentence in REFUSED[name]:
        for function in LABS[name]:
            with pytest.raises(InvalidCallError, match=sentence):
                called(function, state)
