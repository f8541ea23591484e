"""Pieces of work that a program has named, in the lanes of a timeline."""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib.collections import PolyCollection

from .lanes import mostly
from .palette import INK_THAT_STAYS, PAPER_THAT_STAYS, contrast, on_dark, rank_color, shaded
from .style import SMALL_PT

MAX_LABELS = 600
LABELS = 8  # above the arrows of messages, which may cross a narrow piece


def draw_pieces(view):
    """Fill the pieces of all lanes."""
    shown = {rank: {} for rank in view.ranks}
    for piece in view.pieces:
        times = piece.start_s, piece.ends_by(view.until[piece.rank])
        shown[piece.rank].setdefault(piece.name, []).append(times)
    columns = int(view.axes.get_window_extent(view.renderer).width)
    for rank, by_name in shown.items():
        for name, times in by_name.items():
            if len(times) > columns // 4:
                times = mostly(times, view.begin_s, view.end_s, columns)
            _fill(view, rank, times, shaded(rank_color(rank), view.shades[name]))
            view.in_legend.add(name)


def _fill(view, rank, times, color):
    x = np.array(times) * view.scale
    low = np.full((len(x), 1), view.row[rank] + view.half)
    high = low - 2 * view.half
    drawn = PolyCollection(
        np.stack([x[:, [0, 1, 1, 0]], np.hstack([high, high, low, low])], axis=2),
        facecolors=color,
        edgecolors="#ffffff",
        linewidths=0 if view.plain else 0.6,
        zorder=3,
    )
    view.axes.add_collection(drawn, autolim=False)


def label_pieces(view):
    """Write into each piece what it is, or at least its last number, where there is room."""
    if view.plain or len(view.pieces) > MAX_LABELS:
        return
    for piece in view.pieces:
        end_s = piece.ends_by(view.until[piece.rank])
        times = np.clip([piece.start_s, end_s], view.begin_s, view.end_s) * view.scale
        x, y = view.px(times, [view.row[piece.rank]] * 2)
        numbers = list(piece.numbers.values())
        for text in (piece.label, *map(str, numbers[-1:])):
            if view.labels.size(text)[0] - 4 <= x[1] - x[0]:
                _write(view, piece, text, (x[0] + x[1]) / 2, y[0])
                break


@cache
def ink_on(fill):
    """The colour of type that is read best on a fill, also where both lie on dark paper."""
    # A rank's own colour is the same on dark paper, its shades are not: nor is type on them.
    inks = (INK_THAT_STAYS, PAPER_THAT_STAYS, "#000000", "#ffffff")
    return max(
        inks, key=lambda ink: min(contrast(ink, fill), contrast(on_dark(ink), on_dark(fill)))
    )


def _write(view, piece, text, x, y):
    color, share = rank_color(piece.rank), view.shades[piece.name]
    fill = shaded(color, share)
    view.axes.text(
        *view.axes.transData.inverted().transform((x, y)),
        text,
        fontsize=SMALL_PT,
        color=ink_on(fill),
        ha="center",
        va="center_baseline",
        zorder=LABELS,
        bbox={"boxstyle": "square,pad=0", "fc": fill, "ec": "none"},
    )
