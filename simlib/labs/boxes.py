"""Many boxes and the numbers in them, drawn at once: single patches and texts would be slow."""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from ..draw.figures import DPI, PAPER
from ..draw.palette import INK_THAT_STAYS, PAPER_THAT_STAYS, is_bright, on_dark

NUMBER_PT = 7.5


def boxes_at(x, y, width, height):
    """Rectangles with these upper left corners: array (count, 4, 2)."""
    xs, ys = np.stack([x, x + width, x + width, x], 1), np.stack([y, y, y + height, y + height], 1)
    return np.stack([xs, ys], axis=2)


def add_boxes(axes, boxes, zorder, **looks):
    """Add polygons, array (count, corners, 2), as one artist; returns it."""
    drawn = PolyCollection(boxes, zorder=zorder, **looks)
    axes.add_collection(drawn, autolim=False)
    return drawn


def add_numbers(axes, x, y, numbers, colors, zorder=4):
    """Write a number around each point, readable on its box's colour; returns the artists.

    One artist for each number that there is.
    """
    artists = []
    for number in np.unique(numbers):
        here = numbers == number
        inks = [readable_on(color) for color, is_here in zip(colors, here, strict=True) if is_here]
        written = PathCollection(
            [_outline(int(number))],
            offsets=np.column_stack([x[here], y[here]]),
            offset_transform=axes.transData,
            facecolors=inks,
            linewidths=0,
            zorder=zorder,
        )
        written.set_transform(Affine2D().scale(DPI / 72))
        axes.add_collection(written, autolim=False)
        artists.append(written)
    return artists


@cache
def _outline(number):
    """The outline of a number, in points, around its middle."""
    path = TextPath((0, 0), str(number), size=NUMBER_PT)
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


def width_of(number):
    """Inches that a number takes."""
    return _outline(number).get_extents().width / 72


@cache
def readable_on(color):
    """Black or white, whichever is easier to read on a colour, here and on dark paper."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    if 0.299 * red + 0.587 * green + 0.114 * blue > 130:
        return INK_THAT_STAYS if is_bright(on_dark(color)) else "#000000"
    return PAPER if is_bright(on_dark(color)) else PAPER_THAT_STAYS
