"""What lies over the lanes of a timeline: pieces of work, messages, collectives."""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection

from ..model.words import collective_text, short_bytes
from .figures import DPI, PAPER, SMALL_PT
from .lanes import mostly
from .palette import (
    INK_THAT_STAYS,
    PAPER_THAT_STAYS,
    contrast,
    on_dark,
    rank_color,
    shaded,
    visible,
)

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


def draw_messages(view):
    """Draw the arrows of a view's messages, with their bytes where there is room."""
    arrows, not_received = [], []
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
    """Where an arrow passes the gaps between lanes, nearest to its middle first (pixels)."""
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


MAX_ARROWS = 300  # more arrows, bands or labels than this hide one another
BAND = "#00000016"
MAX_UPRIGHT = 8  # more collectives: a name across the lanes hides more than it tells


def draw_collectives(view):
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
    elif len(view.collectives) > MAX_UPRIGHT:
        return
    elif x[2] - x[1] > height and (rows[-1] - rows[0]) * view.pitch_px > width:
        view.labels.place(text, [(x[0], y[0])], upright=True)


def _band_spots(view, ops, width):
    """The middles of the band in the gaps between lanes, where it is wide enough (pixels)."""
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
