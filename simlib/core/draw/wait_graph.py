"""The wait-for graph as a picture: an arrow from each rank that waits to each rank it waits for."""

from __future__ import annotations

from math import cos, pi, sin

from matplotlib.patches import Circle, FancyArrowPatch

from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, Picture, own_style
from .in_words import graph_in_words
from .palette import mix, rank_color, visible

MAX_RANKS = 12
NODE_IN = 0.26
"""Radius of a rank's circle, in inches."""


@own_style
def draw_wait_graph(graph):
    """Draw a `WaitGraph`: blocked ranks in their colours, ranks that are gone in grey.

    Returns a matplotlib Figure. Of many ranks those of the cycle are drawn, else the first dozen.
    """
    shown = _shown(graph)
    radius = 0.0 if len(shown) == 1 else max(1.0, 0.24 * len(shown))
    width, height = 2 * radius + 4.6, 2 * radius * (len(shown) > 2) + 1.5
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-width / 2, width / 2), aspect="equal")
    axes.set_ylim(-height / 2, height / 2)
    axes.axis("off")
    places = _places(shown, radius)
    for rank in shown:
        if rank in graph.waits:
            for needed in graph.waits[rank].needs:
                if needed in places:
                    _arrow(axes, places[rank], places[needed], visible(rank_color(rank)))
    for rank in shown:
        _node(axes, graph, rank, places[rank])
    left_out = len(graph.waits) + len(graph.gone) - len(shown)
    if left_out:
        note = f"{left_out} more ranks wait or are gone"
        axes.text(0, -height / 2 + 0.08, note, ha="center", fontsize=SMALL_PT, color=GREY)
    figure.words = graph_in_words(graph)
    return figure


def _shown(graph):
    if len(graph.waits) + len(graph.gone) <= MAX_RANKS:
        return sorted({*graph.waits, *graph.gone})
    return list(graph.cycle or [*graph.waits, *graph.gone])[:MAX_RANKS]


def _places(shown, radius):
    """Places on a circle, clockwise from the top; two ranks stand side by side."""
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


def _node(axes, graph, rank, place):
    """A rank: its circle, and beside it what it waits in, or why it is gone."""
    x, y = place
    waits = rank in graph.waits
    color = visible(rank_color(rank)) if waits else GREY
    face = mix(rank_color(rank), PAPER, 0.75) if waits else PAPER
    axes.add_patch(Circle(place, NODE_IN, facecolor=face, edgecolor=color, linewidth=1.6))
    axes.text(x, y, str(rank), ha="center", va="center", fontsize=TEXT_PT + 2, color=INK)
    side = -1 if x < -0.01 else 1
    text = graph.gone.get(rank, "")
    if waits:
        site = graph.waits[rank].op.site
        text = f"{site.op}\n{site.place}"
    axes.text(
        x + side * (NODE_IN + 0.1), y, text, fontsize=SMALL_PT, color=INK, va="center",
        ha="left" if side > 0 else "right",
    )  # fmt: skip
