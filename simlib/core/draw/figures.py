"""Shared parts of all pictures: the figure that shows itself, PNG bytes, colours and sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .dark import DarkCanvas, on_canvas, png_of_both
from .display import Displayed
from .lanes import Span
from .palette import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT

__all__ = [
    "DPI",
    "GREY",
    "INK",
    "PAPER",
    "SMALL_PT",
    "TEXT_PT",
    "TITLE_PT",
    "Picture",
    "bare_axes",
    "figure_in_words",
    "new_picture",
    "on_canvas",
    "own_style",
    "pixels_of",
    "png_of",
]


Draw = TypeVar("Draw", bound=Callable[..., Figure])


class Picture(Figure, Displayed):
    """A Figure that shows itself in a notebook, even if pyplot was never imported.

    ``words`` describes the picture in sentences. It is empty if the function that drew the picture
    set no description.
    """

    words = ""

    def in_words(self) -> str:
        """A description of the picture in sentences, or else the labels of its axes."""
        return figure_in_words(self)

    def _repr_png_(self):
        return png_of(self)

    def savefig(self, *args: Any, dark: bool = False, **options: Any) -> None:
        """As matplotlib's `savefig`. ``dark=True`` saves the picture for a dark theme."""
        with on_canvas(self, DarkCanvas) if dark else nullcontext():
            super().savefig(*args, **options)


def new_picture(width_in: float, height_in: float, **options: Any) -> Picture:
    """An empty picture of this size on light paper."""
    figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER, **options)
    FigureCanvasAgg(figure)
    return figure


def bare_axes(figure: Figure, xlim: Span, ylim: Span, **options: Any) -> Any:
    """Invisible axes that cover a whole figure."""
    axes = figure.add_axes([0, 0, 1, 1], xlim=xlim, ylim=ylim, **options)
    axes.axis("off")
    return axes


def figure_in_words(figure: Figure) -> str:
    """The description that ``figure.words`` has, or else the figure's titles, axes and legends."""
    if words := getattr(figure, "words", ""):
        return words
    told = []
    for axes in figure.axes:
        title, x, y = (
            axes.get_title() or axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()
        )  # fmt: skip
        legend = axes.get_legend()
        lines = [text.get_text() for text in legend.get_texts()] if legend else []
        parts = [title, f"{y} over {x}" if x and y else x or y, ", ".join(lines)]
        told.append("; ".join(" ".join(part.split()) for part in parts if part))
    words = ". ".join(dict.fromkeys(filter(None, told)))
    return f"A figure. {words}." if words else "A figure."


def png_of(figure: Figure) -> bytes:
    """The figure as PNG bytes, with its dark variant. The same figure gives the same bytes."""
    light = pixels_of(FigureCanvasAgg(figure))
    with on_canvas(figure, DarkCanvas) as canvas:
        dark = pixels_of(canvas)
    return png_of_both(light, dark, figure.dpi)


def pixels_of(canvas: FigureCanvasAgg) -> np.ndarray:
    """The pixels of a canvas's figure: array (height, width, 3)."""
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def own_style(draw: Draw) -> Draw:
    """Draw with matplotlib's own defaults, even if the learner has set another theme."""

    @wraps(draw)
    def styled(*args, **kwargs):
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update({"text.color": INK, "axes.labelcolor": INK})
            return draw(*args, **kwargs)

    return cast(Draw, styled)
