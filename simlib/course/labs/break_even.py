"""The break-even lab: for which work, on how many ranks, distribution pays."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from ...core.draw.figures import DPI, GREY, INK, PAPER, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import OKABE_ITO, mix
from ...core.model.errors import InvalidCallError, check_count
from ...core.model.words import seconds_text, short_bytes
from .break_even_model import needed_compute_s, speedup, sync_s
from .layers import Layers
from .log_axes import add_legend_above, add_log_axes
from .sliders import (
    Lab,
    check_above_zero,
    check_choice,
    menu,
    round_numbers,
    short_bandwidth,
    slider,
)

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


def draw_break_even(
    compute_s=COMPUTE_S,
    nbytes=NBYTES,
    latency_s=LATENCY_S,
    bandwidth_Bps=BANDWIDTH_BPS,
    ranks=8,
    algorithm="ring",
    scaling="weak",
    overlap="none",
):
    """Draw which ranks pay for which T_comp: a map of efficiency, and your own point on it.

    Parameters
    ----------
    compute_s : float
        T_comp, seconds of compute of a step on one rank.
    nbytes : float
        Bytes of the gradient.
    latency_s, bandwidth_Bps : float
        Of each rank's link.
    ranks : int
        2 to 1,024.
    algorithm : {"ring", "tree", "linear"}
    scaling : {"weak", "strong"}
        Whether T_comp is of each rank, or divided among all.
    overlap : {"none", "backward"}

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A number that is not above zero, ranks out of range, a word that is no choice.
    """
    state = (compute_s, nbytes, latency_s, bandwidth_Bps, ranks, algorithm, scaling, overlap)
    _check(*state)
    return _BreakEven().draw(*state)


def break_even_lab(
    compute_s=COMPUTE_S,
    nbytes=NBYTES,
    latency_s=LATENCY_S,
    bandwidth_Bps=BANDWIDTH_BPS,
    ranks=8,
    algorithm="ring",
    scaling="weak",
    overlap="none",
):
    """The map of `draw_break_even` with sliders for all that it depends on.

    Parameters
    ----------
    compute_s, nbytes, latency_s, bandwidth_Bps, ranks, algorithm, scaling, overlap
        As for `draw_break_even`; where the sliders stand first.

    Returns
    -------
    Lab
    """
    _check(compute_s, nbytes, latency_s, bandwidth_Bps, ranks, algorithm, scaling, overlap)
    times_s, sizes = round_numbers(SHORTEST_S, LONGEST_S), round_numbers(1e3, 1e10)
    latencies, bandwidths = round_numbers(1e-6, 1e-2), round_numbers(1e7, 1e12)
    return Lab(
        _BreakEven(),
        {
            "compute_s": slider("compute of a step", times_s, compute_s, seconds_text),
            "nbytes": slider("gradient", sizes, nbytes, short_bytes),
            "latency_s": slider("latency", latencies, latency_s, seconds_text),
            "bandwidth_Bps": slider("bandwidth", bandwidths, bandwidth_Bps, short_bandwidth),
            "ranks": slider("ranks", RANKS, ranks),
            "algorithm": menu("algorithm", ALGORITHMS, algorithm),
            "scaling": menu("scaling", SCALINGS, scaling),
            "overlap": menu("overlap", OVERLAPS, overlap),
        },
    )


def _check(compute_s, nbytes, latency_s, bandwidth_Bps, ranks, algorithm, scaling, overlap):
    check_above_zero(
        compute_s=compute_s, nbytes=nbytes, latency_s=latency_s, bandwidth_Bps=bandwidth_Bps
    )
    check_count("ranks", ranks, low=2)
    if ranks > MAX_RANKS:
        raise InvalidCallError(f"ranks is {ranks}: the map ends at {MAX_RANKS:,}")
    check_choice("algorithm", algorithm, ALGORITHMS.values())
    check_choice("scaling", scaling, SCALINGS.values())
    check_choice("overlap", overlap, OVERLAPS.values())


class _BreakEven(Layers):
    """The map. Axes and legend stay; the bands, the line of T_comp, the point, the titles move."""

    def background(self):
        figure = Picture(figsize=(7.6, 4.4), dpi=DPI, facecolor=PAPER)
        place = [0.095, 0.105, 0.875, 0.665]
        axes = add_log_axes(
            figure, place, "{:,.0f}".format, "ranks R", "compute of a step, T_comp", grid=False
        )
        axes.set_xlim(1.7, 1.06 * MAX_RANKS)  # a point at 2 ranks is whole
        axes.set_ylim(SHORTEST_S, LONGEST_S)
        axes.xaxis.set_major_locator(FixedLocator([2**k for k in range(1, 11)]))
        patches = [Patch(fc=color, ec=GREY, lw=0.5) for _, color in BANDS.values()]
        add_legend_above(axes, patches, BANDS, borderaxespad=0.3, handlelength=1.4)
        return figure

    def foreground(
        self,
        figure,
        compute_s,
        nbytes,
        latency_s,
        bandwidth_Bps,
        ranks,
        algorithm,
        scaling,
        overlap,
    ):
        axes = figure.axes[0]
        on = np.arange(2, MAX_RANKS + 1)
        synced_s = sync_s(algorithm, on, nbytes, latency_s, bandwidth_Bps)
        gains = speedup(compute_s, synced_s, on, scaling, overlap)
        own_s = sync_s(algorithm, ranks, nbytes, latency_s, bandwidth_Bps)
        gain = speedup(compute_s, own_s, ranks, scaling, overlap)
        return [
            *_draw_bands(axes, on, synced_s, scaling, overlap),
            axes.axhline(compute_s, color=INK, lw=0.8, ls=":", zorder=5),
            *axes.plot(ranks, compute_s, "D", color=INK, ms=7, mec=PAPER, mew=0.8, zorder=6),
            *_write_title(figure, compute_s, own_s, ranks, gain, algorithm, scaling, overlap),
            _write_verdict(figure, on, gains),
        ]


def _draw_bands(axes, on, synced_s, scaling, overlap):
    """Areas of efficiency from the bottom up, the break-even as a thick line."""
    efficiencies = [1 / on, *(np.full(len(on), edge) for edge, _ in list(BANDS.values())[1:-1])]
    edges = [needed_compute_s(e, synced_s, on, scaling, overlap) for e in efficiencies]
    low, high = (np.full(len(on), end) for end in axes.get_ylim())
    lines = [low, *(np.clip(edge, low, high) for edge in edges), high]
    artists = [
        axes.fill_between(on, below, above, color=color, lw=0, zorder=3)
        for below, above, (_, color) in zip(lines, lines[1:], BANDS.values(), strict=False)
    ]
    return [*artists, *axes.plot(on, edges[0], color=INK, lw=2, zorder=4)]


def _write_title(figure, compute_s, synced_s, ranks, gain, algorithm, scaling, overlap):
    sentence = (
        f"{ranks:,} ranks, {algorithm}, {scaling} scaling"
        f"{', overlapped' if overlap != 'none' else ''}: by the model {gain:.3g} x one rank, "
        f"efficiency {gain / ranks:.0%}"
    )
    bound = ranks - 1 if scaling == "weak" else 1 - 1 / ranks
    rule = "R - 1" if scaling == "weak" else "1 - 1/R"
    ratio = synced_s / compute_s
    parts = (
        f"T_sync = {seconds_text(float(synced_s))}, T_comp = {seconds_text(compute_s)}: "
        f"T_sync / T_comp = {ratio:.3g}"
    )
    if overlap == "none":
        parts += f", {'below' if ratio < bound else 'not below'} {rule} = {bound:.3g}"
    first = figure.text(0.012, 0.98, sentence, fontsize=TITLE_PT, va="top")
    second = figure.text(0.012, 0.924, parts, fontsize=TEXT_PT, va="top")
    return [first, second]


def _write_verdict(figure, on, gains):
    """Which numbers of ranks pay, with this T_comp."""
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
