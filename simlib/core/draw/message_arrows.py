"""Messages in a timeline: arrows from the sender's lane to the receiver's."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection

from ..model.words import short_bytes
from .figures import DPI, PAPER
from .labels import MAX_ARROWS
from .palette import rank_color, visible


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
