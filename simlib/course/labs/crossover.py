"""The crossover lab: which all_reduce is fastest, by size, ranks, latency and bandwidth."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from matplotlib.lines import Line2D

from ...core.draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import OKABE_ITO, mix, visible
from ...core.model.cluster import Cluster, Link
from ...core.model.errors import check_count
from ...core.model.words import seconds_text, short_bytes
from ...core.scale import time_of
from .layers import Layers
from .log_axes import add_log_axes
from .sliders import Lab, round_numbers, short_bandwidth, slider

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


def draw_crossover(
    nodes=8, ranks_per_node=1, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, *, intra=INTRA
):
    """Draw how long each all_reduce takes over the size of the vector, and which is fastest.

    Times are those of `simlib.scale.time_of` for vectors that all ranks divide evenly.

    Parameters
    ----------
    nodes, ranks_per_node : int
    latency_s, bandwidth_Bps : float
        Of the link of each node into the network.
    intra : Link, optional
        Of each rank into its node; counts where a node has several ranks.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        No ranks or links, fewer than two ranks, or more than `time_of` can work out.
    """
    return _Crossover(intra).draw(nodes, ranks_per_node, latency_s, bandwidth_Bps)


def crossover_lab(
    nodes=8, ranks_per_node=1, latency_s=LATENCY_S, bandwidth_Bps=BANDWIDTH_BPS, *, intra=INTRA
):
    """The picture of `draw_crossover` with sliders for nodes, ranks per node and the network.

    Parameters
    ----------
    nodes, ranks_per_node, latency_s, bandwidth_Bps, intra
        As for `draw_crossover`; where the sliders stand first.

    Returns
    -------
    Lab
    """
    _cluster(nodes, ranks_per_node, latency_s, bandwidth_Bps, intra)  # refuses what is none
    return Lab(
        _Crossover(intra),
        {
            "nodes": slider("nodes", NODES, nodes),
            "ranks_per_node": slider("ranks per node", (1, 2, 4, 8), ranks_per_node),
            "latency_s": slider("latency", round_numbers(5e-7, 1e-3), latency_s, seconds_text),
            "bandwidth_Bps": slider(
                "bandwidth", round_numbers(1e8, 1e11), bandwidth_Bps, short_bandwidth
            ),
        },
    )


def _cluster(nodes, ranks_per_node, latency_s, bandwidth_Bps, intra):
    inter = Link(latency_s, bandwidth_Bps)
    cluster = Cluster(nodes, ranks_per_node, inter, intra if ranks_per_node > 1 else None)
    check_count("nodes times ranks_per_node", cluster.max_ranks, low=2)
    return cluster


@lru_cache(8)
def times_of(cluster):
    """Seconds of each algorithm for each of `SIZES`: ``{name: ndarray}``.

    Where all ranks bring equal chunks and every message of a round is alike, a time is a number of
    latencies and a number of bytes: two sizes tell the line. That is not so where some ranks are
    folded into others (their number is no power of two) and share a node's link; there these
    algorithms are left out.
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
    """Bytes at which two algorithms take equally long; None where they do not within `SIZES`."""
    if one not in times_s or other not in times_s:
        return None
    ahead = times_s[one] - times_s[other]
    turns = np.flatnonzero(np.diff(np.sign(ahead)))
    if not len(turns):
        return None
    k = turns[0]
    return SIZES[k] + (SIZES[k + 1] - SIZES[k]) * ahead[k] / (ahead[k] - ahead[k + 1])


def fastest(times_s):
    """Stretches of `SIZES` with the algorithm that is fastest there: (name, from, to) in bytes."""
    names = list(times_s)
    table = np.array([times_s[name] for name in names])
    best = int(table[:, 0].argmin())
    turns = [(names[best], SIZES[0])]
    for k in range(1, len(SIZES)):
        # Of equals the one that was fastest just before, so that rounding makes no stretch.
        if table[:, k].min() < table[best, k] * (1 - 1e-9):
            before, best = best, int(table[:, k].argmin())
            turns.append((names[best], crossing(times_s, names[before], names[best])))
    ends = [start for _, start in turns[1:]] + [SIZES[-1]]
    return [(name, start, end) for (name, start), end in zip(turns, ends, strict=True)]


class _Crossover(Layers):
    """Curves over the size. The axes, those of the strip above and the legend stay."""

    def __init__(self, intra):
        self.intra = intra

    def background_state(self, nodes, ranks_per_node, latency_s, bandwidth_Bps):
        """Names of the algorithms, lowest and highest decade of the time."""
        times_s = times_of(_cluster(nodes, ranks_per_node, latency_s, bandwidth_Bps, self.intra))
        shown = [time_s for name, time_s in times_s.items() if name != "naive"]
        low, high = min(time_s[0] for time_s in shown), max(time_s[-1] for time_s in shown)
        # Whole decades: the axis stays where it is through most of a drag.
        return tuple(times_s), int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))

    def background(self, names, low, high):
        figure = Picture(figsize=(9.0, 4.4), dpi=DPI, facecolor=PAPER)
        place = [LEFT, 0.11, WIDTH, 0.68]
        axes = add_log_axes(figure, place, short_bytes, "bytes of the vector", "time", labelpad=1)
        axes.set_xlim(SIZES[0], SIZES[-1])
        axes.set_ylim(10.0**low, 10.0**high)
        axes.legend(
            [_curve([], [], name) for name in names],
            [STYLES[name][0] for name in names],
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            fontsize=TEXT_PT,
            frameon=False,
            handlelength=3.2,
            borderpad=0,
        )
        strip = figure.add_axes([LEFT, 0.8, WIDTH, 0.062], facecolor=PAPER)
        strip.set_xlim(*np.log10(SIZES[[0, -1]]))
        strip.set_ylim(0, 1)
        strip.set_axis_off()
        return figure

    def foreground(self, figure, nodes, ranks_per_node, latency_s, bandwidth_Bps):
        """Curves, where two cross, which is fastest, and the title."""
        cluster = _cluster(nodes, ranks_per_node, latency_s, bandwidth_Bps, self.intra)
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
    """A dot where ring and recursive doubling take equally long, with its size."""
    nbytes = crossing(times_s, "ring", "recursive_doubling")
    if nbytes is None:
        return []
    time_s = np.interp(nbytes, SIZES, times_s["ring"])
    line = axes.axvline(nbytes, color=GREY, lw=0.8, ls="--", zorder=5)
    (dot,) = axes.plot(nbytes, time_s, "o", color=INK, ms=6, mec=PAPER, zorder=6)
    on_the_right = nbytes < 1e7
    text = axes.annotate(
        f"ring = recursive doubling\nat {short_bytes(nbytes)}",
        (nbytes, axes.get_ylim()[0]),
        xytext=(6 if on_the_right else -6, 5),
        textcoords="offset points",
        ha="left" if on_the_right else "right",
        va="bottom",
        fontsize=TEXT_PT,
        bbox={"fc": PAPER, "ec": "none", "pad": 1.5, "alpha": 0.85},
        zorder=7,
    )
    return [line, dot, text]


def _draw_fastest(strip, times_s):
    """A strip above the axes that says which algorithm is fastest where."""
    artists = []
    for name, first, last in fastest(times_s):
        left, right = np.log10([first, last])
        text, color, _ = STYLES[name]
        looks = {"color": mix(color, PAPER, 0.6), "ec": PAPER, "lw": 1.5}
        artists += strip.barh(0.5, right - left, left=left, height=0.9, **looks)
        if right - left > 0.085 * len(text):
            middle = (left + right) / 2
            artists.append(
                strip.text(middle, 0.47, text, fontsize=TEXT_PT, ha="center", va="center")
            )
    return artists


def _write_title(figure, cluster):
    n = cluster.max_ranks
    where = (
        f"{n} ranks, one on each node"
        if cluster.ranks_per_node == 1
        else f"{cluster.nodes} x {cluster.ranks_per_node} = {n} ranks"
    )
    link = cluster.inter
    title = figure.text(
        0.012,
        0.982,
        f"all_reduce on {where}: {seconds_text(link.latency_s)} and "
        f"{short_bandwidth(link.bandwidth_Bps)} between nodes",
        fontsize=TITLE_PT,
        va="top",
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
    below = figure.text(0.012, 0.918, note, fontsize=SMALL_PT, color="#555555", va="top")
    return [title, below]
