"""Two labs of whole training runs: how often to save, and how many hours a run takes and costs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, PercentFormatter

from ...core.draw.figures import DPI, INK, PAPER, SMALL_PT, Picture
from ...core.draw.palette import OKABE_ITO
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.model.words import number, seconds_text
from ...core.scale.checkpoints import checkpoint_interval, goodput
from . import mesh, pen
from .plan_model import ORDER, RUN_PARTS, Cut, Training, check_jobs, plan_of
from .sliders import (
    Lab,
    Layers,
    View,
    check_above_zero,
    lab_of,
    menu,
    picture,
    round_numbers,
    slider,
)

MINUTE_S, HOUR_S, DAY_S, YEAR_S = 60, 3_600, 86_400, 365 * 86_400
RANKS = tuple(step * 10**k for k in range(6) for step in (1, 2, 5))
MAX_RANKS = 1_000_000
MTBF_S = tuple(days * DAY_S for days in (30, 90, 182)) + tuple(
    years * YEAR_S for years in (1, 2, 5, 10, 20, 50)
)
POINTS, LIVES, FAILURES = 25, 16, 40  # places on the axis, points at each, failures of a life
DECADES = 3  # that the axis has
TICKS_S = (0.01, 0.1, 1, 10, 60, 600, 3_600, 6 * HOUR_S, DAY_S, 7 * DAY_S, 30 * DAY_S, YEAR_S)
LINES = {  # name: colour, dashes, width
    "expected": (INK, "-", 1.5),
    "Young": (OKABE_ITO[5], (0, (2, 1.5)), 1.6),
    "Daly": (OKABE_ITO[0], "-", 1.6),
}
CLOUD = OKABE_ITO[4]


@picture
def draw_checkpoint(
    ranks: int = 1_000,
    mtbf_s: float = 5 * YEAR_S,
    checkpoint_s: float = 60.0,
    restart_s: float = 300.0,
) -> View:
    """Draw the goodput of a long run over the seconds of work between two checkpoints.

    The curve is `simlib.scale.goodput`. Vertical lines are the intervals of Young and Daly. Each
    point is one random life of the machine with 40 failures. Each interval has 16 lives. All random
    numbers come from a fixed seed, so lives do not change at random when you move a slider.

    Parameters
    ----------
    ranks : int
        The number of ranks, 1 to 1,000,000. The machine fails when any rank fails.
    mtbf_s : float
        Mean time between failures of one rank, in seconds.
    checkpoint_s : float
        Seconds that saving takes. Ranks compute nothing in this time.
    restart_s : float
        Seconds from a failure until the work continues. It may be 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A number is out of its range.
    """
    return _Checkpoint(), ranks, mtbf_s, checkpoint_s, restart_s


checkpoint_lab = lab_of(draw_checkpoint, "sliders for all its parameters")


def duration_text(time_s):
    """Seconds as a short text with a convenient unit: ``"22 min"``, ``"5 years"``."""
    units = ((YEAR_S, "years"), (DAY_S, "days"), (HOUR_S, "h"), (MINUTE_S, "min"))
    for unit_s, unit in units:
        if time_s >= unit_s:
            text = number(time_s / unit_s)
            return f"{text} {unit.rstrip('s') if text == '1' else unit}"
    return seconds_text(time_s)


@lru_cache(1)
def _unit_lives():
    """Times between failures, with mean 1: one row of lives for each place on the axis."""
    return np.random.default_rng(14).exponential(size=(POINTS, LIVES, FAILURES))


def lives(interval_s, machine_s, checkpoint_s, restart_s):
    """Goodputs of random lives at each of the intervals: an array (`POINTS`, `LIVES`).

    A restart follows each failure. Then intervals of work follow, each with a checkpoint, until the
    next failure. This failure loses the work of the unfinished interval.
    """
    between_s = machine_s * _unit_lives()
    piece_s = (interval_s + checkpoint_s)[:, None, None]
    pieces = np.floor(np.maximum(between_s - restart_s, 0) / piece_s).sum(axis=2)
    return pieces * interval_s[:, None] / between_s.sum(axis=2)


class _Checkpoint(Layers):
    """Curve, points and two vertical lines. The axes change by decades, and the legend stays."""

    controls = {
        "ranks": slider("ranks R", RANKS, "{:,}".format),
        "mtbf_s": slider("one rank's MTBF", MTBF_S, duration_text),
        "checkpoint_s": slider("a checkpoint C", round_numbers(0.1, 600), duration_text),
        "restart_s": slider("a restart D", [0.0, *round_numbers(1, 3_000)], duration_text),
    }

    def check(self, ranks, mtbf_s, checkpoint_s, restart_s):
        check_count("ranks", ranks)
        if ranks > MAX_RANKS:
            raise InvalidCallError(f"ranks is {ranks}: give at most {MAX_RANKS:,}")
        check_above_zero(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s)
        check_number("restart_s", restart_s)
        times_s = {"mtbf_s": mtbf_s, "checkpoint_s": checkpoint_s, "restart_s": restart_s}
        for name, time_s in times_s.items():
            if time_s == np.inf:
                raise InvalidCallError(f"{name} is inf: give a number of seconds")

    def background_state(self, ranks, mtbf_s, checkpoint_s, restart_s):
        between_s = np.sqrt(np.prod(_intervals(ranks, mtbf_s, checkpoint_s)))
        return (int(np.floor(np.log10(between_s) - 1)),)

    def background(self, decade):
        figure = Picture(figsize=(7.6, 4.4), dpi=DPI, facecolor=PAPER)
        place, name = [0.08, 0.105, 0.89, 0.665], "work between two checkpoints"
        axes = pen.add_log_axes(figure, place, duration_text, name, "goodput", labelpad=1)
        axes.set_yscale("linear")
        axes.set_xlim(10.0**decade, 10.0 ** (decade + DECADES))
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(FixedLocator(TICKS_S))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        looks = {"marker": "o", "ls": "", "ms": 3, "color": CLOUD}
        handles = [Line2D([], [], color=c, ls=ls, lw=lw) for c, ls, lw in LINES.values()]
        names = [*LINES, f"{LIVES} drawn lives at each interval"]
        pen.add_legend_above(axes, [*handles, Line2D([], [], **looks)], names, borderaxespad=0.3)
        return figure

    def foreground(self, figure, ranks, mtbf_s, checkpoint_s, restart_s):
        axes, machine_s = figure.axes[0], mtbf_s / ranks
        low, high = np.log10(axes.get_xlim())
        fine = np.logspace(low, high, 201)
        places = np.logspace(low, high, POINTS + 2)[1:-1]
        drawn = lives(places, machine_s, checkpoint_s, restart_s)
        curve = goodput(fine, checkpoint_s, mtbf_s, ranks, restart_s=restart_s)
        intervals = _intervals(ranks, mtbf_s, checkpoint_s)
        upright = dict(zip(("Young", "Daly"), intervals, strict=True))
        looks = {"marker": "o", "ls": "", "ms": 2.6, "mew": 0, "color": CLOUD, "zorder": 3}
        return [
            *axes.plot(np.repeat(places, LIVES), drawn.ravel(), **looks),
            *axes.plot(fine, curve, color=INK, lw=1.5, zorder=4),
            *(
                axes.axvline(time_s, color=LINES[name][0], ls=LINES[name][1], lw=1.6, zorder=5)
                for name, time_s in upright.items()
            ),
            *_write_title(figure, ranks, mtbf_s, checkpoint_s, restart_s, intervals),
        ]


def _intervals(ranks, mtbf_s, checkpoint_s):
    """The intervals of Young and Daly."""
    return [
        checkpoint_interval(checkpoint_s, mtbf_s, ranks, formula=formula)
        for formula in ("young", "daly")
    ]


def _write_title(figure, ranks, mtbf_s, checkpoint_s, restart_s, intervals):
    """Write the machine, the two intervals and their goodputs, and how the other time is used."""
    machine_s, (young_s, daly_s) = mtbf_s / ranks, intervals
    young, daly = (
        goodput(time_s, checkpoint_s, mtbf_s, ranks, restart_s=restart_s) for time_s in intervals
    )
    saving = daly * checkpoint_s / daly_s
    restarts = -np.expm1(-restart_s / machine_s)
    lines = (
        f"{ranks:,} rank{'s' * (ranks > 1)}: a failure every {duration_text(machine_s)}; "
        f"save every {duration_text(daly_s)}: goodput {daly:.1%}",
        f"Daly {duration_text(daly_s)}: {daly:.2%}; Young {duration_text(young_s)}: {young:.2%}",
        f"of the time, at Daly's: saving {saving:.1%}, restarts {restarts:.1%}, done again "
        f"{1 - daly - saving - restarts:.1%}",
    )
    return pen.write_title(figure, 0.98, *lines)


# -- the plan lab: from the cut of a step to hours and costs ---------------------------------------

SEQUENCES = tuple(2**k for k in range(9))
MINUTES = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 720, 1440)
COLORS = OKABE_ITO[4], OKABE_ITO[1], OKABE_ITO[5]
TOP = mesh.PLACES + 0.02


@picture
def draw_plan(
    job: Training,
    tp: int = 1,
    pp: int = 1,
    sequences: int = 1,
    zero: int = 0,
    recompute: bool = True,
    minutes: float = 60,
) -> View:
    """Draw a planned training run: every cut's step and memory, and the run's hours and costs.

    The map and the bars of a step are as in `draw_mesh`, with tp on neighbouring ranks, then dp,
    then pp. Below the map, the picture shows three parts of the hours of the whole run: the steps,
    the checkpoints, and the expected time that failures cost (`simlib.scale.time_with_failures`).
    The picture also shows the hours that the run may take.

    Parameters
    ----------
    job : Training
    tp, pp : int
        Powers of two, 1 to 32. ``ranks / (tp * pp)`` is dp.
    sequences : int
        The number of sequences of a micro-batch, a power of two from 1 to 256. It determines the
        number of micro-batches.
    zero : {0, 1, 2, 3}
        The stage of ZeRO over dp. 0 means no ZeRO.
    recompute : bool
        Whether ranks compute activations again in backward.
    minutes : float
        Minutes from one checkpoint to the next.

    Returns
    -------
    matplotlib.figure.Figure
        The picture. If this cut is impossible, it shows the reason instead of the run.

    Raises
    ------
    InvalidCallError
        A number is out of the picture's range, or ``job`` is not a `Training`.
    """
    return _Plan({"": job}), "", tp, pp, sequences, zero, recompute, minutes


def plan_lab(
    jobs: dict[str, Training],
    tp: int = 1,
    pp: int = 1,
    sequences: int = 1,
    zero: int = 0,
    recompute: bool = True,
    minutes: float = 60,
) -> Lab:
    """Show the picture of `draw_plan` with a menu of jobs, and with sliders for the plan.

    Parameters
    ----------
    jobs : dict of str to Training
        Jobs by name. The lab starts with the first job.
    tp, pp, sequences, zero, recompute, minutes
        The values with which the sliders start, as for `draw_plan`.

    Returns
    -------
    Lab
    """
    layers = _Plan(jobs)
    return layers.lab(next(iter(jobs)), tp, pp, sequences, zero, recompute, minutes)


class _Plan(Layers):
    """Map, bars of a step and of the run. Frames and names stay."""

    def __init__(self, jobs):
        check_jobs(jobs)
        self.jobs = dict(jobs)
        self.controls = {
            "name": menu("job", {each: each for each in jobs}),
            **mesh.CUT_CONTROLS,
            "sequences": slider("sequences at once", SEQUENCES, only=True),
            **mesh.MEMORY_CONTROLS,
            "minutes": slider("checkpoint every", MINUTES, "{:g} min".format),
        }

    def check(self, *state):
        super().check(*state)
        check_above_zero(minutes=state[-1])

    def background(self):
        figure, axes = mesh.picture_of_cuts()
        axes.text(mesh.NAMES, TOP - 0.06, "the whole run", **mesh.HEAD)
        note = "dashed: the hours that it may take"
        axes.text(mesh.BARS, TOP - 0.06, note, fontsize=SMALL_PT, color="#555555", va="bottom")
        mesh.add_row_names(axes, TOP, ("steps", "checkpoints", "lost by failures"))
        return figure

    def foreground(self, figure, name, tp, pp, sequences, zero, recompute, minutes):
        axes, job = figure.axes[0], self.jobs[name]
        rest = sequences, zero, recompute, 60 * minutes
        plans = {(t, p): plan_of(job, t, p, *rest) for t in mesh.MAP for p in mesh.MAP}
        cells = {key: getattr(plan, "step", plan) for key, plan in plans.items()}
        plan, cut = plans[tp, pp], Cut(job.ranks, tp, pp, 1, zero, recompute, ORDER)
        what = (
            f"{number(job.parameters / 1e9)} billion parameters, {number(job.tokens / 1e9)} "
            f"billion tokens: {job.steps:,} steps of {job.batch:,} sequences of {job.sequence:,}"
        )
        if isinstance(plan, tuple):
            return mesh.draw_cut(axes, cells, cut, what)
        count = job.batch // (cut.dp * sequences)
        what += f"; {count:,} micro-batch{'es' * (count > 1)} of {sequences} a step"
        return [
            *mesh.draw_cut(axes, cells, cut, what, f", {_hours(plan.time_s)}"),
            *_draw_run(axes, job, plan),
        ]


def _hours(time_s):
    hours = time_s / 3600
    if 0 < hours < 1:
        return f"{number(60 * hours)} min"
    return f"{number(hours)} hours" if hours < 100 else f"{number(hours / 24)} days"


def _draw_run(axes, job, plan):
    """Draw the hours of steps, checkpoints and losses one after the other, and the hours
    allowed."""
    times = np.array([plan.times_s[part] for part in RUN_PARTS]) / 3600
    scale = mesh.BARS_WIDTH / max(times.sum(), job.hours)
    ends = mesh.BARS + np.cumsum(times) * scale
    texts = [_hours(3600 * hours) for hours in times]
    drawn = mesh.draw_rows(axes, TOP, ends - times * scale, times * scale, COLORS, texts)
    foot = TOP + len(times) * mesh.ROW
    x = mesh.BARS + job.hours * scale
    drawn += axes.plot([x] * 2, [TOP, foot + 0.05], color=INK, lw=1, ls="--", zorder=3)
    verdict = "" if times.sum() <= job.hours else ": too long"
    costs = f"; costs {number(plan.cost)}" if plan.cost else ""
    total = f"{_hours(plan.time_s)} of {_hours(3600 * job.hours)}{verdict}{costs}"
    return [*drawn, pen.add_words(axes, mesh.BARS, foot + 0.12, [total], left=True)]
