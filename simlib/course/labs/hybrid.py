"""The hybrid lab: how long ranks send with data parallelism, FSDP and HSDP."""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D

from ...core.draw.figures import DPI, INK, PAPER, Picture
from ...core.draw.palette import OKABE_ITO
from ...core.model.cluster import Link
from ...core.model.errors import check_count
from ...core.model.words import seconds_text, short_bytes
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

INSIDE = Link(5e-6, 150e9)
"""The link between two ranks of a node."""
STATE = 8  # bytes of parameter, gradient and Adam in mixed precision, for each byte of parameters
NODES = tuple(2**k for k in range(1, 11))
OVER = np.arange(2, NODES[-1] + 1)  # the nodes of the curves
WAYS = {  # name: colour, dashes
    "data parallel": (OKABE_ITO[1], (0, (2, 1.5))),
    "FSDP": (OKABE_ITO[5], "-"),
    "HSDP": (OKABE_ITO[4], (0, (5, 1.5))),
}


def sent_s(nodes, per_node, nbytes, latency_s, bandwidth_Bps, microbatches):
    """For each way in `WAYS`, the seconds of a step in which ranks send.

    All collectives are rings. A node has one network card, which its ranks share. A message between
    nodes takes the latency of a link inside a node plus the latency of the link between nodes. Data
    parallelism does one all_reduce. FSDP does two all_gathers and one reduce_scatter for each
    micro-batch. HSDP does the same inside nodes, and one all_reduce between nodes.

    Parameters
    ----------
    nodes : int or ndarray of int
        The number of nodes, 2 or more.
    per_node : int
    nbytes : float
        Bytes of all parameters.
    latency_s, bandwidth_Bps : float
        Latency and bandwidth of the link between two nodes.
    microbatches : int

    Returns
    -------
    dict of str to float or ndarray of float

    The times are the same as with `simulate`, if the ranks can divide the bytes evenly.
    """
    nodes = np.asarray(nodes)
    ranks, far_s = nodes * per_node, latency_s + INSIDE.latency_s
    over_all_s = (ranks - 1) * (far_s + nbytes / ranks / bandwidth_Bps)
    inside_s = (per_node - 1) * (INSIDE.latency_s + nbytes / per_node / INSIDE.bandwidth_Bps)
    between_s = 2 * (nodes - 1) * (far_s + nbytes / nodes / bandwidth_Bps)
    return {
        "data parallel": 2 * over_all_s,
        "FSDP": 3 * microbatches * over_all_s,
        "HSDP": 3 * microbatches * inside_s + between_s,
    }


@picture
def draw_hybrid(
    nodes: int = 128,
    per_node: int = 8,
    nbytes: float = 14e9,
    latency_s: float = 10e-6,
    bandwidth_Bps: float = 25e9,
    microbatches: int = 4,
) -> View:
    """Draw how long ranks send in a step with data parallelism, FSDP and HSDP.

    With HSDP, the ranks of a node divide the parameters among themselves. Communication and compute
    do not overlap. The title says how many bytes of parameters, gradients and Adam's state a rank
    keeps. Together these take 8 bytes for each byte of parameters.

    Parameters
    ----------
    nodes : int
        The number of nodes, 2 to 1,024.
    per_node : int
        The number of ranks of a node, at least 2.
    nbytes : float
        Bytes of all parameters.
    latency_s, bandwidth_Bps : float
        Latency and bandwidth of the card with which a node sends to other nodes.
    microbatches : int
        The number of micro-batches of a step.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A number is out of its range.
    """
    return _Hybrid(), nodes, per_node, nbytes, latency_s, bandwidth_Bps, microbatches


hybrid_lab = lab_of(draw_hybrid, "sliders for all its parameters")


class _Hybrid(Layers):
    """Three curves over the nodes. Axes change by decades, and the legend stays."""

    controls = {
        "nodes": slider("nodes", NODES, "{:,}".format, only=True),
        "per_node": slider("ranks of a node", (2, 4, 8, 16)),
        "nbytes": slider("parameters", round_numbers(1e6, 1e12), short_bytes),
        "latency_s": slider("latency between", round_numbers(1e-6, 1e-3), seconds_text),
        "bandwidth_Bps": slider("bandwidth between", round_numbers(1e8, 1e12), short_bandwidth),
        "microbatches": slider("micro-batches", (1, 2, 4, 8, 16, 32)),
    }

    def check(self, *state):
        super().check(*state)
        named = dict(zip(self.controls, state, strict=True))
        check_count("per_node", named["per_node"], low=2)
        check_count("microbatches", named["microbatches"])
        names = "nbytes", "latency_s", "bandwidth_Bps"
        check_above_zero(**{name: named[name] for name in names})

    def background_state(self, nodes, *job, **named):
        """The decades of seconds on the vertical axis."""
        times_s = list(sent_s(OVER, *job, **named).values())
        low, high = np.log10(np.min(times_s)), np.log10(np.max(times_s))
        return int(np.floor(low)), int(np.ceil(high))

    def background(self, low, high):
        figure = Picture(figsize=(7.6, 4.4), dpi=DPI, facecolor=PAPER)
        place, name = [0.12, 0.105, 0.85, 0.665], "time of all sends of a step"
        axes = pen.add_log_axes(figure, place, "{:,.0f}".format, "nodes", name, labelpad=1)
        axes.set_xlim(1.8, 1.1 * NODES[-1])
        axes.set_ylim(10.0**low, 10.0**high)
        axes.set_xticks(NODES)
        handles = [Line2D([], [], color=color, ls=ls, lw=2) for color, ls in WAYS.values()]
        pen.add_legend_above(axes, handles, WAYS, borderaxespad=0.3)
        return figure

    def foreground(self, figure, nodes, per_node, nbytes, latency_s, bandwidth_Bps, microbatches):
        axes, artists = figure.axes[0], []
        job = per_node, nbytes, latency_s, bandwidth_Bps, microbatches
        curves, here = (sent_s(each, *job) for each in (OVER, nodes))
        for way, (color, ls) in WAYS.items():
            artists += axes.plot(OVER, curves[way], color=color, ls=ls, lw=2, zorder=4)
            looks = {"color": color, "ms": 8, "mec": PAPER, "mew": 0.8, "zorder": 5}
            artists += axes.plot(nodes, here[way], "o", **looks)
        artists.append(axes.axvline(nodes, color=INK, lw=0.8, ls=":", zorder=3))
        return [*artists, *_write_title(figure, nodes, per_node, nbytes, here)]


def _write_title(figure, nodes, per_node, nbytes, here):
    """Write whether FSDP or HSDP sends for a shorter time, all times, and the bytes that a rank
    keeps."""
    ranks, best = nodes * per_node, min(("FSDP", "HSDP"), key=here.get)
    times = max(here["FSDP"], here["HSDP"]) / here[best]
    kept = {"data parallel": 1, "FSDP": ranks, "HSDP": per_node}
    lines = (
        f"{ranks:,} ranks in {nodes:,} nodes: {best} sends for the shorter time, by {times:.3g} x",
        "a step's sends: " + "; ".join(f"{way} {seconds_text(here[way])}" for way in WAYS),
        "a rank keeps: "
        + "; ".join(f"{way} {short_bytes(STATE * nbytes / kept[way])}" for way in WAYS),
    )
    return pen.write_title(figure, 0.98, *lines)
