"""Text in a picture that never covers other text: what does not fit is left out."""

from __future__ import annotations

import numpy as np
from matplotlib.font_manager import FontProperties

from .style import PAPER, SMALL_PT

MAX_ARROWS = 300  # more arrows, bands or labels than this hide one another


class Labels:
    """Places text where it fits: inside the axes, off other labels and off what it must not hide.

    Rectangles are ``(x0, y0, x1, y1)`` in pixels of the figure.
    """

    def __init__(self, view):
        self.view = view
        self.font = FontProperties(size=SMALL_PT)
        box = view.axes.get_window_extent(view.renderer)
        self.bounds = box.x0, box.y0, box.x1, box.y1
        self.taken = np.empty((0, 4))
        self.keep_clear = np.empty((0, 2))
        self.sizes = {}

    def size(self, text):
        """Width and height of a label in pixels, with its margin."""
        if text not in self.sizes:
            width, height, _ = self.view.renderer.get_text_width_height_descent(
                text, self.font, False
            )
            self.sizes[text] = width + 6, height + 3
        return self.sizes[text]

    def place(self, text, spots, upright=False):
        """Write the text centred on the first of the spots (pixels) where it fits, or nowhere."""
        width, height = self.size(text)[::-1] if upright else self.size(text)
        for x, y in spots:
            rect = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            if self._free(rect):
                self.taken = np.vstack([self.taken, rect])
                return self._write(text, x, y, upright)
        return False

    def _free(self, rect):
        x0, y0, x1, y1 = rect
        left, low, right, high = self.bounds
        if x0 < left or y0 < low or x1 > right or y1 > high:
            return False
        beside = (self.taken[:, 0] >= x1) | (self.taken[:, 2] <= x0)
        if not np.all(beside | (self.taken[:, 1] >= y1) | (self.taken[:, 3] <= y0)):
            return False
        x, y = self.keep_clear.T
        return not np.any((x > x0) & (x < x1) & (y > y0) & (y < y1))

    def _write(self, text, x, y, upright):
        axes = self.view.axes
        axes.text(
            *axes.transData.inverted().transform((x, y)),
            text,
            ha="center",
            va="center" if upright else "center_baseline",  # a baseline is never upright
            fontproperties=self.font,
            rotation=90 if upright else 0,
            zorder=9,
            bbox={"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none", "alpha": 0.88},
        )
        return True
