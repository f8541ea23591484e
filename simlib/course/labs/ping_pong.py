"""The ping-pong lab: measured points, and the line that latency and bandwidth make of a size."""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D

from ...core.draw.figures import DPI, GREY, INK, PAPER, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import OKABE_ITO
from ...core.model.errors import InvalidCallError
from ...core.model.words import seconds_text, short_bytes
from .layers import Layers
from .log_axes import add_legend_above, add_log_axes
from .sliders import Lab, check_above_zero, round_numbers, short_bandwidth, slider

STYLES = {
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
SIZES = tuple(float(f"{step}e{exponent}") for exponent in range(8) for step in (1, 2, 4, 8))


def fit_ping_pong(points):
    """Latency and bandwidth that fit the points best, by least squares of relative errors.

    Parameters
    ----------
    points : sequence of (int, float)
        Bytes of a message, and the seconds it took.

    Returns
    -------
    latency_s, bandwidth_Bps : float
        At least 1 ns, at most 1 PB/s: noise can make the best line fall, or begin below zero.
    """
    nbytes, time_s = _columns(points)
    seconds_per_byte, latency_s = np.polyfit(nbytes, time_s, 1, w=1 / time_s)
    return max(float(latency_s), 1e-9), float(1 / max(seconds_per_byte, 1e-15))


def draw_ping_pong(points, latency_s=None, bandwidth_Bps=None, nbytes=DEFAULT_NBYTES):
    """Draw measured points and the model T = latency + nbytes / bandwidth over the size.

    Parameters
    ----------
    points : sequence of (int, float)
        Bytes of a message, and the seconds it took. At least two.
    latency_s, bandwidth_Bps : float, optional
        Of the model; where not given, those of `fit_ping_pong`.
    nbytes : float
        The message that is marked and taken apart in the title.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        Points that are none, a number that is not above zero.
    """
    sizes, times_s = _columns(points)
    latency_s, bandwidth_Bps = _given_or_fitted(points, latency_s, bandwidth_Bps)
    check_above_zero(latency_s=latency_s, bandwidth_Bps=bandwidth_Bps, nbytes=nbytes)
    return _PingPong(sizes, times_s).draw(latency_s, bandwidth_Bps, nbytes)


def ping_pong_lab(points, latency_s=None, bandwidth_Bps=None, nbytes=DEFAULT_NBYTES):
    """The picture of `draw_ping_pong` with sliders for latency, bandwidth and size.

    Parameters
    ----------
    points, latency_s, bandwidth_Bps, nbytes
        As for `draw_ping_pong`; where the sliders stand first.

    Returns
    -------
    Lab
    """
    draw_ping_pong(points, latency_s, bandwidth_Bps, nbytes)  # refuses what cannot be drawn
    fitted = fit_ping_pong(points)
    latency_s, bandwidth_Bps = _given_or_fitted(points, latency_s, bandwidth_Bps)
    latencies = {*round_numbers(5e-7, 2e-3), fitted[0]}
    bandwidths = {*round_numbers(1e7, 1e11), fitted[1]}
    low, high = _limits(*_columns(points))[0]
    sizes = [size for size in SIZES if low <= size <= high]
    return Lab(
        _PingPong(*_columns(points)),
        {
            "latency_s": slider("latency", latencies, latency_s, seconds_text),
            "bandwidth_Bps": slider("bandwidth", bandwidths, bandwidth_Bps, short_bandwidth),
            "nbytes": slider("size of a message", sizes, nbytes, short_bytes),
        },
    )


def _given_or_fitted(points, latency_s, bandwidth_Bps):
    fitted = fit_ping_pong(points)
    return (
        fitted[0] if latency_s is None else latency_s,
        fitted[1] if bandwidth_Bps is None else bandwidth_Bps,
    )


def _columns(points):
    """Bytes and seconds of the points, as arrays."""
    wanted = "give a list of (nbytes, seconds), two or more, all numbers above 0"
    try:
        table = np.array(points, dtype=float)
    except (TypeError, ValueError):
        raise InvalidCallError(f"points cannot be read: {wanted}") from None
    good = (table > 0) & np.isfinite(table)
    if table.ndim != 2 or table.shape[1] != 2 or len(table) < 2 or not good.all():
        raise InvalidCallError(f"points has {table.tolist()!r}: {wanted}")
    if len(set(table[:, 0])) < 2:
        raise InvalidCallError("points are all of one size: a line needs two sizes")
    return table.T


def _limits(sizes, times_s):
    """Ends of the axes, bytes and seconds: they stay where they are while sliders move."""
    return (sizes.min() / 2, sizes.max() * 5), (min(4e-7, times_s.min() / 2), times_s.max() * 20)


class _PingPong(Layers):
    """The points and the line. Axes and legend stay; the line, the message and the titles move.

    The points are drawn with what moves, because they lie above the line.
    """

    def __init__(self, sizes, times_s):
        self.sizes, self.times_s = sizes, times_s

    def background(self):
        figure = Picture(figsize=(7.2, 4.1), dpi=DPI, facecolor=PAPER)
        size_name = "size of a message (1 kB = 1,000 bytes)"
        place = [0.1, 0.115, 0.88, 0.685]
        axes = add_log_axes(figure, place, short_bytes, size_name, "time of a message")
        x, y = _limits(self.sizes, self.times_s)
        axes.set_xlim(*x)
        axes.set_ylim(*y)
        lines = [Line2D([], [], **look) for look in STYLES.values()]
        add_legend_above(axes, lines, STYLES, borderaxespad=0.2, handlelength=1.6)
        return figure

    def foreground(self, figure, latency_s, bandwidth_Bps, nbytes):
        axes = figure.axes[0]
        x = np.geomspace(*axes.get_xlim(), 200)
        part, chosen = STYLES["each part alone"], STYLES["chosen message"]
        return [
            *axes.plot(x, latency_s + x / bandwidth_Bps, **STYLES["latency + nbytes / bandwidth"]),
            *axes.plot(x, np.full(200, latency_s), **part),
            *axes.plot(x, x / bandwidth_Bps, **part),
            *axes.plot(self.sizes, self.times_s, **STYLES["measured"]),
            *axes.plot(nbytes, latency_s + nbytes / bandwidth_Bps, **chosen),
            *_draw_half(axes, latency_s * bandwidth_Bps),
            *_write_title(figure, self.sizes, self.times_s, latency_s, bandwidth_Bps, nbytes),
        ]


def _draw_half(axes, half):
    """The size at which half of the bandwidth is used: both parts are equal."""
    low, high = axes.get_xlim()
    if not low < half < high:
        return []
    line = axes.axvline(half, color=GREY, lw=1, ls="--", zorder=6)
    on_the_left = half > np.sqrt(low * high)
    text = axes.annotate(
        f"$n_{{1/2}}$ = latency x bandwidth = {short_bytes(half)}",
        (half, axes.get_ylim()[1]),
        xytext=(-6 if on_the_left else 6, -4),
        textcoords="offset points",
        ha="right" if on_the_left else "left",
        va="top",
        fontsize=TEXT_PT,
        bbox={"fc": PAPER, "ec": "none", "pad": 1.5, "alpha": 0.85},
        zorder=9,
    )
    return [line, text]


def _write_title(figure, sizes, times_s, latency_s, bandwidth_Bps, nbytes):
    bytes_s = nbytes / bandwidth_Bps
    time_s = latency_s + bytes_s
    first = figure.text(
        0.012,
        0.978,
        f"T = {_time(latency_s)} + nbytes / ({short_bandwidth(bandwidth_Bps)}):"
        f" the median point is {_error(latency_s + sizes / bandwidth_Bps, times_s)} off",
        fontsize=TITLE_PT,
        va="top",
    )
    second = figure.text(
        0.012,
        0.918,
        f"a message of {short_bytes(nbytes)}: {_time(latency_s)} latency + {_time(bytes_s)}"
        f" for its bytes = {_time(time_s)}; uses {bytes_s / time_s:.0%} of the bandwidth",
        fontsize=TEXT_PT,
        va="top",
    )
    return [first, second]


def _time(time_s):
    return seconds_text(time_s) if time_s >= 1e-9 else "less than 1 ns"


def _error(model_s, times_s):
    """How far the model is from the median point: ``"6%"``, or ``"12 times"``."""
    off = np.median(abs(model_s / times_s - 1))
    return f"{off:.0%}" if off < 2 else f"{off + 1:,.0f} times"
