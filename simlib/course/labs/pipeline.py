"""The pipeline lab: when ranks compute, when they are idle, and which activations they keep."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
from matplotlib.patches import Rectangle

from ...core.draw.figures import GREY, INK, PAPER, TEXT_PT
from ...core.draw.palette import OKABE_ITO, mix
from ...core.model.cluster import Cluster, Link
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.model.words import number
from ...core.scale.pipeline_parallel import pipeline_time
from . import pen
from .sliders import Layers, View, check_choice, lab_of, menu, picture, slider, whole_numbers

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
    """Positions in inches: time goes to the right, and each rank has a row."""

    def __init__(self, ranks, end, axes=None):
        self.axes, self.ranks, self.end = axes, ranks, end
        self.height = TOP + ROW * ranks + BOTTOM
        self.bars = LEFT + SPAN + BARS_GAP

    def x(self, time_s):
        return LEFT + np.asarray(time_s) * (SPAN / self.end)

    def top(self, rank):
        return TOP + ROW * np.asarray(rank) + 0.04


def cell_color(kind, part, parts):
    """The colour of a cell, by the kind of the cell. Later stages of a rank are paler."""
    return mix(COLORS[kind], PAPER, PALER * part / (parts - 1) if parts > 1 else 0.0)


def draw_lanes(lanes, step):
    """Draw all units of compute. The rest of a lane until the step's end is idle."""
    ranks, stages, numbers = (np.array([unit[k] for unit in step.units]) for k in (0, 2, 3))
    starts, ends = (lanes.x([unit[k] for unit in step.units]) for k in (4, 5))
    is_backward = np.array([unit[1] == "B" for unit in step.units])
    parts = step.stages_per_rank
    colors = [
        cell_color("B" if back else "F", stage // step.ranks, parts)
        for back, stage in zip(is_backward, stages, strict=True)
    ]
    top, width = lanes.top(ranks), ends - starts
    cells = pen.boxes_at(starts, top, width, CELL)
    marks = pen.boxes_at(starts, top + CELL - MARK, width, MARK)[is_backward]
    every = np.arange(step.ranks)
    frames = pen.boxes_at(lanes.x(0 * every), lanes.top(every), lanes.x(step.time_s) - LEFT, CELL)
    thin = 0.5 if width.min() > 0.08 else 0.25
    room = width > 0.03 + max(map(pen.width_of, range(step.num_microbatches)))
    middle = top + CELL / 2 - np.where(is_backward, MARK / 2, 0)
    kept = [color for color, has_room in zip(colors, room, strict=True) if has_room]
    return [
        pen.add_boxes(lanes.axes, frames, 1, facecolors="none", edgecolors=GREY, linewidths=0.5),
        pen.add_boxes(lanes.axes, cells, 2, facecolors=colors, edgecolors=INK, linewidths=thin),
        pen.add_boxes(lanes.axes, marks, 3, facecolors=MARK_COLOR, linewidths=0),
        *pen.add_numbers(lanes.axes, (starts + width / 2)[room], middle[room], numbers[room], kept),
    ]


def draw_held(lanes, step):
    """Draw how many micro-batches each rank keeps over time, in all its stages, and the maximum."""
    parts = step.stages_per_rank
    peaks = step.peak_microbatches / parts
    outlines = []
    for rank in range(step.ranks):
        times_s, counts = step.held(rank)
        foot = lanes.top(rank) + CELL + HELD + 0.03
        x = np.repeat(lanes.x(np.append(times_s, times_s[-1])), 2)[1:-1]
        y = foot - np.repeat(counts, 2) / parts / peaks.max() * HELD
        outlines.append(np.column_stack([np.r_[x[0], x, x[-1]], np.r_[foot, y, foot]]))
    middle = lanes.top(np.arange(step.ranks)) + (CELL + HELD) / 2
    lengths, texts = peaks / peaks.max() * (BARS_WIDTH - 0.45), [f"{peak:.3g}" for peak in peaks]
    most = pen.boxes_at(np.full(step.ranks, lanes.bars), middle - 0.1, lengths, 0.2)
    looks = {"facecolors": HELD_COLOR, "linewidths": 0}
    return [
        pen.add_boxes(lanes.axes, outlines, 2, **looks),
        pen.add_boxes(lanes.axes, most, 2, **looks),
        pen.add_words(lanes.axes, lanes.bars + lengths + 0.06, middle, texts, left=True),
    ]


def add_key(lanes, parts):
    """Draw the parts that stay: names of ranks, the axis of time, and the key."""
    axes, every = lanes.axes, np.arange(lanes.ranks)
    names = [f"rank {rank}" for rank in every]
    pen.add_words(axes, 0.1, lanes.top(every) + CELL / 2, names, left=True)
    foot = TOP + ROW * lanes.ranks + 0.04
    ticks = np.linspace(0, lanes.end, 6)
    x = lanes.x(ticks)
    axes.plot([LEFT, LEFT + SPAN], [foot] * 2, color=GREY, lw=0.8)
    axes.vlines(x, foot, foot + 0.04, color=GREY, lw=0.8)
    pen.add_words(axes, x, foot + 0.12, [f"{tick:g}" for tick in ticks])
    note = "time (a forward of one micro-batch on one rank is 1, a backward 2)"
    if parts > 1:
        note = f"time (a forward of one micro-batch through {parts} stages is 1); "
        note += "paler: a later stage"
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
    words = [*names.values(), "most held (micro-batches)"]
    pen.add_words(axes, [*left, lanes.bars], y + high / 2, words, left=True)


# -- the lab ---------------------------------------------------------------------------------------

NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B"}
MAX_STAGES, MAX_MICROBATCHES, MAX_FORWARDS = 8, 32, 256
SLOWNESS = (1, 1.1, 1.25, 1.5, 2, 3)
LINKS = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2)
ENDS = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 125, 150, 200, 250, 300, 400)
NBYTES = 1_000_000  # of a message; only its time counts


@picture
def draw_pipeline(
    K: int = 4,
    M: int = 8,
    schedule: str = "gpipe",
    v: int = 2,
    slow: float = 1,
    slow_stage: int = 0,
    link: float = 0,
) -> View:
    """Draw one step of a pipeline: when each rank computes and is idle, and what it keeps.

    The unit of time is a rank's forward of one micro-batch, through all stages of the rank. A
    backward takes two units. `simlib.scale.pipeline_time` computes the times. The strip below a
    lane shows the number of micro-batches whose activations the rank keeps. The bar next to the
    strip shows the largest number. If a rank has several stages, one micro-batch in one stage
    counts as ``1 / v``.

    Parameters
    ----------
    K : int
        The number of ranks, 1 to 8.
    M : int
        The number of micro-batches, 1 to 32. ``K * v * M`` must be at most 256. For
        ``"interleaved"``, M must be a multiple of K.
    schedule : {"gpipe", "1f1b", "interleaved"}
    v : int
        The number of stages on each rank, 1 to 4. Only ``"interleaved"`` uses it.
    slow : float
        One stage takes this many times as long as the other stages, in forward and backward.
    slow_stage : int
        The number of the slow stage. There are K stages, or ``v * K`` for ``"interleaved"``. Stage
        s is on rank s modulo K.
    link : float
        The time that a message of activations or gradients takes when it is alone on its link.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        The schedule is unknown, a number is out of its range, or K does not divide M.
    """
    return _Pipeline(), K, M, schedule, v, slow, slow_stage, link


pipeline_lab = lab_of(
    draw_pipeline,
    "sliders for all its parameters; the slider for micro-batches offers what the schedule allows",
)


class State(NamedTuple):
    """The values of the controls, which are the arguments of `draw_pipeline`."""

    K: int
    M: int
    schedule: str
    v: int
    slow: float
    slow_stage: int
    link: float


@lru_cache(256)
def step_of(*state, **named):
    """The step of a `State` by `simlib.scale.pipeline_time`, in units of a rank's forward."""
    K, M, schedule, v, slow, slow_stage, link = State(*state, **named)
    parts = v if schedule == "interleaved" else 1
    forward = [1 / parts] * (K * parts)
    forward[slow_stage] *= slow
    cluster = Cluster(K, 1, Link(0.0, NBYTES / link if link else inf))
    times = {"forward_s": forward, "backward_s": [2 * each for each in forward]}
    how = {"message_bytes": NBYTES, "schedule": schedule, "stages_per_rank": parts}
    return pipeline_time(K, M, cluster, **times, **how)


class _Pipeline(Layers):
    """Lanes and bars. Names, the axis of time and the key stay. The axis grows in large steps."""

    controls = {
        "K": slider("ranks K", range(1, MAX_STAGES + 1)),
        "M": whole_numbers("micro-batches M", 1, MAX_MICROBATCHES),
        "schedule": menu("schedule", {text: name for name, text in NAMES.items()}),
        "v": slider("stages a rank v", (1, 2, 3, 4)),
        "slow": slider("one stage takes", SLOWNESS, "{:g} x as long".format),
        "slow_stage": whole_numbers("which stage", 0, MAX_STAGES - 1),
        "link": slider("message takes", LINKS, "{:g} forwards".format),
    }

    def check(self, *state):
        K, M, schedule, v, slow, slow_stage, link = state
        for name, value, most in (("K", K, MAX_STAGES), ("M", M, MAX_MICROBATCHES), ("v", v, 4)):
            check_count(name, value)
            if value > most:
                raise InvalidCallError(f"{name} is {value}: give at most {most}")
        super().check(*state)
        check_number("slow", slow, above=True)
        check_number("link", link)
        if inf in (slow, link):
            raise InvalidCallError("slow and link must be finite")
        parts = v if schedule == "interleaved" else 1
        if schedule == "interleaved" and M % K:
            raise InvalidCallError(
                f"M is {M}: interleaved stages take micro-batches in groups of K={K}"
            )
        if K * parts * M > MAX_FORWARDS:
            raise InvalidCallError(
                f"{K} ranks with {parts} stages each and {M} micro-batches have {K * parts * M} "
                f"forwards: the picture has room for at most {MAX_FORWARDS}"
            )
        check_choice("slow_stage", slow_stage, range(K * parts))

    def tie(self, widgets):
        """Limit micro-batches and the slow stage to the values that the other controls allow."""
        ranks, microbatches, schedule, stages, _, slow_stage, _ = widgets.values()

        def fit(_change=None):
            is_interleaved = schedule.value == "interleaved"
            parts, step = (stages.value, ranks.value) if is_interleaved else (1, 1)
            most = min(MAX_MICROBATCHES, MAX_FORWARDS // (ranks.value * parts)) // step * step
            wanted = min(max(step, round(microbatches.value / step) * step), most)
            # Observers of one may see the other only when both are possible.
            with microbatches.hold_trait_notifications(), slow_stage.hold_trait_notifications():
                microbatches.min, microbatches.max, microbatches.step = step, most, step
                microbatches.value = wanted
                slow_stage.max = ranks.value * parts - 1
                slow_stage.value = min(slow_stage.value, slow_stage.max)
            stages.disabled = not is_interleaved

        for control in (ranks, microbatches, schedule, stages):
            control.observe(fit, names="value")
        fit()

    def background_state(self, *state, **named):
        step = step_of(*state, **named)
        end = next((end for end in ENDS if end >= step.time_s), step.time_s)
        return step.ranks, end, step.stages_per_rank

    def background(self, K, end, parts):
        lanes = Lanes(K, end)
        figure, lanes.axes = pen.picture_in_inches(WIDTH, lanes.height)
        add_key(lanes, parts)
        return figure

    def foreground(self, figure, *state, **named):
        state = State(*state, **named)
        step = step_of(*state)
        lanes = Lanes(state.K, self.background_state(*state)[1], figure.axes[0])
        return [
            *_write_title(lanes.axes, step, state.slow, state.slow_stage, state.link),
            *draw_lanes(lanes, step),
            *draw_held(lanes, step),
        ]


def _write_title(axes, step, slow, slow_stage, link):
    """Write the schedule, its bubble, the formula's bubble, and the reason for the difference."""
    K, M, parts = step.ranks, step.num_microbatches, step.stages_per_rank
    name = NAMES[step.schedule] + (f", {parts} stages a rank" if step.schedule[0] == "i" else "")
    title = (
        f"{name} on {K} rank{'s' * (K > 1)}, {M} micro-batch{'es' * (M > 1)}: "
        f"takes {number(step.time_s)} forwards, bubble {step.bubble:.1%}"
    )
    product = f"{parts} x {M}" if parts > 1 else str(M)
    formula = (
        f"equal stages, free messages: (K - 1) / ({'vM' if parts > 1 else 'M'} + K - 1) = "
        f"{K - 1} / ({product} + {K - 1}) = {step.even_bubble:.1%}"
    )
    apart = 100 * (step.bubble - step.even_bubble)
    reasons = [f"stage {slow_stage} takes {slow:g} x as long"] * (slow != 1)
    reasons += [f"a message takes {link:g}"] * (link > 0 and K > 1)
    why = f": {', '.join(reasons)}" if reasons else ""
    verdict = "here the same" if abs(apart) < 0.05 else f"here {apart:+.1f} points"
    return pen.write_head(axes, title, f"{formula}; {verdict}{why}")
