"""The player: a run as a widget that plays it, without a network."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from ...model.words import ranks_text
from ..display import alt_metadata
from ..figures import png_of
from ..lanes import Between, Ranks, chosen
from ..timeline import draw_timeline
from .scene import FOLDER, SCRIPTS, STYLE, scene_of

__all__ = ["Player"]


class Player(anywidget.AnyWidget):
    """A widget that plays a run. `Run.play` returns it.

    Its `scene` contains the data that the browser draws. See `simlib.draw.player.scene`. Where no
    widget can run, as on a web page or on paper, the notebook shows the run's timeline.
    """

    _esm = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    _css = STYLE
    scene = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Any, ranks: Ranks = None, between: Between = None) -> None:
        ranks, begin_s, end_s = chosen(run, ranks, between)
        between = begin_s, end_s
        self._text = f"player of {run.name} on {ranks_text(run)}"
        self._picture = lambda: png_of(draw_timeline(run, ranks=ranks, between=between))
        super().__init__(scene=scene_of(run, ranks, between))

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = super()._repr_mimebundle_(**kwargs)
        picture = self._picture()
        # Widgets live as long as the kernel; the run, with all its results, need not.
        self._picture = lambda: picture
        return data | {"image/png": picture}, metadata | alt_metadata(self.scene["words"])

    def __repr__(self):
        return self._text
