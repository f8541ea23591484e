"""Pieces of work that a program names: recorded, timed anew, counted, drawn."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from torch import nn

import simlib
from simlib.core.draw.palette import rank_color, shaded, shades_of
from simlib.core.draw.player.scene import scene_of
from simlib.core.model.errors import InvalidCallError

FREE = simlib.Link(0, math.inf)


def cluster(link=FREE, **options):
    return simlib.Cluster(nodes=4, ranks_per_node=1, inter=link, **options)


def two_in_turn(rank, world_size):
    """Rank 0 works for 2 s, then rank 1 for 3 s, and names it."""
    if rank == 0:
        with simlib.span("F", micro=7):
            simlib.compute(2)
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.ones(1), src=0)
        with simlib.span("B", stage=1, micro=4):
            simlib.compute(3)


@pytest.fixture(scope="module")
def run():
    """A simulation of `two_in_turn`, which nobody changes."""
    return simlib.simulate(two_in_turn, 2, cluster=cluster())


def found(run):
    return [(p.rank, p.label, p.start_s, p.end_s) for p in run.trace.pieces]


def test_a_simulation_has_pieces_at_their_virtual_times(run):
    assert found(run) == [(0, "F7", 0, 2), (1, "B1.4", 2, 5)]
    assert run.trace.pieces[1].numbers == {"stage": 1, "micro": 4}


def test_real_ranks_name_theirs_and_forget_those_of_the_run_before():
    def main(rank, world_size, name):
        for micro in range(2):
            with simlib.span(name, micro=micro):
                dist.all_reduce(torch.ones(1))

    for name in "FB":
        run = simlib.run(main, 2, (name,))
        pieces = [p for p in run.trace.pieces if p.rank == 1]
        assert [p.label for p in pieces] == [f"{name}0", f"{name}1"]
        for piece, op in zip(pieces, run.trace.of_rank(1), strict=True):
            assert piece.start_s <= op.post_s <= op.end_s <= piece.end_s
        simulated = simlib.simulate(main, 2, (name,)).trace.pieces
        assert [p.label for p in simulated] == [f"{name}0", f"{name}0", f"{name}1", f"{name}1"]


def test_a_piece_that_an_error_leaves_has_ended_and_one_that_a_kill_leaves_has_not():
    def main(rank, world_size, fails):
        with simlib.span("F"):
            simlib.compute(2)
            if fails and rank == 0:
                raise ValueError("as meant")
            if not fails:
                dist.barrier()

    with pytest.raises(simlib.RankError) as raised:
        simlib.simulate(main, 2, (True,), cluster=cluster())
    assert found(raised.value.run) == [(0, "F", 0, 2), (1, "F", 0, 2)]
    with pytest.raises(simlib.RankDiedError) as raised:
        simlib.simulate(main, 2, (False,), cluster=cluster(), kill={0: 1.0})
    assert found(raised.value.run)[0] == (0, "F", 0, None)


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("", {}, "give the piece a name of 1 to 20 characters"),
        ("F" * 21, {}, "give the piece a name"),
        (3, {}, "give the piece a name"),
        ("two\nlines", {}, "give the piece a name"),
        ("F", {"micro": 1.5}, "whole numbers"),
        ("F", {"micro": "one"}, "whole numbers"),
    ],
)
def test_what_is_no_name_or_number_is_refused(name, numbers, words):
    with pytest.raises(InvalidCallError, match=words), simlib.span(name, **numbers):
        pass


def test_a_number_may_be_a_tensor_of_one_and_outside_of_ranks_nothing_happens():
    def main(rank, world_size):
        with simlib.span("F", micro=torch.tensor(5)):
            pass

    main(0, 1)
    assert simlib.simulate(main, 1).trace.pieces[0].numbers == {"micro": 5}


def test_the_bubble_is_the_time_outside_of_pieces_and_states_tell_it_too(run):
    bubble = run.bubble()
    assert bubble.time_s == 5
    np.testing.assert_array_equal(bubble.busy_s, [2, 3])
    np.testing.assert_array_equal(bubble.idle_s, [3, 2])
    np.testing.assert_allclose(bubble.by_rank, [0.6, 0.4])
    assert bubble.share == pytest.approx(0.5)
    assert repr(bubble).splitlines()[-1].split() == ["mean", "2.5", "s", "2.5", "s", "50.0%"]
    np.testing.assert_array_equal(run.states.bubble_s, [3, 2])
    head, first = run.states.table().splitlines()[:2]
    assert "bubble" in head and first.split() == ["0", "2", "s", "0", "s", "0", "s", "3", "s"]


def test_a_wait_within_a_piece_is_idle_and_pieces_within_pieces_count_once():
    def main(rank, world_size):
        with simlib.span("F"):
            with simlib.span("inner"):
                simlib.compute(1)
            dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)
            simlib.compute(1)

    bubble = simlib.simulate(main, 2, cluster=cluster(simlib.Link(0.5, math.inf))).bubble()
    assert bubble.time_s == 2.5
    np.testing.assert_array_equal(bubble.busy_s, [2, 2])


def test_a_run_without_pieces_has_no_bubble_and_its_timeline_no_names():
    run = simlib.simulate(lambda rank, world_size: simlib.compute(1), 1, cluster=cluster())
    with pytest.raises(InvalidCallError, match=r"simlib\.span"):
        run.bubble()
    assert run.states.bubble_s is None and "bubble" not in run.states.table()
    assert [text.get_text() for text in run.timeline().legends[0].get_texts()] == ["computing"]


def pipeline(rank, world_size, kind, m, v=1):
    from torch.distributed.pipelining import PipelineStage, schedules

    count = world_size * v
    own = [rank + world_size * i for i in range(v)]
    stages = [
        PipelineStage(nn.Linear(16, 16, bias=False), i, count, torch.device("cpu")) for i in own
    ]
    schedule = getattr(schedules, "Schedule" + kind)(
        stages if v > 1 else stages[0], n_microbatches=m, loss_fn=lambda a, b: (a - b).sum()
    )
    x = torch.randn(m * 2, 16, requires_grad=True)
    last = {"target": x.detach(), "losses": []} if count - 1 in own else {}
    schedule.step(x, **last) if 0 in own else schedule.step(**last)


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_torchs_schedules_name_their_pieces(engine):
    run = engine(pipeline, 2, ("1F1B", 3))
    labels = [[p.label for p in run.trace.pieces if p.rank == rank] for rank in range(2)]
    assert labels == ["F0 F1 B0 F2 B1 B2".split(), "F0 B0 F1 B1 F2 B2".split()]


def test_several_stages_on_a_rank_are_told_apart_and_so_are_the_halves_of_a_backward():
    run = simlib.simulate(pipeline, 2, ("InterleavedZeroBubble", 4, 2))
    assert {p.name for p in run.trace.pieces} == {"F", "I", "W", "B"} - {"B"}
    assert {p.numbers["stage"] for p in run.trace.pieces if p.rank == 1} == {1, 3}


@pytest.mark.parametrize("kind", ["GPipe", "1F1B"])
@pytest.mark.parametrize("link", [FREE, simlib.Link(1e-5, 1e9)])
def test_a_replay_has_the_pieces_at_its_own_times(kind, link):
    """On the same network at the same times; on another one as a simulation there has them."""
    device = simlib.Device(flops_per_s=1e8)
    runs = [
        simlib.simulate(pipeline, 4, (kind, 5), cluster=cluster(at, device=device))
        for at in (FREE, link)
    ]
    again = runs[0].replay(cluster(link, device=device))
    for one, other in zip(again.trace.pieces, runs[1].trace.pieces, strict=True):
        assert (one.rank, one.label) == (other.rank, other.label)
        assert one.start_s == pytest.approx(other.start_s, rel=1e-9, abs=1e-15)
        assert one.end_s == pytest.approx(other.end_s, rel=1e-9, abs=1e-15)


def test_a_replay_leaves_a_piece_open_that_never_ended():
    def main(rank, world_size):
        main.kept = simlib.span("F")
        main.kept.__enter__()
        simlib.compute(1)

    run = simlib.simulate(main, 1, cluster=cluster())
    assert found(run) == found(run.replay(cluster())) == [(0, "F", 0, None)]
    assert run.bubble().share == 0


def test_a_saved_run_has_its_pieces_and_a_viewer_shows_them_on_threads_of_their_own(run, tmp_path):
    path = run.save(tmp_path / "run.json")
    loaded = simlib.load(path)
    assert loaded.trace.pieces == run.trace.pieces
    assert loaded.bubble().share == run.bubble().share
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    pieces = [e for e in events if e.get("cat") == "piece"]
    assert [(names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in pieces] == [
        ("rank 0, pieces", "F7", 0, 2e6),
        ("rank 1, pieces", "B1.4", 2e6, 3e6),
    ]


def test_the_timeline_shows_each_piece_in_the_shade_of_its_name_with_its_label(run):
    figure = run.timeline()
    (axes,) = figure.axes
    assert {"F7", "B1.4"} <= {text.get_text() for text in axes.texts}
    fills = {
        to_hex(color)
        for drawn in axes.collections
        if hasattr(drawn, "get_facecolor")
        for color in drawn.get_facecolor()
    }
    expected = {rank_color(0), shaded(rank_color(1), shades_of(run.trace)["B"])}
    assert {to_hex(color) for color in expected} <= fills
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:3] == ["outside of pieces", "F", "B"]
    # The arrow of a message does not cross out the label of a piece.
    (label,) = [text for text in axes.texts if text.get_text() == "F7"]
    arrows = [drawn for drawn in axes.collections if isinstance(drawn, LineCollection)]
    assert arrows and label.get_zorder() > max(arrow.get_zorder() for arrow in arrows)
    assert to_hex(label.get_bbox_patch().get_facecolor()) == to_hex(rank_color(0))


def test_a_narrow_piece_shows_its_last_number_and_a_narrower_one_nothing():
    def main(rank, world_size):
        for seconds in (50, 1.3, 0.1):
            with simlib.span("F", stage=1, micro=3):
                simlib.compute(seconds)

    figure = simlib.simulate(main, 1, cluster=cluster()).timeline()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if "3" in text] == ["F1.3", "3"]


def test_the_player_has_the_pieces_in_sight(run):
    lanes = scene_of(run)["lanes"]
    assert [lane["pieces"] for lane in lanes] == [[[0, 2, 0.0, "F7"]], [[2, 5, 0.5, "B1.4"]]]
    lanes = scene_of(run, between=(0, 1))["lanes"]
    assert [len(lane["pieces"]) for lane in lanes] == [1, 0]


LATE = """
import sys
from simlib.core.record.backend import STAGES, name_pieces

name_pieces()
assert STAGES not in sys.modules
from torch.distributed.pipelining.stage import _PipelineStageBase
print(_PipelineStageBase.forward_one_chunk.__wrapped__.__name__)
print(any(vars(finder).get("_name") == STAGES for finder in sys.meta_path))
"""


def test_stages_that_are_imported_later_name_their_pieces_too():
    """A rank of a job imports them only where its program does: that takes seconds."""
    command = [sys.executable, "-c", LATE]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.stdout == "forward_one_chunk\nFalse\n", printed.stderr
