"""Drawing tools for pictures of labs: boxes, words as outlines, axes, titles, legends."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Affine2D

from ...core.draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import INK_THAT_STAYS, PAPER_THAT_STAYS, is_bright, on_dark
from ...core.model.words import seconds_text

NUMBER_PT = 7.5
NOTHING, NO_CODES = np.empty((0, 2)), np.empty(0, dtype=Path.code_type)


def boxes_at(x, y, width, height):
    """The corners of rectangles with these upper left corners: array (count, 4, 2)."""
    xs, ys = np.stack([x, x + width, x + width, x], 1), np.stack([y, y, y + height, y + height], 1)
    return np.stack([xs, ys], axis=2)


def add_boxes(axes, boxes, zorder, **looks):
    """Add polygons, array (count, corners, 2), as one artist. Returns the artist."""
    drawn = PolyCollection(boxes, zorder=zorder, **looks)
    axes.add_collection(drawn, autolim=False)
    return drawn


def add_numbers(axes, x, y, numbers, colors, zorder=4):
    """Write a number at each point, readable on the colour of its box. Returns the artists.

    There is one artist for each different number.
    """
    artists = []
    for number in np.unique(numbers):
        here = numbers == number
        inks = [readable_on(color) for color, is_here in zip(colors, here, strict=True) if is_here]
        artists.append(_add_outlines(axes, [_outline(int(number))], x[here], y[here], inks, zorder))
    return artists


def add_words(axes, x, y, texts, colors=INK, left=False):
    """Write a text centred on each point, or to its right. Returns one artist for all texts.

    The label of the artist contains all texts, one per line.
    """
    paths = [_word(text, left) for text in texts]
    return _add_outlines(axes, paths, x, y, colors, 4, label="\n".join(texts))


def _add_outlines(axes, paths, x, y, colors, zorder, **label):
    looks = {"facecolors": colors, "linewidths": 0, "zorder": zorder, **label}
    places = np.column_stack(np.broadcast_arrays(x, y))
    written = PathCollection(paths, offsets=places, offset_transform=axes.transData, **looks)
    written.set_transform(Affine2D().scale(DPI / 72))
    axes.add_collection(written, autolim=False)
    return written


@cache
def _outline(number):
    """The outline of a number, in points, around its middle."""
    path = TextPath((0, 0), str(number), size=NUMBER_PT)
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


@lru_cache(4096)
def _word(text, left):
    """The outline of a text, in points. It is made letter by letter, which is 20 times as fast."""
    letters = [_letter(letter) for letter in text]
    starts = np.cumsum([0.0] + [advance for _, advance in letters])
    height = _letter("0")[0].vertices[:, 1].max()
    corner = np.array([0.0 if left else starts[-1] / 2, height / 2])
    parts = [
        path.vertices + (start, 0) - corner
        for (path, _), start in zip(letters, starts, strict=False)
    ]
    codes = [path.codes for path, _ in letters]
    return Path(np.concatenate([NOTHING, *parts]), np.concatenate([NO_CODES, *codes]))


@cache
def _letter(letter):
    """The outline of a letter, in points, and the distance to the next letter."""
    width = text_to_path.get_text_width_height_descent(
        letter, FontProperties(size=NUMBER_PT), ismath=False
    )[0]
    if letter == " ":
        return Path(NOTHING, NO_CODES), width
    return TextPath((0, 0), letter, size=NUMBER_PT), width


def width_of(number):
    """The width of a number, in inches."""
    return _outline(number).get_extents().width / 72


@cache
def readable_on(color):
    """Black or white, the one that is easier to read on a colour, in light and dark themes."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    if 0.299 * red + 0.587 * green + 0.114 * blue > 130:
        return INK_THAT_STAYS if is_bright(on_dark(color)) else "#000000"
    return PAPER if is_bright(on_dark(color)) else PAPER_THAT_STAYS


# -- logarithmic axes, the upright one of seconds --------------------------------------------------


def add_log_axes(figure, place, x_text, x_name, y_name, grid=True, **y_looks):
    """Add axes to a figure, with a quantity to the right and seconds upwards.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    place : list of float
        Left, bottom, width and height, as shares of the figure.
    x_text : callable
        ``x_text(value)`` is the text for a value of the horizontal axis.
    x_name, y_name : str
    grid : bool
    **y_looks
        Other options of the vertical axis's name.

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


def picture_in_inches(width, height):
    """A figure, and axes that cover it. Their unit is an inch, from the upper left corner."""
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def write_head(axes, title, *more):
    """Write a title in the upper left corner of axes in inches, and a smaller line below."""
    title = axes.text(0.1, 0.1, title, fontsize=TITLE_PT, va="top")
    return [title, *(axes.text(0.1, 0.34, text, fontsize=TEXT_PT, va="top") for text in more)]


def write_title(figure, y, *lines):
    """Write lines below one another, from ``y`` down: first the title, then smaller lines."""
    sizes = TITLE_PT, TEXT_PT, TEXT_PT
    places = y, y - 0.056, y - 0.103
    return [
        figure.text(0.012, place, text, fontsize=size, va="top")
        for place, text, size in zip(places, lines, sizes, strict=False)
    ]


def add_legend_above(axes, handles, names, **looks):
    """Explain the drawing in one line above the axes."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": len(names)}
    plain = {"fontsize": TEXT_PT, "frameon": False, "borderpad": 0, "columnspacing": 1.4}
    axes.legend(handles, names, **place | plain | looks)
