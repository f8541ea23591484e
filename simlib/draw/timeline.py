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
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..model.words import collective_text, ranks_text, short_bytes
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style, png_of
from .heat_map import draw_traffic
from .labels import Labels
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
from .palette import mix, rank_color
from .table import clip

__all__ = ["draw_timeline", "draw_traffic", "png_of"]

BAND = "#00000016"
WIDTH_IN = 9.0
MOST_ARROWS = 300  # more arrows, bands or labels than this hide one another
ARROWS_PER_GAP = 40
MOST_BOXES = 150  # per lane: above, the lane shows what the rank did most in each pixel
MOST_UPRIGHT = 8  # more collectives: a name across the lanes hides more than it tells
MOST_HATCHED = 600  # hatching is slow to draw
THINNEST_PX = 4  # of a lane with outlines: in a thinner one they would hide the fill
HATCH = "////"


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
    view = _View(run, width or WIDTH_IN, ranks, between)
    _draw_lanes(view)
    _draw_collectives(view)
    _draw_messages(view)
    _draw_calls(view)
    _draw_frame(view)
    return view.figure


class _View:
    """A figure being drawn: which ranks are shown where, and where labels already are."""

    def __init__(self, run, width_in, ranks, between):
        self.run, self.trace = run, run.trace
        self.ranks, self.begin_s, self.end_s = chosen(run, ranks, between)
        self.row = {rank: row for row, rank in enumerate(self.ranks)}
        begin_s, end_s = self.begin_s, self.end_s
        self.ops = [o for o in self.trace if o.rank in self.row and in_sight(o, begin_s, end_s)]
        self.unit, self.scale = unit_of(self.end_s - self.begin_s)
        self.until = {rank: self._last_moment(rank) for rank in self.ranks}
        self.notes, self.marks = [], set()
        self._choose()
        self._make_axes(width_in)

    def _last_moment(self, rank):
        span = span_of(self.trace, rank)
        return span[1] if span else self.end_s

    def _choose(self):
        """What is drawn, and notes on what is not."""
        counts = Counter(op.rank for op in self.ops)
        self.crowded = max(counts.values(), default=0) > MOST_BOXES
        self.hatched = not self.crowded and len(self.ops) <= MOST_HATCHED
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
        if self.trace.dropped:
            self.notes.append(f"{self.trace.dropped:,} further ops were not recorded")

    def _first(self, things, noun, what):
        """The first things, and a note where that is not all of them."""
        most = int(np.clip(ARROWS_PER_GAP * (len(self.ranks) - 1), 60, MOST_ARROWS))
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
        return (op.end_s if op.done else self.until[op.rank]) * self.scale


# Lanes: what each rank did


def _draw_lanes(view):
    by_rank = {rank: [] for rank in view.ranks}
    for op in view.ops:
        by_rank[op.rank].append(op)
    parts = {name: [] for name in STATES}
    columns = int(view.axes.get_window_extent(view.renderer).width)
    for rank, ops in by_rank.items():
        for name, times in states_of(view.trace, rank, ops, view.until[rank]).items():
            if view.crowded and name != "computing":
                times = mostly(times, view.begin_s, view.end_s, columns)
            parts[name] += [(rank, start, end) for start, end in times]
    for name, boxes in parts.items():
        _draw_boxes(view, name, boxes)
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
    fill, edge, hatch = ([color(rank) for rank in ranks] for color in _box_colors(name, view.plain))
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
    view.marks.add(name)


def _box_colors(name, plain):
    """Functions of a rank: the colours of fill, edge and hatch."""
    shares = {"computing": 0.0, "waiting": 0.85 if plain else 1.0}
    fill_share = shares.get(name, 0.72)
    return (
        lambda rank: mix(rank_color(rank), PAPER, fill_share),
        lambda rank: mix(rank_color(rank), "#000000", 0.25),
        lambda rank: mix(rank_color(rank), PAPER, 0.35),
    )


def _draw_ticks(view):
    """A short line at each call, so that an op too short to see is still there."""
    lines = [
        [(op.post_s * view.scale, view.row[op.rank] + side) for side in (-view.half, view.half)]
        for op in view.ops
    ]
    colors = [mix(rank_color(op.rank), "#000000", 0.25) for op in view.ops]
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
    view.marks.add("never finished")


# Collectives: one shape through all the lanes of the group


def _draw_collectives(view):
    shown = []
    for collective in view.collectives:
        ops = [op for rank, op in collective.ops.items() if rank in view.row]
        if ops:
            shown.append((collective, sorted(ops, key=lambda op: view.row[op.rank])))
    joints = [joint for _, ops in shown for joint in _joints(view, ops)]
    if joints:
        bands = PolyCollection(
            joints,
            facecolors=BAND,
            edgecolors="#00000055",
            linewidths=0.3 if view.crowded else 0.5,
            zorder=1,
        )
        view.axes.add_collection(bands, autolim=False)
        view.marks.add("collective")
    for collective, ops in shown:
        _label_collective(view, collective, ops)


def _joints(view, ops):
    """The quadrilaterals between neighbouring members' ops, call to end."""
    for a, b in zip(ops, ops[1:], strict=False):
        y_a, y_b = view.row[a.rank] + view.half, view.row[b.rank] - view.half
        yield [
            (a.post_s * view.scale, y_a),
            (view.x_of_end(a), y_a),
            (view.x_of_end(b), y_b),
            (b.post_s * view.scale, y_b),
        ]


def _label_collective(view, collective, ops):
    if len(collective.ops) == 1:
        return  # its box in the lane is labelled as a call
    text = collective_text(collective)
    width, height = view.labels.size(text)
    if view.labels.place(text, _band_spots(view, ops, width)):
        return
    left = max(op.post_s for op in ops) * view.scale
    right = min(view.x_of_end(op) for op in ops)
    rows = [view.row[op.rank] for op in ops]
    x, y = view.px([(left + right) / 2, left, right], [(rows[0] + rows[-1]) / 2] * 3)
    if view.strip_px and rows[0] == 0:
        top = view.labels.bounds[3] - view.strip_px / 2
        left_px, _, right_px, _ = view.labels.bounds
        middle = np.clip(x[0], left_px + width / 2, right_px - width / 2)
        if view.labels.place(text, [(middle, top)]):
            return
    if x[2] - x[1] > width:
        view.labels.place(text, [(x[0], y[0])])
    elif len(view.collectives) > MOST_UPRIGHT:
        return
    elif x[2] - x[1] > height and (rows[-1] - rows[0]) * view.pitch_px > width:
        view.labels.place(text, [(x[0], y[0])], upright=True)


def _band_spots(view, ops, width):
    """The middles of the band in the gaps between lanes, where it is wide enough (pixels)."""
    spots = []
    if view.gap_px < view.labels.size("0 B")[1] - 2:
        return spots
    for (a, y_a), (b, _), (c, y_b), (d, _) in _joints(view, ops):
        for gap in np.arange(np.floor(y_a) + 0.5, y_b, 1.0):
            share = (gap - y_a) / (y_b - y_a)
            left, right = a + share * (d - a), b + share * (c - b)
            x, y = view.px([(left + right) / 2, left, right], [gap] * 3)
            if x[2] - x[1] > 0.8 * width:
                spots.append((x[0], y[0]))
    return spots


# Messages: arrows


def _draw_messages(view):
    arrows, stubs = [], []
    for message in view.messages:
        arrived = message.recv is not None and message.recv.done
        (arrows if arrived else stubs).append(message)
    _draw_arrows(view, arrows)
    _draw_stubs(view, stubs)


def _draw_arrows(view, messages):
    if not messages:
        return
    tails, heads = (np.array(p) for p in zip(*(_ends_of(view, m) for m in messages), strict=True))
    colors = [mix(rank_color(m.src), "#000000", 0.3) for m in messages]
    x0, y0 = view.px(tails[:, 0], tails[:, 1])
    x1, y1 = view.px(heads[:, 0], heads[:, 1])
    length = np.maximum(np.hypot(x1 - x0, y1 - y0), 1e-9)
    along = np.column_stack([(x1 - x0) / length, (y1 - y0) / length])
    size = np.minimum(float(np.clip(view.gap_px * 0.4, 4, 8)), length)[:, None]
    tip = np.column_stack([x1, y1])
    foot, across = tip - along * size, along[:, ::-1] * [1, -1] * size * 0.38
    back = view.axes.transData.inverted().transform
    triangles = np.stack([back(p) for p in (tip, foot + across, foot - across)], axis=1)
    lines = np.stack([tails, back(foot)], axis=1)
    halo = LineCollection(lines, colors=PAPER, linewidths=2.6, alpha=0.8, zorder=5)
    shafts = LineCollection(lines, colors=colors, linewidths=1.2, zorder=6)
    points = PolyCollection(
        triangles, facecolors=colors, edgecolors=PAPER, linewidths=0.4, zorder=7
    )
    dots = view.axes.scatter(tails[:, 0], tails[:, 1], s=6, c=colors, zorder=7, linewidths=0)
    dots.set_clip_on(True)
    for collection in (halo, shafts, points):
        view.axes.add_collection(collection, autolim=False)
    view.marks.add("message")
    _label_arrows(view, messages, tails, heads)


def _ends_of(view, message):
    """Tail and head of an arrow: from the sender's call to the end of the receive."""
    src, dst = view.row[message.src], view.row[message.dst]
    side = view.half if dst > src else -view.half
    return (
        (message.send.post_s * view.scale, src + side),
        (message.recv.end_s * view.scale, dst - side),
    )


def _label_arrows(view, messages, tails, heads):
    """Bytes in the gaps between lanes that an arrow passes, where no other arrow is hidden."""
    paths = [_points_along(view, *ends) for ends in zip(tails, heads, strict=True)]
    guarded = view.labels.keep_clear
    legible = view.gap_px >= view.labels.size("0 B")[1] + 4 and len(messages) <= MOST_ARROWS / 3
    for index, message in enumerate(messages if legible else ()):
        text = short_bytes(message.nbytes)
        if 5 * len(paths[index]) < 1.7 * view.labels.size(text)[0]:
            continue
        others = [p for i, p in enumerate(paths) if i != index]
        view.labels.keep_clear = np.vstack([guarded, *others])
        view.labels.place(text, _gap_spots(view, tails[index], heads[index]))
    view.labels.keep_clear = np.vstack([guarded, *paths])


def _points_along(view, tail, head):
    """Points of an arrow, 5 pixels apart, that a label must not hide."""
    x, y = view.px([tail[0], head[0]], [tail[1], head[1]])
    count = int(np.hypot(x[1] - x[0], y[1] - y[0]) / 5) + 2
    return np.column_stack([np.linspace(*x, count), np.linspace(*y, count)])[1:-1]


def _gap_spots(view, tail, head):
    """Where an arrow passes the gaps between lanes, nearest to its middle first (pixels)."""
    low, high = sorted((tail[1], head[1]))
    slack = max(0.0, view.gap_px - view.labels.size("0 B")[1]) / 2 / view.pitch_px
    gaps = np.arange(np.floor(low) + 0.5, high, 1.0)
    gaps = np.concatenate([gaps, gaps - slack, gaps + slack])
    gaps = gaps[np.argsort(np.abs(gaps - (low + high) / 2), kind="stable")]
    share = (gaps - tail[1]) / (head[1] - tail[1])
    return list(zip(*view.px(tail[0] + share * (head[0] - tail[0]), gaps), strict=True))


def _draw_stubs(view, messages):
    """A message that nobody received: a dashed line that ends in the next gap."""
    if not messages:
        return
    reach = 26 / DPI * (view.axes.get_xlim()[1] - view.axes.get_xlim()[0]) * DPI
    reach /= view.axes.get_window_extent(view.renderer).width
    lines = []
    for message in messages:
        src, way = view.row[message.src], np.sign(view.row[message.dst] - view.row[message.src])
        x, y = message.send.post_s * view.scale, src + way * view.half
        lines.append([(x, y), (min(x + reach, view.axes.get_xlim()[1]), src + way * 0.5)])
    colors = [mix(rank_color(m.src), "#000000", 0.3) for m in messages]
    dashed = LineCollection(
        lines, colors=colors, linewidths=1.4, linestyles=[(0, (2.5, 1.5))], zorder=6
    )
    view.axes.add_collection(dashed, autolim=False)
    ends = np.array([line[1] for line in lines])
    view.axes.scatter(
        ends[:, 0], ends[:, 1], s=14, facecolors=PAPER, edgecolors=colors, linewidths=1.1, zorder=7
    )
    view.marks.add("not received")


# Calls: the name of an op, inside its box


def _draw_calls(view):
    height = view.labels.size("recv")[1]
    if view.pitch_px * view.half * 2 < height or len(view.ops) > MOST_ARROWS:
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


# Frame: axis, names, title, legend, notes


def _draw_frame(view):
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
    signs = {
        "computing": Patch(fc=dark, ec=line, lw=0.6),
        "waiting": waiting,
        "in a call": Patch(fc=light, ec=line, lw=0.6),
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
    return {name: sign for name, sign in signs.items() if name in view.marks}
