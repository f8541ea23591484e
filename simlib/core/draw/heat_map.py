"""The heat map of a run: who sent how many bytes to whom."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..model.words import bytes_unit, number
from .figures import DPI, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from .table import clip


@own_style
def draw_traffic(run):
    """Draw who sent how many bytes to whom: a row per src, a column per dst.

    Returns
    -------
    matplotlib.figure.Figure
    """
    table, size = run.traffic, run.world_size
    side_in = float(np.clip(0.55 * size, 2.0, 5.2))
    left, right, top, bottom = 0.75, 1.25, 0.62, 0.25
    width_in, height_in = left + side_in + right, top + side_in + bottom
    figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)

    def box(x, y, w, h):
        return [x / width_in, y / height_in, w / width_in, h / height_in]

    axes = figure.add_axes(box(left, bottom, side_in, side_in))
    unit, scale = bytes_unit(int(table.max(initial=0)))
    image = axes.imshow(table / scale, cmap="Blues", vmin=0, vmax=max(1, table.max()) / scale)
    step = max(1, int(np.ceil(size / 16)))
    ticks = list(range(0, size, step))
    axes.set_xticks(ticks, ticks, fontsize=TEXT_PT)
    axes.set_yticks(ticks, ticks, fontsize=TEXT_PT)
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelcolor=INK)
    axes.set_xlabel("dst (rank)", fontsize=TEXT_PT + 0.5, labelpad=3)
    axes.set_ylabel("src (rank)", fontsize=TEXT_PT + 0.5, labelpad=3)
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    axes.set_xticks(np.arange(0.5, size - 1), minor=True)
    axes.set_yticks(np.arange(0.5, size - 1), minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.6 if size <= 32 else 0)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(
        image, cax=figure.add_axes(box(left + side_in + 0.15, bottom, 0.14, side_in))
    )
    bar.set_label(f"sent point-to-point ({unit})", fontsize=TEXT_PT + 0.5)
    bar.ax.tick_params(labelsize=TEXT_PT, labelcolor=INK, length=2)
    bar.outline.set_edgecolor("#bbbbbb")
    _write_cells(axes, table, scale, side_in / size * 72)
    title = f"traffic of {clip(run.name, 24)}"
    if not table.any():
        _write_why_empty(axes, run)
    figure.text(0.1 / width_in, 1 - 0.08 / height_in, title, fontsize=TITLE_PT, va="top")
    return figure


def _write_why_empty(axes, run):
    """Say in the middle of an empty map that there was nothing to count."""
    text = "no point-to-point\nmessages"
    if run.trace.collectives:
        text += ":\ncollectives are not\ncounted here"
    axes.text(0.5, 0.5, text, fontsize=TEXT_PT, ha="center", va="center", transform=axes.transAxes)


def _write_cells(axes, table, scale, cell_pt):
    """Write the value into each cell that has one, where the longest fits."""
    texts = {(r, c): number(table[r, c] / scale) for r, c in zip(*np.nonzero(table), strict=True)}
    longest = max((len(text) for text in texts.values()), default=0)
    if not longest or cell_pt < 0.62 * SMALL_PT * longest + 3:
        return
    half = table.max() / 2
    for (row, column), text in texts.items():
        color = PAPER if table[row, column] > half else INK
        axes.text(
            column, row, text, fontsize=SMALL_PT, color=color, ha="center", va="center_baseline"
        )
