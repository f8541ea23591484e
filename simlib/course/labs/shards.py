"""A picture of a parameter server in shards: the ranks' data, and their pushes and fetches."""

from __future__ import annotations

from matplotlib.patches import FancyArrowPatch, Rectangle

from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, own_style
from ...core.draw.palette import mix, rank_color, visible
from ...core.model.errors import InvalidCallError, check_count
from . import pen

MOST_SHARDS, MOST_REPLICAS = 6, 6
BOX, GAP, SIDE = 1.5, 0.3, 0.15  # inches
TOP, HIGH, LOW = 0.5, 0.62, 2.6
BAR = 0.16
PAIR = 0.045
"""Half of the distance between the arrow of a push and the arrow of its fetch."""


@own_style
def draw_shards(shards=3, replicas=4, parameters=6634):
    """Draw the ranks of Downpour SGD, the ranks' data, and the messages between ranks.

    Parameters
    ----------
    shards, replicas : int
        The numbers of shards and of replicas, 2 to 6 of each. Ranks 0 to ``shards - 1`` are the
        shards.
    parameters : int
        The number of elements of theta.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        There are more ranks than the picture has room for, or fewer numbers than shards.
    """
    for name, count, most in (
        ("shards", shards, MOST_SHARDS), ("replicas", replicas, MOST_REPLICAS),
    ):  # fmt: skip
        check_count(name, count, low=2)
        if count > most:
            raise InvalidCallError(f"{name} is {count}: give at most {most}")
    check_count("parameters", parameters, low=shards)
    most = max(shards, replicas, 4)
    width = 2 * SIDE + most * BOX + (most - 1) * GAP
    figure, axes = pen.picture_in_inches(width, LOW + 1.15)
    title = f"{shards} shards hold a part of theta each;"
    title += f" {replicas} replicas push to all and fetch from all"
    axes.text(SIDE, 0.22, title, fontsize=TITLE_PT, va="center", weight="bold")
    above, below = _middles(shards, width), _middles(replicas, width)
    ends = [0]
    for s in range(shards):
        ends.append(ends[-1] + parameters // shards + (s < parameters % shards))
        _draw_box(
            axes, above[s], TOP, s, f"rank {s}: shard", f"numbers {ends[s]:,} to {ends[-1] - 1:,}"
        )
        _draw_theta(axes, above[s], TOP + 0.4, shards, [s])
    for r in range(replicas):
        rank = shards + r
        _draw_box(axes, below[r], LOW, rank, f"rank {rank}: replica", "all of theta, own digits")
        _draw_theta(axes, below[r], LOW + 0.4, shards, range(shards))
        for s in reversed(range(shards)):
            low, high = _spread(below[r], s, shards), _spread(above[s], r, replicas)
            _draw_messages(axes, low, high, s, r == 0)
    _draw_key(axes, width)
    figure.words = (
        f"A figure of {shards + replicas} ranks. Ranks 0 to {shards - 1} are shards: each holds"
        f" one of {shards} parts of theta. Ranks {shards} to {shards + replicas - 1} are replicas:"
        " each holds all of theta. Each replica pushes to each shard its part of the gradients, and"
        " fetches from each shard its part of theta. Shards do not talk to each other, nor do"
        " replicas."
    )
    return figure


def _middles(count, width):
    """The middles of boxes in a row, to the right."""
    step = (width - 2 * SIDE) / count
    return [SIDE + (k + 0.5) * step for k in range(count)]


def _spread(middle, k, count):
    """The place of the k-th of several parts of a box, to the right."""
    return middle + ((k + 0.5) / count - 0.5) * (BOX - 0.2)


def _draw_box(axes, middle, top, rank, name, holds):
    """A rank, with its name and its data."""
    looks = {"facecolor": PAPER, "edgecolor": visible(rank_color(rank)), "linewidth": 1.6}
    axes.add_patch(Rectangle((middle - BOX / 2, top), BOX, HIGH, zorder=3, **looks))
    centred = {"ha": "center", "va": "center", "zorder": 4}
    axes.text(middle, top + 0.12, name, fontsize=TEXT_PT, weight="bold", **centred)
    axes.text(middle, top + 0.28, holds, fontsize=SMALL_PT, **centred)


def _draw_theta(axes, middle, top, shards, held):
    """Draw theta as a bar of parts. The parts that a rank has are filled."""
    wide = (BOX - 0.2) / shards
    for s in range(shards):
        fill = mix(rank_color(s), PAPER, 0.25) if s in held else PAPER
        at = _spread(middle, s, shards) - wide / 2, top
        frame = {"facecolor": fill, "edgecolor": GREY, "linewidth": 0.6, "zorder": 4}
        axes.add_patch(Rectangle(at, wide, BAR, **frame))


def _draw_messages(axes, below, above, shard, is_shown):
    """A push and a fetch between a replica and a shard. One replica's arrows are coloured."""
    color = visible(rank_color(shard)) if is_shown else mix(GREY, PAPER, 0.55)
    looks = {"color": color, "linewidth": 1.5 if is_shown else 0.8, "zorder": 2 if is_shown else 1}
    low, high = LOW - 0.03, TOP + HIGH + 0.03
    _draw_arrow(axes, (below - PAIR, low), (above - PAIR, high), **looks)
    _draw_arrow(axes, (above + PAIR, high), (below + PAIR, low), linestyle=(0, (4, 2)), **looks)


def _draw_arrow(axes, begin, end, **looks):
    shape = {"arrowstyle": "-|>", "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(begin, end, **shape, **looks))


def _draw_key(axes, width):
    """The meaning of the two kinds of arrows."""
    y, looks = LOW + HIGH + 0.3, {"color": INK, "linewidth": 1.2}
    for x, text, style in (
        (SIDE, "push: this shard's part of the sum of gradients", "-"),
        (SIDE + (width - 2 * SIDE) / 2, "fetch: this shard's part of theta", (0, (4, 2))),
    ):
        _draw_arrow(axes, (x, y), (x + 0.4, y), linestyle=style, **looks)
        axes.text(x + 0.5, y, text, fontsize=TEXT_PT, va="center")
