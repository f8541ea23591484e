"""Curves of what ranks log while they train: drawn live from TensorBoard's event files, and after.

Ranks are processes and the kernel waits for them, so what they log travels through files: a rank
writes with ``torch.utils.tensorboard.SummaryWriter(folder)``, a thread of the kernel reads.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..environment import need
from .display import in_notebook

if TYPE_CHECKING:  # matplotlib is loaded where a picture is drawn
    from matplotlib.figure import Figure
from .palette import GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, rank_color, visible

Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""``{name: {run: [(step, value), ...]}}``."""
EVERY_S = 0.5


@contextlib.contextmanager
def live_curves(folder: str | Path, x: str = "step") -> Iterator[None]:
    """Show what is logged into a folder: live while the block runs, as a picture when it ends.

    In a notebook, a display that begins and ends empty shows the curves about twice a second; then
    the last picture is shown once. So the stored form is the same for every run. Elsewhere nothing
    is shown: `draw_curves` gives the picture.

    Parameters
    ----------
    folder : str or path
        Where ``SummaryWriter`` writes; see `draw_curves`. It may come into being later.
    x : str
        What the logged steps count: the words under the horizontal axis.
    """
    if not in_notebook():
        yield
        return
    from IPython.display import display

    from . import figures  # noqa: F401  matplotlib is imported before the thread needs it

    reader, done = Reader(folder), threading.Event()
    handle = display(_bundle(None), raw=True, display_id=True)
    arguments = (handle, reader, done, x)
    thread = threading.Thread(None, _keep_showing, "simlib-curves", arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        handle.update(_bundle(None), raw=True)
        curves = reader.read()
        if curves:
            display(picture_of(curves, reader.runs, x))
        else:
            print("no curves: nothing was logged")


def _keep_showing(handle, reader, done, x):
    """Bring the display up to date until ``done``, where something new was logged."""

    shown = {}
    while not done.wait(EVERY_S):
        curves = reader.read()
        if curves != shown:
            handle.update(_bundle(picture_of(curves, reader.runs, x)), raw=True)
            shown = curves


def _bundle(picture):
    """What the live display holds: a picture, or nothing."""
    if picture is None:
        return {"text/plain": "", "text/html": ""}
    data = base64.b64encode(picture._repr_png_()).decode()
    return {"text/plain": "", "text/html": f'<img src="data:image/png;base64,{data}">'}


def draw_curves(folder: str | Path, x: str = "step") -> Figure:
    """Draw what was logged into a folder: one panel per name, one line per run.

    Parameters
    ----------
    folder : str or path
        With TensorBoard's event files. Each folder below it that holds such files is a run of its
        own, as in TensorBoard, and its line carries the folder's name. Runs stand, and have their
        colours, in the order in which they began to log.
    x : str
        What the logged steps count: the words under the horizontal axis.

    Returns
    -------
    Picture

    Raises
    ------
    FileNotFoundError
        Nothing was logged there.
    """

    reader = Reader(folder)
    curves = reader.read()
    if not curves:
        raise FileNotFoundError(f"{folder} holds no curve: has a rank logged into it, and closed?")
    return picture_of(curves, reader.runs, x)


class Reader:
    """Reads a folder of event files again and again; what was read before is kept.

    Attributes
    ----------
    runs : list of str
        The runs that have logged something, in the order in which they began; it only grows at its
        end, so a run's place, and with it its colour, stays while others come.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._accumulators: dict[str, Any] = {}
        self.runs: list[str] = []

    def read(self) -> Curves:
        """``{name: {run: [(step, value), ...]}}`` of everything logged until now."""
        need("course", "tensorboard", what="the picture of curves")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for file in sorted(self._folder.rglob("events.out.tfevents.*")):
            run = str(file.parent.relative_to(self._folder))
            if run not in self._accumulators:
                accumulator = EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
                self._accumulators[run] = accumulator
        curves: Curves = {}
        began_s: dict[str, float] = {}
        for run, accumulator in self._accumulators.items():
            accumulator.Reload()
            for name in accumulator.Tags()["scalars"]:
                events = accumulator.Scalars(name)
                curves.setdefault(name, {})[run] = [(event.step, event.value) for event in events]
                began_s[run] = min(events[0].wall_time, began_s.get(run, events[0].wall_time))
        self.runs += sorted(began_s.keys() - set(self.runs), key=lambda run: (began_s[run], run))
        return curves


PANEL_IN = (3.6, 2.4)
RUNS_BESIDE = 2
"""Names of runs in a row, for each panel."""


def picture_of(curves: Curves, order: Sequence[str], x: str = "step") -> Figure:
    """The picture of curves as `Reader.read` gives them, of runs in the order of `Reader.runs`.

    It is drawn in a thread, beside whatever the kernel draws, so it leaves matplotlib's common
    settings alone and says its colours itself.
    """
    from .figures import new_picture

    width, height = PANEL_IN
    figure = new_picture(width * len(curves), height, layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    longest = {run: max(len(runs.get(run, ())) for runs in curves.values()) for run in order}
    for panel, (name, runs) in zip(panels, sorted(curves.items()), strict=True):
        for number, run in enumerate(order):
            if run in runs:
                _draw_run(panel, run, runs[run], visible(rank_color(number)), longest[run])
        _dress_panel(panel, name, x)
    _name_runs(figure, panels, order)
    return figure


def _draw_run(panel, run, points, color, longest):
    """One line; points are marked where they are few beside the run's longest curve."""
    steps, values = zip(*points, strict=True)
    marker = "o" if len(points) == 1 or 2 * len(points) < longest else None
    panel.plot(steps, values, color=color, lw=1.5, marker=marker, ms=3.5, label=run)


def _dress_panel(panel, name, x):
    panel.set_facecolor(PAPER)
    panel.set_title(name, fontsize=TITLE_PT, color=INK)
    panel.set_xlabel(x, fontsize=TEXT_PT, color=INK)
    panel.tick_params(labelsize=TEXT_PT, color=GREY, labelcolor=INK)
    panel.grid(True, color="#e8e8e8", linewidth=0.6)
    for side, spine in panel.spines.items():
        spine.set_color(GREY)
        spine.set_visible(side in ("left", "bottom"))


def _name_runs(figure, panels, order):
    """One legend for all panels, above them: within, it would lie on the lines."""
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    named = [lines[run] for run in order if run in lines]
    if len(named) > 1:
        look = {"fontsize": SMALL_PT, "frameon": False, "labelcolor": INK}
        columns = min(len(named), RUNS_BESIDE * len(panels))
        figure.legend(handles=named, loc="outside upper center", ncols=columns, **look)
