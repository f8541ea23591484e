"""What all pictures share: the figure that shows itself, PNG bytes, sizes."""

from __future__ import annotations

import io
from functools import wraps

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

DPI = 110
INK, PAPER, GREY = "#222222", "#ffffff", "#777777"
TITLE_PT, TEXT_PT, SMALL_PT = 10, 8, 7


class Picture(Figure):
    """A Figure that shows itself in a notebook even where pyplot was never imported."""

    def _repr_png_(self):
        return png_of(self)


def png_of(figure):
    """The figure as PNG bytes: the same figure always gives the same bytes.

    The few colours of these pictures fit a palette, which makes the file three times smaller.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    small = pixels.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, format="png", dpi=(figure.dpi, figure.dpi))
    return buffer.getvalue()


def own_style(draw):
    """Draw with matplotlib's own defaults, whatever theme the learner has set."""

    @wraps(draw)
    def styled(*args, **kwargs):
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update({"text.color": INK, "axes.labelcolor": INK})
            return draw(*args, **kwargs)

    return styled
