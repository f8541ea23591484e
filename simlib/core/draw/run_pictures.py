"""Small pictures of runs: bytes sent, which rank waits for which, how often each op was called."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from ..model.words import bytes_unit, number
from .figures import (
    GREY,
    INK,
    PAPER,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    bare_axes,
    new_picture,
    own_style,
)
from .palette import OKABE_ITO, mix, rank_color, visible
from .text import OpCounts, clip, comparison_in_words, graph_in_words


@own_style
def draw_traffic(run: Any) -> Figure:
    """Draw how many bytes each rank sent to each other rank. A row is a src, a column is a dst.

    Returns
    -------
    matplotlib.figure.Figure
    """
    table, size = run.traffic, run.world_size
    side_in = float(np.clip(0.55 * size, 2.0, 5.2))
    left, right, top, bottom = 0.75, 1.25, 0.62, 0.25
    width_in, height_in = left + side_in + right, top + side_in + bottom
    figure = new_picture(width_in, height_in)

    def box(x, y, w, h):
        return [x / width_in, y / height_in, w / width_in, h / height_in]

    axes = figure.add_axes(box(left, bottom, side_in, side_in))
    unit, scale = bytes_unit(int(table.max(initial=0)))
    image = axes.imshow(table / scale, cmap="Blues", vmin=0, vmax=max(1, table.max()) / scale)
    step = max(1, int(np.ceil(size / 16)))
    ticks = list(range(0, size, step))
    axes.set_xticks(ticks, ticks, fontsize=TEXT_PT)
    axes.set_yticks(ticks, ticks, fontsize=TEXT_PT)
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelcolor=INK)
    axes.set_xlabel("dst (rank)", fontsize=TEXT_PT + 0.5, labelpad=3)
    axes.set_ylabel("src (rank)", fontsize=TEXT_PT + 0.5, labelpad=3)
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    axes.set_xticks(np.arange(0.5, size - 1), minor=True)
    axes.set_yticks(np.arange(0.5, size - 1), minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.6 if size <= 32 else 0)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(
        image, cax=figure.add_axes(box(left + side_in + 0.15, bottom, 0.14, side_in))
    )
    bar.set_label(f"sent point-to-point ({unit})", fontsize=TEXT_PT + 0.5)
    bar.ax.tick_params(labelsize=TEXT_PT, labelcolor=INK, length=2)
    bar.outline.set_edgecolor("#bbbbbb")
    _write_cells(axes, table, scale, side_in / size * 72)
    title = f"traffic of {clip(run.name, 24)}"
    if not table.any():
        _write_why_empty(axes, run)
    figure.text(0.1 / width_in, 1 - 0.08 / height_in, title, fontsize=TITLE_PT, va="top")
    return figure


def _write_why_empty(axes, run):
    """Write into the middle of an empty map that no rank sent a message."""
    text = "no point-to-point\nmessages"
    if run.trace.collectives:
        text += ":\ncollectives are not\ncounted here"
    axes.text(0.5, 0.5, text, fontsize=TEXT_PT, ha="center", va="center", transform=axes.transAxes)


def _write_cells(axes, table, scale, cell_pt):
    """Write the value into each cell that has one, if the longest value fits."""
    texts = {(r, c): number(table[r, c] / scale) for r, c in zip(*np.nonzero(table), strict=True)}
    longest = max((len(text) for text in texts.values()), default=0)
    if not longest or cell_pt < 0.62 * SMALL_PT * longest + 3:
        return
    half = table.max() / 2
    for (row, column), text in texts.items():
        color = PAPER if table[row, column] > half else INK
        axes.text(
            column, row, text, fontsize=SMALL_PT, color=color, ha="center", va="center_baseline"
        )


MAX_NODES, MAX_GONE = 12, 4
"""A picture has at most this many nodes, and at most this many nodes for ranks that are gone."""
NODE_IN = 0.26
"""Radius of a circle, in inches."""
MAX_SIDE = 26
"""The text with the ranks of a node has at most this many letters."""


@own_style
def draw_wait_graph(graph: Any) -> Figure:
    """Draw a `WaitGraph`. Blocked ranks have their own colours. Ranks that have ended are grey.

    Returns a matplotlib Figure. If more than a dozen ranks are blocked, only the ranks of the cycle
    are drawn. Without a cycle, ranks that wait for the same ranks at the same line are one node.
    """
    nodes = _nodes(graph)
    radius = 0.0 if len(nodes) == 1 else max(1.0, 0.24 * len(nodes))
    width, height = 2 * radius + 4.6, 2 * radius * (len(nodes) > 2) + 1.5
    figure = new_picture(width, height)
    xlim, ylim = (-width / 2, width / 2), (-height / 2, height / 2)
    axes = bare_axes(figure, xlim, ylim, aspect="equal")
    places = _places(nodes, radius)
    node_of = {rank: node for node in nodes for rank in node}
    for node in nodes:
        needs = {rank for one in node if one in graph.waits for rank in graph.waits[one].needs}
        targets = dict.fromkeys(node_of[rank] for rank in sorted(needs) if rank in node_of)
        for target in targets:
            if target != node:
                _arrow(axes, places[node], places[target], visible(rank_color(node[0])))
    for node in nodes:
        _node(axes, graph, node, places[node])
    left_out = len(graph.waits) + len(graph.gone) - len(node_of)
    if left_out:
        note = f"more ranks, not shown: {left_out}"
        axes.text(0, -height / 2 + 0.08, note, ha="center", fontsize=SMALL_PT, color=GREY)
    figure.words = graph_in_words(graph)
    return figure


def _nodes(graph):
    """The nodes, each a tuple of ranks."""
    if len(graph.waits) + len(graph.gone) <= MAX_NODES:
        return [(rank,) for rank in sorted({*graph.waits, *graph.gone})]
    if graph.cycle:
        return [(rank,) for rank in graph.cycle[:MAX_NODES]]
    gone, alike = {}, {}
    for rank, how in graph.gone.items():
        gone.setdefault(rank if len(graph.gone) <= MAX_GONE else how, []).append(rank)
    for wait in graph.waits.values():
        site, needs = wait.op.site, graph.gone.keys() & set(wait.needs)
        alike.setdefault((site.op, site.place, frozenset(needs)), []).append(wait.rank)
    most = sorted(alike.values(), key=len, reverse=True)
    return sorted(map(tuple, [*list(gone.values())[:MAX_GONE], *most][:MAX_NODES]))


def _places(shown, radius):
    """Places on a circle, clockwise from the top. Two ranks are placed side by side."""
    if len(shown) == 2:
        return {shown[0]: (-radius, 0.1), shown[1]: (radius, 0.1)}
    turn = 2 * pi / len(shown)
    return {rank: (radius * sin(turn * k), radius * cos(turn * k)) for k, rank in enumerate(shown)}


def _arrow(axes, start, end, color):
    shrink = NODE_IN * 72 + 3
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle="arc3,rad=0.18", arrowstyle="-|>", mutation_scale=13,
            shrinkA=shrink, shrinkB=shrink, color=color, linewidth=1.6,
        )
    )  # fmt: skip


def _node(axes, graph, node, place):
    """Draw a circle, and beside it the ops in which its ranks wait, or why they are gone."""
    (x, y), rank = place, node[0]
    waits = rank in graph.waits
    color = visible(rank_color(rank)) if waits else GREY
    face = mix(rank_color(rank), PAPER, 0.75) if waits else PAPER
    axes.add_patch(Circle(place, NODE_IN, facecolor=face, edgecolor=color, linewidth=1.6))
    name, size = (str(rank), TEXT_PT + 2) if len(node) == 1 else (f"{len(node):,}\nranks", SMALL_PT)
    axes.text(x, y, name, ha="center", va="center", fontsize=size, color=INK)
    side = -1 if x < -0.01 else 1
    text = graph.gone.get(rank, "").replace(" (", "\n(")
    if waits:
        site = graph.waits[rank].op.site
        text = f"{site.op}\n{site.place}"
    if len(node) > 1:
        text += f"\n{clip(', '.join(map(str, node)), MAX_SIDE)}"
    axes.text(
        x + side * (NODE_IN + 0.1), y, text, fontsize=SMALL_PT, color=INK, va="center",
        ha="left" if side > 0 else "right",
    )  # fmt: skip


ROW_IN, COLUMN_IN, LETTER_IN = 0.3, 1.15, 0.082
MAX_ROWS, MAX_LETTERS = 30, 46
COMMON, OWN = mix(OKABE_ITO[2], "#ffffff", 0.55), mix(OKABE_ITO[1], "#ffffff", 0.35)
SHARED = mix(OKABE_ITO[4], "#ffffff", 0.45)


@own_style
def draw_comparison(names: Sequence[str], rows: OpCounts) -> Figure:
    """Draw how often each run made each kind of op: a row for each kind, a column for each run.

    A green box means that all runs made these ops equally often. A blue box means that some other
    run made these ops equally often, but not all runs. An orange box means that every other run
    made more or fewer of these ops.

    Parameters
    ----------
    names : sequence of str
        The names of the runs.
    rows : list of (str, tuple of int, bool)
        For each kind of op, give its label, the number of its ops in each run, and whether these
        numbers are equal.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shown, more = rows[:MAX_ROWS], len(rows[MAX_ROWS:])
    texts = [clip(label, MAX_LETTERS) for label, _, _ in shown]
    label_in = LETTER_IN * max(map(len, [*texts, "x" * 12])) + 0.25
    width_in = label_in + COLUMN_IN * len(names) + 0.1
    height_in = ROW_IN * (len(shown) + 1 + bool(more)) + 0.5
    figure = new_picture(width_in, height_in)
    axes = bare_axes(figure, (0, width_in), (height_in, 0))
    for column, name in enumerate(names):
        axes.text(
            _middle(label_in, column), 0.3, clip(name, 14), ha="center", va="center",
            fontsize=TEXT_PT + 0.5, weight="bold",
        )  # fmt: skip
    for row, (text, (_, counts, is_common)) in enumerate(zip(texts, shown, strict=True)):
        y = 0.62 + ROW_IN * row
        axes.text(label_in - 0.15, y, text, ha="right", va="center", fontsize=TEXT_PT + 0.5)
        for column, count in enumerate(counts):
            color = COMMON if is_common else SHARED if counts.count(count) > 1 else OWN
            _draw_count(axes, _middle(label_in, column), y, count, color)
    figure.words = comparison_in_words(names, rows)
    if more:
        y = 0.62 + ROW_IN * len(shown)
        axes.text(label_in - 0.15, y, f"and {more} more", ha="right", va="center", color=GREY)
    return figure


def _middle(label_in, column):
    return label_in + COLUMN_IN * (column + 0.5)


def _draw_count(axes, x, y, count, color):
    if not count:
        axes.text(x, y, "\N{MIDDLE DOT}", ha="center", va="center", color=GREY)
        return
    half = 0.5 * COLUMN_IN - 0.12
    axes.add_patch(
        FancyBboxPatch(
            (x - half, y - 0.1), 2 * half, 0.2,
            boxstyle="round,pad=0,rounding_size=0.06", facecolor=color, edgecolor="none",
        )
    )  # fmt: skip
    axes.text(x, y, f"{count:,}", ha="center", va="center_baseline", fontsize=TEXT_PT, color=INK)
