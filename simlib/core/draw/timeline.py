"""The timeline of a run: one lane per rank, waits, messages, collectives.

Colour says which rank; fill and hatch say what happens. Figures are made without pyplot, so that a
notebook shows them once and no figure stays open behind the learner's back.
"""

from __future__ import annotations

import textwrap
from collections import Counter

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..model.words import ranks_text
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from .lanes import (
    STATES,
    blocked,
    chosen,
    in_flight,
    in_sight,
    mostly,
    never_finished,
    span_of,
    states_of,
    unit_of,
)
from .palette import mix, rank_color, shaded, shades_of, visible
from .text import clip, run_in_words
from .timeline_marks import (
    BAND,
    MAX_ARROWS,
    draw_collectives,
    draw_messages,
    draw_pieces,
    label_pieces,
)

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


ARROWS_PER_GAP = 40
MAX_BOXES = 150  # per lane: above, the lane shows what the rank did most in each pixel
MAX_HATCHED = 600  # hatching is slow to draw
THINNEST_PX = 4  # of a lane with outlines: in a thinner one they would hide the fill


class View:
    """A figure being drawn: which ranks are shown where, and where labels already are."""

    def __init__(self, run, width_in, ranks, between):
        self.run, self.trace = run, run.trace
        self.ranks, self.begin_s, self.end_s = chosen(run, ranks, between)
        self.row = {rank: row for row, rank in enumerate(self.ranks)}
        begin_s, end_s = self.begin_s, self.end_s
        self.ops = [o for o in self.trace if o.rank in self.row and in_sight(o, begin_s, end_s)]
        self.pieces = [p for p in self.trace.pieces if p.rank in self.row and self._sees(p)]
        self.shades = shades_of(self.trace)
        self.unit, self.scale = unit_of(self.end_s - self.begin_s)
        self.until = {rank: self._last_moment(rank) for rank in self.ranks}
        self.notes, self.in_legend = [], set()
        self._choose()
        self._make_axes(width_in)

    def _sees(self, piece):
        return piece.start_s <= self.end_s and piece.ends_by(self.end_s) >= self.begin_s

    def _last_moment(self, rank):
        span = span_of(self.trace, rank)
        return span[1] if span else self.end_s

    def _choose(self):
        """What is drawn, and notes on what is not."""
        counts = Counter(op.rank for op in self.ops)
        self.crowded = max(counts.values(), default=0) > MAX_BOXES
        self.hatched = not self.crowded and len(self.ops) <= MAX_HATCHED
        seen = {id(op) for op in self.ops}
        self.messages = self._first(
            [
                m
                for m in self.trace.messages
                if m.src in self.row
                and m.dst in self.row
                and (id(m.send) in seen or id(m.recv) in seen)
            ],
            "message",
            "arrows",
        )
        self.collectives = self._first(
            [c for c in self.trace.collectives if any(id(op) in seen for op in c.ops.values())],
            "collective",
            "bands",
        )
        if self.notes:
            self.notes.append("zoom: timeline(between=(t0, t1))")
        if self.crowded:
            self.notes.insert(0, "each pixel of a lane shows what its rank did most")
        if self.trace.forgotten is not None:
            self.notes.append(self.trace.forgotten.in_words(self.trace.ops))
        if self.trace.dropped:
            self.notes.append(f"{self.trace.dropped:,} further ops were not recorded")

    def _first(self, things, noun, what):
        """The first things, and a note where that is not all of them."""
        most = int(np.clip(ARROWS_PER_GAP * (len(self.ranks) - 1), 60, MAX_ARROWS))
        if len(things) > most:
            self.notes.append(f"{len(things):,} {noun}s: {what} of the first {most} shown")
        return things[:most]

    def _make_axes(self, width_in):
        lanes = max(1, len(self.ranks))
        pitch_in = float(np.interp(lanes, [1, 4, 8, 16, 64], [0.62, 0.56, 0.42, 0.28, 0.11]))
        pitch_in = min(pitch_in, 7.2 / lanes)
        self.half = float(np.interp(pitch_in, [0.11, 0.42], [0.36, 0.26]))  # of a lane, in pitches
        self.title_rows = 1 if width_in >= 8 else 2
        self.note = textwrap.fill("; ".join(self.notes), int(width_in * 16))
        note_in = 0.14 * len(self.note.splitlines())
        top, bottom, left, right = 0.12 + 0.24 * self.title_rows, 0.48 + note_in, 0.72, 0.2
        self.pitch_px = pitch_in * DPI
        self.gap_px = self.pitch_px * (1 - 2 * self.half)
        self.plain = self.crowded or self.pitch_px * self.half * 2 < THINNEST_PX
        self.hatched = self.hatched and not self.plain
        narrow = self.gap_px < 13 and any(not op.is_p2p for op in self.ops)
        self.strip_px = 16 if narrow else 0  # room for the names of collectives, above rank 0
        strip_in = self.strip_px / DPI
        height_in = lanes * pitch_in + strip_in + top + bottom
        self.figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER)
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()
        self.axes = self.figure.add_axes(
            [
                left / width_in,
                bottom / height_in,
                1 - (left + right) / width_in,
                1 - (top + bottom) / height_in,
            ],
            facecolor=PAPER,
        )
        room = 0.01 * (self.end_s - self.begin_s) * self.scale
        self.axes.set_xlim(self.begin_s * self.scale - room, self.end_s * self.scale + room)
        self.axes.set_ylim(lanes - 0.5, -0.5 - strip_in / pitch_in)
        self.labels = Labels(self)

    def px(self, x, y):
        """Data coordinates to pixels of the figure, arrays allowed."""
        points = self.axes.transData.transform(np.column_stack([np.ravel(x), np.ravel(y)]))
        return points[:, 0], points[:, 1]

    def x_of_end(self, op):
        """Where an op ends in the picture; an open one runs to the right edge of its lane."""
        return op.ends_by(self.until[op.rank]) * self.scale


class Labels:
    """Places text where it fits: inside the axes, off other labels and off what it must not hide.

    Rectangles are ``(x0, y0, x1, y1)`` in pixels of the figure.
    """

    def __init__(self, view):
        self.view = view
        self.font = FontProperties(size=SMALL_PT)
        box = view.axes.get_window_extent(view.renderer)
        self.bounds = box.x0, box.y0, box.x1, box.y1
        self.taken = np.empty((0, 4))
        self.keep_clear = np.empty((0, 2))
        self.sizes = {}

    def size(self, text):
        """Width and height of a label in pixels, with its margin."""
        if text not in self.sizes:
            width, height, _ = self.view.renderer.get_text_width_height_descent(
                text, self.font, False
            )
            self.sizes[text] = width + 6, height + 3
        return self.sizes[text]

    def place(self, text, spots, upright=False):
        """Write the text centred on the first of the spots (pixels) where it fits, or nowhere."""
        width, height = self.size(text)[::-1] if upright else self.size(text)
        for x, y in spots:
            rect = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            if self._free(rect):
                self.taken = np.vstack([self.taken, rect])
                return self._write(text, x, y, upright)
        return False

    def _free(self, rect):
        x0, y0, x1, y1 = rect
        left, low, right, high = self.bounds
        if x0 < left or y0 < low or x1 > right or y1 > high:
            return False
        beside = (self.taken[:, 0] >= x1) | (self.taken[:, 2] <= x0)
        if not np.all(beside | (self.taken[:, 1] >= y1) | (self.taken[:, 3] <= y0)):
            return False
        x, y = self.keep_clear.T
        return not np.any((x > x0) & (x < x1) & (y > y0) & (y < y1))

    def _write(self, text, x, y, upright):
        axes = self.view.axes
        axes.text(
            *axes.transData.inverted().transform((x, y)),
            text,
            ha="center",
            va="center" if upright else "center_baseline",  # a baseline is never upright
            fontproperties=self.font,
            rotation=90 if upright else 0,
            zorder=9,
            bbox={"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none", "alpha": 0.88},
        )
        return True


HATCH = "////"


def draw_frame(view):
    """Draw axis, names of ranks, title, legend and notes."""
    axes, lanes = view.axes, len(view.ranks)
    step = max(1, int(np.ceil(9 / view.pitch_px)))
    rows = range(0, lanes, step)
    size = float(np.clip(view.pitch_px / DPI * 72 * 0.8, 5.5, TEXT_PT + 0.5))
    axes.set_yticks(list(rows), [f"rank {view.ranks[row]}" for row in rows], fontsize=size)
    axes.tick_params(axis="y", length=0, pad=10, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=TEXT_PT, color=GREY, labelcolor=INK, length=3)
    side = float(np.clip(view.pitch_px / DPI * 72 * 0.3, 2, 7))
    axes.scatter(
        [-0.008] * lanes,
        range(lanes),
        s=side**2,
        marker="s",
        linewidths=0,
        clip_on=False,
        c=[rank_color(rank) for rank in view.ranks],
        transform=axes.get_yaxis_transform(),
    )
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
    below = (0.07 if view.title_rows == 1 else 0.29) / height_in
    signs = _legend_handles(view)
    if signs:
        figure.legend(
            signs.values(),
            signs.keys(),
            loc="upper right",
            bbox_to_anchor=(1 - 0.1 / width_in, 1 - below),
            ncols=len(signs),
            fontsize=TEXT_PT - 0.5,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.7,
            handletextpad=0.5,
            columnspacing=1.3,
            handler_map={tuple: HandlerTuple(ndivide=1, pad=0)},
        )
    clock = "time" if view.run.engine == "real" else "virtual time"
    view.axes.set_xlabel(f"{clock} ({view.unit})", fontsize=TEXT_PT + 0.5, labelpad=2)
    figure.text(
        left,
        0.06 / height_in,
        view.note,
        fontsize=SMALL_PT,
        color="#555555",
        ha="left",
        va="bottom",
    )


def _legend_handles(view):
    """``{label: artist}`` for what occurs in this picture, in grey: hue only says which rank."""
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
