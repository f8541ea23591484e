"""The break-even lab: the work and the number of ranks for which distribution pays."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from ...core.draw.figures import DPI, GREY, INK, PAPER, TEXT_PT, Picture
from ...core.draw.palette import OKABE_ITO, mix
from ...core.model.errors import InvalidCallError, check_count
from ...core.model.words import seconds_text, short_bytes
from . import pen
from .sliders import (
    Layers,
    View,
    check_above_zero,
    lab_of,
    menu,
    picture,
    round_numbers,
    short_bandwidth,
    slider,
)

FORWARD_SHARE = 1 / 3  # of T_comp: backward takes twice as long, and only that can overlap


def sync_s(algorithm, ranks, nbytes, latency_s, bandwidth_Bps):
    """T_sync(R): seconds to add up a gradient over ranks, if each rank has its own link.

    Parameters
    ----------
    algorithm : {"ring", "tree", "linear"}
        ``"ring"`` is a ring in chunks. ``"tree"`` goes down and up a binomial tree. With
        ``"linear"`` all ranks send to one rank, one after the other, and this rank sends back in
        the same way.
    ranks : int or ndarray of int
    nbytes : float
    latency_s, bandwidth_Bps : float

    Returns
    -------
    float or ndarray of float

    The result is the same as from `simlib.scale.time_of`, if the ranks can divide the gradient
    evenly.
    """
    ranks = np.asarray(ranks)
    whole_s = latency_s + nbytes / bandwidth_Bps
    if algorithm == "linear":
        return 2 * (ranks - 1) * whole_s
    if algorithm == "tree":
        return 2 * np.ceil(np.log2(ranks)) * whole_s
    return 2 * (ranks - 1) * (latency_s + nbytes / ranks / bandwidth_Bps)


def speedup(compute_s, synced_s, ranks, scaling="weak", overlap="none"):
    """The work of all ranks, divided by the work that one rank does in the same time.

    Parameters
    ----------
    compute_s : float
        T_comp: the compute of each rank's step (weak), or of the step that all ranks share
        (strong).
    synced_s : float or ndarray of float
        T_sync of these ranks.
    ranks : int or ndarray of int
    scaling : {"weak", "strong"}
    overlap : {"none", "backward"}
        With ``"none"`` a step takes the sum of both times. With ``"backward"`` a step takes
        forward, plus the longer of backward and T_sync.

    Returns
    -------
    float or ndarray of float
    """
    own_s = compute_s if scaling == "weak" else compute_s / np.asarray(ranks)
    visible = _visible_share(overlap)
    step_s = visible * own_s + np.maximum((1 - visible) * own_s, synced_s)
    return ranks * own_s / step_s


def needed_compute_s(efficiency, synced_s, ranks, scaling="weak", overlap="none"):
    """The smallest T_comp for this efficiency. With an efficiency of 1 / ranks, ranks break even.

    Parameters
    ----------
    efficiency : float or ndarray of float
        Speed-up divided by ranks, above 0 and below 1.
    synced_s, ranks, scaling, overlap
        As for `speedup`.

    Returns
    -------
    float or ndarray of float
    """
    own_s = synced_s / (1 / efficiency - _visible_share(overlap))
    return own_s if scaling == "weak" else own_s * ranks


def _visible_share(overlap):
    """The share of T_comp during which ranks cannot send."""
    return 1.0 if overlap == "none" else FORWARD_SHARE


# -- the lab ---------------------------------------------------------------------------------------

COMPUTE_S, NBYTES = 0.18, 100_000_000  # ResNet-50 as in Goyal et al. 2017 (arXiv 1706.02677)
LATENCY_S, BANDWIDTH_BPS = 30e-6, 1.25e9  # as in clusters.ethernet_10g, with its source
MAX_RANKS = 1024
RANKS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SHORTEST_S, LONGEST_S = 1e-4, 1e2  # ends of the axis of T_comp
ALGORITHMS = {"ring": "ring", "tree (binomial)": "tree", "linear, at one rank": "linear"}
SCALINGS = {"weak: T_comp on each rank": "weak", "strong: T_comp shared by all": "strong"}
OVERLAPS = {"none: the sum": "none", "with backward: the maximum": "backward"}
BANDS = {  # from the bottom up: efficiency at the upper edge, colour
    "slower than one rank": (None, mix(OKABE_ITO[5], PAPER, 0.55)),
    "pays, below 50 %": (0.5, mix(OKABE_ITO[1], PAPER, 0.7)),
    "50 to 90 %": (0.9, mix(OKABE_ITO[2], PAPER, 0.7)),
    "above 90 % of R times": (1.0, mix(OKABE_ITO[2], PAPER, 0.35)),
}


@picture
def draw_break_even(
    compute_s: float = COMPUTE_S,
    nbytes: float = NBYTES,
    latency_s: float = LATENCY_S,
    bandwidth_Bps: float = BANDWIDTH_BPS,
    ranks: int = 8,
    algorithm: str = "ring",
    scaling: str = "weak",
    overlap: str = "none",
) -> View:
    """Draw a map of efficiency over ranks and T_comp, with a point for your own values.

    Parameters
    ----------
    compute_s : float
        T_comp: the seconds of computing in a step on one rank.
    nbytes : float
        Bytes of the gradient.
    latency_s, bandwidth_Bps : float
        Latency and bandwidth of each rank's link.
    ranks : int
        The number of ranks, 2 to 1,024.
    algorithm : {"ring", "tree", "linear"}
    scaling : {"weak", "strong"}
        With "weak", each rank computes for T_comp. With "strong", the ranks divide T_comp among
        themselves.
    overlap : {"none", "backward"}

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A number is not above zero, ranks are out of range, or a text is not one of the choices.
    """
    state = compute_s, nbytes, latency_s, bandwidth_Bps, ranks, algorithm, scaling, overlap
    return _BreakEven(), *state


break_even_lab = lab_of(draw_break_even, "sliders for all its parameters")


class Work(
    namedtuple("Work", "compute_s nbytes latency_s bandwidth_Bps ranks algorithm scaling overlap")
):
    """A training step, and how ranks divide and synchronise it. See `draw_break_even`."""

    def sync_s(self, ranks):
        """T_sync(R)."""
        return sync_s(self.algorithm, ranks, self.nbytes, self.latency_s, self.bandwidth_Bps)

    def speedup(self, ranks):
        """Work of all ranks, divided by the work of one rank in the same time."""
        return speedup(self.compute_s, self.sync_s(ranks), ranks, self.scaling, self.overlap)


class _BreakEven(Layers):
    """The map. Axes and legend stay. Bands, the line of T_comp, the point and titles change."""

    controls = {
        "compute_s": slider(
            "compute of a step", round_numbers(SHORTEST_S, LONGEST_S), seconds_text
        ),
        "nbytes": slider("gradient", round_numbers(1e3, 1e10), short_bytes),
        "latency_s": slider("latency", round_numbers(1e-6, 1e-2), seconds_text),
        "bandwidth_Bps": slider("bandwidth", round_numbers(1e7, 1e12), short_bandwidth),
        "ranks": slider("ranks", RANKS),
        "algorithm": menu("algorithm", ALGORITHMS),
        "scaling": menu("scaling", SCALINGS),
        "overlap": menu("overlap", OVERLAPS),
    }

    def check(self, *state):
        super().check(*state)
        work = Work(*state)
        check_above_zero(**dict(zip(Work._fields[:4], work, strict=False)))
        check_count("ranks", work.ranks, low=2)
        if work.ranks > MAX_RANKS:
            raise InvalidCallError(f"ranks is {work.ranks}: give at most {MAX_RANKS:,}")

    def background(self):
        figure = Picture(figsize=(7.6, 4.4), dpi=DPI, facecolor=PAPER)
        place = [0.095, 0.105, 0.875, 0.665]
        axes = pen.add_log_axes(
            figure, place, "{:,.0f}".format, "ranks R", "compute of a step, T_comp", grid=False
        )
        axes.set_xlim(1.7, 1.06 * MAX_RANKS)  # a point at 2 ranks is whole
        axes.set_ylim(SHORTEST_S, LONGEST_S)
        axes.xaxis.set_major_locator(FixedLocator([2**k for k in range(1, 11)]))
        patches = [Patch(fc=color, ec=GREY, lw=0.5) for _, color in BANDS.values()]
        pen.add_legend_above(axes, patches, BANDS, borderaxespad=0.3, handlelength=1.4)
        return figure

    def foreground(self, figure, *state, **named):
        work, axes = Work(*state, **named), figure.axes[0]
        on = np.arange(2, MAX_RANKS + 1)
        point = {"color": INK, "ms": 7, "mec": PAPER, "mew": 0.8, "zorder": 6}
        return [
            *_draw_bands(axes, on, work),
            axes.axhline(work.compute_s, color=INK, lw=0.8, ls=":", zorder=5),
            *axes.plot(work.ranks, work.compute_s, "D", **point),
            *_write_title(figure, work),
            _write_verdict(figure, on, work.speedup(on)),
        ]


def _draw_bands(axes, on, work):
    """Draw areas of efficiency from the bottom up, and a thick line where ranks break even."""
    efficiencies = [1 / on, *(np.full(len(on), edge) for edge, _ in list(BANDS.values())[1:-1])]
    edges = [
        needed_compute_s(e, work.sync_s(on), on, work.scaling, work.overlap) for e in efficiencies
    ]
    low, high = (np.full(len(on), end) for end in axes.get_ylim())
    lines = [low, *(np.clip(edge, low, high) for edge in edges), high]
    artists = [
        axes.fill_between(on, below, above, color=color, lw=0, zorder=3)
        for below, above, (_, color) in zip(lines, lines[1:], BANDS.values(), strict=False)
    ]
    return [*artists, *axes.plot(on, edges[0], color=INK, lw=2, zorder=4)]


def _write_title(figure, work):
    ranks, scaling, overlap = work.ranks, work.scaling, work.overlap
    synced_s, gain = work.sync_s(ranks), work.speedup(ranks)
    sentence = (
        f"{ranks:,} ranks, {work.algorithm}, {scaling} scaling"
        f"{', overlapped' if overlap != 'none' else ''}: by the model {gain:.3g} x one rank, "
        f"efficiency {gain / ranks:.0%}"
    )
    bound = ranks - 1 if scaling == "weak" else 1 - 1 / ranks
    rule = "R - 1" if scaling == "weak" else "1 - 1/R"
    ratio = synced_s / work.compute_s
    parts = (
        f"T_sync = {seconds_text(float(synced_s))}, T_comp = {seconds_text(work.compute_s)}: "
        f"T_sync / T_comp = {ratio:.3g}"
    )
    if overlap == "none":
        parts += f", {'below' if ratio < bound else 'not below'} {rule} = {bound:.3g}"
    return pen.write_title(figure, 0.98, sentence, parts)


def _write_verdict(figure, on, gains):
    """Write which numbers of ranks pay, with this T_comp."""
    pays = on[gains > 1]
    if not len(pays):
        text = f"on the dotted line nothing pays: no R up to {MAX_RANKS:,}"
    else:
        first, last, best = int(pays[0]), int(pays[-1]), int(on[gains.argmax()])
        # A tree pays on 4 ranks and not on 5, where it needs a round more.
        start = "from R =" if len(pays) == last - first + 1 else "for most R from"
        text = (
            f"on the dotted line: pays {start} {first:,} to {last:,}"
            f"{' and beyond' * (last == MAX_RANKS)}; most work per second at R = {best:,}"
            f"{' or more' * (best == MAX_RANKS)}"
        )
    return figure.text(0.012, 0.877, text, fontsize=TEXT_PT, color="#444444", va="top")
