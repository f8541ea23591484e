"""The mesh lab: data, tensor and pipeline parallelism for the ranks that train a transformer."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, permutations, product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...core import clusters
from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT, own_style
from ...core.draw.palette import OKABE_ITO, mix
from ...core.model.cluster import Cluster, Device, Link
from ...core.model.errors import check_choice
from ...core.model.words import number, seconds_text, short_bytes
from . import pen
from .plan_model import (
    AXES,
    GPT,
    PARTS,
    ROLES,
    Cut,
    Transformer,
    check_cluster,
    nodes_of,
    outcome_of,
)
from .sliders import Layers, View, lab_of, menu, picture, slider

WIDTH, HEIGHT = 9.0, 4.75  # inches
MAP_LEFT, MAP_TOP, CELL_WIDTH, CELL_HEIGHT = 0.62, 1.0, 0.6, 0.46
NAMES, BARS, BARS_WIDTH, ROW = 4.6, 5.85, 2.2, 0.225
DEVICES, MAX_DEVICES = 7.2, 16
TIMES, MEMORY, PLACES = 0.78, 2.38, 3.78  # tops of the panels beside the map
PART_LOOKS = {  # its name, its colour
    "compute": ("compute", OKABE_ITO[4]),
    "bubble": ("bubble", PAPER),
    "tp": ("all_reduces of tp", OKABE_ITO[1]),
    "pp": ("messages of pp", OKABE_ITO[3]),
    "dp": ("reduction over dp", OKABE_ITO[0]),
}
KEPT, TOO_MUCH = OKABE_ITO[2], OKABE_ITO[5]
FAST = mix(OKABE_ITO[2], PAPER, 0.35)
OUT = "#e9e9e9"


HEAD = {"fontsize": TEXT_PT, "weight": "bold", "va": "bottom"}


def picture_of_cuts():
    """A figure and its axes, with names and frames for the map and for the bars."""
    figure, axes = pen.picture_in_inches(WIDTH, HEIGHT)
    axes.text(0.1, TIMES - 0.06, "time of a step, by tp and pp", **HEAD)
    axes.text(NAMES, TIMES - 0.06, "time of a step, part after part", **HEAD)
    axes.text(NAMES, MEMORY - 0.06, "memory of the fullest rank", **HEAD)
    small = {"fontsize": TEXT_PT, "va": "center"}
    for k, size in enumerate(MAP):
        x, y = MAP_LEFT + (k + 0.5) * CELL_WIDTH, MAP_TOP + (k + 0.5) * CELL_HEIGHT
        axes.text(x, MAP_TOP - 0.1, f"tp {size}", ha="center", **small)
        axes.text(MAP_LEFT - 0.08, y, f"pp {size}", ha="right", **small)
    foot = MAP_TOP + len(MAP) * CELL_HEIGHT
    note = (
        "a step's time, and below it the memory of the fullest rank\n"
        "green: fits, the greener the faster; no fill: does not fit; grey: cannot be cut, and why\n"
        "thick rim: chosen; dotted rim: the fastest that fits"
    )
    axes.text(0.1, foot + 0.1, note, fontsize=SMALL_PT, color="#555555", va="top")
    add_row_names(axes, TIMES, [name for name, _ in PART_LOOKS.values()])
    add_row_names(axes, MEMORY, ROLES)
    return figure, axes


def add_row_names(axes, top, names):
    """Write the names of bars below one another, and mark where the bars begin."""
    looks = {"ha": "right", "va": "center", "fontsize": TEXT_PT}
    for k, name in enumerate(names):
        axes.text(BARS - 0.1, top + (k + 0.5) * ROW, name, **looks)
    axes.plot([BARS] * 2, [top, top + (k + 1) * ROW], color=GREY, lw=0.8)


def draw_cut(axes, cells, cut, what, more=""):
    """Draw the title, the map, and the chosen cut's bars of time and bytes, if it has a step.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    cells : dict
        For each tp and pp, a `MeshStep`, or a word and a sentence that say why the cut has no step.
    cut : Cut
        The chosen cut.
    what : str
        The name of the model that is trained.
    more : str
        Text for the title, after the time of a step.
    """
    step = cells[cut.tp, cut.pp]
    ranks, mesh = f"{cut.ranks:,} rank{'s' * (cut.ranks > 1)}", f"tp {cut.tp} x pp {cut.pp}"
    if isinstance(step, tuple):
        title = f"{cut.ranks:,} ranks, {mesh}: {step[1]}"
        axes.figure.words = f"{title}. {what}."
        head = pen.write_head(axes, title, what)
        return [*head, *draw_map(axes, cells, cut)]
    verdict = "" if step.fits else ", but memory does not hold it"
    title = f"{ranks} = dp {cut.dp:,} x {mesh}: {seconds_text(step.time_s)} a step{more}{verdict}"
    axes.figure.words = f"{title}. {what}. {_parts_in_words(step)} {_fastest_in_words(cells)}"
    head = [*pen.write_head(axes, title, what), *draw_map(axes, cells, cut)]
    return [*head, *draw_times(axes, step), *draw_memory(axes, step)]


def _parts_in_words(step):
    """The parts of a step's time, and of the bytes of its fullest rank."""
    parts = [f"{PART_LOOKS[part][0]} {seconds_text(step.times_s[part])}" for part in PARTS]
    kept = [f"{role} {short_bytes(step.kept_bytes[role])}" for role in ROLES]
    layers = f" Layers of the stages: {layers_text(step.layers)}." if len(step.layers) > 1 else ""
    return f"A step: {', '.join(parts)}. The fullest rank: {', '.join(kept)}.{layers}"


def _fastest_in_words(cells):
    """A text about the fastest cut of the map that fits into memory."""
    steps = {key: step for key, step in cells.items() if not isinstance(step, tuple)}
    fitting = {key: step.time_s for key, step in steps.items() if step.fits}
    if not fitting:
        return "No cut of the map fits into the memory."
    tp, pp = min(fitting, key=fitting.get)
    return f"The fastest that fits is tp {tp} x pp {pp}: {seconds_text(fitting[tp, pp])}."


def draw_map(axes, cells, cut):
    """Draw the time and bytes of each cut, or the word that rules it out."""
    steps = {key: step for key, step in cells.items() if not isinstance(step, tuple)}
    fitting = {key: step.time_s for key, step in steps.items() if step.fits}
    fastest_s = min((step.time_s for step in steps.values()), default=0)
    places = {
        (tp, pp): (MAP_LEFT + k * CELL_WIDTH, MAP_TOP + j * CELL_HEIGHT)
        for k, tp in enumerate(MAP)
        for j, pp in enumerate(MAP)
    }
    x, y = np.array([places[key] for key in cells]).T
    fills = [_fill(cells[key], fastest_s) for key in cells]
    upper = [seconds_text(steps[key].time_s) if key in steps else cells[key][0] for key in cells]
    lower = [short_bytes(steps[key].nbytes) if key in steps else "" for key in cells]
    inks = [INK if key in fitting else "#555555" for key in cells]
    middle, line = x + CELL_WIDTH / 2, np.where([key in steps for key in cells], 0.09, 0.0)
    frames = {"facecolors": fills, "edgecolors": "#cccccc", "linewidths": 0.5}
    drawn = [
        pen.add_boxes(axes, _cells_at(x, y), 2, **frames),
        pen.add_words(axes, middle, y + CELL_HEIGHT / 2 - line, upper, inks),
        pen.add_words(axes, middle, y + CELL_HEIGHT / 2 + line, lower, inks),
    ]
    rims = [((cut.tp, cut.pp), 0.0, "-", 2.2)]
    rims += [(min(fitting, key=fitting.get), 0.045, ":", 1.4)] if fitting else []
    for key, inset, style, width in rims:
        rim, looks = _cells_at(*np.array([places[key]]).T, inset), {"linestyles": style}
        looks |= {"facecolors": "none", "edgecolors": INK, "linewidths": width}
        drawn.append(pen.add_boxes(axes, rim, 3, **looks))
    return drawn


def _cells_at(x, y, inset=0.02):
    return pen.boxes_at(x + inset, y + inset, CELL_WIDTH - 2 * inset, CELL_HEIGHT - 2 * inset)


def _fill(outcome, fastest_s):
    """The colour of a cut: grey without a step, white if it does not fit, else green, pale if
    slow."""
    if isinstance(outcome, tuple):
        return OUT
    if not outcome.fits:
        return PAPER
    return mix(FAST, PAPER, min(0.8, float(np.log2(outcome.time_s / fastest_s)) / 4))


def draw_times(axes, step):
    """Draw the parts of a step, one after the other, each with its time."""
    widths = np.array([step.times_s[part] for part in PARTS]) / step.time_s * BARS_WIDTH
    ends = BARS + np.cumsum(widths)
    texts = [
        f"{seconds_text(step.times_s[part])}, {step.times_s[part] / step.time_s:.0%}"
        for part in PARTS
    ]
    colors = [PART_LOOKS[part][1] for part in PARTS]
    drawn = draw_rows(axes, TIMES, ends - widths, widths, colors, texts)
    if len(step.layers) == 1:
        return drawn
    foot = TIMES + len(PARTS) * ROW + 0.12
    words = f"layers of the stages: {layers_text(step.layers)}"
    return [*drawn, pen.add_words(axes, BARS, foot, [words], left=True)]


def layers_text(layers):
    """``"7, 7, 7, 3"``, or for more than eight stages ``"2, 3 (x 14), 1"``."""
    if len(layers) <= 8:
        return ", ".join(map(str, layers))
    runs = [(each, len(list(run))) for each, run in groupby(layers)]
    return ", ".join(f"{each} (x {count})" if count > 1 else f"{each}" for each, count in runs)


def draw_memory(axes, step):
    """Draw the parts of the data that the rank keeps, one after the other, and its memory."""
    kept = np.array([step.kept_bytes[role] for role in ROLES])
    is_limited = np.isfinite(step.limit_bytes)
    scale = BARS_WIDTH / max(step.nbytes, step.limit_bytes if is_limited else 0)
    ends = BARS + np.cumsum(kept) * scale
    top, foot = MEMORY, MEMORY + len(ROLES) * ROW
    drawn = draw_rows(
        axes, MEMORY, ends - kept * scale, kept * scale,
        [KEPT if step.fits else TOO_MUCH] * len(ROLES), [short_bytes(each) for each in kept],
    )  # fmt: skip
    limit = f" of {short_bytes(step.limit_bytes)}" if is_limited else ""
    verdict = "" if step.fits else ": too much"
    if is_limited:
        x = BARS + step.limit_bytes * scale
        drawn += axes.plot([x] * 2, [top, foot + 0.05], color=INK, lw=1, ls="--", zorder=3)
    total = f"together {short_bytes(step.nbytes)}{limit}{verdict}"
    return [*drawn, pen.add_words(axes, BARS, foot + 0.12, [total], left=True)]


def draw_rows(axes, top, lefts, widths, colors, texts):
    """Draw bars one below the other, and a column of their values."""
    y = top + (np.arange(len(widths)) + 0.5) * ROW
    bars = pen.boxes_at(lefts, y - 0.075, widths, 0.15)
    return [
        pen.add_boxes(axes, bars, 2, facecolors=colors, edgecolors=INK, linewidths=0.5),
        pen.add_words(axes, BARS + BARS_WIDTH + 0.1, y, texts, left=True),
    ]


def draw_axes(axes, cut, cluster):
    """Draw the nodes of a group for each axis, and the group of rank 0 on the first two axes."""
    texts = []
    for axis in AXES:
        size, nodes = cut.size(axis), len(set(nodes_of(cut, axis, cluster)))
        stride = cut.stride(axis)
        apart = "neighbours" if stride == 1 else f"{stride:,} apart"
        where = "inside a node" if nodes == 1 else f"across {nodes:,} nodes"
        texts.append(f"{size:,} ranks, {apart}, {where}" if size > 1 else "not cut")
    y = PLACES + (np.arange(len(AXES)) + 0.5) * ROW
    words = pen.add_words(axes, NAMES + 0.3, y, texts, left=True)
    shown = min(2 * cluster.ranks_per_node, cut.ranks)
    if shown > MAX_DEVICES:
        return [words]
    device = np.arange(shown)
    x = DEVICES + 0.1 * device + 0.08 * (device // cluster.ranks_per_node)
    squares = np.concatenate([pen.boxes_at(x, np.full(shown, at - 0.05), 0.08, 0.1) for at in y])
    group = [set(range(0, cut.size(axis) * cut.stride(axis), cut.stride(axis))) for axis in AXES]
    colors = [INK if rank in ranks else OUT for ranks in group for rank in device]
    return [
        words,
        pen.add_boxes(axes, squares, 2, facecolors=colors, edgecolors=GREY, linewidths=0.4),
    ]


# -- the lab ---------------------------------------------------------------------------------------

POWERS = tuple(2**k for k in range(13))
MAP = POWERS[:6]
"""The values that tp and pp may have."""
ORDERS = tuple(" ".join(names) for names in permutations(AXES))


@picture
def draw_mesh(
    ranks: int = 64,
    tp: int = 8,
    pp: int = 2,
    num_microbatches: int = 16,
    zero: int = 0,
    recompute: bool = True,
    order: str = "tp dp pp",
    *,
    cluster: Cluster | None = None,
    **model: Any,
) -> View:
    """Draw a training step of a transformer on dp x tp x pp ranks: time, bytes and nodes.

    The map shows the time of a step for every tp and pp, or the reason why a cut is impossible.
    Next to the map the picture shows the chosen cut. It shows the parts of the step, one after the
    other, and the bytes of the rank with the most bytes. For each axis, it shows on how many nodes
    a group is. `simlib.scale` computes the times, with `time_of` for rings and
    `uneven_pipeline_ends` for 1F1B.

    Parameters
    ----------
    ranks : int
        A power of two, 1 to 4,096. ``ranks / (tp * pp)`` is dp.
    tp, pp : int
        Powers of two, 1 to 32.
    num_microbatches : int
        The number of micro-batches of each replica, a power of two from 1 to 256.
    zero : {0, 1, 2, 3}
        The stage of ZeRO over dp. 0 means no ZeRO. From stage 2 on, ranks reduce gradients after
        each micro-batch.
    recompute : bool
        Whether ranks compute activations again in backward.
    order : str
        The order of the axes, beginning with the axis of neighbouring ranks. With ``"tp dp pp"``,
        the ranks of a tp group are in the same node if the node has room for them.
    cluster : Cluster, optional
        A cluster with room for all ranks. By default a node has eight GPUs of a DGX-2H. Each GPU
        has 32 GB, computes 62.4 Tflop/s (see docs/published.md), and has its own network card of 25
        GB/s.
    **model : int
        ``layers``, ``hidden``, ``heads``, ``sequence``, ``batch``, ``vocabulary`` of the
        transformer. ``batch`` is the number of sequences of a step, on all ranks together.

    Returns
    -------
    matplotlib.figure.Figure
        The picture. If this cut is impossible, it shows the reason instead of the step.

    Raises
    ------
    InvalidCallError
        A number is out of the picture's range, or the cluster has no devices.
    """
    mesh = _Mesh(Transformer(**GPT | model), cluster)
    return mesh, ranks, tp, pp, num_microbatches, zero, recompute, order


mesh_lab = lab_of(draw_mesh, "sliders for the cut")


ZERO = {stage: f"stage {stage}" if stage else "none" for stage in range(4)}
CUT_CONTROLS = {
    "tp": slider("tensor tp", MAP, only=True),
    "pp": slider("pipeline pp", MAP, only=True),
}
MEMORY_CONTROLS = {
    "zero": slider("ZeRO over dp", ZERO, ZERO.get, only=True),
    "recompute": menu(
        "activations", {"computed again in backward": True, "kept until backward": False}
    ),
}


def machine():
    """A node of a DGX-2H. See `clusters.nvlink_nodes` and docs/published.md for its figures."""
    device = Device(flops_per_s=62.4e12, memory_bytes=32e9)
    return clusters.nvlink_nodes(1, inter=Link(2e-6, 25e9), rails=8, device=device)


class _Mesh(Layers):
    """Map, bars and axes of a cut. Frames and names stay."""

    controls = {
        "ranks": slider("ranks R", POWERS, "{:,}".format, only=True),
        **CUT_CONTROLS,
        "num_microbatches": slider("micro-batches", POWERS[:9], only=True),
        **MEMORY_CONTROLS,
        "order": menu("neighbours first", {each: each for each in ORDERS}),
    }

    def __init__(self, model, cluster):
        self.model, self.cluster = model, check_cluster(machine() if cluster is None else cluster)

    def background(self):
        figure, axes = picture_of_cuts()
        axes.text(NAMES, PLACES - 0.06, "where the axes lie", **HEAD)
        note = "rank 0's group on the first nodes"
        axes.text(DEVICES, PLACES - 0.06, note, fontsize=SMALL_PT, color="#555555", va="bottom")
        for k, axis in enumerate(AXES):
            axes.text(NAMES, PLACES + (k + 0.5) * ROW, axis, fontsize=TEXT_PT, va="center")
        return figure

    def foreground(self, figure, *state, **named):
        cut, axes, model = Cut(*state, **named), figure.axes[0], self.model
        cells = {
            (tp, pp): outcome_of(model, replace(cut, tp=tp, pp=pp), self.cluster)
            for tp in MAP
            for pp in MAP
        }
        what = (
            f"{number(model.parameters / 1e9)} billion parameters ({model.layers} layers of "
            f"{model.hidden:,}); {model.batch:,} sequences of {model.sequence:,} a step"
        )
        if isinstance(cells[cut.tp, cut.pp], tuple):
            return draw_cut(axes, cells, cut, what)
        sequences = model.batch // (cut.dp * cut.num_microbatches)
        what += f": on each replica {cut.num_microbatches} micro-batches of {sequences:,}"
        return [*draw_cut(axes, cells, cut, what), *draw_axes(axes, cut, self.cluster)]


# -- eight ranks as a cube -------------------------------------------------------------------------

DIRECTIONS = {"tp": (0.95, 0.0), "dp": (0.0, 0.95), "pp": (0.58, -0.45)}
"""Inches from a rank to its neighbour on an axis."""
PANEL, FIRST, GROUP_COLORS = 2.5, (0.45, 1.27), [OKABE_ITO[k] for k in (0, 1, 2, 5)]


@own_style
def draw_groups(order: str = "tp dp pp") -> Figure:
    """Draw which of 2 x 2 x 2 ranks form a group along tp, along dp and along pp.

    The eight ranks are the corners of a cube. The picture shows the cube three times, once for each
    axis. Each group of this axis has its own colour. A grey band joins the two ranks of a node.

    Parameters
    ----------
    order : str
        The order of the axes, beginning with the axis of neighbouring ranks, as for `draw_mesh`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        ``order`` is not an order of the three axes.
    """
    check_choice("order", order, ORDERS)
    figure, axes = pen.picture_in_inches(3 * PANEL + 0.05, 2.5)
    stride = {axis: 2**k for k, axis in enumerate(order.split())}
    corners = list(product((0, 1), repeat=len(AXES)))
    rank = {at: sum(k * stride[axis] for k, axis in zip(at, AXES, strict=True)) for at in corners}
    told = []
    for panel, axis in enumerate(AXES):
        begin = np.array(FIRST) + (panel * PANEL, 0)
        place = {rank[at]: begin + np.array(at) @ list(map(DIRECTIONS.get, AXES)) for at in corners}
        groups = [(one, one + stride[axis]) for one in sorted(place) if not one // stride[axis] % 2]
        _draw_cube(axes, place, stride, groups)
        pairs = ", ".join(f"{one} and {two}" for one, two in groups)
        told.append(f"Groups along {axis}: {pairs}.")
        where = "inside a node" if stride[axis] == 1 else "between nodes"
        head = f"{axis} groups, {where}"
        axes.text(begin[0] - 0.3, 0.18, head, weight="bold", fontsize=TEXT_PT, va="center")
        words = f"{stride[axis]} apart:  " + "   ".join(f"{one} {two}" for one, two in groups)
        axes.text(begin[0] - 0.3, 0.41, words, fontsize=TEXT_PT, va="center")
    figure.words = f"Eight ranks are the corners of a cube. A node has two ranks. {' '.join(told)}"
    return figure


def _draw_cube(axes, place, stride, groups):
    """Ranks at their places, bands of nodes, thin edges, and a thick edge for each group."""
    ends = [(one, one + far) for far in stride.values() for one in place if not one // far % 2]
    round_ends = {"solid_capstyle": "round"}
    for one, two in ends:
        xs, ys = zip(place[one], place[two], strict=True)
        if two == one + 1:
            axes.plot(xs, ys, color=OUT, lw=25, zorder=1, **round_ends)
        axes.plot(xs, ys, color="#cccccc", lw=0.9, zorder=2)
    for (one, two), color in zip(groups, GROUP_COLORS, strict=True):
        xs, ys = zip(place[one], place[two], strict=True)
        axes.plot(xs, ys, color=color, lw=4, zorder=3, **round_ends)
        axes.plot(xs, ys, "o", ms=17, color=color, mec=PAPER, mew=1.2, zorder=4)
        ink = pen.readable_on(color)
        for rank, x, y in zip((one, two), xs, ys, strict=True):
            looks = {"ha": "center", "va": "center", "weight": "bold", "fontsize": TEXT_PT}
            axes.text(x, y, str(rank), color=ink, zorder=5, **looks)
