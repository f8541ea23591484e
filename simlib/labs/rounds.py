"""The rounds lab: step through an all_reduce, seeing whose parts each rank has of each chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from ..collectives import schedule
from ..errors import InvalidCallError
from ..figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, own_style
from ..palette import mix, rank_color
from ._lab import Lab, check_choice, counter, menu, slider

NAMES = {
    "naive": "naive",
    "binomial": "tree (binomial)",
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "rabenseifner": "Rabenseifner",
}
MOST_RANKS = 8
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 9.0, 0.72, 0.25, 0.64, 0.46  # inches
BARS_WIDTH, BARS_GAP = 1.9, 0.35
ROW, CELL, WIDEST_CELL = 0.46, 0.36, 1.7
BAR = 0.2
SLOTS = WIDTH - LEFT - RIGHT - BARS_WIDTH - BARS_GAP  # room for all chunks
DIGIT_PT = 7.5
PARTIAL = 0.62  # share of white in a sum that is not yet complete


@dataclass(frozen=True, eq=False)
class Steps:
    """An all_reduce as its schedule has it, carried out on sets of contributions.

    Attributes
    ----------
    held : tuple of ndarray of bool, shape (n, chunks, n)
        ``held[k][r, c, s]``: after k rounds the sum that rank r has of chunk c holds what rank s
        brought.
    sent : tuple of ndarray of float, shape (n,)
        After k rounds: what each rank has sent, in whole vectors.
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
    """The messages of a round: sender, receiver, its chunks, whether they are added."""
    columns = (round_.src, round_.dst, round_.first, round_.count, round_.adds)
    for src, dst, first, count, adds in zip(*columns, strict=True):
        yield int(src), int(dst), (first + np.arange(count)) % chunks, bool(adds)


@own_style
def draw_rounds(algorithm="ring", n=4, rounds_done=0):
    """Draw what every rank holds of every chunk after some rounds of an all_reduce.

    In a cell stands which ranks' contributions are summed in it; arrows are the messages of the
    last round. On the right is what each rank has sent so far, beside the bound 2 (n-1)/n.

    Parameters
    ----------
    algorithm : {"naive", "binomial", "ring", "recursive_doubling", "rabenseifner"}
    n : int
        Number of ranks, 2 to 8.
    rounds_done : int
        0 for the beginning.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        Another algorithm, number of ranks or of rounds.
    """
    check_choice("algorithm", algorithm, NAMES)
    check_choice("n", n, range(2, MOST_RANKS + 1))
    steps = steps_of(algorithm, n)
    if rounds_done not in range(len(steps.rounds) + 1):
        raise InvalidCallError(
            f"rounds_done is {rounds_done!r}: {NAMES[algorithm]} on {n} ranks "
            f"has rounds 1 to {len(steps.rounds)}, and 0 is before them"
        )
    grid = _Grid(steps)
    _draw_cells(grid, steps, rounds_done)
    if rounds_done:
        _draw_arrows(grid, steps, rounds_done)
    _draw_bars(grid, steps.sent[rounds_done], max(map(max, steps.sent)))
    _write(grid, algorithm, steps, rounds_done)
    return grid.figure


def rounds_lab(algorithm="ring", n=4, rounds_done=0):
    """The picture of `draw_rounds` with controls for algorithm, ranks and rounds.

    Parameters
    ----------
    algorithm, n, rounds_done
        As for `draw_rounds`; where the controls stand first.

    Returns
    -------
    Lab
    """
    draw_rounds(algorithm, n, rounds_done)  # refuses what cannot be drawn
    names = menu("algorithm", {text: name for name, text in NAMES.items()}, algorithm)
    ranks = slider("ranks", range(2, MOST_RANKS + 1), n)
    rounds = counter("rounds done", len(steps_of(algorithm, n).rounds), rounds_done)

    def set_last(_change):
        rounds.max = len(steps_of(names.value, ranks.value).rounds)  # a larger value follows

    for control in (names, ranks):
        control.observe(set_last, names="value")
    return Lab(draw_rounds, {"algorithm": names, "n": ranks, "rounds_done": rounds})


class _Grid:
    """A figure in inches, row by row: where cells, their slots and the bars are."""

    def __init__(self, steps):
        self.n, self.chunks = steps.n, steps.chunks
        self.height = TOP + ROW * self.n + BOTTOM
        self.figure = Picture(figsize=(WIDTH, self.height), dpi=DPI, facecolor=PAPER)
        self.axes = self.figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
        self.axes.set_xlim(0, WIDTH)
        self.axes.set_ylim(self.height, 0)
        self.axes.set_axis_off()
        self.pitch = SLOTS / self.chunks
        self.cell = min(0.74 * self.pitch, WIDEST_CELL)
        self.in_a_row = self.n if self.n <= 4 else (self.n + 1) // 2
        self.slot_width = self.cell / self.in_a_row
        self.slot_height = CELL if self.n <= 4 else CELL / 2
        self.bars = LEFT + SLOTS + BARS_GAP

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


def _draw_cells(grid, steps, rounds_done):
    held = steps.held[rounds_done]
    is_whole = held.all(axis=2)
    rank, chunk, owner = np.nonzero(held)
    x, y = grid.slots(rank, chunk, owner)
    strength = np.where(is_whole[rank, chunk], 0.0, PARTIAL)
    colors = [
        mix(rank_color(who), PAPER, share) for who, share in zip(owner, strength, strict=True)
    ]
    grid.axes.add_collection(
        PolyCollection(
            _boxes(x, y, grid.slot_width, grid.slot_height),
            facecolors=colors,
            edgecolors=PAPER,
            linewidths=0.5,
            zorder=2,
        ),
        autolim=False,
    )
    _draw_digits(grid, x + grid.slot_width / 2, y + grid.slot_height / 2, owner, colors)
    rank, chunk = np.indices(is_whole.shape).reshape(2, -1)
    frames = _boxes(*grid.corner(rank, chunk), grid.cell, CELL)
    edges = [INK if is_whole[where] else "#aaaaaa" for where in zip(rank, chunk, strict=True)]
    widths = [1.6 if is_whole[where] else 0.7 for where in zip(rank, chunk, strict=True)]
    grid.axes.add_collection(
        PolyCollection(frames, facecolors="none", edgecolors=edges, linewidths=widths, zorder=3),
        autolim=False,
    )


def _boxes(x, y, width, height):
    """Rectangles with these upper left corners: array (count, 4, 2)."""
    xs, ys = np.stack([x, x + width, x + width, x], 1), np.stack([y, y, y + height, y + height], 1)
    return np.stack([xs, ys], axis=2)


def _draw_digits(grid, x, y, owner, colors):
    """The rank's number in each slot. One collection for each number: many texts would be slow."""
    for who in range(grid.n):
        here = owner == who
        inks = [_ink_on(color) for color, is_here in zip(colors, here, strict=True) if is_here]
        digits = PathCollection(
            [_digit(who)],
            offsets=np.column_stack([x[here], y[here]]),
            offset_transform=grid.axes.transData,
            facecolors=inks,
            linewidths=0,
            zorder=4,
        )
        digits.set_transform(Affine2D().scale(DPI / 72))
        grid.axes.add_collection(digits, autolim=False)


@cache
def _digit(number):
    """The outline of a digit, in points, around its middle."""
    path = TextPath((0, 0), str(number), size=DIGIT_PT)
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


def _ink_on(color):
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else PAPER


def _draw_arrows(grid, steps, rounds_done):
    """The messages of a round, in the gaps beside the chunks they carry."""
    messages = list(messages_of(steps.rounds[rounds_done - 1], grid.chunks))
    received = []
    in_gap = {}
    for message in messages:
        _, _, run, _ = message
        # The gap with the fewest arrows so far, of those beside its chunks.
        gap = min(run, key=lambda chunk: (len(in_gap.get(chunk, ())), chunk))
        in_gap.setdefault(gap, []).append(message)
    for gap, here in in_gap.items():
        left = LEFT + gap * grid.pitch + grid.cell
        room = min(grid.pitch - grid.cell, 0.38 * (len(here) + 1))
        for number, (src, dst, run, _) in enumerate(here):
            x = left + room * (number + 1) / (len(here) + 1)
            _draw_arrow(grid, x, src, dst)
            received += [(dst, chunk, src) for chunk in run]
    rank, chunk, src = (np.array(column) for column in zip(*received, strict=True))
    x, y = grid.corner(rank, chunk)
    grid.axes.add_collection(
        PolyCollection(
            _boxes(x - 0.035, y - 0.035, grid.cell + 0.07, CELL + 0.07),
            facecolors="none",
            edgecolors=[mix(rank_color(who), "#000000", 0.2) for who in src],
            linewidths=2,
            zorder=3,
        ),
        autolim=False,
    )


def _draw_arrow(grid, x, src, dst):
    color = mix(rank_color(src), "#000000", 0.2)
    grid.axes.annotate(
        "",
        (x, grid.middle(dst)),
        xytext=(x, grid.middle(src)),
        arrowprops={
            "arrowstyle": "-|>",
            "color": color,
            "lw": 1.5,
            "mutation_scale": 11,
            "shrinkA": 0,
            "shrinkB": 0,
        },
        zorder=5,
    )
    grid.axes.plot(x, grid.middle(src), "o", color=color, ms=4, zorder=5)


def _draw_bars(grid, sent, most):
    """What each rank has sent so far, in vectors, beside the bound."""
    bound = 2 * (grid.n - 1) / grid.n
    scale = (BARS_WIDTH - 0.35) / max(most, bound)
    for rank, vectors in enumerate(sent):
        y = grid.middle(rank)
        box = {"height": BAR, "left": grid.bars, "lw": 0.6}
        dark = mix(rank_color(rank), "#000000", 0.25)
        grid.axes.barh(y, vectors * scale, color=rank_color(rank), ec=dark, zorder=2, **box)
        end = grid.bars + vectors * scale + 0.06
        halo = {"fc": PAPER, "ec": "none", "pad": 0.8}
        grid.axes.text(
            end, y, f"{vectors:.3g}", fontsize=SMALL_PT, va="center", bbox=halo, zorder=4
        )
    low, high = grid.middle(0) - ROW / 2, grid.middle(grid.n - 1) + ROW / 2
    grid.axes.plot([grid.bars] * 2, [low, high], color=GREY, lw=0.8)
    at = grid.bars + bound * scale
    grid.axes.plot([at] * 2, [low, high + 0.04], color=INK, lw=1, ls="--", zorder=3)
    grid.axes.text(
        at, high + 0.06, f"2(n-1)/n = {bound:.3g}", fontsize=SMALL_PT, ha="center", va="top"
    )


def _write(grid, algorithm, steps, rounds_done):
    """Title, names of rows and columns, and how to read it."""
    axes, last = grid.axes, len(steps.rounds)
    title = f"all_reduce on {grid.n} ranks by {NAMES[algorithm]}: "
    axes.text(0.1, 0.1, title + _moment(steps, rounds_done), fontsize=TITLE_PT, va="top")
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
    note = "a number in a cell: what this rank brought is in the sum"
    note += "; full colour, black frame: the sum is complete"
    if 0 < rounds_done <= last:
        note += "; coloured frame: received in this round"
    axes.text(0.1, grid.height - 0.08, note, fontsize=SMALL_PT, color="#555555", va="bottom")


def _moment(steps, rounds_done):
    """Which round, and what became of its messages, in words."""
    last = len(steps.rounds)
    if not rounds_done:
        return f"before the first of {last} rounds"
    adds = steps.rounds[rounds_done - 1].adds
    what = "added" if adds.all() else "put in place" if not adds.any() else "added or put in place"
    return f"after round {rounds_done} of {last}; what came was {what}"
