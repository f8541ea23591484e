"""Pictures of scaling (time and efficiency over ranks), and of one step (compute,
communication)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from ..draw.palette import OKABE_ITO, mix
from ..model.words import seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPUTE, COMMUNICATION = OKABE_ITO[0], OKABE_ITO[1]


def _figure(width_in, height_in, columns=1):
    figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)


def _unit(time_s):
    """A factor for seconds, and the unit of the product."""
    return (1.0, "s") if time_s >= 1 else (1e3, "ms")


def _add_time_axis(axes, time_s):
    """Draw time from left to right, and lanes from top to bottom."""
    scale, unit = _unit(time_s)
    axes.invert_yaxis()
    axes.set_xlim(0, time_s * scale * 1.02 or 1)
    axes.set_xlabel(f"time ({unit})", fontsize=TEXT_PT)
    axes.tick_params(labelsize=SMALL_PT, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)


@own_style
def draw_scaling(scaling: Any) -> Figure:
    """Draw a `Scaling` over ranks: seconds of a step on the left, efficiency on the right.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, (left, right) = _figure(7.2, 2.9, columns=2)
    ranks = scaling.ranks
    ideal = scaling.base_s * (scaling.base_ranks / ranks if scaling.kind == "strong" else 1.0)
    left.plot(ranks, np.broadcast_to(ideal, ranks.shape), "--", color=GREY, label="ideal")
    left.plot(ranks, scaling.time_s, "o-", color=COMPUTE, ms=3.5, label="step")
    if (scaling.exposed_s > 0).any():
        shown = np.where(scaling.exposed_s > 0, scaling.exposed_s, np.nan)
        left.plot(ranks, shown, "s-", color=COMMUNICATION, ms=3, label="exposed communication")
    left.set_yscale("log")
    left.set_ylabel("time of a step (s)", fontsize=TEXT_PT)
    left.legend(fontsize=SMALL_PT, frameon=False)
    right.plot(ranks, scaling.efficiency, "o-", color=COMPUTE, ms=3.5)
    right.axhline(1.0, ls="--", color=GREY)
    right.set_ylim(0, max(1.05, 1.05 * scaling.efficiency.max()))
    right.set_ylabel(f"efficiency (relative to {scaling.base_ranks:,})", fontsize=TEXT_PT)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("ranks", fontsize=TEXT_PT)
        axes.tick_params(which="both", labelsize=SMALL_PT, labelcolor=INK)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{scaling.kind} scaling", fontsize=TITLE_PT, x=0.01, ha="left")
    return figure


@own_style
def draw_step(step: Any) -> Figure:
    """Draw a `Step`, with compute above and the all_reduces of the buckets below.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, axes = _figure(7.2, 1.7)
    scale, _ = _unit(step.time_s)
    boxes = {"edgecolor": INK, "linewidth": 0.5, "height": 0.7}
    forward, backward = step.forward_s * scale, step.backward_s * scale
    axes.barh(0, forward, color=mix(COMPUTE, PAPER, 0.6), **boxes)
    axes.barh(0, backward, left=forward, color=mix(COMPUTE, PAPER, 0.3), **boxes)
    for left, width, text in ((0, forward, "forward"), (forward, backward, "backward")):
        if width > 0.1 * step.time_s * scale:
            middle = left + width / 2
            axes.text(middle, 0, text, fontsize=SMALL_PT, ha="center", va="center")
    axes.barh(
        np.ones(len(step.start_s)),
        (step.end_s - step.start_s) * scale,
        left=step.start_s * scale,
        color=mix(COMMUNICATION, PAPER, 0.3),
        hatch="//" if len(step.start_s) <= 50 else None,
        **boxes,
    )
    axes.axvline(step.time_s * scale, color=INK, linewidth=0.8)
    axes.set_yticks([0, 1], ["compute", "all_reduce"], fontsize=TEXT_PT)
    _add_time_axis(axes, step.time_s)
    axes.set_title(
        f"step on {step.ranks:,} ranks: {seconds_text(step.time_s)}, "
        f"exposed {seconds_text(step.exposed_s)}",
        fontsize=TITLE_PT,
        loc="left",
    )
    return figure


@own_style
def draw_pipeline(step: Any) -> Figure:
    """Draw a `PipelineStep`, a lane per rank. Forward is light, backward is dark.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, axes = _figure(7.2, 0.9 + 0.3 * min(step.ranks, 24))
    scale, _ = _unit(step.time_s)
    for kind, colour in (("F", mix(COMPUTE, PAPER, 0.6)), ("B", mix(COMPUTE, PAPER, 0.3))):
        boxes = [each for each in step.units if each[1] == kind]
        ranks, starts, ends = (np.array([box[column] for box in boxes]) for column in (0, 4, 5))
        axes.barh(
            ranks, (ends - starts) * scale, left=starts * scale, color=colour,
            edgecolor=INK, linewidth=0.4, height=0.8,
        )  # fmt: skip
    if len(step.units) <= 300:
        for rank, _, _, microbatch, start_s, end_s in step.units:
            if end_s - start_s > 0.015 * step.time_s:
                middle = (start_s + end_s) / 2 * scale
                axes.text(middle, rank, microbatch, fontsize=SMALL_PT, ha="center", va="center")
    axes.set_ylabel("rank", fontsize=TEXT_PT)
    _add_time_axis(axes, step.time_s)
    title = f"{step.schedule}: {seconds_text(step.time_s)}, bubble {step.bubble:.1%}"
    axes.set_title(title, fontsize=TITLE_PT, loc="left")
    return figure
