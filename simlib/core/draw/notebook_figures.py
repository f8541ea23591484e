"""Figures in a notebook follow its theme: those of simlib, and the learner's own by pyplot."""

from __future__ import annotations

import base64

from .display import alt_metadata, in_notebook


def follow_theme():
    """Show every figure of this notebook with its dark twin; elsewhere nothing is done."""
    if not in_notebook():
        return
    from IPython import get_ipython

    # By name, so that matplotlib is not imported for it.
    bundles = get_ipython().display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", _prepare)


def _prepare(figure):
    """See to it that the figure about to be shown comes with its twin; adds its alt text.

    pyplot sets how figures are shown when it is first used, and again with every change of its
    settings, so this cannot be done once and for all.
    """
    from IPython import get_ipython
    from matplotlib.figure import Figure

    from .figures import Picture, figure_in_words, png_of

    pngs = get_ipython().display_formatter.formatters["image/png"]
    pngs.for_type(Picture, png_of)
    printer = pngs.type_printers.get(Figure)
    if printer and not isinstance(printer, WithDarkVariant):
        pngs.for_type(Figure, WithDarkVariant(printer))
    words = figure.in_words() if isinstance(figure, Picture) else figure_in_words(figure)
    return {}, alt_metadata(words)


class WithDarkVariant:
    """Shows a figure as pyplot does, and in the same PNG as it is on dark paper."""

    def __init__(self, printer):
        self._printer = printer

    def __call__(self, figure):
        """What the printer gives, a PNG in base64, and its metadata if there are any."""
        from .dark_canvas import DarkCanvas
        from .figures import on_canvas

        light = self._printer(figure)
        try:
            if light is None or not has_dark_variant(figure):
                return light
            with on_canvas(figure, DarkCanvas):
                dark = self._printer(figure)
            if isinstance(light, tuple):
                return _joined(light[0], dark[0]), light[1]
            return _joined(light, dark)
        except Exception:  # of an artist that cannot be drawn so: its light picture is there
            return light


def _joined(light, dark):
    from .dark_variant import joined, smaller

    light, dark = base64.b64decode(light), base64.b64decode(dark)
    return base64.b64encode(joined(light, smaller(dark))).decode()


def has_dark_variant(figure):
    """Whether a figure has light paper, and no photograph: its colours would be turned."""
    from matplotlib.colors import to_hex, to_rgba
    from matplotlib.image import AxesImage, BboxImage, FigureImage

    from .palette import is_bright

    paper = figure.get_facecolor()
    images = figure.findobj(lambda artist: isinstance(artist, (AxesImage, BboxImage, FigureImage)))
    is_light = to_rgba(paper)[3] == 1 and is_bright(to_hex(paper))
    return is_light and all(image.get_array().ndim == 2 for image in images)
