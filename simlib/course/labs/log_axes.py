"""Axes with two logarithmic scales, the upright one of seconds: three labs draw on them."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter, NullLocator

from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT
from ...core.model.words import seconds_text


def add_log_axes(figure, place, x_text, x_name, y_name, grid=True, **y_looks):
    """Add axes to a figure: a quantity to the right, seconds upwards.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    place : list of float
        Left, bottom, width and height, as shares of the figure.
    x_text : callable
        A value of the horizontal axis as text.
    x_name, y_name : str
    grid : bool
    **y_looks
        Further options of the vertical axis's name.

    Returns
    -------
    matplotlib.axes.Axes
    """
    axes = figure.add_axes(place, facecolor=PAPER)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_name, fontsize=TEXT_PT)
    axes.set_ylabel(y_name, fontsize=TEXT_PT, **y_looks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time_s, _: seconds_text(time_s)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())  # drawing them takes most of the time
    axes.tick_params(which="both", labelsize=SMALL_PT, labelcolor=INK, color=GREY)
    if grid:
        axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def add_legend_above(axes, handles, names, **looks):
    """Explain what is drawn in one line above the axes."""
    axes.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(names),
        fontsize=TEXT_PT,
        frameon=False,
        borderpad=0,
        columnspacing=1.4,
        **looks,
    )
