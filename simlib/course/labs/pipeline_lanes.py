"""Lanes of a pipeline's ranks: cells of forward and backward, and what each rank holds."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from ...core.draw.figures import GREY, INK, PAPER, TEXT_PT
from ...core.draw.palette import OKABE_ITO, mix
from .boxes import add_boxes, add_numbers, add_words, boxes_at, width_of

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 9.0, 0.6, 0.2, 0.88, 0.52  # inches
BARS_WIDTH, BARS_GAP = 1.5, 0.25
ROW, CELL, HELD = 0.52, 0.27, 0.13
SPAN = WIDTH - LEFT - RIGHT - BARS_WIDTH - BARS_GAP  # room for the time
COLORS = {"F": OKABE_ITO[4], "B": OKABE_ITO[1]}
HELD_COLOR = OKABE_ITO[2]
PALER = 0.5  # share of white in the last stage of a rank
MARK = 0.05  # the bar at the foot of a backward cell
MARK_COLOR = INK


class Lanes:
    """Where things are, in inches: time to the right, a row for each rank."""

    def __init__(self, ranks, end, axes=None):
        self.axes, self.ranks, self.end = axes, ranks, end
        self.height = TOP + ROW * ranks + BOTTOM
        self.bars = LEFT + SPAN + BARS_GAP

    def x(self, time_s):
        return LEFT + np.asarray(time_s) * (SPAN / self.end)

    def top(self, rank):
        return TOP + ROW * np.asarray(rank) + 0.04


def cell_color(kind, part, parts):
    """The colour of a cell: by what it is, paler the later its stage is among those of its rank."""
    return mix(COLORS[kind], PAPER, PALER * part / (parts - 1) if parts > 1 else 0.0)


def draw_lanes(lanes, step):
    """All that is computed; what is left of a lane until the step's end is idle."""
    ranks, stages, numbers = (np.array([unit[k] for unit in step.units]) for k in (0, 2, 3))
    starts, ends = (lanes.x([unit[k] for unit in step.units]) for k in (4, 5))
    is_backward = np.array([unit[1] == "B" for unit in step.units])
    parts = step.stages_per_rank
    colors = [
        cell_color("B" if back else "F", stage // step.ranks, parts)
        for back, stage in zip(is_backward, stages, strict=True)
    ]
    top, width = lanes.top(ranks), ends - starts
    cells = boxes_at(starts, top, width, CELL)
    marks = boxes_at(starts, top + CELL - MARK, width, MARK)[is_backward]
    every = np.arange(step.ranks)
    frames = boxes_at(lanes.x(0 * every), lanes.top(every), lanes.x(step.time_s) - LEFT, CELL)
    thin = 0.5 if width.min() > 0.08 else 0.25
    room = width > 0.03 + max(map(width_of, range(step.num_microbatches)))
    middle = top + CELL / 2 - np.where(is_backward, MARK / 2, 0)
    kept = [color for color, has_room in zip(colors, room, strict=True) if has_room]
    return [
        add_boxes(lanes.axes, frames, 1, facecolors="none", edgecolors=GREY, linewidths=0.5),
        add_boxes(lanes.axes, cells, 2, facecolors=colors, edgecolors=INK, linewidths=thin),
        add_boxes(lanes.axes, marks, 3, facecolors=MARK_COLOR, linewidths=0),
        *add_numbers(lanes.axes, (starts + width / 2)[room], middle[room], numbers[room], kept),
    ]


def draw_held(lanes, step):
    """What each rank holds over time, and the most at a time: micro-batches of all its stages."""
    parts = step.stages_per_rank
    peaks = step.peak_microbatches / parts
    outlines = []
    for rank in range(step.ranks):
        times_s, counts = step.held(rank)
        foot = lanes.top(rank) + CELL + HELD + 0.03
        x = np.repeat(lanes.x(np.append(times_s, times_s[-1])), 2)[1:-1]
        y = foot - np.repeat(counts, 2) / parts / peaks.max() * HELD
        outlines.append(np.column_stack([np.r_[x[0], x, x[-1]], np.r_[foot, y, foot]]))
    every = np.arange(step.ranks)
    most = boxes_at(
        np.full(step.ranks, lanes.bars),
        lanes.top(every) + (CELL + HELD) / 2 - 0.1,
        peaks / peaks.max() * (BARS_WIDTH - 0.45),
        0.2,
    )
    looks = {"facecolors": HELD_COLOR, "linewidths": 0}
    return [
        add_boxes(lanes.axes, outlines, 2, **looks),
        add_boxes(lanes.axes, most, 2, **looks),
        add_words(
            lanes.axes,
            lanes.bars + peaks / peaks.max() * (BARS_WIDTH - 0.45) + 0.06,
            lanes.top(every) + (CELL + HELD) / 2,
            [f"{peak:.3g}" for peak in peaks],
            [INK] * step.ranks,
            left=True,
        ),
    ]


def add_key(lanes, parts):
    """What stays: names of ranks, the axis of time, and what is what."""
    axes, every = lanes.axes, np.arange(lanes.ranks)
    names = [f"rank {rank}" for rank in every]
    middle = lanes.top(every) + CELL / 2
    add_words(axes, np.full(lanes.ranks, 0.1), middle, names, [INK] * lanes.ranks, left=True)
    foot = TOP + ROW * lanes.ranks + 0.04
    ticks = np.linspace(0, lanes.end, 6)
    x = lanes.x(ticks)
    axes.plot([LEFT, LEFT + SPAN], [foot] * 2, color=GREY, lw=0.8)
    axes.vlines(x, foot, foot + 0.04, color=GREY, lw=0.8)
    numbers = [f"{tick:g}" for tick in ticks]
    add_words(axes, x, np.full(len(x), foot + 0.12), numbers, [INK] * len(x))
    note = "time (a forward of one micro-batch on one rank is 1, a backward 2)"
    if parts > 1:
        note = (
            f"time (a forward of one micro-batch through {parts} stages is 1); paler: a later stage"
        )
    axes.text(LEFT + SPAN / 2, foot + 0.22, note, fontsize=TEXT_PT, ha="center", va="top")
    _add_legend(lanes, parts)


def _add_legend(lanes, parts):
    axes, x, y, high = lanes.axes, LEFT, TOP - 0.2, 0.14
    names = {"F": "forward", "B": "backward", "idle": "idle", "held": "activations held"}
    left = []
    for kind, name in names.items():
        for part in range(parts if kind in COLORS else 1):
            color = cell_color(kind, part, parts) if kind in COLORS else PAPER
            color = HELD_COLOR if kind == "held" else color
            edge = {"held": HELD_COLOR, "idle": GREY}.get(kind, INK)
            axes.add_patch(Rectangle((x, y), 0.22, high, fc=color, ec=edge, lw=0.5))
            if kind == "B":
                mark = (x, y + high - 0.045)
                axes.add_patch(Rectangle(mark, 0.22, 0.045, fc=MARK_COLOR, lw=0))
            x += 0.24
        left.append(x + 0.04)
        x += 0.3 + 0.058 * len(name)
    at = np.array([*left, lanes.bars]), np.full(len(left) + 1, y + high / 2)
    words = [*names.values(), "most held (micro-batches)"]
    add_words(axes, *at, words, [INK] * len(words), left=True)
