"""Figures of a notebook: each comes with its dark variant, and with a text that describes it.

matplotlib is imported when the first figure is shown.
"""

from __future__ import annotations

from .display import alt_metadata, in_notebook


def follow_theme() -> None:
    """Show every figure of this notebook with its dark variant; elsewhere nothing is done."""
    if not in_notebook():
        return
    from IPython import get_ipython

    # By name, so that matplotlib is not imported for it.
    bundles = get_ipython().display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", _prepare)


def _prepare(figure):
    """See to it that the figure about to be shown comes with its dark variant; adds its alt text.

    pyplot sets how figures are shown when it is first used, and again with every change of its
    settings, so this cannot be done once and for all.
    """
    from IPython import get_ipython
    from matplotlib.figure import Figure

    from .dark import WithDarkVariant
    from .figures import Picture, figure_in_words, png_of

    pngs = get_ipython().display_formatter.formatters["image/png"]
    pngs.for_type(Picture, png_of)
    printer = pngs.type_printers.get(Figure)
    if printer and not isinstance(printer, WithDarkVariant):
        pngs.for_type(Figure, WithDarkVariant(printer))
    words = figure.in_words() if isinstance(figure, Picture) else figure_in_words(figure)
    return {}, alt_metadata(words)
