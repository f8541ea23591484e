"""Collectives in a timeline: one band through all the lanes of the group."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import PolyCollection

from ..model.words import collective_text

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
