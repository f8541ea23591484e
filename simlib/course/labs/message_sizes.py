"""Two labs of time over the size of a message: the ping-pong, and the fastest all_reduce."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from matplotlib.lines import Line2D

from ...core.draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import OKABE_ITO, mix, visible
from ...core.model.cluster import Cluster, Link
from ...core.model.errors import InvalidCallError, check_count
from ...core.model.words import seconds_text, short_bytes
from ...core.scale.collective import time_of
from . import pen
from .sliders import (
    Layers,
    View,
    check_above_zero,
    lab_of,
    picture,
    round_numbers,
    short_bandwidth,
    slider,
)

Points: TypeAlias = Sequence[tuple[float, float]]
"""Bytes of messages, and the seconds that the messages took."""

PARTS = {
    "measured": {
        "ls": "", "marker": "o", "color": OKABE_ITO[0], "ms": 5, "mec": PAPER, "mew": 0.6,
        "zorder": 7,
    },
    "latency + nbytes / bandwidth": {"color": OKABE_ITO[5], "lw": 2, "zorder": 5},
    "each part alone": {"color": OKABE_ITO[5], "lw": 1, "ls": ":", "zorder": 5},
    "chosen message": {
        "ls": "", "marker": "D", "color": INK, "ms": 7, "mec": PAPER, "mew": 0.6, "zorder": 8
    },
}  # fmt: skip
DEFAULT_NBYTES = 64_000
MESSAGES = tuple(float(f"{step}e{exponent}") for exponent in range(8) for step in (1, 2, 4, 8))


def fit_ping_pong(points: Points) -> tuple[float, float]:
    """Fit a latency and a bandwidth to the points, by least squares of relative errors.

    Parameters
    ----------
    points : sequence of (int, float)
        Bytes of a message, and the seconds that it took.

    Returns
    -------
    latency_s, bandwidth_Bps : float
        The latency is at least 1 ns, and the bandwidth is at most 1 PB/s. Without these limits,
        noisy points could give a line that falls or begins below zero.
    """
    nbytes, time_s = _columns(points)
    seconds_per_byte, latency_s = np.polyfit(nbytes, time_s, 1, w=1 / time_s)
    return max(float(latency_s), 1e-9), float(1 / max(seconds_per_byte, 1e-15))


@picture
def draw_ping_pong(
    points: Points,
    latency_s: float | None = None,
    bandwidth_Bps: float | None = None,
    nbytes: float = DEFAULT_NBYTES,
) -> View:
    """Draw measured points and the model T = latency + nbytes / bandwidth over the size.

    Parameters
    ----------
    points : sequence of (int, float)
        At least two points. A point is the bytes of a message, and the seconds that it took.
    latency_s, bandwidth_Bps : float, optional
        Latency and bandwidth of the model. The default is the result of `fit_ping_pong`.
    nbytes : float
        Bytes of the message that the picture marks. The title explains its time.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        The points are invalid, or a number is not above zero.
    """
    fitted = fit_ping_pong(points)
    return (
        _PingPong(points, fitted),
        fitted[0] if latency_s is None else latency_s,
        fitted[1] if bandwidth_Bps is None else bandwidth_Bps,
        nbytes,
    )


ping_pong_lab = lab_of(draw_ping_pong, "sliders for latency, bandwidth and size")


def _columns(points):
    """Bytes and seconds of the points, as arrays."""
    wanted = "give two or more pairs (nbytes, seconds), with numbers above 0"
    try:
        table = np.array(points, dtype=float)
    except (TypeError, ValueError):
        raise InvalidCallError(f"points cannot be read: {wanted}") from None
    good = (table > 0) & np.isfinite(table)
    if table.ndim != 2 or table.shape[1] != 2 or len(table) < 2 or not good.all():
        raise InvalidCallError(f"points has {table.tolist()!r}: {wanted}")
    if len(set(table[:, 0])) < 2:
        raise InvalidCallError("all points have the same size: a line needs two sizes")
    return table.T


class _PingPong(Layers):
    """The points and the line. Axes and legend stay. The line, the message and the titles change.

    The class draws the points again with the line, because the points must be above the line.
    """

    def __init__(self, points, fitted):
        self.sizes, self.times_s = _columns(points)
        low, high = self.sizes.min() / 2, self.sizes.max() * 5
        self.x = low, high  # ends of the axes: they stay where they are while sliders move
        self.y = min(4e-7, self.times_s.min() / 2), self.times_s.max() * 20
        latencies = {*round_numbers(5e-7, 2e-3), fitted[0]}
        bandwidths = {*round_numbers(1e7, 1e11), fitted[1]}
        sizes = [size for size in MESSAGES if low <= size <= high]
        self.controls = {
            "latency_s": slider("latency", latencies, seconds_text),
            "bandwidth_Bps": slider("bandwidth", bandwidths, short_bandwidth),
            "nbytes": slider("size of a message", sizes, short_bytes),
        }

    def check(self, latency_s, bandwidth_Bps, nbytes):
        check_above_zero(latency_s=latency_s, bandwidth_Bps=bandwidth_Bps, nbytes=nbytes)

    def background(self):
        figure = Picture(figsize=(7.2, 4.1), dpi=DPI, facecolor=PAPER)
        size_name = "size of a message (1 kB = 1,000 bytes)"
        place = [0.1, 0.115, 0.88, 0.685]
        axes = pen.add_log_axes(figure, place, short_bytes, size_name, "time of a message")
        axes.set_xlim(*self.x)
        axes.set_ylim(*self.y)
        lines = [Line2D([], [], **look) for look in PARTS.values()]
        pen.add_legend_above(axes, lines, PARTS, borderaxespad=0.2, handlelength=1.6)
        return figure

    def foreground(self, figure, latency_s, bandwidth_Bps, nbytes):
        axes = figure.axes[0]
        x = np.geomspace(*axes.get_xlim(), 200)
        part, chosen = PARTS["each part alone"], PARTS["chosen message"]
        return [
            *axes.plot(x, latency_s + x / bandwidth_Bps, **PARTS["latency + nbytes / bandwidth"]),
            *axes.plot(x, np.full(200, latency_s), **part),
            *axes.plot(x, x / bandwidth_Bps, **part),
            *axes.plot(self.sizes, self.times_s, **PARTS["measured"]),
            *axes.plot(nbytes, latency_s + nbytes / bandwidth_Bps, **chosen),
            *_draw_half(axes, latency_s * bandwidth_Bps),
            *_write_model(figure, self.sizes, self.times_s, latency_s, bandwidth_Bps, nbytes),
        ]


def _name_beside(axes, name, at, on_the_right, edge):
    """Write a name next to an upright line, at an edge of the axes."""
    beside = {"xytext": (6 if on_the_right else -6, 5 if edge == "bottom" else -4), "va": edge}
    beside |= {"textcoords": "offset points", "ha": "left" if on_the_right else "right"}
    halo = {"fc": PAPER, "ec": "none", "pad": 1.5, "alpha": 0.85}
    return axes.annotate(name, at, fontsize=TEXT_PT, bbox=halo, zorder=9, **beside)


def _draw_half(axes, half):
    """Draw the size with half of the bandwidth. At this size both parts of the time are equal."""
    low, high = axes.get_xlim()
    if not low < half < high:
        return []
    line = axes.axvline(half, color=GREY, lw=1, ls="--", zorder=6)
    name = f"$n_{{1/2}}$ = latency x bandwidth = {short_bytes(half)}"
    text = _name_beside(axes, name, (half, axes.get_ylim()[1]), half <= np.sqrt(low * high), "top")
    return [line, text]


def _write_model(figure, sizes, times_s, latency_s, bandwidth_Bps, nbytes):
    bytes_s = nbytes / bandwidth_Bps
    time_s = latency_s + bytes_s
    title = (
        f"T = {_time(latency_s)} + nbytes / ({short_bandwidth(bandwidth_Bps)}):"
        f" the median point is {_error(latency_s + sizes / bandwidth_Bps, times_s)} off"
    )
    message = (
        f"a message of {short_bytes(nbytes)}: {_time(latency_s)} latency + {_time(bytes_s)}"
        f" for its bytes = {_time(time_s)}; uses {bytes_s / time_s:.0%} of the bandwidth"
    )
    return [
        figure.text(0.012, 0.978, title, fontsize=TITLE_PT, va="top"),
        figure.text(0.012, 0.918, message, fontsize=TEXT_PT, va="top"),
    ]


def _time(time_s):
    return seconds_text(time_s) if time_s >= 1e-9 else "less than 1 ns"


def _error(model_s, times_s):
    """The distance of the model from the median point: ``"6%"``, or ``"12 times"``."""
    off = np.median(abs(model_s / times_s - 1))
    return f"{off:.0%}" if off < 2 else f"{off + 1:,.0f} times"


# -- which all_reduce is fastest, by size, ranks, latency and bandwidth ----------------------------

ITEMSIZE = 4
LEFT, WIDTH = 0.082, 0.718  # of the figure: the axes, with the strip above and the legend beside
SIZES = np.geomspace(1e3, 1e9, 241)
STYLES = {  # algorithm: its name in the picture, colour, dashes
    "naive": ("naive", visible(OKABE_ITO[1]), (0, (1, 1))),
    "binomial": ("tree (binomial)", OKABE_ITO[3], (0, (4, 1.5, 1, 1.5))),
    "recursive_doubling": ("recursive doubling", OKABE_ITO[5], (0, (5, 2))),
    "rabenseifner": ("Rabenseifner", OKABE_ITO[2], (0, (7, 1.5, 1, 1.5, 1, 1.5))),
    "ring": ("ring", OKABE_ITO[0], "-"),
    "hierarchical": ("hierarchical", INK, "-"),
}
FOLDING = ("recursive_doubling", "rabenseifner")
INTRA = Link(5e-6, 150e9)  # as in clusters.nvlink_nodes, with its source
LATENCY_S, BANDWIDTH_BPS = 30e-6, 1.25e9  # as in clusters.ethernet_10g, with its source
NODES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


@picture
def draw_crossover(
    nodes: int = 8,
    ranks_per_node: int = 1,
    latency_s: float = LATENCY_S,
    bandwidth_Bps: float = BANDWIDTH_BPS,
    *,
    intra: Link | None = INTRA,
) -> View:
    """Draw the time of each all_reduce over the size of the vector, and the fastest all_reduce.

    `simlib.scale.time_of` computes the times, for vectors that the ranks can divide evenly.

    Parameters
    ----------
    nodes, ranks_per_node : int
    latency_s, bandwidth_Bps : float
        Latency and bandwidth of the link of each node into the network.
    intra : Link, optional
        The link of each rank into its node. It matters only if a node has several ranks.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        Ranks or links are invalid, or there are fewer than two or too many ranks.
    """
    return _Crossover(intra), nodes, ranks_per_node, latency_s, bandwidth_Bps


crossover_lab = lab_of(draw_crossover, "sliders for nodes, ranks per node and the network")


@lru_cache(8)
def times_of(cluster):
    """Seconds of each algorithm for each of `SIZES`: ``{name: ndarray}``.

    If all ranks have equal chunks and all messages of a round are alike, a time is a number of
    latencies plus a number of bytes. Then two sizes determine the line. It is not so if some ranks
    are folded into others (because their number is not a power of two) and ranks share a node's
    link. In this case the function leaves out these algorithms.
    """
    n = cluster.max_ranks
    is_power = n & (n - 1) == 0
    times_s = {}
    for algorithm in STYLES:
        if cluster.ranks_per_node == 1 and algorithm == "hierarchical":
            continue  # it is the ring
        if cluster.ranks_per_node > 1 and algorithm in FOLDING and not is_power:
            continue
        times_s[algorithm] = _line(algorithm, n, cluster)
    return times_s


def _line(algorithm, n, cluster):
    low = ITEMSIZE * n << (n.bit_length() - 1)  # all sorts of chunks divide it evenly
    high = low << 12
    a_s, b_s = (time_of("all_reduce", n, size, cluster, algorithm) for size in (low, high))
    return a_s + (SIZES - low) * ((b_s - a_s) / (high - low))


def crossing(times_s, one, other):
    """The size at which two algorithms take equally long. None if `SIZES` has no such size."""
    if one not in times_s or other not in times_s:
        return None
    ahead = times_s[one] - times_s[other]
    turns = np.flatnonzero(np.diff(np.sign(ahead)))
    if not len(turns):
        return None
    k = turns[0]
    return SIZES[k] + (SIZES[k + 1] - SIZES[k]) * ahead[k] / (ahead[k] - ahead[k + 1])


def fastest(times_s):
    """Ranges of `SIZES`, each with its fastest algorithm: (name, from, to) in bytes."""
    names = list(times_s)
    table = np.array([times_s[name] for name in names])
    best = int(table[:, 0].argmin())
    turns = [(names[best], SIZES[0])]
    for k in range(1, len(SIZES)):
        # If two are equal, keep the one that was fastest before, so that rounding adds no range.
        if table[:, k].min() < table[best, k] * (1 - 1e-9):
            before, best = best, int(table[:, k].argmin())
            turns.append((names[best], crossing(times_s, names[before], names[best])))
    ends = [start for _, start in turns[1:]] + [SIZES[-1]]
    return [(name, start, end) for (name, start), end in zip(turns, ends, strict=True)]


class _Crossover(Layers):
    """Curves over the size. The axes, the strip above the axes, and the legend stay."""

    controls = {
        "nodes": slider("nodes", NODES),
        "ranks_per_node": slider("ranks per node", (1, 2, 4, 8)),
        "latency_s": slider("latency", round_numbers(5e-7, 1e-3), seconds_text),
        "bandwidth_Bps": slider("bandwidth", round_numbers(1e8, 1e11), short_bandwidth),
    }

    def __init__(self, intra):
        self.intra = intra

    def check(self, *state):
        check_count("nodes times ranks_per_node", self.cluster(*state).max_ranks, low=2)

    def cluster(self, nodes, ranks_per_node, latency_s, bandwidth_Bps):
        intra = self.intra if ranks_per_node > 1 else None
        return Cluster(nodes, ranks_per_node, Link(latency_s, bandwidth_Bps), intra)

    def background_state(self, *state, **named):
        """Names of the algorithms, lowest and highest decade of the time."""
        times_s = times_of(self.cluster(*state, **named))
        shown = [time_s for name, time_s in times_s.items() if name != "naive"]
        low, high = min(time_s[0] for time_s in shown), max(time_s[-1] for time_s in shown)
        # Whole decades, so that the axis does not move during most of a drag.
        return tuple(times_s), int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))

    def background(self, algorithms, low, high):
        figure = Picture(figsize=(9.0, 4.4), dpi=DPI, facecolor=PAPER)
        place = [LEFT, 0.11, WIDTH, 0.68]
        axes = pen.add_log_axes(
            figure, place, short_bytes, "bytes of the vector", "time", labelpad=1
        )
        axes.set_xlim(SIZES[0], SIZES[-1])
        axes.set_ylim(10.0**low, 10.0**high)
        handles = [_curve([], [], name) for name in algorithms]
        texts = [STYLES[name][0] for name in algorithms]
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "handlelength": 3.2}
        axes.legend(handles, texts, fontsize=TEXT_PT, frameon=False, borderpad=0, **place)
        strip = figure.add_axes([LEFT, 0.8, WIDTH, 0.062], facecolor=PAPER)
        strip.set_xlim(*np.log10(SIZES[[0, -1]]))
        strip.set_ylim(0, 1)
        strip.set_axis_off()
        return figure

    def foreground(self, figure, *state, **named):
        """Draw the curves, their crossing, the fastest algorithm at each size, and the title."""
        cluster = self.cluster(*state, **named)
        axes, strip = figure.axes
        times_s = times_of(cluster)
        curves = [_curve(SIZES, time_s, name) for name, time_s in times_s.items()]
        return [
            *map(axes.add_line, curves),
            *_mark_crossing(axes, times_s),
            *_draw_fastest(strip, times_s),
            *_write_title(figure, cluster),
        ]


def _curve(x, y, algorithm):
    _, color, dashes = STYLES[algorithm]
    return Line2D(x, y, color=color, ls=dashes, lw=1.8, zorder=4)


def _mark_crossing(axes, times_s):
    """Draw a dot where ring and recursive doubling take equally long, with the size there."""
    nbytes = crossing(times_s, "ring", "recursive_doubling")
    if nbytes is None:
        return []
    time_s = np.interp(nbytes, SIZES, times_s["ring"])
    line = axes.axvline(nbytes, color=GREY, lw=0.8, ls="--", zorder=5)
    (dot,) = axes.plot(nbytes, time_s, "o", color=INK, ms=6, mec=PAPER, zorder=6)
    name = f"ring = recursive doubling\nat {short_bytes(nbytes)}"
    text = _name_beside(axes, name, (nbytes, axes.get_ylim()[0]), nbytes < 1e7, "bottom")
    return [line, dot, text]


def _draw_fastest(strip, times_s):
    """Draw a strip above the axes with the fastest algorithm for each size."""
    artists = []
    for name, first, last in fastest(times_s):
        left, right = np.log10([first, last])
        text, color, _ = STYLES[name]
        looks = {"color": mix(color, PAPER, 0.6), "ec": PAPER, "lw": 1.5}
        artists += strip.barh(0.5, right - left, left=left, height=0.9, **looks)
        if right - left > 0.085 * len(text):
            middle, looks = (left + right) / 2, {"ha": "center", "va": "center"}
            artists.append(strip.text(middle, 0.47, text, fontsize=TEXT_PT, **looks))
    return artists


def _write_title(figure, cluster):
    n = cluster.max_ranks
    where = (
        f"{n} ranks, one on each node"
        if cluster.ranks_per_node == 1
        else f"{cluster.nodes} x {cluster.ranks_per_node} = {n} ranks"
    )
    link = cluster.inter
    title = (
        f"all_reduce on {where}: {seconds_text(link.latency_s)} and "
        f"{short_bandwidth(link.bandwidth_Bps)} between nodes"
    )
    note = "in the strip: the fastest of all"
    if cluster.ranks_per_node > 1:
        intra = cluster.intra
        note += (
            f"; inside a node {seconds_text(intra.latency_s)}"
            f" and {short_bandwidth(intra.bandwidth_Bps)}"
        )
        if n & (n - 1):
            note += "; recursive doubling and Rabenseifner are left out: no power of two"
    return [
        figure.text(0.012, 0.982, title, fontsize=TITLE_PT, va="top"),
        figure.text(0.012, 0.918, note, fontsize=SMALL_PT, color="#555555", va="top"),
    ]
