"""Pictures of runs. They import matplotlib, so each is imported when it is first asked for.

Not in two halves: where Ctrl-C broke matplotlib's import off, it would stay broken until the kernel
ends, as its parts hold on to the half that is gone.
"""

from importlib import import_module
from typing import Any

from ..environment import uninterrupted
from .display import alt_metadata, in_notebook

_FILE_OF = {
    "Player": "player",
    "draw_comparison": "run_pictures",
    "draw_memory": "memory",
    "draw_memory_history": "memory",
    "draw_parts": "memory",
    "draw_predictions": "report_page",
    "draw_states": "states",
    "draw_timeline": "timeline",
    "draw_traffic": "run_pictures",
    "draw_wait_graph": "run_pictures",
    "png_of": "figures",
    "save_report": "report_page",
}

__all__ = [*_FILE_OF]

_FILE_OF_OTHERS = dict.fromkeys(("differences_of", "parts_of", "save_page"), "player.page")
"""Further names, for simlib itself."""


def __getattr__(name: str) -> Any:
    file = _FILE_OF.get(name) or _FILE_OF_OTHERS.get(name)
    if file is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with uninterrupted():
        module = import_module(f".{file}", __name__)
    return getattr(module, name)


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
