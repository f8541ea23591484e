"""Show objects in a notebook as pictures with a dark variant and alt text, and show a bar in a
terminal.

matplotlib is imported when the first figure is shown.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


class Displayed:
    """Base of classes with a ``_repr_png_``: `in_words` becomes the picture's alt text.

    The alt text is in the metadata of the output, where nbconvert looks for it. In JupyterLab, the
    course's extension (`course/open_lab/extensions`) shows the alt text.
    """

    __slots__ = ()

    def in_words(self) -> str:
        """A description of the picture, in sentences."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        return {}, alt_metadata(self.in_words())


class DisplayMixin(Displayed):
    """Base of classes with a method ``draw()``, whose figure a notebook shows."""

    __slots__ = ()
    draw: Callable[[], Any]

    def in_words(self) -> str:
        """The labels of the figure's axes, for readers who cannot see it."""
        return self.draw().in_words()

    def _repr_png_(self) -> Any:
        return self.draw()._repr_png_()


def alt_metadata(words: str) -> dict:
    """The metadata of an output that has a PNG, with its alt text."""
    return {"image/png": {"alt": words}}


def follow_theme() -> None:
    """Show every figure of this notebook with its dark variant. It has no effect outside a
    notebook."""
    if not in_notebook():
        return
    from IPython import get_ipython

    # By name, so that matplotlib is not imported for it.
    bundles = get_ipython().display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", _prepare)


def _prepare(figure):
    """Add the dark variant and the alt text to the figure that is about to be shown.

    pyplot sets how figures are shown when it is first used, and again with every change of its
    settings. So simlib has to do this work for every figure.
    """
    from IPython import get_ipython
    from matplotlib.figure import Figure

    from . import Picture, WithDarkVariant, figure_in_words, png_of

    pngs = get_ipython().display_formatter.formatters["image/png"]
    pngs.for_type(Picture, png_of)
    printer = pngs.type_printers.get(Figure)
    if printer and not isinstance(printer, WithDarkVariant):
        pngs.for_type(Figure, WithDarkVariant(printer))
    return {}, alt_metadata(figure_in_words(figure))


TICK_S = 1.0
"""Seconds between two moves of the clock in a bar."""
LONGEST_NAME = 30
"""The most characters of a name in a bar."""
_LONGEST_CLOCK = "10:00:00,  "


def _shows_bars():
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def has_room(text: str) -> bool:
    """Whether a bar on stderr would show this text, and the whole text."""
    columns = shutil.get_terminal_size().columns
    return _shows_bars() and len(text) <= columns - len(_LONGEST_CLOCK)


@contextlib.contextmanager
def bar(
    total: int | None, words: str, elapsed_s: float = 0.0
) -> Iterator[Callable[[str, int], None]]:
    """Show a bar on stderr, if stderr is a terminal and tqdm is installed.

    Yield ``show(words, number)``. It shows new words behind the bar, and the number of pieces that
    are done.

    Parameters
    ----------
    total : int or None
        The number of all pieces. If it is None, nobody knows the number. Then simlib shows the
        elapsed time and the words instead of a bar, and erases both at the end.
    words : str
        The words behind the bar until the first call.
    elapsed_s : float
        Seconds that have passed before this call.
    """
    if not _shows_bars():
        yield lambda words, number: None
        return
    from tqdm import tqdm

    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())  # 0 where it does not say
    except OSError:
        columns, rows = 0, 0
    shape = "{n} of {total} |{bar}| {elapsed}<{remaining}{postfix}"
    longest = LONGEST_NAME
    if total is None:
        shape, longest = "{elapsed}{postfix}", (columns or 80) - len(_LONGEST_CLOCK)
    with tqdm(
        total=total,
        file=sys.stderr,
        ncols=columns or 80,
        nrows=rows or 24,
        bar_format=shape,
        leave=total is not None,
    ) as one:
        one.start_t -= elapsed_s
        one.set_postfix_str(words[:longest])
        done = threading.Event()

        def move_clock() -> None:  # tqdm moves it with an update only
            while not done.wait(TICK_S):
                one.refresh()

        def show(words: str, number: int) -> None:
            one.set_postfix_str(words[:longest], refresh=False)
            one.update(number - one.n)
            one.refresh()

        clock = threading.Thread(target=move_clock, daemon=True)
        clock.start()
        try:
            yield show
        finally:
            done.set()
            clock.join()


@contextlib.contextmanager
def above_bars() -> Iterator[None]:
    """Use it around prints to stdout or stderr while a bar is shown."""
    tqdm = sys.modules.get("tqdm")
    with tqdm.tqdm.external_write_mode() if tqdm else contextlib.nullcontext():
        yield
        sys.stdout.flush()
