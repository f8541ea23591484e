"""A picture of what ranks hold over time: one row per rank, one layer per category or dtype."""

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

REST = "other dtypes"
DTYPE_FILLS = {
    "float64": (0.0, "xxxx"),
    "float32": (0.0, None),
    "bfloat16": (0.45, None),
    "float16": (0.45, "////"),
    REST: (1.0, "...."),
}
"""For each dtype how much white is mixed into the rank's colour, and a hatch."""
MAX_RANKS = 8
WIDTH_IN, ROW_IN, AROUND_IN = 8.0, 0.85, 0.75


@own_style
def draw_memory_history(run, limit_bytes=None, by="category"):
    """Draw what each rank held from the run's beginning to its end, its peak marked.

    Parameters
    ----------
    run : Run
        A simulated run on a cluster with a device.
    limit_bytes : float, optional
        What a device has: drawn as a line across.
    by : {"category", "dtype"}
        What a layer is.

    Returns
    -------
    matplotlib.figure.Figure
        Of many ranks, the first eight.

    Raises
    ------
    InvalidCallError
        The run has no ledger, or ``by`` is something else.
    """
    if not run.memory:
        raise InvalidCallError(f"{run.name} has no memory ledger: simulate it on a device")
    if by not in _LAYERS:
        raise InvalidCallError(f'by={by!r}: layers are by "category" or by "dtype"')
    ledgers = run.memory[:MAX_RANKS]
    find_layers, fills = _LAYERS[by]
    layers = [find_layers(ledger) for ledger in ledgers]
    fills = {name: fills[name] for name in fills if any(name in found for found in layers)}
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
    for axes, ledger, found in zip(rows, ledgers, layers, strict=True):
        heights = {name: found[name] / scale for name in fills if name in found}
        times = [time_s * per_s for time_s, _ in ledger.history] + [run.trace.end_s * per_s]
        _draw_layers(axes, times, heights, fills, rank_color(ledger.rank))
        _mark_peak(axes, ledger, times[-1], per_s, scale)
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
    draw_key(figure, limit_bytes, fills)
    return figure


def _bytes_by_category(ledger):
    """What was held of each category at each moment of the history."""
    return {name: np.array([held[name] for _, held in ledger.history]) for name in CATEGORIES}


def _bytes_by_dtype(ledger):
    """What was held of each dtype at each moment of the history; rare dtypes in one."""
    found = {}
    for dtype, part in ledger.by_dtype.items():
        name = dtype if dtype in DTYPE_FILLS else REST
        found[name] = found.get(name, 0) + sum(_bytes_by_category(part).values())
    return found


_LAYERS = {
    "category": (_bytes_by_category, FILLS),
    "dtype": (_bytes_by_dtype, DTYPE_FILLS),
}


def _draw_layers(axes, times, heights, fills, color):
    """One layer on the other; the last of ``times`` is the end, where nothing changes."""
    below = np.zeros(len(times))
    for name, values in heights.items():
        white, hatch = fills[name]
        above = below + np.append(values, values[-1])
        axes.fill_between(
            times,
            below,
            above,
            step="post",
            facecolor=mix(color, PAPER, white),
            edgecolor=color,
            hatch=hatch,
            linewidth=0.6,
        )
        below = above
    axes.set_xlim(0, times[-1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def _mark_peak(axes, ledger, end, per_s, scale):
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
