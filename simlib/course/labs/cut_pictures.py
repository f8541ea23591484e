"""Pictures of lesson 12: matrix products and a transformer block on two ranks, and ZeRO."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from ...core.draw.figures import GREY, INK, PAPER, TEXT_PT, TITLE_PT, own_style
from ...core.draw.palette import mix, rank_color
from . import pen

WHOLE = "#d8d8d8"
"""The fill of parts that every rank has as a whole."""


def _fill(rank):
    return mix(rank_color(rank), PAPER, 0.5)


def _box(axes, place, fill, text=""):
    """A box with a text in its middle; its place is left, top, width and height."""
    left, top, width, height = place
    looks = {"facecolor": fill, "edgecolor": INK, "linewidth": 0.8, "zorder": 2}
    axes.add_patch(Rectangle((left, top), width, height, **looks))
    ink = INK if fill == PAPER else pen.readable_on(fill)
    _write(axes, left + width / 2, top + height / 2, text, color=ink)


def _write(axes, x, y, text, **looks):
    looks = {"ha": "center", "va": "center", "fontsize": TEXT_PT, "zorder": 5} | looks
    if text:
        axes.text(x, y, text, **looks)


def _arrow(axes, start, end, **looks):
    looks = {"arrowstyle": "-|>", "mutation_scale": 8, "color": INK, "lw": 0.9} | looks
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, zorder=3, **looks))


@own_style
def draw_matrix_cuts() -> Figure:
    """Draw two products on two ranks: x A with A cut by columns, and x B with B cut by rows.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, axes = pen.picture_in_inches(9.4, 2.5)
    tokens, width, hidden = 0.72, 0.62, 1.0
    for left, title, below in (
        (0.15, "by columns", "each rank needs all of x, and has some of the outputs"),
        (4.75, "by rows", "each rank needs a part of x, and has a summand of every output"),
    ):
        axes.text(left, 0.1, title, fontsize=TITLE_PT, va="top")
        axes.text(left, 1.98, below, fontsize=TEXT_PT, va="top")
    _write(axes, 0.15 + 0.31, 0.55, "x")
    _box(axes, (0.15, 0.95, width, tokens), WHOLE, "both")
    _write(axes, 1.0, 1.31, "×", fontsize=12)
    _write(axes, 1.25 + hidden / 2, 0.55, "A")
    _write(axes, 2.5, 1.31, "=", fontsize=12)
    _write(axes, 2.75 + hidden / 2, 0.55, "x A")
    for rank in (0, 1):
        _box(axes, (1.25 + rank * hidden / 2, 1.0, hidden / 2, width), _fill(rank), f"$A_{rank}$")
        _box(
            axes, (2.75 + rank * hidden / 2, 0.95, hidden / 2, tokens), _fill(rank), f"$xA_{rank}$"
        )
    _write(axes, 4.75 + hidden / 2, 0.55, "x")
    _write(axes, 6.0, 1.31, "×", fontsize=12)
    _write(axes, 6.25 + width / 2, 0.55, "B")
    _write(axes, 7.12, 1.31, "=", fontsize=12)
    _write(axes, 8.17, 0.55, "x B")
    _write(axes, 8.17, 1.31, "+", fontsize=12)
    for rank in (0, 1):
        left, top = 4.75 + rank * hidden / 2, 0.81 + rank * hidden / 2
        _box(axes, (left, 0.95, hidden / 2, tokens), _fill(rank), f"$x_{rank}$")
        _box(axes, (6.25, top, width, hidden / 2), _fill(rank), f"$B_{rank}$")
        left = 7.36 + rank * (width + 0.38)
        _box(axes, (left, 0.95, width, tokens), _fill(rank), f"$x_{rank}B_{rank}$")
    _legend(axes, 0.15, 2.33, (_fill(0), "rank 0"), (_fill(1), "rank 1"), (WHOLE, "both ranks"))
    figure.words = (
        "Two matrix products on two ranks. By columns: both ranks have all of x, rank r has the "
        "columns A_r of A, and computes the columns x A_r of the result. By rows: rank r has the "
        "columns x_r of x and the rows B_r of B, and computes the summand x_r B_r of the whole "
        "result."
    )
    return figure


def _legend(axes, left, y, *entries):
    """Fills with their meanings, in one line."""
    for fill, text in entries:
        looks = {"facecolor": fill, "edgecolor": INK, "linewidth": 0.6, "zorder": 2}
        axes.add_patch(Rectangle((left, y - 0.06), 0.16, 0.12, **looks))
        axes.text(left + 0.22, y, text, fontsize=TEXT_PT, va="center")
        left += 0.42 + 0.07 * len(text)


SORTS = ("parameters", 4), ("gradients", 4), ("optimizer state", 8)
"""The kinds of data that training keeps, and their bytes per parameter, for Adam in float32."""


@own_style
def draw_zero(ranks: int = 4) -> Figure:
    """Draw which data each rank keeps in stages 0 to 3 of ZeRO, for Adam in float32.

    Parameters
    ----------
    ranks : int
        The number of ranks, 2 to 8.

    Returns
    -------
    matplotlib.figure.Figure
    """
    left, top, panel, gap, inch = 1.25, 0.72, 1.72, 0.26, 0.11
    figure, axes = pen.picture_in_inches(left + 4 * (panel + gap), 3.35)
    told, wide = [], panel / ranks
    for stage in range(4):
        x, y = left + stage * (panel + gap), top
        title = f"stage {stage}" if stage else "stage 0: no ZeRO"
        axes.text(x, 0.1, title, fontsize=TITLE_PT, va="top")
        for rank in range(ranks):
            _write(axes, x + (rank + 0.5) * wide, 0.57, f"{rank}")
        kept = 0.0
        for name, nbytes in SORTS:
            is_cut = stage >= 3 - [sort for sort, _ in SORTS].index(name)
            for rank in range(ranks):
                height = nbytes * inch
                _box(axes, (x + rank * wide + 0.03, y, wide - 0.06, height), PAPER)
                part = height / (ranks if is_cut else 1)
                at = y + rank * part if is_cut else y
                _box(axes, (x + rank * wide + 0.03, at, wide - 0.06, part), _fill(rank))
            if stage == 0:
                _write(axes, left - 0.12, y + nbytes * inch / 2, name, ha="right")
            kept, y = kept + nbytes / (ranks if is_cut else 1), y + nbytes * inch + 0.1
        _write(axes, x + panel / 2, y + 0.1, f"{kept:g} bytes per parameter")
        told.append(f"{kept:g} bytes in stage {stage}")
    _write(axes, left - 0.12, 0.57, "rank", ha="right")
    note = "filled: what the rank keeps after a step; the height shows the bytes"
    axes.text(left, y + 0.35, note, fontsize=TEXT_PT, va="center", color=GREY)
    figure.words = (
        f"{ranks} ranks keep parameters, gradients and optimizer state. In stage 0 every rank "
        "keeps everything. Stage 1 cuts the optimizer state among the ranks. Stage 2 also cuts the "
        "gradients. Stage 3 also cuts the parameters. For each parameter of the model a rank keeps "
        f"{', '.join(told)}."
    )
    return figure


@own_style
def draw_block_cuts() -> Figure:
    """Draw a transformer block on two ranks, its cuts, and the places of communication.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, axes = pen.picture_in_inches(9.6, 3.5)
    lanes, height = (0.95, 2.15), 0.5
    parts = (
        ("norm", 0.62, False), ("Enter", 0.0, True), ("q, k, v:\n{} heads", 0.95, None),
        ("out:\nrows", 0.6, None), ("Leave", 0.0, True), ("+", 0.3, False),
        ("norm", 0.62, False), ("Enter", 0.0, True), ("up:\ncolumns", 0.78, None),
        ("down:\nrows", 0.6, None), ("Leave", 0.0, True), ("+", 0.3, False),
    )  # fmt: skip
    x, begin, last = 0.95, 0.0, 0.62
    for text, width, kind in parts:
        if kind:
            middle = x + 0.16
            _meet(axes, middle, text, lanes, height)
            x = middle + 0.34
            continue
        for rank, top in enumerate(lanes):
            _arrow(axes, (last, top + height / 2), (x, top + height / 2))
            fill = WHOLE if kind is False else _fill(rank)
            shown = text.format(("first", "other")[rank])
            _box(axes, (x, top, width, height), fill, shown)
        if text == "norm":
            begin = last + 0.1
        if text == "+":
            _past(axes, begin, x + width / 2, lanes, height)
        last = x + width
        x = last + 0.2
    for rank, top in enumerate(lanes):
        _write(axes, 0.1, top + height / 2, f"rank {rank}", ha="left")
        _arrow(axes, (last, top + height / 2), (last + 0.3, top + height / 2))
    axes.text(0.1, 0.1, "A transformer block on two ranks", fontsize=TITLE_PT, va="top")
    own = (_fill(0), "rank 0's part"), (_fill(1), "rank 1's part")
    _legend(axes, 0.1, 3.35, (WHOLE, "the same on both ranks"), *own)
    for left, style, text in (
        (5.6, "-", "all_reduce in forward"),
        (7.5, "--", "all_reduce in backward"),
    ):
        axes.plot([left, left + 0.3], [3.35] * 2, color=INK, lw=1.4, ls=style)
        axes.text(left + 0.38, 3.35, text, fontsize=TEXT_PT, va="center")
    figure.words = (
        "A transformer block on two ranks, twice the same pattern: norm, Enter, a matrix cut by "
        "columns, a matrix cut by rows, Leave, a sum with what went past. First attention with q, "
        "k, v and out, each rank with half of the heads, then the MLP with up and down. The ranks "
        "communicate at each Leave in the forward pass and at each Enter in the backward pass."
    )
    return figure


def _meet(axes, x, text, lanes, height):
    """An Enter or a Leave, as an arrow between the lanes. The arrow is dashed for backward."""
    style = "-" if text == "Leave" else (0, (4, 2))
    ends = (x, lanes[0] + height / 2), (x, lanes[1] + height / 2)
    _arrow(axes, *ends, arrowstyle="<|-|>", lw=1.6, linestyle=style, mutation_scale=10)
    _write(axes, x, lanes[1] + height + 0.12, text)


def _past(axes, begin, end, lanes, height):
    """A line that goes past a pair of matrices, above the first lane and below the second lane."""
    rims = lanes[0] - 0.2, lanes[1] + height + 0.3
    for top, rim, way in zip(lanes, rims, (0, height), strict=True):
        axes.plot([begin, begin, end], [top + height / 2, rim, rim], color=GREY, lw=0.9, zorder=1)
        _arrow(axes, (end, rim), (end, top + way), color=GREY)
