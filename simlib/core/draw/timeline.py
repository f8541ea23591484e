"""The timeline of a run: one lane per rank, waits, messages, collectives.

The colour shows the rank. Fill and hatch show the state of the rank. simlib makes figures without
pyplot. So a notebook shows each figure once, and no figure stays open.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..model.words import ranks_text
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, own_style
from .lanes import (
    STATES,
    Between,
    Ranks,
    Span,
    blocked,
    in_flight,
    mostly,
    never_finished,
    states_of,
)
from .palette import (
    INK_THAT_STAYS,
    PAPER_THAT_STAYS,
    contrast,
    mix,
    on_dark,
    rank_color,
    shaded,
    visible,
)
from .streams import STREAM_STATES
from .text import clip, run_in_words
from .timeline_view import BAND, MAX_ARROWS, View, draw_collectives, draw_messages

HATCH = "////"
LEGEND: dict[str, Any] = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
LEGEND |= {"handlelength": 1.7, "handletextpad": 0.5, "columnspacing": 1.3}
MAX_LABELS = 600
LABELS = 8  # above the arrows of messages, which may cross a narrow piece
WIDTH_IN = 9.0


@own_style
def draw_timeline(
    run: Any, *, width: float | None = None, ranks: Ranks = None, between: Between = None
) -> Figure:
    """Draw one lane per rank, with time from left to right and messages as arrows.

    Parameters
    ----------
    run : Run
    width : float, optional
        Width in inches. The default is 9.
    ranks : iterable of int, optional
        The ranks to show, from top to bottom. The default is all ranks.
    between : (float, float), optional
        First and last second to show. The default is the whole run.

    Returns
    -------
    matplotlib.figure.Figure
    """
    view = View(run, width or WIDTH_IN, ranks, between)
    _draw_lanes(view)
    _draw_streams(view)
    draw_collectives(view)
    draw_messages(view)
    label_pieces(view)
    _draw_calls(view)
    draw_frame(view)
    view.figure.words = run_in_words(run, view.ranks, (view.begin_s, view.end_s))
    return view.figure


def _draw_lanes(view):
    by_rank = {rank: [] for rank in view.ranks}
    for op in view.ops:
        by_rank[op.rank].append(op)
    parts = {name: [] for name in STATES}
    columns = int(view.axes.get_window_extent(view.renderer).width)
    for rank, ops in by_rank.items():
        for name, times in states_of(view.run, rank, ops, view.until[rank]).items():
            if view.crowded and name != "computing":
                times = mostly(times, view.begin_s, view.end_s, columns)
            parts[name] += [(rank, start, end) for start, end in times]
    for name, boxes in parts.items():
        _draw_boxes(view, name, boxes)
        if name == "computing":
            draw_pieces(view)
    if not view.crowded:
        _draw_ticks(view)
    _draw_crosses(view, by_rank)


def _draw_boxes(view, name, boxes):
    """Fill parts of lanes, ``(rank, start_s, end_s)``: computing, waiting, ..."""
    if not boxes:
        return
    ranks = [rank for rank, _, _ in boxes]
    height = 0.62 if name == "async op in flight" else 2
    colors = _box_colors("in a call" if name == "computing" and view.shades else name, view.plain)
    fill, edge, hatch = ([color(rank) for rank in ranks] for color in colors)
    drawn = PolyCollection(
        _corners(view, ranks, [times for _, *times in boxes], height),
        facecolors=fill,
        edgecolors=edge,
        linewidths=0 if view.plain else 0.6,
        zorder=3,
    )
    if name == "waiting" and view.hatched:
        drawn.set(hatch=HATCH, hatchcolor=hatch, hatch_linewidth=0.8)
    view.axes.add_collection(drawn, autolim=False)
    view.in_legend.add(name)


def _corners(view, ranks, times, height=2.0):
    """The corners of boxes in lanes, array (boxes, 4, 2); ``height`` counts halves of a lane."""
    x = np.array(times) * view.scale
    low = np.array([view.row[rank] for rank in ranks])[:, None] + view.half
    high = low - view.half * height
    return np.stack([x[:, [0, 1, 1, 0]], np.hstack([high, high, low, low])], axis=2)


def _box_colors(name, plain):
    """Three functions that take a rank. They return the colours of fill, edge and hatch."""
    shares = {
        "computing": 0.0,
        "transferring": 0.55,
        "in a call": 0.85,
        "waiting": 0.85 if plain else 1.0,
    }
    fill_share = shares.get(name, 0.72)
    return (
        lambda rank: mix(rank_color(rank), PAPER, fill_share),
        lambda rank: visible(rank_color(rank), 0.25),
        lambda rank: visible(rank_color(rank)),
    )


def _draw_streams(view):
    """Fill the lanes of GPUs, and keep labels off them."""
    for row, rank, states in view.streams:
        for name in STREAM_STATES:
            times = np.array(states.get(name, ())).reshape(-1, 2) * view.scale
            low, high = row + view.half, row - view.half * (name != "copy")
            boxes = [[(a, high), (b, high), (b, low), (a, low)] for a, b in times]
            if boxes:
                drawn = PolyCollection(boxes, **_stream_look(name, rank_color(rank)), zorder=3)
                view.axes.add_collection(drawn, autolim=False)
                view.in_legend.add(name)
            for along in (0, 0.25, 0.5, 0.75, 1):
                x, y = view.px(times @ (1 - along, along), [row] * len(times))
                clear = np.column_stack([x, y])
                view.labels.keep_clear = np.vstack([view.labels.keep_clear, clear])


def _stream_look(name, color):
    """Fill, outline and hatch of a state of a stream."""
    shares = {"communication kernel": 0.6, "exposed communication": 1.0, "copy": 0.3}
    look = {"fc": mix(color, PAPER, shares.get(name, 0.0)), "ec": visible(color, 0.25), "lw": 0.4}
    hatched = {"hatch": "xxxx", "hatchcolor": visible(color)}
    return look | hatched if name == "exposed communication" else look


def _stream_signs(view):
    """``{label: artist}`` for the states that occur in lanes of GPUs, in grey."""
    shown = [name for name in STREAM_STATES if name in view.in_legend]
    return {name: Patch(**_stream_look(name, GREY)) for name in shown}


def _draw_ticks(view):
    """Draw a short line at each call, so that very short ops are visible, too."""
    lines = [
        [(op.post_s * view.scale, view.row[op.rank] + side) for side in (-view.half, view.half)]
        for op in view.ops
    ]
    colors = [visible(rank_color(op.rank), 0.25) for op in view.ops]
    ticks = LineCollection(lines, colors=colors, linewidths=1.0, zorder=4)
    view.axes.add_collection(ticks, autolim=False)


def _draw_crosses(view, by_rank):
    """Draw a cross at the end of each lane whose rank never returned, or left an op unfinished."""
    open_ranks = [rank for rank, ops in by_rank.items() if never_finished(view.trace, rank, ops)]
    if not open_ranks:
        return
    size = float(np.clip(view.pitch_px * view.half * 0.6, 2, 8))
    x = [min(view.until[rank], view.end_s) * view.scale for rank in open_ranks]
    look = {"mfc": INK, "mec": PAPER, "mew": 0.8, "zorder": 10, "clip_on": False}
    view.axes.plot(x, [view.row[rank] for rank in open_ranks], "X", ms=size, **look)
    view.in_legend.add("never finished")


def _draw_calls(view):
    """Write the name of each op inside its box, if it fits."""
    height = view.labels.size("recv")[1]
    if view.pitch_px * view.half * 2 < height or len(view.ops) > MAX_ARROWS:
        return
    alone = {id(op) for c in view.trace.collectives if len(c.ops) == 1 for op in c.ops.values()}
    for op in view.ops:
        box = blocked(op, view.until[op.rank]) or in_flight(op, view.until[op.rank])
        if box is None or op.async_op and box[0] == op.post_s:
            continue
        if op.is_p2p or id(op) in alone:
            _label_call(view, op, box)


def _label_call(view, op, box):
    left, right = (np.clip(t, view.begin_s, view.end_s) * view.scale for t in box)
    x, y = view.px([left, right], [view.row[op.rank]] * 2)
    text = op.call if not op.async_op else f"wait: {op.call}"
    for words in (text, op.kind):
        half = view.labels.size(words)[0] / 2 + 2
        if x[1] - x[0] >= 2 * half:
            middle = (x[0] + x[1]) / 2
            spots = [(x_, y[0]) for x_ in (middle, x[0] + half, x[1] - half)]
            if view.labels.place(words, spots):
                return


def draw_frame(view: View) -> None:
    """Draw axis, names of ranks, title, legend and notes."""
    axes, lanes, rows = view.axes, len(view.names), list(view.row.values())
    step = max(1, int(np.ceil(9 / view.pitch_px)))
    size = float(np.clip(view.pitch_px / DPI * 72 * 0.8, 5.5, TEXT_PT + 0.5))
    axes.set_yticks(range(0, lanes, step), view.names[::step], fontsize=size)
    axes.tick_params(axis="y", length=0, pad=10, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=TEXT_PT, color=GREY, labelcolor=INK, length=3)
    side = float(np.clip(view.pitch_px / DPI * 72 * 0.3, 2, 7))
    look = {"s": side**2, "marker": "s", "linewidths": 0, "clip_on": False}
    look |= {
        "c": [rank_color(rank) for rank in view.ranks],
        "transform": axes.get_yaxis_transform(),
    }
    axes.scatter([-0.008] * len(rows), rows, **look)
    for name in ("left", "right", "top"):
        axes.spines[name].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(axis="x", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_margins(view)


def _draw_margins(view):
    figure = view.figure
    width_in, height_in = figure.get_size_inches()
    left = 0.1 / width_in
    title = f"{clip(view.run.name, 32)} on {ranks_text(view.run)}"
    figure.text(left, 1 - 0.09 / height_in, title, fontsize=TITLE_PT, va="top", ha="left")
    legends = _legend_handles(view), _stream_signs(view)
    for row, signs in enumerate(legends, view.title_rows - 1):
        if not signs:
            continue
        top = 1 - (0.07 + 0.22 * row) / height_in
        place = {"loc": "upper right", "bbox_to_anchor": (1 - 0.1 / width_in, top)}
        look = {"fontsize": TEXT_PT - 0.5, "handler_map": {tuple: HandlerTuple(ndivide=1, pad=0)}}
        figure.legend(signs.values(), signs.keys(), ncols=len(signs), **place, **look, **LEGEND)
    clock = "time" if view.run.engine == "real" else "virtual time"
    view.axes.set_xlabel(f"{clock} ({view.unit})", fontsize=TEXT_PT + 0.5, labelpad=2)
    look = {"fontsize": SMALL_PT, "color": "#555555", "ha": "left", "va": "bottom"}
    figure.text(left, 0.06 / height_in, view.note, **look)


def _legend_handles(view):
    """``{label: artist}`` for the states in this picture. They are grey, because hues show
    ranks."""
    dark, line, light = mix(GREY, PAPER, 0.15), "#444444", mix(GREY, PAPER, 0.72)
    hatch = {"hatch": HATCH, "hatchcolor": GREY} if view.hatched else {}
    waiting = Patch(fc=light if view.plain else PAPER, ec=line, lw=0.6, **hatch)
    waiting.set_hatch_linewidth(0.8)
    outside = mix(GREY, PAPER, 0.85)  # of the pieces that the program has named
    signs = {
        "computing": Patch(fc=outside if view.shades else dark, ec=line, lw=0.6),
        **{name: Patch(fc=shaded(GREY, share)) for name, share in view.shades.items()},
        "waiting": waiting,
        "transferring": Patch(fc=mix(GREY, PAPER, 0.6), ec=line, lw=0.6),
        "in a call": Patch(fc=mix(GREY, PAPER, 0.85), ec=line, lw=0.6),
        "async op in flight": (
            Patch(fc=dark, ec=line, lw=0.6),
            Line2D([], [], color=light, lw=3, solid_capstyle="butt"),
        ),
        "message": Line2D([], [], color=line, lw=1.2, marker=">", ms=4.5, mew=0),
        "not received": Line2D(
            [], [], color=line, lw=1.2, ls=(0, (2.5, 1.5)), marker="o", ms=3.5, mfc=PAPER, mew=1
        ),
        "collective": Patch(fc=BAND, ec="none"),
        "never finished": Line2D([], [], color="none", marker="X", ms=7, mfc=INK, mec=PAPER),
    }
    words = {"computing": "outside of pieces"} if view.shades else {}
    return {words.get(name, name): sign for name, sign in signs.items() if name in view.in_legend}


def draw_pieces(view: View) -> None:
    """Fill the pieces of all lanes."""
    shown: dict[int, dict[str, list[Span]]] = {rank: {} for rank in view.ranks}
    for piece in view.pieces:
        span = piece.span(view.until[piece.rank])
        shown[piece.rank].setdefault(piece.name, []).append(span)
    columns = int(view.axes.get_window_extent(view.renderer).width)
    for rank, by_name in shown.items():
        for name, times in by_name.items():
            if len(times) > columns // 4:
                times = mostly(times, view.begin_s, view.end_s, columns)
            _fill(view, rank, times, shaded(rank_color(rank), view.shades[name]))
            view.in_legend.add(name)


def _fill(view, rank, times, color):
    drawn = PolyCollection(
        _corners(view, [rank] * len(times), times),
        facecolors=color,
        edgecolors="#ffffff",
        linewidths=0 if view.plain else 0.6,
        zorder=3,
    )
    view.axes.add_collection(drawn, autolim=False)


def label_pieces(view: View) -> None:
    """Write the label of each piece into the piece, or only its last number if this is all that
    fits."""
    if view.plain or len(view.pieces) > MAX_LABELS:
        return
    for piece in view.pieces:
        span = piece.span(view.until[piece.rank])
        times = np.clip(span, view.begin_s, view.end_s) * view.scale
        x, y = view.px(times, [view.row[piece.rank]] * 2)
        numbers = list(piece.numbers.values())
        for text in (piece.label, *map(str, numbers[-1:])):
            if view.labels.size(text)[0] - 4 <= x[1] - x[0]:
                _write(view, piece, text, (x[0] + x[1]) / 2, y[0])
                break


@cache
def ink_on(fill: str) -> str:
    """The text colour that is most readable on a fill, in the light and in the dark theme."""
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
