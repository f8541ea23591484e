"""What all pictures share: the figure that shows itself, PNG bytes, sizes, numbers as text."""

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


def short_bytes(nbytes):
    """Bytes as a short text: ``"4 B"``, ``"1.2 kB"``, ``"10 MB"`` (1 kB = 1,000 B)."""
    unit, scale = bytes_unit(nbytes)
    return f"{number(nbytes / scale)} {unit}"


def bytes_unit(nbytes):
    """The unit that suits so many bytes, and how many bytes it has."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, scale) for unit, scale in units if nbytes >= scale), ("B", 1))


def number(value):
    """Three significant digits, or all digits of a larger number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def ranks_text(run):
    """How many ranks of which engine: ``"4 real ranks"``."""
    return f"{run.world_size:,} {run.engine} rank{'s' * (run.world_size != 1)}"


def collective_text(collective):
    """What a collective was, on one line: ``"all_reduce(SUM)  4 B"``."""
    calls = dict.fromkeys(op.call for _, op in sorted(collective.ops.items()))
    text = " / ".join(calls) if len(calls) <= 2 else "different collectives"
    if collective.nbytes:
        text += f"  {short_bytes(collective.nbytes)}"
    if len(collective.ops) < len(collective.group):
        text += f"  ({len(collective.ops)} of {len(collective.group)} ranks)"
    return text
