"""The rounds lab: step through an all_reduce, and see the ranks whose data are in each chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.collections import LineCollection

from ...core.collectives import schedule
from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT
from ...core.draw.palette import mix, rank_color
from ...core.model.errors import InvalidCallError
from . import pen
from .sliders import Layers, View, lab_of, menu, picture, slider, whole_numbers


@dataclass(frozen=True, eq=False)
class Steps:
    """The schedule of an all_reduce, and which ranks' contributions are in each sum after each
    round.

    Attributes
    ----------
    held : tuple of ndarray of bool, shape (n, chunks, n)
        ``held[k][r, c, s]`` is True if rank r's sum of chunk c includes the data of rank s after k
        rounds.
    sent : tuple of ndarray of float, shape (n,)
        ``sent[k]``: the data that each rank has sent after k rounds, in vectors.
    rounds : tuple of Round
    """

    held: tuple
    sent: tuple
    rounds: tuple

    @property
    def n(self):
        """Number of ranks."""
        return len(self.sent[0])

    @property
    def chunks(self):
        """Number of chunks of the vector."""
        return self.held[0].shape[1]


@cache
def steps_of(algorithm, n):
    """The `Steps` of an all_reduce of a vector that divides evenly."""
    plan = schedule("all_reduce", n, n << n.bit_length(), algorithm)
    chunks = len(plan.chunk_nbytes)
    held = [np.repeat(np.eye(n, dtype=bool)[:, None, :], chunks, axis=1)]
    sent = [np.zeros(n)]
    for round_ in plan.rounds:
        before, after, more = held[-1], held[-1].copy(), sent[-1].copy()
        for src, dst, run, adds in messages_of(round_, chunks):
            coming = before[src, run]
            after[dst, run] = before[dst, run] | coming if adds else coming
        np.add.at(more, round_.src, round_.nbytes / plan.nbytes)
        held.append(after)
        sent.append(more)
    return Steps(tuple(held), tuple(sent), plan.rounds)


def messages_of(round_, chunks):
    """The messages of a round: sender, receiver, chunks, and whether the receiver adds the
    chunks."""
    columns = (round_.src, round_.dst, round_.first, round_.count, round_.adds)
    for src, dst, first, count, adds in zip(*columns, strict=True):
        yield int(src), int(dst), (first + np.arange(count)) % chunks, bool(adds)


# -- what a round changes: cells, messages, bars of bytes ------------------------------------------

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 9.0, 0.72, 0.25, 0.64, 0.46  # inches
BARS_WIDTH, BARS_GAP = 1.9, 0.35
ROW, CELL, WIDEST_CELL = 0.46, 0.36, 1.7
BAR = 0.2
SLOTS = WIDTH - LEFT - RIGHT - BARS_WIDTH - BARS_GAP  # room for all chunks
PARTIAL = 0.62  # share of white in a sum that is not yet complete


class Grid:
    """The places of parts in inches: cells, the slots of cells, and the bars."""

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
        column, row = owner % self.in_a_row, owner // self.in_a_row
        return x + column * self.slot_width, y + row * self.slot_height


def draw_cells(grid, steps, rounds_done):
    held = steps.held[rounds_done]
    is_whole = held.all(axis=2)
    rank, chunk, owner = np.nonzero(held)
    x, y = grid.slots(rank, chunk, owner)
    strength = np.where(is_whole[rank, chunk], 0.0, PARTIAL)
    colors = [
        mix(rank_color(who), PAPER, share) for who, share in zip(owner, strength, strict=True)
    ]
    slots = pen.boxes_at(x, y, grid.slot_width, grid.slot_height)
    middle = x + grid.slot_width / 2, y + grid.slot_height / 2
    rank, chunk = np.indices(is_whole.shape).reshape(2, -1)
    frames = pen.boxes_at(*grid.corner(rank, chunk), grid.cell, CELL)
    edges = [INK if whole else "#aaaaaa" for whole in is_whole.flat]
    widths = [1.6 if whole else 0.7 for whole in is_whole.flat]
    return [
        pen.add_boxes(grid.axes, slots, 2, facecolors=colors, edgecolors=PAPER, linewidths=0.5),
        *pen.add_numbers(grid.axes, *middle, owner, colors),
        pen.add_boxes(grid.axes, frames, 3, facecolors="none", edgecolors=edges, linewidths=widths),
    ]


def draw_messages(grid, steps, rounds_done):
    """Draw the messages of a round in gaps next to their chunks, and the data that they brought."""
    messages = list(messages_of(steps.rounds[rounds_done - 1], grid.chunks))
    in_gap = {}
    for message in messages:
        _, _, run, _ = message
        # Of the gaps next to its chunks, the gap with the fewest arrows so far.
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
    frames = pen.boxes_at(x - 0.035, y - 0.035, grid.cell + 0.07, CELL + 0.07)
    colors = [_dark(who) for who in src]
    return [
        pen.add_boxes(grid.axes, frames, 3, facecolors="none", edgecolors=colors, linewidths=2),
        *_draw_arrows(grid, *(np.array(column) for column in zip(*places, strict=True))),
    ]


def _draw_arrows(grid, x, src, dst):
    """Draw vertical arrows from row to row, with dots, lines and heads."""
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
        pen.add_boxes(grid.axes, points, 5, facecolors=colors, linewidths=0),
        grid.axes.scatter(x, start, s=16, c=colors, linewidths=0, zorder=5),
    ]


def _dark(rank):
    return mix(rank_color(rank), "#000000", 0.2)


def draw_bars(grid, sent):
    """Draw the data that each rank has sent so far, in vectors."""
    ranks = np.arange(grid.n)
    y, ends = grid.middle(ranks), grid.bars + sent * grid.bar_scale
    boxes = pen.boxes_at(np.full(grid.n, grid.bars), y - BAR / 2, ends - grid.bars, BAR)
    colors = {"facecolors": list(map(rank_color, ranks)), "edgecolors": list(map(_dark, ranks))}
    bars = pen.add_boxes(grid.axes, boxes, 2.5, linewidths=0.6, **colors)
    halo = {"fc": PAPER, "ec": "none", "pad": 0.8}
    looks = {"fontsize": SMALL_PT, "va": "center", "bbox": halo, "zorder": 4}
    each = zip(ends, y, sent, strict=True)
    values = [grid.axes.text(x + 0.06, at, f"{vectors:.3g}", **looks) for x, at, vectors in each]
    at = grid.bars + grid.bound * grid.bar_scale
    low, high = grid.middle(-0.5), grid.middle(grid.n - 0.5)
    return [bars, *values, *grid.axes.plot([at] * 2, [low, high], color=INK, lw=1, ls="--")]


# -- the lab ---------------------------------------------------------------------------------------

NAMES = {
    "naive": "naive",
    "binomial": "tree (binomial)",
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "rabenseifner": "Rabenseifner",
}
MAX_RANKS = 8


@picture
def draw_rounds(algorithm: str = "ring", n: int = 4, rounds_done: int = 0) -> View:
    """Draw which contributions each rank has summed in each chunk, after rounds of an all_reduce.

    A cell lists the ranks whose contributions are in the sum. Arrows are the messages of the last
    round. Bars on the right show the data that each rank has sent so far. A line shows the lower
    bound of 2 (n-1)/n of the data.

    Parameters
    ----------
    algorithm : {"naive", "binomial", "ring", "recursive_doubling", "rabenseifner"}
    n : int
        Number of ranks, 2 to 8.
    rounds_done : int
        The number of rounds that are over. 0 shows the beginning.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        The algorithm is unknown, or the number of ranks or rounds is out of range.
    """
    return _Rounds(), algorithm, n, rounds_done


rounds_lab = lab_of(draw_rounds, "controls for algorithm, ranks and rounds")


class _Rounds(Layers):
    """The vectors of all ranks. Names of rows and columns, the explanation and the bound stay."""

    controls = {
        "algorithm": menu("algorithm", {text: name for name, text in NAMES.items()}),
        "n": slider("ranks", range(2, MAX_RANKS + 1), only=True),
        "rounds_done": whole_numbers("rounds done", 0, 0),
    }

    def check(self, algorithm, n, rounds_done):
        super().check(algorithm, n, rounds_done)
        last = len(steps_of(algorithm, n).rounds)
        if rounds_done not in range(last + 1):
            raise InvalidCallError(
                f"rounds_done is {rounds_done!r}: give a number from 0 to {last}, because "
                f"{NAMES[algorithm]} on {n} ranks has {last} rounds"
            )

    def tie(self, widgets):
        """Let the slider of rounds end with the algorithm's last round."""
        algorithm, ranks, rounds = widgets.values()

        def set_last(_change=None):
            steps = steps_of(algorithm.value, ranks.value)
            rounds.max = len(steps.rounds)  # a larger value follows

        for control in (algorithm, ranks):
            control.observe(set_last, names="value")
        set_last()

    def background_state(self, algorithm, n, rounds_done):
        return algorithm, n

    def background(self, algorithm, n):
        grid = Grid(steps_of(algorithm, n))
        figure, grid.axes = pen.picture_in_inches(WIDTH, grid.height)
        _write_names(grid)
        _draw_bound(grid)
        return figure

    def foreground(self, figure, algorithm, n, rounds_done):
        """Draw the parts that a round changes: cells, messages, bytes sent, the title."""
        steps = steps_of(algorithm, n)
        grid = Grid(steps, figure.axes[0])
        title = f"all_reduce on {n} ranks by {NAMES[algorithm]}: {_moment(steps, rounds_done)}"
        return [
            *pen.write_head(grid.axes, title),
            *draw_cells(grid, steps, rounds_done),
            *(draw_messages(grid, steps, rounds_done) if rounds_done else ()),
            *draw_bars(grid, steps.sent[rounds_done]),
        ]


def _draw_bound(grid):
    """Draw the name of the bound, and the line where the bars begin."""
    low, high = grid.middle(-0.5), grid.middle(grid.n - 0.5)
    grid.axes.plot([grid.bars] * 2, [low, high], color=GREY, lw=0.8)
    at, name = grid.bars + grid.bound * grid.bar_scale, f"2(n-1)/n = {grid.bound:.3g}"
    grid.axes.text(at, high + 0.06, name, fontsize=SMALL_PT, ha="center", va="top")


def _write_names(grid):
    """Write the names of rows and columns, and how to read the picture."""
    axes = grid.axes
    head = {"fontsize": TEXT_PT, "va": "bottom", "color": INK}
    for chunk in range(grid.chunks):
        name = f"chunk {chunk}" if grid.chunks > 1 else "the whole vector"
        x, _ = grid.corner(0, chunk)
        axes.text(x + grid.cell / 2, TOP - 0.03, name, ha="center", **head)
    axes.text(grid.bars, TOP - 0.03, "sent so far (vectors)", ha="left", **head)
    for rank in range(grid.n):
        y = grid.middle(rank)
        axes.text(LEFT - 0.12, y, f"rank {rank}", fontsize=TEXT_PT, ha="right", va="center")
        axes.plot(0.12, y, "s", ms=6, color=rank_color(rank))
    note = (
        "a number in a cell: what this rank brought is in the sum; full colour: "
        "the sum is complete; coloured frame: received in this round"
    )
    axes.text(0.1, grid.height - 0.08, note, fontsize=SMALL_PT, color="#555555", va="bottom")


def _moment(steps, rounds_done):
    """The round, and the effect of its messages, in words."""
    last = len(steps.rounds)
    if not rounds_done:
        return f"before the first of {last} rounds"
    adds = steps.rounds[rounds_done - 1].adds
    what = "added" if adds.all() else "put in place" if not adds.any() else "added or put in place"
    return f"after round {rounds_done} of {last}; what came was {what}"
