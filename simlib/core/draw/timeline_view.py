"""The parts of a timeline and their places: figure, labels, arrows of messages, bands."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.font_manager import FontProperties

from ..model.trace import Message, Op
from ..model.words import short_bytes
from .figures import DPI, PAPER, SMALL_PT, new_picture
from .lanes import chosen, drawn_until, in_sight, unit_of
from .palette import rank_color, shades_of, visible
from .streams import MOST_RANKS, hidden_streams, streams_of
from .text import collective_text, count, kept_of

MAX_ARROWS = 300  # more arrows, bands or labels than this hide one another
BAND = "#00000016"
MAX_UPRIGHT = 8  # more collectives: a name across the lanes hides more than it tells
ARROWS_PER_GAP = 40
MAX_BOXES = 150  # per lane: above, the lane shows what the rank did most in each pixel
MAX_HATCHED = 600  # hatching is slow to draw
THINNEST_PX = 4  # of a lane with outlines: in a thinner one they would hide the fill


class View:
    """A figure that is being drawn, with the rows of its ranks and the places of its labels."""

    def __init__(self, run, width_in, ranks, between):
        self.run, self.trace = run, run.trace
        self.ranks, self.begin_s, self.end_s = chosen(run, ranks, between)
        begin_s, end_s = self.begin_s, self.end_s
        self._lay_out()
        self.ops = [o for o in self.trace if o.rank in self.row and in_sight(o, begin_s, end_s)]
        self.pieces = [p for p in self.trace.pieces if p.rank in self.row and self._sees(p)]
        self.shades = shades_of(self.trace)
        self.unit, self.scale = unit_of(self.end_s - self.begin_s)
        own = defaultdict(list)
        for op in self.ops:
            own[op.rank].append(op)
        self.until = {
            rank: drawn_until(self.trace, rank, own[rank], self.end_s) for rank in self.ranks
        }
        self.notes, self.in_legend = [], set()
        self._choose()
        self._make_axes(width_in)

    def _lay_out(self):
        """Give each rank a row, and its streams the rows below."""
        self.row, self.streams, self.names = {}, [], []
        for rank in self.ranks:
            self.row[rank] = len(self.names)
            self.names.append(f"rank {rank}")
            if len(self.ranks) <= MOST_RANKS:
                for name, states in streams_of(self.run, rank, self.begin_s, self.end_s).items():
                    self.streams.append((len(self.names), rank, states))
                    self.names.append(name)

    def _sees(self, piece):
        start_s, end_s = piece.span(self.end_s)
        return start_s <= self.end_s and end_s >= self.begin_s

    def _choose(self):
        """The parts that are drawn, and notes on the others."""
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
            self.notes.append("to zoom in, use timeline(between=(t0, t1))")
        if self.crowded:
            self.notes.insert(0, "each pixel of a lane shows what its rank did most")
        self.notes += hidden_streams(self.run, self.ranks)
        if self.trace.forgotten is not None:
            self.notes.append(kept_of(self.trace))
        if self.trace.dropped:
            self.notes.append(f"simlib did not record {count(self.trace.dropped, 'further op')}")

    def _first(self, things, noun, what):
        """The first things. Add a note if the view leaves out further things."""
        most = int(np.clip(ARROWS_PER_GAP * (len(self.ranks) - 1), 60, MAX_ARROWS))
        if len(things) > most:
            self.notes.append(f"{what} show the first {most} of {len(things):,} {noun}s")
        return things[:most]

    def _make_axes(self, width_in):
        lanes = max(1, len(self.names))
        pitch_in = float(np.interp(lanes, [1, 4, 8, 16, 64], [0.62, 0.56, 0.42, 0.28, 0.11]))
        pitch_in = min(pitch_in, 7.2 / lanes)
        self.half = float(np.interp(pitch_in, [0.11, 0.42], [0.36, 0.26]))  # of a lane, in pitches
        self.title_rows = 1 if width_in >= 8 else 2
        self.note = textwrap.fill("; ".join(self.notes), int(width_in * 16))
        note_in = 0.14 * len(self.note.splitlines())
        rows = self.title_rows + bool(self.streams)
        left = 0.95 if self.streams else 0.72
        top, bottom, right = 0.12 + 0.24 * rows, 0.48 + note_in, 0.2
        self.pitch_px = pitch_in * DPI
        self.gap_px = self.pitch_px * (1 - 2 * self.half)
        self.plain = self.crowded or self.pitch_px * self.half * 2 < THINNEST_PX
        self.hatched = self.hatched and not self.plain
        narrow = self.gap_px < 13 and any(not op.is_p2p for op in self.ops)
        self.strip_px = 16 if narrow else 0  # room for the names of collectives, above rank 0
        strip_in = self.strip_px / DPI
        height_in = lanes * pitch_in + strip_in + top + bottom
        self.figure = new_picture(width_in, height_in)
        self.renderer = self.figure.canvas.get_renderer()
        corner = left / width_in, bottom / height_in
        size = 1 - (left + right) / width_in, 1 - (top + bottom) / height_in
        self.axes = self.figure.add_axes([*corner, *size], facecolor=PAPER)
        room = 0.01 * (self.end_s - self.begin_s) * self.scale
        self.axes.set_xlim(self.begin_s * self.scale - room, self.end_s * self.scale + room)
        self.axes.set_ylim(lanes - 0.5, -0.5 - strip_in / pitch_in)
        self.labels = Labels(self)

    def px(self, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Data coordinates to pixels of the figure, arrays allowed."""
        points = self.axes.transData.transform(np.column_stack([np.ravel(x), np.ravel(y)]))
        return points[:, 0], points[:, 1]

    def x_of_end(self, op: Op) -> float:
        """The place of an op's end in the picture. For an open op, the right edge of its lane."""
        return op.ends_by(self.until[op.rank]) * self.scale


class Labels:
    """Places text so that it fits: inside the axes, and not over labels or protected parts.

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

    def size(self, text: str) -> tuple[float, float]:
        """Width and height of a label in pixels, with its margin."""
        if text not in self.sizes:
            measure = self.view.renderer.get_text_width_height_descent
            width, height, _ = measure(text, self.font, False)
            self.sizes[text] = width + 6, height + 3
        return self.sizes[text]

    def place(self, text: str, spots: Iterable[tuple[float, float]], upright: bool = False) -> bool:
        """Write the text centred on the first spot (pixels) on which it fits, or not at all."""
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


def draw_messages(view: View) -> None:
    """Draw the arrows of a view's messages, with their bytes if there is space."""
    arrows: list[Message] = []
    not_received: list[Message] = []
    for message in view.messages:
        arrived = message.recv is not None and message.recv.done
        (arrows if arrived else not_received).append(message)
    _draw_arrows(view, arrows)
    _draw_not_received(view, not_received)


def _draw_arrows(view, messages):
    if not messages:
        return
    tails, heads = (np.array(p) for p in zip(*(_ends_of(view, m) for m in messages), strict=True))
    colors = [visible(rank_color(m.src), 0.3) for m in messages]
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
    view.in_legend.add("message")
    _label_arrows(view, messages, tails, heads)


def _ends_of(view, message):
    """Tail and head of an arrow. It goes from the sender's call to the end of the receive."""
    src, dst = view.row[message.src], view.row[message.dst]
    side = view.half if dst > src else -view.half
    return (
        (message.send.post_s * view.scale, src + side),
        (message.recv.end_s * view.scale, dst - side),
    )


def _label_arrows(view, messages, tails, heads):
    """Write bytes into the gaps between lanes that an arrow passes, without hiding other arrows."""
    paths = [_points_along(view, *ends) for ends in zip(tails, heads, strict=True)]
    kept_clear = view.labels.keep_clear
    legible = view.gap_px >= view.labels.size("0 B")[1] + 4 and len(messages) <= MAX_ARROWS / 3
    for index, message in enumerate(messages if legible else ()):
        text = short_bytes(message.nbytes)
        if 5 * len(paths[index]) < 1.7 * view.labels.size(text)[0]:
            continue
        others = [p for i, p in enumerate(paths) if i != index]
        view.labels.keep_clear = np.vstack([kept_clear, *others])
        view.labels.place(text, _gap_spots(view, tails[index], heads[index]))
    view.labels.keep_clear = np.vstack([kept_clear, *paths])


def _points_along(view, tail, head):
    """Points of an arrow, 5 pixels apart, that a label must not hide."""
    x, y = view.px([tail[0], head[0]], [tail[1], head[1]])
    count = int(np.hypot(x[1] - x[0], y[1] - y[0]) / 5) + 2
    return np.column_stack([np.linspace(*x, count), np.linspace(*y, count)])[1:-1]


def _gap_spots(view, tail, head):
    """The places at which an arrow passes gaps between lanes, middle first (pixels)."""
    low, high = sorted((tail[1], head[1]))
    slack = max(0.0, view.gap_px - view.labels.size("0 B")[1] - 4) / 2 / view.pitch_px
    gaps = np.arange(np.floor(low) + 0.5, high, 1.0)
    gaps = np.concatenate([gaps, gaps - slack, gaps + slack])
    gaps = gaps[np.argsort(np.abs(gaps - (low + high) / 2), kind="stable")]
    share = (gaps - tail[1]) / (head[1] - tail[1])
    return list(zip(*view.px(tail[0] + share * (head[0] - tail[0]), gaps), strict=True))


def _draw_not_received(view, messages):
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
    colors = [visible(rank_color(m.src), 0.3) for m in messages]
    dashed = LineCollection(
        lines, colors=colors, linewidths=1.4, linestyles=[(0, (2.5, 1.5))], zorder=6
    )
    view.axes.add_collection(dashed, autolim=False)
    ends = np.array([line[1] for line in lines])
    view.axes.scatter(
        ends[:, 0], ends[:, 1], s=14, facecolors=PAPER, edgecolors=colors, linewidths=1.1, zorder=7
    )
    view.in_legend.add("not received")


def draw_collectives(view: View) -> None:
    """Draw and name the bands of a view's collectives."""
    shown = []
    for collective in view.collectives:
        ops = [op for rank, op in collective.ops.items() if rank in view.row]
        if ops:
            shown.append((collective, sorted(ops, key=lambda op: view.row[op.rank])))
    parts = [part for _, ops in shown for part in _parts_between(view, ops)]
    if parts:
        bands = PolyCollection(
            parts,
            facecolors=BAND,
            edgecolors="#00000055",
            linewidths=0.3 if view.crowded else 0.5,
            zorder=1,
        )
        view.axes.add_collection(bands, autolim=False)
        view.in_legend.add("collective")
    for collective, ops in shown:
        _label_collective(view, collective, ops)


def _parts_between(view, ops):
    """The quadrilaterals that join the ops of neighbouring members, from call to end."""
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
    elif len(view.collectives) > MAX_UPRIGHT:
        return
    elif x[2] - x[1] > height and (rows[-1] - rows[0]) * view.pitch_px > width:
        view.labels.place(text, [(x[0], y[0])], upright=True)


def _band_spots(view, ops, width):
    """The middles of the band in the gaps between lanes, if it is wide enough (pixels)."""
    spots = []
    if view.gap_px < view.labels.size("0 B")[1] - 2:
        return spots
    for (a, y_a), (b, _), (c, y_b), (d, _) in _parts_between(view, ops):
        for gap in np.arange(np.floor(y_a) + 0.5, y_b, 1.0):
            share = (gap - y_a) / (y_b - y_a)
            left, right = a + share * (d - a), b + share * (c - b)
            x, y = view.px([(left + right) / 2, left, right], [gap] * 3)
            if x[2] - x[1] > 0.8 * width:
                spots.append((x[0], y[0]))
    return spots
