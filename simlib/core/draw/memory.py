"""Pictures of ranks' memory at the peak and over time, and of the ranks' parts of a model.

The colour shows the rank. Fill and hatch show the category of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..model.errors import InvalidCallError
from ..model.ledger import CATEGORIES, GRADIENTS, OPTIMIZER_STATE, OTHER, PARAMETERS, GpuMemory
from ..model.words import bytes_unit, short_bytes
from .figures import (
    GREY,
    INK,
    PAPER,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    bare_axes,
    new_picture,
    own_style,
)
from .lanes import unit_of
from .palette import mix, rank_color

FILLS = {
    PARAMETERS: (0.0, None),
    GRADIENTS: (0.45, None),
    OPTIMIZER_STATE: (0.75, "////"),
    OTHER: (1.0, "...."),
}
"""For each category: how much white simlib mixes into the rank's colour, and the hatch."""
BAR_IN, BETWEEN_IN, LEFT_IN = 0.62, 0.5, 0.75
SIMULATE = "simulate the program on a cluster with a device"
LABEL_SHARE = 0.08  # how high the number above a bar is, as a share of the tallest bar
CELL_IN, GAP_CELLS, LABEL_CELLS = 0.27, 0.8, 2.2


@own_style
def draw_memory(runs: Any, limit_bytes: float | None = None) -> Figure:
    """Draw each rank's memory at its peak: one bar per rank, one layer per category.

    Parameters
    ----------
    runs : Run or dict of str to Run
        Simulated runs on clusters with a device. A dict gives each run a title.
    limit_bytes : float, optional
        The memory of a device. The picture shows it as a horizontal line.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        A run has no memory ledger.
    """
    runs = runs if isinstance(runs, dict) else {"": runs}
    for run in runs.values():
        if not _has_ledgers(run):
            raise ValueError(f"{run.name} has no memory ledger: {SIMULATE}")
    widths = [BAR_IN * max(2, run.world_size) for run in runs.values()]
    width_in = LEFT_IN + sum(widths) + BETWEEN_IN * len(runs) + 1.7
    figure = new_picture(width_in, 3.1, layout="constrained")
    grid = figure.subplots(1, len(runs), sharey=True, width_ratios=widths, squeeze=False)[0]
    top = max(ledger.peak_bytes for run in runs.values() for ledger in run.memory)
    top = max(top, limit_bytes or 0)
    unit, scale = bytes_unit(top)
    for axes, (title, run) in zip(grid, runs.items(), strict=True):
        _draw_bars(axes, run, scale, top, limit_bytes)
        axes.set_title(title, fontsize=TITLE_PT, loc="left")
        if limit_bytes is not None:
            axes.axhline(limit_bytes / scale, color=INK, ls="--", lw=1)
    grid[0].set_ylim(0, 1.12 * top / scale or 1)
    grid[0].set_ylabel(f"held at the peak ({unit})", fontsize=TEXT_PT)
    draw_key(figure, limit_bytes, FILLS)
    return figure


def _has_ledgers(run):
    """Whether the run has the ranks' memory by category. A run on real GPUs does not have it."""
    return bool(run.memory) and not any(isinstance(one, GpuMemory) for one in run.memory)


def _draw_bars(axes, run, scale, top_bytes, limit_bytes):
    """Draw one bar per rank of a run, in units of ``scale`` bytes, with its sum above the bar."""
    for rank, ledger in enumerate(run.memory):
        bottom, color = 0.0, rank_color(rank)
        for category in CATEGORIES:
            white, hatch = FILLS[category]
            height = ledger.peak[category] / scale
            fill = {"facecolor": mix(color, PAPER, white), "edgecolor": color, "hatch": hatch}
            axes.bar(rank, height, 0.7, bottom, linewidth=0.8, **fill)
            bottom += height
        foot = bottom
        if limit_bytes and 0 <= limit_bytes - ledger.peak_bytes < LABEL_SHARE * top_bytes:
            foot = limit_bytes / scale  # above the line, which would otherwise be hidden
        look = {"textcoords": "offset points", "fontsize": SMALL_PT, "ha": "center"}
        axes.annotate(short_bytes(ledger.peak_bytes), (rank, foot), (0, 3), **look)
    names = [f"rank {rank}" for rank in range(run.world_size)]
    axes.set_xticks(range(run.world_size), names, fontsize=SMALL_PT)
    middle, half = (run.world_size - 1) / 2, max(run.world_size, 2) / 2
    axes.set_xlim(middle - half - 0.1, middle + half + 0.1)
    axes.tick_params(labelsize=SMALL_PT, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_key(
    figure: Figure, limit_bytes: float | None, fills: Mapping[str, tuple[float, str | None]]
) -> None:
    """Draw the key of fills and hatches, from the top of a bar to its bottom."""
    patches = []
    for name, (white, hatch) in reversed(list(fills.items())):
        fill = {"facecolor": mix(GREY, PAPER, white), "edgecolor": GREY, "hatch": hatch}
        patches.append(Patch(label=name.replace(" and ", "\nand "), **fill))
    if limit_bytes is not None:
        line = f"device: {short_bytes(limit_bytes)}"
        patches.insert(0, figure.axes[0].plot([], [], "--", color=INK, lw=1, label=line)[0])
    figure.legend(handles=patches, fontsize=SMALL_PT, loc="outside right center", frameon=False)


@own_style
def draw_parts(runs: Mapping[str, Any]) -> Figure:
    """Draw which parts of a model each rank has, and which examples it used.

    Parameters
    ----------
    runs : dict of str to Run
        The runs by title. Each rank returned ``(parts, examples)``. ``parts`` is ``{name: bytes}``
        and says how many bytes of each part of the model the rank has. ``examples`` are the numbers
        of the examples that went through these parts.

    Returns
    -------
    matplotlib.figure.Figure
        The fill of a cell shows how much of the part the rank has. A cell is full if the rank has
        as many bytes of the part as the rank with most bytes in any run.
    """
    results = [result for run in runs.values() for result in run.results]
    names = sorted({name for parts, _ in results for name in parts})
    whole = {name: max(parts.get(name, 0) for parts, _ in results) for name in names}
    examples = sorted({example for _, seen in results for example in seen})
    columns = len(names) + GAP_CELLS + len(examples)
    wide = len(runs) * (LABEL_CELLS + columns) + 0.3
    high = max(run.world_size for run in runs.values()) + 2.6
    figure = new_picture(wide * CELL_IN, high * CELL_IN)
    axes = bare_axes(figure, (0, wide), (high - 1.8, -1.8))
    centred = {"fontsize": SMALL_PT, "ha": "center", "va": "center"}
    for index, (title, run) in enumerate(runs.items()):
        left = LABEL_CELLS + index * (LABEL_CELLS + columns)
        right = left + len(names) + GAP_CELLS
        axes.text(left, -1.3, title, fontsize=TITLE_PT, va="center", weight="bold")
        axes.text(left, -0.4, "parameters", fontsize=SMALL_PT, va="center")
        axes.text(right, -0.4, "examples", fontsize=SMALL_PT, va="center")
        for rank, (parts, seen) in enumerate(run.results):
            axes.text(
                left - 0.2, rank + 0.5, f"rank {rank}", fontsize=SMALL_PT, ha="right", va="center"
            )
            shares = [parts.get(name, 0) / (whole[name] or 1) for name in names]
            _draw_cells(axes, rank, left, shares)
            _draw_cells(axes, rank, right, [float(example in seen) for example in examples])
        for side, labels in ((left, names), (right, examples)):
            for x, label in enumerate(labels):
                axes.text(side + x + 0.5, run.world_size + 0.3, str(label), **centred)
    return figure


def _draw_cells(axes, rank, left, shares):
    """Draw a row of cells, each filled from below to its share."""
    for index, share in enumerate(shares):
        x, low = left + index + 0.07, rank + 0.93
        color = mix(rank_color(rank), PAPER, 0.25)
        axes.add_patch(Rectangle((x, low - 0.86 * share), 0.86, 0.86 * share, facecolor=color))
        frame = {"facecolor": "none", "edgecolor": GREY, "linewidth": 0.6}
        axes.add_patch(Rectangle((x, low - 0.86), 0.86, 0.86, **frame))


REST = "other dtypes"
DTYPE_FILLS = {
    "float64": (0.0, "xxxx"),
    "float32": (0.0, None),
    "bfloat16": (0.45, None),
    "float16": (0.45, "////"),
    REST: (1.0, "...."),
}
"""For each dtype: how much white simlib mixes into the rank's colour, and the hatch."""
MAX_RANKS = 8
WIDTH_IN, ROW_IN, AROUND_IN = 8.0, 0.85, 0.75


@own_style
def draw_memory_history(run: Any, limit_bytes: float | None = None, by: str = "category") -> Figure:
    """Draw each rank's memory from the beginning of the run to its end, with its peak.

    Parameters
    ----------
    run : Run
        A simulated run on a cluster with a device.
    limit_bytes : float, optional
        The memory of a device. The picture shows it as a horizontal line.
    by : {"category", "dtype"}
        Whether a layer is a category or a dtype.

    Returns
    -------
    matplotlib.figure.Figure
        The figure shows at most the first eight ranks.

    Raises
    ------
    InvalidCallError
        The run has no memory ledger, or ``by`` has another value.
    """
    if not _has_ledgers(run):
        raise InvalidCallError(f"{run.name} has no memory ledger: {SIMULATE}")
    if by not in _LAYERS:
        raise InvalidCallError(f'by={by!r} is not possible: give "category" or "dtype"')
    ledgers = run.memory[:MAX_RANKS]
    find_layers, fills = _LAYERS[by]
    layers = [find_layers(ledger) for ledger in ledgers]
    fills = {name: fills[name] for name in fills if any(name in found for found in layers)}
    figure = new_picture(WIDTH_IN, AROUND_IN + ROW_IN * len(ledgers), layout="constrained")
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
    """The bytes of each category at each moment of the history."""
    return {name: np.array([held[name] for _, held in ledger.history]) for name in CATEGORIES}


def _bytes_by_dtype(ledger):
    """The bytes of each dtype at each moment of the history. Rare dtypes are added up."""
    found = {}
    for dtype, part in ledger.by_dtype.items():
        name = dtype if dtype in DTYPE_FILLS else REST
        found[name] = found.get(name, 0) + sum(_bytes_by_category(part).values())
    return found


_LAYERS = {"category": (_bytes_by_category, FILLS), "dtype": (_bytes_by_dtype, DTYPE_FILLS)}


def _draw_layers(axes, times, heights, fills, color):
    """Draw the layers on top of each other. The last of ``times`` is the end of the run."""
    below = np.zeros(len(times))
    for name, values in heights.items():
        white, hatch = fills[name]
        above = below + np.append(values, values[-1])
        fill = {"facecolor": mix(color, PAPER, white), "edgecolor": color, "hatch": hatch}
        axes.fill_between(times, below, above, step="post", linewidth=0.6, **fill)
        below = above
    axes.set_xlim(0, times[-1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def _mark_peak(axes, ledger, end, per_s, scale):
    peak = ledger.peak_s * per_s, ledger.peak_bytes / scale
    axes.plot(*peak, "v", color=INK, ms=4, clip_on=False)
    ha, x = ("left", 6) if peak[0] < 0.75 * end else ("right", -6)
    look = {"textcoords": "offset points", "fontsize": SMALL_PT, "color": INK}
    axes.annotate(f"{short_bytes(ledger.peak_bytes)} at the peak", peak, (x, 3), ha=ha, **look)
