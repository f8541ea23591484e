"""What a round of an all_reduce changes in its picture: cells, messages, bars of bytes."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection

from ...core.draw.figures import INK, PAPER, SMALL_PT
from ...core.draw.palette import mix, rank_color
from .boxes import add_boxes, add_numbers, boxes_at
from .contributions import messages_of

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 9.0, 0.72, 0.25, 0.64, 0.46  # inches
BARS_WIDTH, BARS_GAP = 1.9, 0.35
ROW, CELL, WIDEST_CELL = 0.46, 0.36, 1.7
BAR = 0.2
SLOTS = WIDTH - LEFT - RIGHT - BARS_WIDTH - BARS_GAP  # room for all chunks
PARTIAL = 0.62  # share of white in a sum that is not yet complete


class Grid:
    """Where things are, in inches, row by row: cells, their slots and the bars."""

    def __init__(self, steps, axes=None):
        self.axes = axes
        self.n, self.chunks = steps.n, steps.chunks
        self.height = TOP + ROW * self.n + BOTTOM
        self.pitch = SLOTS / self.chunks
        self.cell = min(0.74 * self.pitch, WIDEST_CELL)
        self.in_a_row = self.n if self.n <= 4 else (self.n + 1) // 2
        self.slot_width = self.cell / self.in_a_row
        self.slot_height = CELL if self.n <= 4 else CELL / 2
        self.bars = LEFT + SLOTS + BARS_GAP
        self.bound = 2 * (self.n - 1) / self.n
        self.bar_scale = (BARS_WIDTH - 0.35) / max(self.bound, steps.sent[-1].max())

    def corner(self, rank, chunk):
        """The upper left corner of a cell."""
        return LEFT + chunk * self.pitch, TOP + rank * ROW + (ROW - CELL) / 2

    def middle(self, rank):
        """The height of a rank's row."""
        return TOP + (rank + 0.5) * ROW

    def slots(self, rank, chunk, owner):
        """The upper left corners of slots, arrays allowed."""
        x, y = self.corner(rank, chunk)
        return (
            x + owner % self.in_a_row * self.slot_width,
            y + owner // self.in_a_row * self.slot_height,
        )


def draw_cells(grid, steps, rounds_done):
    held = steps.held[rounds_done]
    is_whole = held.all(axis=2)
    rank, chunk, owner = np.nonzero(held)
    x, y = grid.slots(rank, chunk, owner)
    strength = np.where(is_whole[rank, chunk], 0.0, PARTIAL)
    colors = [
        mix(rank_color(who), PAPER, share) for who, share in zip(owner, strength, strict=True)
    ]
    slots = boxes_at(x, y, grid.slot_width, grid.slot_height)
    rank, chunk = np.indices(is_whole.shape).reshape(2, -1)
    frames = boxes_at(*grid.corner(rank, chunk), grid.cell, CELL)
    edges = [INK if whole else "#aaaaaa" for whole in is_whole.flat]
    widths = [1.6 if whole else 0.7 for whole in is_whole.flat]
    return [
        add_boxes(grid.axes, slots, 2, facecolors=colors, edgecolors=PAPER, linewidths=0.5),
        *add_numbers(grid.axes, x + grid.slot_width / 2, y + grid.slot_height / 2, owner, colors),
        add_boxes(grid.axes, frames, 3, facecolors="none", edgecolors=edges, linewidths=widths),
    ]


def draw_messages(grid, steps, rounds_done):
    """The messages of a round in the gaps beside the chunks they carry, and what they brought."""
    messages = list(messages_of(steps.rounds[rounds_done - 1], grid.chunks))
    in_gap = {}
    for message in messages:
        _, _, run, _ = message
        # The gap with the fewest arrows so far, of those beside its chunks.
        gap = min(run, key=lambda chunk: (len(in_gap.get(chunk, ())), chunk))
        in_gap.setdefault(gap, []).append(message)
    places = []  # x, src, dst
    for gap, here in in_gap.items():
        left = LEFT + gap * grid.pitch + grid.cell
        room = min(grid.pitch - grid.cell, 0.38 * (len(here) + 1))
        for number, (src, dst, _, _) in enumerate(here):
            places.append((left + room * (number + 1) / (len(here) + 1), src, dst))
    received = [(dst, chunk, src) for src, dst, run, _ in messages for chunk in run]
    rank, chunk, src = (np.array(column) for column in zip(*received, strict=True))
    x, y = grid.corner(rank, chunk)
    frames = boxes_at(x - 0.035, y - 0.035, grid.cell + 0.07, CELL + 0.07)
    colors = [_dark(who) for who in src]
    return [
        add_boxes(grid.axes, frames, 3, facecolors="none", edgecolors=colors, linewidths=2),
        *_draw_arrows(grid, *(np.array(column) for column in zip(*places, strict=True))),
    ]


def _draw_arrows(grid, x, src, dst):
    """Upright arrows from row to row: dots, lines and points."""
    colors = [_dark(who) for who in src]
    start, end = grid.middle(src), grid.middle(dst)
    foot = end - np.sign(end - start) * 0.09
    lines = np.stack([np.stack([x, start], 1), np.stack([x, foot], 1)], axis=1)
    shafts = LineCollection(lines, colors=colors, linewidths=1.5, zorder=5)
    corners = [(x, end), (x - 0.045, foot), (x + 0.045, foot)]
    points = np.stack([np.stack(corner, 1) for corner in corners], axis=1)
    grid.axes.add_collection(shafts, autolim=False)
    return [
        shafts,
        add_boxes(grid.axes, points, 5, facecolors=colors, linewidths=0),
        grid.axes.scatter(x, start, s=16, c=colors, linewidths=0, zorder=5),
    ]


def _dark(rank):
    return mix(rank_color(rank), "#000000", 0.2)


def draw_bars(grid, sent):
    """What each rank has sent so far, in vectors."""
    ranks = np.arange(grid.n)
    y, ends = grid.middle(ranks), grid.bars + sent * grid.bar_scale
    boxes = boxes_at(np.full(grid.n, grid.bars), y - BAR / 2, ends - grid.bars, BAR)
    bars = add_boxes(
        grid.axes,
        boxes,
        2.5,
        facecolors=[rank_color(rank) for rank in ranks],
        edgecolors=[_dark(rank) for rank in ranks],
        linewidths=0.6,
    )
    halo = {"fc": PAPER, "ec": "none", "pad": 0.8}
    looks = {"fontsize": SMALL_PT, "va": "center", "bbox": halo, "zorder": 4}
    each = zip(ends, y, sent, strict=True)
    values = [grid.axes.text(x + 0.06, at, f"{vectors:.3g}", **looks) for x, at, vectors in each]
    at = grid.bars + grid.bound * grid.bar_scale
    low, high = grid.middle(-0.5), grid.middle(grid.n - 0.5)
    return [bars, *values, *grid.axes.plot([at] * 2, [low, high], color=INK, lw=1, ls="--")]
