"""Pictures of what ranks hold: bytes of memory by category; parts of the model and examples.

Colour says which rank; fill and hatch say what is held. Drawn from runs.
"""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Patch, Rectangle

from ..model.ledger import CATEGORIES, GRADIENTS, OPTIMIZER_STATE, OTHER, PARAMETERS
from ..model.words import bytes_unit, short_bytes
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from .palette import mix, rank_color

FILLS = {
    PARAMETERS: (0.0, None),
    GRADIENTS: (0.45, None),
    OPTIMIZER_STATE: (0.75, "////"),
    OTHER: (1.0, "...."),
}
"""For each category how much white is mixed into the rank's colour, and a hatch."""
BAR_IN, BETWEEN_IN, LEFT_IN = 0.62, 0.5, 0.75
LABEL_SHARE = 0.08  # how high the number above a bar is, as a share of the tallest bar
CELL_IN, GAP_CELLS, LABEL_CELLS = 0.27, 0.8, 2.2


@own_style
def draw_memory(runs, limit_bytes=None):
    """Draw what each rank held when it held most: one bar per rank, one layer per category.

    Parameters
    ----------
    runs : Run or dict of str to Run
        Simulated runs on clusters with a device; of several, each has a title.
    limit_bytes : float, optional
        What a device has: drawn as a line across.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        A run has no ledger.
    """
    runs = runs if isinstance(runs, dict) else {"": runs}
    for run in runs.values():
        if not run.memory:
            raise ValueError(f"{run.name} has no memory ledger: simulate it on a device")
    widths = [BAR_IN * max(2, run.world_size) for run in runs.values()]
    figure = Picture(
        figsize=(LEFT_IN + sum(widths) + BETWEEN_IN * len(runs) + 1.7, 3.1),
        dpi=DPI,
        facecolor=PAPER,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
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


def _draw_bars(axes, run, scale, top_bytes, limit_bytes):
    """One bar per rank of a run, in the unit of ``scale`` bytes; its sum above it."""
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
        axes.annotate(
            short_bytes(ledger.peak_bytes),
            (rank, foot),
            (0, 3),
            textcoords="offset points",
            fontsize=SMALL_PT,
            ha="center",
        )
    names = [f"rank {rank}" for rank in range(run.world_size)]
    axes.set_xticks(range(run.world_size), names, fontsize=SMALL_PT)
    middle, half = (run.world_size - 1) / 2, max(run.world_size, 2) / 2
    axes.set_xlim(middle - half - 0.1, middle + half + 0.1)
    axes.tick_params(labelsize=SMALL_PT, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_key(figure, limit_bytes, fills):
    """What fill and hatch mean, the top of a bar first."""
    patches = [
        Patch(
            facecolor=mix(GREY, PAPER, white),
            edgecolor=GREY,
            hatch=hatch,
            label=name.replace(" and ", "\nand "),
        )
        for name, (white, hatch) in reversed(fills.items())
    ]
    if limit_bytes is not None:
        line = f"device: {short_bytes(limit_bytes)}"
        patches.insert(0, figure.axes[0].plot([], [], "--", color=INK, lw=1, label=line)[0])
    figure.legend(handles=patches, fontsize=SMALL_PT, loc="outside right center", frameon=False)


@own_style
def draw_parts(runs):
    """Draw which parts of a model, and which examples, each rank had to do with.

    Parameters
    ----------
    runs : dict of str to Run
        By title. Each rank returned ``(parts, examples)``: the bytes that it holds of each part of
        the model, ``{name: bytes}``, and the numbers of the examples that went through them.

    Returns
    -------
    matplotlib.figure.Figure
        A cell is filled as far as the rank holds the part; the most that any rank of any run holds
        of a part is taken for the whole.
    """
    results = [result for run in runs.values() for result in run.results]
    names = sorted({name for parts, _ in results for name in parts})
    whole = {name: max(parts.get(name, 0) for parts, _ in results) for name in names}
    examples = sorted({example for _, seen in results for example in seen})
    columns = len(names) + GAP_CELLS + len(examples)
    wide = len(runs) * (LABEL_CELLS + columns) + 0.3
    high = max(run.world_size for run in runs.values()) + 2.6
    figure = Picture(figsize=(wide * CELL_IN, high * CELL_IN), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set_xlim(0, wide)
    axes.set_ylim(high - 1.8, -1.8)
    axes.axis("off")
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
    """A row of cells, each filled from below to its share."""
    for index, share in enumerate(shares):
        x, low = left + index + 0.07, rank + 0.93
        color = mix(rank_color(rank), PAPER, 0.25)
        axes.add_patch(Rectangle((x, low - 0.86 * share), 0.86, 0.86 * share, facecolor=color))
        frame = {"facecolor": "none", "edgecolor": GREY, "linewidth": 0.6}
        axes.add_patch(Rectangle((x, low - 0.86), 0.86, 0.86, **frame))
