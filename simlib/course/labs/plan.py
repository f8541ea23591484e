"""The plan lab: a whole training run, from the cut of a step to hours and costs."""

from __future__ import annotations

import numpy as np

from ...core.draw.figures import DPI, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import OKABE_ITO
from ...core.model.errors import check_number
from ...core.model.words import number, seconds_text
from .boxes import add_words
from .layers import Layers
from .mesh import MAP
from .mesh_model import Cut
from .mesh_panels import (
    BARS,
    BARS_WIDTH,
    HEAD,
    HEIGHT,
    NAMES,
    PLACES,
    ROW,
    WIDTH,
    add_row_names,
    add_step_panels,
    draw_map,
    draw_memory,
    draw_rows,
    draw_times,
)
from .plan_model import ORDER, RUN_PARTS, check_jobs, plan_of
from .sliders import Lab, check_choice, menu, slider

SEQUENCES = tuple(2**k for k in range(9))
MINUTES = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 720, 1440)
COLORS = OKABE_ITO[4], OKABE_ITO[1], OKABE_ITO[5]
TOP = PLACES + 0.02


def draw_plan(job, tp=1, pp=1, sequences=1, zero=0, recompute=True, minutes=60):
    """Draw a training run as planned: its step and memory for every cut, its hours, its costs.

    The map and the bars of a step are those of `draw_mesh`, with tp on neighbouring ranks, then dp,
    then pp. Below are the hours of the whole run: of its steps, of its checkpoints, and what
    failures are expected to take (`simlib.scale.time_with_failures`), beside the hours it may take.

    Parameters
    ----------
    job : Training
    tp, pp : int
        Powers of two, 1 to 32. What tp and pp leave of the ranks is dp.
    sequences : int
        Of a micro-batch; a power of two, 1 to 256. How many micro-batches that makes follows.
    zero : {0, 1, 2, 3}
        Stage of ZeRO over dp; 0 is none.
    recompute : bool
        Whether activations are computed again in backward.
    minutes : float
        From one checkpoint to the next.

    Returns
    -------
    matplotlib.figure.Figure
        Where the model cannot be cut so, with the reason instead of the run.

    Raises
    ------
    InvalidCallError
        A number that the picture has no place for; no job.
    """
    state = "", tp, pp, sequences, zero, recompute, minutes
    return _plan({"": job}, state).draw(*state)


def plan_lab(jobs, tp=1, pp=1, sequences=1, zero=0, recompute=True, minutes=60):
    """The picture of `draw_plan` with a menu of jobs and sliders for the choice.

    Parameters
    ----------
    jobs : dict of str to Training
        The first is shown first.
    tp, pp, sequences, zero, recompute, minutes
        As for `draw_plan`; where the sliders stand first.

    Returns
    -------
    Lab
    """
    check_jobs(jobs)
    first = next(iter(jobs))
    state = first, tp, pp, sequences, zero, recompute, minutes
    again = {"computed again in backward": True, "kept until backward": False}
    return Lab(
        _plan(jobs, state),
        {
            "name": menu("job", {each: each for each in jobs}, first),
            "tp": slider("tensor tp", MAP, tp),
            "pp": slider("pipeline pp", MAP, pp),
            "sequences": slider("sequences at once", SEQUENCES, sequences),
            "zero": slider("ZeRO over dp", (0, 1, 2, 3), zero, _zero_text),
            "recompute": menu("activations", again, recompute),
            "minutes": slider("checkpoint every", MINUTES, minutes, "{:g} min".format),
        },
    )


def _zero_text(stage):
    return f"stage {stage}" if stage else "none"


def _plan(jobs, state):
    """The picture of these jobs, after a look at its first state."""
    check_jobs(jobs)
    _, tp, pp, sequences, zero, recompute, minutes = state
    check_choice("tp", tp, MAP)
    check_choice("pp", pp, MAP)
    check_choice("sequences", sequences, SEQUENCES)
    check_choice("zero", zero, (0, 1, 2, 3))
    check_choice("recompute", recompute, (True, False))
    check_number("minutes", minutes, above=True)
    return _Plan(jobs)


class _Plan(Layers):
    """Map, bars of a step and of the run. Frames and names stay."""

    def __init__(self, jobs):
        self.jobs = dict(jobs)

    def background(self):
        figure = Picture(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor=PAPER)
        axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(HEIGHT, 0)
        axes.set_axis_off()
        add_step_panels(axes, MAP)
        axes.text(NAMES, TOP - 0.06, "the whole run", **HEAD)
        note = "dashed: the hours that it may take"
        axes.text(BARS, TOP - 0.06, note, fontsize=SMALL_PT, color="#555555", va="bottom")
        add_row_names(axes, TOP, ("steps", "checkpoints", "lost by failures"))
        return figure

    def foreground(self, figure, name, tp, pp, sequences, zero, recompute, minutes):
        axes, job = figure.axes[0], self.jobs[name]
        rest = sequences, zero, recompute, 60 * minutes
        plans = {(t, p): plan_of(job, t, p, *rest) for t in MAP for p in MAP}
        cells = {key: _step(plan) for key, plan in plans.items()}
        plan = plans[tp, pp]
        chosen = Cut(job.ranks, tp, pp, 1, zero, recompute, ORDER)
        drawn = [*_title(axes, job, chosen, sequences, plan), *draw_map(axes, MAP, cells, chosen)]
        if isinstance(plan, tuple):
            return drawn
        return [
            *drawn,
            *draw_times(axes, plan.step),
            *draw_memory(axes, plan.step),
            *_draw_run(axes, job, plan),
        ]


def _step(plan):
    return plan if isinstance(plan, tuple) else plan.step


def _title(axes, job, cut, sequences, plan):
    """The choice with its result; the job below it."""
    what = (
        f"{number(job.model.parameters / 1e9)} billion parameters, {number(job.tokens / 1e9)} "
        f"billion tokens: {job.steps:,} steps of {job.batch:,} sequences of {job.sequence:,}"
    )
    if isinstance(plan, tuple):
        title = f"{job.ranks:,} ranks, tp {cut.tp} x pp {cut.pp}: {plan[1]}"
    else:
        title = (
            f"{job.ranks:,} rank{'s' * (job.ranks > 1)} = dp {cut.dp:,} x tp {cut.tp} x pp "
            f"{cut.pp}: {seconds_text(plan.step.time_s)} a step, {_hours(plan.time_s)}"
            f"{'' if plan.step.fits else ', but memory does not hold it'}"
        )
        count = job.batch // (cut.dp * sequences)
        what += f"; {count:,} micro-batch{'es' * (count > 1)} of {sequences} a step"
    return [
        axes.text(0.1, 0.1, title, fontsize=TITLE_PT, va="top", color=INK),
        axes.text(0.1, 0.34, what, fontsize=TEXT_PT, va="top", color=INK),
    ]


def _hours(time_s):
    hours = time_s / 3600
    if 0 < hours < 1:
        return f"{number(60 * hours)} min"
    return f"{number(hours)} hours" if hours < 100 else f"{number(hours / 24)} days"


def _draw_run(axes, job, plan):
    """Steps, checkpoints and losses one after the other, and the hours that there are."""
    times = np.array([plan.times_s[part] for part in RUN_PARTS]) / 3600
    scale = BARS_WIDTH / max(times.sum(), job.hours)
    ends = BARS + np.cumsum(times) * scale
    texts = [_hours(3600 * hours) for hours in times]
    drawn = draw_rows(axes, TOP, ends - times * scale, times * scale, COLORS, texts)
    foot = TOP + len(times) * ROW
    x = BARS + job.hours * scale
    drawn += axes.plot([x] * 2, [TOP, foot + 0.05], color=INK, lw=1, ls="--", zorder=3)
    verdict = "" if times.sum() <= job.hours else ": too long"
    costs = f"; costs {number(plan.cost)}" if plan.cost else ""
    total = f"{_hours(plan.time_s)} of {_hours(3600 * job.hours)}{verdict}{costs}"
    return [
        *drawn,
        add_words(axes, np.array([BARS]), np.array([foot + 0.12]), [total], [INK], left=True),
    ]
