"""Pictures of one sequence on many ranks, and of tokens that travel to experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT
from ...core.draw.palette import mix, rank_color, visible
from . import pen

WIDTH = 9.0  # inches, as all lengths here
LIGHTER = 0.4
"""Share of white in the colour of a rank under a word."""
NOTE = "#555555"
CENTRED = {"ha": "center", "va": "center"}

Cut = Callable[[int, int], tuple[int, int]]


def _light(rank):
    return mix(rank_color(rank), PAPER, LIGHTER)


def _box(axes, place, color, text="", size=TEXT_PT, **looks):
    """A box at a place (left, top, width, height), and a word in its middle."""
    x, y, width, height = place
    looks = {"edgecolor": PAPER, "linewidth": 0.8} | looks
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, **looks))
    ink = pen.readable_on(color)
    axes.text(x + width / 2, y + height / 2, text, fontsize=size, color=ink, **CENTRED)


def _arrow(axes, start, end, color=GREY, **looks):
    looks = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.3} | looks
    axes.add_patch(FancyArrowPatch(start, end, color=color, **looks))


# -- a ring of keys and values ---------------------------------------------------------------------

PANEL_TOP, RADIUS, NODE_WIDTH, NODE_HEIGHT = 0.42, 0.74, 0.62, 0.44


def draw_ring(R: int = 4) -> Figure:
    """Draw which keys are on which rank in each step of ring attention.

    Parameters
    ----------
    R : int
        Number of ranks, 2 to 5.

    Returns
    -------
    matplotlib.figure.Figure
    """
    height = PANEL_TOP + 2 * RADIUS + NODE_HEIGHT + 0.5
    figure, axes = pen.picture_in_inches(WIDTH, height)
    owners = [[(rank - step) % R for rank in range(R)] for step in range(R)]
    middle_y, panel = PANEL_TOP + RADIUS + NODE_HEIGHT / 2, WIDTH / R
    for step in range(R):
        middle = np.array([(step + 0.5) * panel, middle_y])
        axes.text(middle[0], 0.1, f"step {step}", fontsize=TITLE_PT, ha="center", va="top")
        angles = 2 * np.pi * np.arange(R) / R
        nodes = middle + RADIUS * np.stack([np.sin(angles) * 0.9, -np.cos(angles)], 1)
        frames = [_node(axes, x, y, rank, owners[step][rank]) for rank, (x, y) in enumerate(nodes)]
        for rank in range(R) if step < R - 1 else ():
            to, bow = (
                (rank + 1) % R,
                {"connectionstyle": "arc3,rad=0.3", "shrinkA": 3, "shrinkB": 3},
            )
            color = visible(rank_color(owners[step][rank]))
            _arrow(
                axes, nodes[rank], nodes[to], color, patchA=frames[rank], patchB=frames[to], **bow
            )
    note = (
        "upper half of a box: the queries of a rank, which stay; lower half: the keys and values "
        "that it has in this step; arrows: what it sends to its right neighbour meanwhile"
    )
    axes.text(0.1, height - 0.08, note, fontsize=SMALL_PT, color=NOTE, va="bottom")
    figure.words = f"Ring attention on {R} ranks. " + " ".join(
        f"Step {step}: "
        + ", ".join(f"rank {rank} has the keys of rank {owner}" for rank, owner in enumerate(row))
        + "."
        for step, row in enumerate(owners)
    )
    return figure


def _node(axes, x, y, rank, owner):
    """Draw a rank's queries above the keys and values on this rank. Returns the frame of both."""
    left, half = x - NODE_WIDTH / 2, NODE_HEIGHT / 2
    _box(axes, (left, y - half, NODE_WIDTH, half), _light(rank), f"$q_{rank}$")
    _box(axes, (left, y, NODE_WIDTH, half), _light(owner), f"$k_{owner}$, $v_{owner}$")
    frame = Rectangle((left, y - half), NODE_WIDTH, 2 * half, facecolor="none", linewidth=0)
    return axes.add_patch(frame)


# -- the weights, by rows and by columns -----------------------------------------------------------

BLOCK, MATRIX_LEFT, MATRIX_TOP = 0.62, 1.5, 0.5


def draw_weights(R: int = 4) -> Figure:
    """Draw the matrix of attention weights, with a row, a column, and their sums.

    Parameters
    ----------
    R : int
        Number of ranks, 3 to 6.

    Returns
    -------
    matplotlib.figure.Figure
    """
    side = R * BLOCK
    height = MATRIX_TOP + side + 0.62
    figure, axes = pen.picture_in_inches(WIDTH, height)
    for rank in range(R):
        for owner in range(R):
            x, y = MATRIX_LEFT + owner * BLOCK, MATRIX_TOP + rank * BLOCK
            _box(axes, (x, y, BLOCK, BLOCK), _light(rank), f"step {(rank - owner) % R}", SMALL_PT)
        at, side_at = MATRIX_TOP + (rank + 0.5) * BLOCK, MATRIX_LEFT + (rank + 0.5) * BLOCK
        axes.text(
            MATRIX_LEFT - 0.1,
            at,
            f"queries of rank {rank}",
            ha="right",
            va="center",
            fontsize=TEXT_PT,
        )
        axes.text(
            side_at,
            MATRIX_TOP - 0.07,
            f"keys of\nrank {rank}",
            ha="center",
            va="bottom",
            fontsize=TEXT_PT,
        )
    row_y, column_x = MATRIX_TOP + 1.82 * BLOCK, MATRIX_LEFT + 2.91 * BLOCK
    frame = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.5, "zorder": 3}
    axes.add_patch(Rectangle((MATRIX_LEFT, row_y - 0.05), side, 0.1, **frame))
    axes.add_patch(Rectangle((column_x - 0.05, MATRIX_TOP), 0.1, side, **frame))
    right, foot = MATRIX_LEFT + side, MATRIX_TOP + side
    _arrow(axes, (right + 0.02, row_y), (right + 0.42, row_y), INK)
    _arrow(axes, (column_x, foot + 0.02), (column_x, foot + 0.32), INK)
    stays = (
        "a row: one query i, and all keys\n"
        "its softmax and $\\partial q_i$ are sums along the row\n"
        "rank 1 computes all of it: they stay on rank 1"
    )
    goes = (
        "a column: one key j, and all queries.  $\\partial k_j$ and $\\partial v_j$ are sums along "
        "the column: they travel with the keys of rank 2"
    )
    axes.text(right + 0.5, row_y, stays, fontsize=TEXT_PT, va="center")
    axes.text(0.3, foot + 0.36, goes, fontsize=TEXT_PT, va="top")
    figure.words = (
        f"The weights of attention, in {R} x {R} blocks: a row for the queries of each rank, and a "
        "column for the keys of each. A rank computes its row of blocks, one in each step. The "
        "gradient of a query is a sum along a row and stays. The gradients of a key and a value "
        "are sums along a column, over all ranks, and travel."
    )
    return figure


# -- a causal mask over chunks ---------------------------------------------------------------------

CELL, WORK = 0.25, 0.25
CHUNKS_TOP = 0.92


def draw_chunks(R: int, cuts: Mapping[str, Cut]) -> Figure:
    """Draw the pairs of chunks that a causal mask allows, with the rank and step of each pair.

    Parameters
    ----------
    R : int
        Number of ranks, 2 to 4. There are 2 R chunks.
    cuts : dict of callable
        One or two ways to cut the sequence, as ``{name: chunks}``. ``chunks(rank, R)`` returns the
        two chunks of a rank.

    Returns
    -------
    matplotlib.figure.Figure
    """
    height = CHUNKS_TOP + 2 * R * CELL + 0.42
    figure, axes = pen.picture_in_inches(WIDTH, height)
    told = []
    for panel, (name, chunks) in enumerate(cuts.items()):
        holder = {chunk: rank for rank in range(R) for chunk in chunks(rank, R)}
        left = 0.52 + panel * 4.5
        axes.text(left - 0.4, 0.1, name, fontsize=TITLE_PT, va="top")
        _draw_pairs(axes, left, R, holder)
        work = _work(R, holder)
        _draw_work(axes, left + 2 * R * CELL + 0.14, work)
        sums = ", ".join(f"rank {rank} computes {sum(row)}" for rank, row in enumerate(work))
        told.append(f"Chunks {name}: of {R * (2 * R + 1)} pairs {sums}.")
    note = (
        "number in a pair: the step in which its rank has these keys; "
        "half a square: on the diagonal, half masked"
    )
    axes.text(0.12, height - 0.08, note, fontsize=SMALL_PT, color=NOTE, va="bottom")
    figure.words = " ".join(told)
    return figure


def _work(R, holder):
    """The number of pairs that each rank computes in each step: lists of numbers."""
    work = [[0] * R for _ in range(R)]
    for i in range(2 * R):
        for j in range(i + 1):
            work[holder[i]][(holder[i] - holder[j]) % R] += 1
    return work


def _draw_pairs(axes, left, R, holder):
    """Draw the matrix of chunks. Each pair shows the rank that computes it, and the step."""
    names = {"fontsize": TEXT_PT} | CENTRED
    middle = R * CELL
    axes.text(left + middle, CHUNKS_TOP - 0.36, "chunk of keys", **names)
    axes.text(left - 0.42, CHUNKS_TOP + middle, "chunk of queries", rotation=90, **names)
    looks = {"edgecolor": "#cccccc", "linewidth": 0.6}
    for i in range(2 * R):
        rank, y, at = holder[i], CHUNKS_TOP + i * CELL, (i + 0.5) * CELL
        axes.text(left + at, CHUNKS_TOP - 0.14, i, **names)
        axes.text(left - 0.16, CHUNKS_TOP + at, i, **names)
        for j in range(2 * R):
            x = left + j * CELL
            color, step = (_light(rank), (rank - holder[j]) % R) if j < i else (PAPER, "")
            _box(axes, (x, y, CELL, CELL), color, step, SMALL_PT, **looks)
        half = [(left + i * CELL, y + up) for up in (0, CELL)] + [(left + (i + 1) * CELL, y + CELL)]
        axes.add_patch(Polygon(half, facecolor=_light(rank), linewidth=0))


def _draw_work(axes, left, work):
    R = len(work)
    top = CHUNKS_TOP + R * (2 * CELL - WORK) / 2
    head = {"fontsize": TEXT_PT, "va": "bottom", "ha": "center"}
    names = {"fontsize": TEXT_PT, "va": "center"}
    left += 0.42
    axes.text(left + R * WORK / 2, top - 0.24, "pairs in step", **head)
    axes.text(left + R * WORK + 0.17, top - 0.06, "all", **head)
    for rank, row in enumerate(work):
        y = top + rank * WORK
        axes.text(left + (rank + 0.5) * WORK, top - 0.06, rank, **head)
        axes.text(left - 0.07, y + WORK / 2, f"rank {rank}", ha="right", **names)
        axes.text(left + R * WORK + 0.17, y + WORK / 2, sum(row), ha="center", **names)
        for step, count in enumerate(row):
            color, count = (_light(rank), count) if count else (PAPER, "")
            looks = {"edgecolor": "#cccccc", "linewidth": 0.6}
            _box(axes, (left + step * WORK, y, WORK, WORK), color, count, **looks)


# -- tokens to experts -----------------------------------------------------------------------------

TOKEN, ROW, TOKENS_TOP = 0.21, 0.42, 0.34
STATIONS = "as they come", "sorted by expert", "at their experts", "back in their order"
WAYS = "sort", "all_to_all", "all_to_all"


def draw_experts(choices: Sequence[Sequence[int]]) -> Figure:
    """Draw how tokens travel to their experts and back. Rank r has expert r.

    Parameters
    ----------
    choices : sequence of sequence of int
        For each rank, the expert of each of its tokens.

    Returns
    -------
    matplotlib.figure.Figure
    """
    R = len(choices)
    home = [[(rank, expert) for expert in row] for rank, row in enumerate(choices)]
    by_expert = [sorted(row, key=lambda token: token[1]) for row in home]
    at_expert = [[token for token in chain(*by_expert) if token[1] == rank] for rank in range(R)]
    stations = home, by_expert, at_expert, home
    height = TOKENS_TOP + R * ROW + 0.3
    figure, axes = pen.picture_in_inches(WIDTH, height)
    widths = [TOKEN * max(map(len, station)) for station in stations]
    gap = (WIDTH - 0.8 - sum(widths)) / (len(stations) - 0.8)
    left = 0.72
    for k, (name, station, width) in enumerate(zip(STATIONS, stations, widths, strict=True)):
        axes.text(left, TOKENS_TOP - 0.1, name, fontsize=TEXT_PT, weight="bold", va="bottom")
        for rank, row in enumerate(station):
            y = TOKENS_TOP + rank * ROW
            for place, (owner, expert) in enumerate(row):
                at = left + place * TOKEN
                _box(axes, (at, y + 0.08, TOKEN, ROW - 0.16), _light(owner), expert, SMALL_PT)
        if k < len(WAYS):
            middle = TOKENS_TOP + R * ROW / 2
            ends = (left + width + 0.12, middle), (left + width + gap - 0.12, middle)
            _arrow(axes, *ends, INK)
            axes.text(np.mean([x for x, _ in ends]), middle - 0.08, WAYS[k], fontsize=TEXT_PT,
                      ha="center", va="bottom")  # fmt: skip
        left += width + gap
    for rank in range(R):
        y = TOKENS_TOP + (rank + 0.5) * ROW
        axes.text(0.64, y, f"rank {rank}", fontsize=TEXT_PT, ha="right", va="center")
    note = (
        "a box is a token; its colour: the rank that it comes from; "
        "its number: its expert, which is on the rank of that number"
    )
    axes.text(0.12, height - 0.08, note, fontsize=SMALL_PT, color=NOTE, va="bottom")
    loads = ", ".join(f"expert {rank} gets {len(row)}" for rank, row in enumerate(at_expert))
    figure.words = (
        f"Tokens of {R} ranks are sorted by expert, sent to the rank of their expert by an "
        "all_to_all, sent back by a second one, and put into their old order. Of "
        f"{sum(map(len, home))} tokens "
        f"{loads}."
    )
    return figure
