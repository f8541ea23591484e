"""How things show themselves in a notebook: as pictures with alt text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


class Displayed:
    """Mixed into what has a ``_repr_png_``: a notebook keeps `in_words` as the picture's alt text.

    It stands in the metadata of the output, where nbconvert looks for it; JupyterLab learns it from
    the course's extension (`scripts/lab_extensions`).
    """

    __slots__ = ()

    def in_words(self) -> str:
        """What the picture shows, in sentences."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        return {}, alt_metadata(self.in_words())


class DisplayMixin(Displayed):
    """Mixed into what has ``draw()``, a figure by which it is shown."""

    __slots__ = ()
    draw: Callable[[], Any]

    def in_words(self) -> str:
        """What the figure's axes are called: for whoever does not see it."""
        return self.draw().in_words()

    def _repr_png_(self) -> Any:
        return self.draw()._repr_png_()


def alt_metadata(words: str) -> dict:
    """The metadata of an output that has a PNG, with its alt text."""
    return {"image/png": {"alt": words}}
