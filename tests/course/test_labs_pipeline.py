"""The lab of pipelines: its picture against the model, and sliders that stay where they can."""

from __future__ import annotations

import numpy as np
import pytest
from lab_pictures import boxes_of, outlines, words_of
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simlib import labs
from simlib.core.draw.dark import DarkCanvas
from simlib.core.draw.figures import INK, on_canvas, pixels_of
from simlib.course.labs import pipeline as lanes_module
from simlib.course.labs.pipeline import CELL, Lanes, cell_color, step_of

STATES = {
    "default": (),
    "one": (1, 1),
    "slow": (4, 8, "1f1b", 2, 1.5, 2, 0.2),
    "interleaved": (4, 8, "interleaved", 2),
    "many": (8, 32, "1f1b", 2, 1, 0, 0.3),
    "all at once": (8, 8, "interleaved", 4, 3, 17, 2),
    "apart": (3, 3, "gpipe", 2, 3, 1, 2),
}
FULL = {
    name: (*state, *(4, 8, "gpipe", 2, 1, 0, 0)[len(state) :]) for name, state in STATES.items()
}


def lanes_of(figure, step):
    """Where things are in the picture: its axis of time ends with the last of six ticks."""
    ticks = next(
        drawn.get_label().split("\n")
        for drawn in figure.axes[0].collections
        if drawn.get_label().startswith("0\n") and len(drawn.get_paths()) == 6
    )
    return Lanes(step.ranks, float(ticks[-1]))


@pytest.mark.parametrize("name", STATES)
def test_every_cell_is_where_the_model_computes(name):
    figure, step = labs.draw_pipeline(*STATES[name]), step_of(*FULL[name])
    lanes = lanes_of(figure, step)
    cells = [box for box in boxes_of(figure, 2) if box[3] - box[2] == pytest.approx(CELL)]
    wanted = [
        (lanes.x(start_s), lanes.x(end_s), lanes.top(rank), lanes.top(rank) + CELL)
        for rank, _, _, _, start_s, end_s in step.units
    ]
    assert np.array([box[:4] for box in cells]) == pytest.approx(np.array(wanted))
    colors = [
        cell_color(kind, stage // step.ranks, step.stages_per_rank)
        for _, kind, stage, _, _, _ in step.units
    ]
    assert [box[4] for box in cells] == [color.lower() for color in colors]


@pytest.mark.parametrize("name", STATES)
def test_backward_has_a_mark_that_grey_leaves(name):
    figure, step = labs.draw_pipeline(*STATES[name]), step_of(*FULL[name])
    marks = [box for box in boxes_of(figure, 3) if box[4] == INK]
    lanes = lanes_of(figure, step)
    starts = [(float(lanes.x(u[4])), float(lanes.top(u[0]))) for u in step.units if u[1] == "B"]
    assert [(x0, y1 - CELL) for x0, _, _, y1, _ in marks] == [pytest.approx(s) for s in starts]


def test_numbers_of_micro_batches_are_in_their_cells():
    figure = labs.draw_pipeline(2, 3, "1f1b")
    step = step_of(2, 3, "1f1b", 2, 1, 0, 0)
    lanes = lanes_of(figure, step)
    collections = [drawn for drawn in figure.axes[0].collections if drawn.get_zorder() == 4]
    numbers = [drawn for drawn in collections if drawn.get_label().startswith("_")]
    assert len(numbers) == 3
    for number, drawn in enumerate(numbers):
        wanted = [
            float(lanes.x((unit[4] + unit[5]) / 2)) for unit in step.units if unit[3] == number
        ]
        assert drawn.get_offsets()[:, 0] == pytest.approx(wanted)


@pytest.mark.parametrize("dark", [False, True])
def test_idle_time_is_as_empty_as_the_paper(dark):
    figure = labs.draw_pipeline(4, 8, "gpipe")
    lanes = lanes_of(figure, step_of(4, 8, "gpipe", 2, 1, 0, 0))
    canvas = DarkCanvas if dark else FigureCanvasAgg
    with on_canvas(figure, canvas) as drawn:
        pixels = pixels_of(drawn)
    x, y = lanes.x(12.5), lanes.top(0) + CELL / 2  # rank 0 waits from 8 to 17
    idle = pixels[int(y * figure.dpi), int(x * figure.dpi)]
    assert idle.tolist() == pixels[0, 0].tolist()


@pytest.mark.parametrize(
    "state, words",
    [
        ((4, 8), "GPipe on 4 ranks, 8 micro-batches: takes 33 forwards, bubble 27.3%"),
        ((4, 8), "(K - 1) / (M + K - 1) = 3 / (8 + 3) = 27.3%; here the same"),
        ((4, 32, "interleaved"), "(K - 1) / (vM + K - 1) = 3 / (2 x 32 + 3) = 4.5%; here the same"),
        ((1, 1), "GPipe on 1 rank, 1 micro-batch: takes 3 forwards, bubble 0.0%"),
        # The slow stage computes 8 x 4.5; before and after it 3 others once: 3 x 3.
        ((4, 8, "1f1b", 2, 1.5, 3), "takes 45 forwards, bubble 40.0%"),
        ((4, 8, "1f1b", 2, 1.5, 3), "here +12.7 points: stage 3 takes 1.5 x as long"),
        ((2, 4, "gpipe", 2, 1, 0, 0.5), "takes 16 forwards, bubble 25.0%"),  # 3 x 5 + 2 x 0.5
        ((2, 4, "gpipe", 2, 1, 0, 0.5), "here +5.0 points: a message takes 0.5"),
    ],
)
def test_the_bubble_stands_beside_its_formula(state, words):
    assert words in words_of(labs.draw_pipeline(*state))


def test_the_bars_are_what_is_held_at_most():
    for schedule, v, wanted in (
        ("gpipe", 1, ["8", "8", "8", "8"]),
        ("1f1b", 1, ["4", "3", "2", "1"]),
        ("interleaved", 2, ["5.5", "4.5", "3.5", "2.5"]),
    ):
        figure = labs.draw_pipeline(4, 8, schedule, v)
        left = Lanes(4, 1).bars * figure.dpi
        right = [text for _, text, box in outlines(figure) if box.x0 > left + 5]
        assert right == wanted
        bars = [b for b in boxes_of(figure, 2) if b[0] == pytest.approx(Lanes(4, 1).bars)]
        lengths = np.array([x1 - x0 for x0, x1, *_ in bars])
        assert lengths / lengths[0] == pytest.approx(np.array(wanted, float) / float(wanted[0]))


def test_the_strip_below_a_lane_is_what_is_held_over_time():
    figure, step = labs.draw_pipeline(4, 8, "1f1b"), step_of(4, 8, "1f1b", 2, 1, 0, 0)
    lanes, held = lanes_of(figure, step), lanes_module.HELD_COLOR.lower()
    strips = [box for box in boxes_of(figure, 2) if box[4] == held and box[0] < lanes.bars]
    for rank, (x0, x1, y0, y1, _) in enumerate(strips):
        times_s, _ = step.held(rank)
        assert (x0, x1) == pytest.approx((lanes.x(times_s[0]), lanes.x(times_s[-1])))
        share = step.peak_microbatches[rank] / step.peak_microbatches.max()
        assert y1 - y0 == pytest.approx(share * lanes_module.HELD)
    assert len(strips) == 4


def test_interleaved_stages_keep_micro_batches_to_multiples_of_the_ranks():
    lab = labs.pipeline_lab(4, 9, "1f1b", slow_stage=3)
    lab.controls["schedule"].value = "interleaved"
    slider = lab.controls["M"]
    assert (slider.value, slider.step, slider.min, slider.max) == (8, 4, 4, 32)
    lab.controls["v"].value = 4
    assert slider.max == 16 and lab.controls["slow_stage"].max == 15
    lab.controls["slow_stage"].value = 15
    lab.controls["K"].value = 3
    assert (slider.value, slider.max, lab.controls["slow_stage"].value) == (9, 21, 11)
    lab.controls["schedule"].value = "gpipe"
    assert (slider.step, slider.max, lab.controls["slow_stage"].max) == (1, 32, 2)
    assert lab.controls["v"].disabled
