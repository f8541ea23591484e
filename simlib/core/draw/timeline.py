"""The timeline of a run: one lane per rank, waits, messages, collectives.

Colour says which rank; fill and hatch say what happens. Figures are made without pyplot, so that a
notebook shows them once and no figure stays open behind the learner's back.
"""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection

from .collective_bands import draw_collectives
from .figures import INK, PAPER, own_style
from .in_words import run_in_words
from .labels import MAX_ARROWS
from .lanes import STATES, blocked, in_flight, mostly, never_finished, states_of
from .message_arrows import draw_messages
from .palette import mix, rank_color, visible
from .pieces import draw_pieces, label_pieces
from .timeline_frame import HATCH, draw_frame
from .timeline_view import View

WIDTH_IN = 9.0


@own_style
def draw_timeline(run, *, width=None, ranks=None, between=None):
    """Draw one lane per rank, time from left to right, messages as arrows.

    Parameters
    ----------
    run : Run
    width : float, optional
        Width in inches (9).
    ranks : iterable of int, optional
        The ranks to show, from top to bottom (all).
    between : (float, float), optional
        First and last second to show (the whole run).

    Returns
    -------
    matplotlib.figure.Figure
    """
    view = View(run, width or WIDTH_IN, ranks, between)
    _draw_lanes(view)
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
    x = np.array([(start, end) for _, start, end in boxes]) * view.scale
    low = np.array([view.row[rank] for rank in ranks])[:, None] + view.half
    high = low - view.half * (0.62 if name == "async op in flight" else 2)
    colors = _box_colors("in a call" if name == "computing" and view.shades else name, view.plain)
    fill, edge, hatch = ([color(rank) for rank in ranks] for color in colors)
    drawn = PolyCollection(
        np.stack([x[:, [0, 1, 1, 0]], np.hstack([high, high, low, low])], axis=2),
        facecolors=fill,
        edgecolors=edge,
        linewidths=0 if view.plain else 0.6,
        zorder=3,
    )
    if name == "waiting" and view.hatched:
        drawn.set(hatch=HATCH, hatchcolor=hatch, hatch_linewidth=0.8)
    view.axes.add_collection(drawn, autolim=False)
    view.in_legend.add(name)


def _box_colors(name, plain):
    """Functions of a rank: the colours of fill, edge and hatch."""
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


def _draw_ticks(view):
    """A short line at each call, so that an op too short to see is still there."""
    lines = [
        [(op.post_s * view.scale, view.row[op.rank] + side) for side in (-view.half, view.half)]
        for op in view.ops
    ]
    colors = [visible(rank_color(op.rank), 0.25) for op in view.ops]
    ticks = LineCollection(lines, colors=colors, linewidths=1.0, zorder=4)
    view.axes.add_collection(ticks, autolim=False)


def _draw_crosses(view, by_rank):
    """A cross at the end of each lane whose rank never left, or left an op unfinished."""
    open_ranks = [rank for rank, ops in by_rank.items() if never_finished(view.trace, rank, ops)]
    if not open_ranks:
        return
    size = float(np.clip(view.pitch_px * view.half * 0.6, 2, 8))
    x = [min(view.until[rank], view.end_s) * view.scale for rank in open_ranks]
    view.axes.plot(
        x,
        [view.row[rank] for rank in open_ranks],
        "X",
        ms=size,
        mfc=INK,
        mec=PAPER,
        mew=0.8,
        zorder=10,
        clip_on=False,
    )
    view.in_legend.add("never finished")


def _draw_calls(view):
    """Write the name of each op inside its box, where there is room."""
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
