"""A picture of what ranks hold over time: one row per rank, one layer per category."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..model.errors import InvalidCallError
from ..model.ledger import CATEGORIES
from ..model.words import bytes_unit, short_bytes
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from .lanes import unit_of
from .memory import FILLS, draw_key
from .palette import mix, rank_color

MOST_RANKS = 8
WIDTH_IN, ROW_IN, AROUND_IN = 8.0, 0.85, 0.75


@own_style
def draw_memory_history(run, limit_bytes=None):
    """Draw what each rank held from the run's beginning to its end, its peak marked.

    Parameters
    ----------
    run : Run
        A simulated run on a cluster with a device.
    limit_bytes : float, optional
        What a device has: drawn as a line across.

    Returns
    -------
    matplotlib.figure.Figure
        Of many ranks, the first eight.

    Raises
    ------
    InvalidCallError
        The run has no ledger.
    """
    if not run.memory:
        raise InvalidCallError(f"{run.name} has no memory ledger: simulate it on a device")
    ledgers = run.memory[:MOST_RANKS]
    figure = Picture(
        figsize=(WIDTH_IN, AROUND_IN + ROW_IN * len(ledgers)),
        dpi=DPI,
        facecolor=PAPER,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(ledgers), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    top = max(limit_bytes or 0, *(ledger.peak_bytes for ledger in ledgers))
    unit, scale = bytes_unit(top)
    clock_unit, per_s = unit_of(run.trace.end_s or 1.0)
    for axes, ledger in zip(rows, ledgers, strict=True):
        _draw_row(axes, ledger, run.trace.end_s * per_s, per_s, scale)
        name = f"rank {ledger.rank}"
        axes.set_ylabel(name, fontsize=TEXT_PT, rotation=0, ha="right", va="center")
        axes.tick_params(labelsize=SMALL_PT)
        if limit_bytes is not None:
            axes.axhline(limit_bytes / scale, color=INK, ls="--", lw=1)
    rows[0].set_ylim(0, 1.3 * top / scale or 1)
    left_out = len(run.memory) - len(ledgers)
    more = f", the first {len(ledgers)} of {len(run.memory)} ranks" if left_out else ""
    rows[0].set_title(f"{run.name}: held ({unit}){more}", fontsize=TITLE_PT, loc="left")
    rows[-1].set_xlabel(f"virtual time ({clock_unit})", fontsize=TEXT_PT)
    draw_key(figure, limit_bytes)
    return figure


def _draw_row(axes, ledger, end, per_s, scale):
    times = [time_s * per_s for time_s, _ in ledger.history] + [end]
    held = [held for _, held in ledger.history]
    color, below = rank_color(ledger.rank), np.zeros(len(times))
    for category in CATEGORIES:
        values = np.array([moment[category] for moment in (*held, held[-1])]) / scale
        white, hatch = FILLS[category]
        axes.fill_between(
            times,
            below,
            below + values,
            step="post",
            facecolor=mix(color, PAPER, white),
            edgecolor=color,
            hatch=hatch,
            linewidth=0.6,
        )
        below = below + values
    peak = ledger.peak_s * per_s, ledger.peak_bytes / scale
    axes.plot(*peak, "v", color=INK, ms=4, clip_on=False)
    axes.annotate(
        f"{short_bytes(ledger.peak_bytes)} at the peak",
        peak,
        xytext=(6 if peak[0] < 0.75 * end else -6, 3),
        textcoords="offset points",
        ha="left" if peak[0] < 0.75 * end else "right",
        fontsize=SMALL_PT,
        color=INK,
    )
    axes.set_xlim(0, end)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
