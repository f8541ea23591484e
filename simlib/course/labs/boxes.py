"""Many boxes and the numbers in them, drawn at once: single patches and texts would be slow."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.transforms import Affine2D

from ...core.draw.figures import DPI, PAPER
from ...core.draw.palette import INK_THAT_STAYS, PAPER_THAT_STAYS, is_bright, on_dark

NUMBER_PT = 7.5
NOTHING, NO_CODES = np.empty((0, 2)), np.empty(0, dtype=Path.code_type)


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


def add_words(axes, x, y, texts, colors, left=False, zorder=4):
    """Write a text around each point, or to the right of it, as one artist; returns it.

    Its label is all texts, one line each.
    """
    written = PathCollection(
        [_word(text, left) for text in texts],
        offsets=np.column_stack([x, y]),
        offset_transform=axes.transData,
        facecolors=colors,
        linewidths=0,
        zorder=zorder,
        label="\n".join(texts),
    )
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
    """The outline of a text, in points, letter by letter: as one it would take 20 times as long."""
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
    """The outline of a letter, in points, and how far the next one is from it."""
    width = text_to_path.get_text_width_height_descent(
        letter, FontProperties(size=NUMBER_PT), ismath=False
    )[0]
    if letter == " ":
        return Path(NOTHING, NO_CODES), width
    return TextPath((0, 0), letter, size=NUMBER_PT), width


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
