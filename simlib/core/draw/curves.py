"""Draw curves of the values that ranks log while they train, live or after the run.

Ranks are other processes, and the kernel waits until they end. So the values travel through
TensorBoard's event files. A rank writes values with
``torch.utils.tensorboard.SummaryWriter(folder)``, and a thread of the kernel reads the files.
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
"""Curves: ``{name: {run: [(step, value), ...]}}``."""
EVERY_S = 0.5


@contextlib.contextmanager
def live_curves(folder: str | Path, x: str = "step") -> Iterator[None]:
    """Show values that ranks log into a folder: live in a ``with`` block, as a picture at its end.

    In a notebook, a live display updates the curves about twice a second. At the end of the block,
    the live display becomes empty, and the notebook shows the last picture once. So the stored
    notebook is the same for every run. Outside a notebook, nothing is shown. Use `draw_curves` to
    get the picture.

    Parameters
    ----------
    folder : str or path
        The folder of ``SummaryWriter``: see `draw_curves`. The folder may be created later.
    x : str
        The label of the horizontal axis. It says what the logged steps count.
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
            print("there are no curves, because no rank logged a value")


def _keep_showing(handle, reader, done, x):
    """Update the display whenever a rank has logged something new, until ``done``."""

    shown = {}
    while not done.wait(EVERY_S):
        curves = reader.read()
        if curves != shown:
            handle.update(_bundle(picture_of(curves, reader.runs, x)), raw=True)
            shown = curves


def _bundle(picture):
    """The content of the live display: a picture, or an empty display."""
    if picture is None:
        return {"text/plain": "", "text/html": ""}
    data = base64.b64encode(picture._repr_png_()).decode()
    return {"text/plain": "", "text/html": f'<img src="data:image/png;base64,{data}">'}


def draw_curves(folder: str | Path, x: str = "step") -> Figure:
    """Draw the values that ranks logged into a folder: one panel per name, one line per run.

    Parameters
    ----------
    folder : str or path
        The folder into which the ranks logged. Each folder in it that contains TensorBoard's event
        files is one run, as in TensorBoard. The run has the name of this folder. The runs are in
        the order in which they began to log, and this order determines their colours.
    x : str
        The label of the horizontal axis. It says what the logged steps count.

    Returns
    -------
    Picture

    Raises
    ------
    FileNotFoundError
        No rank has logged a value into the folder.
    """

    reader = Reader(folder)
    curves = reader.read()
    if not curves:
        raise FileNotFoundError(
            f"{folder} contains no curve: did a rank log to this folder, and close its logger?"
        )
    return picture_of(curves, reader.runs, x)


class Reader:
    """Reads a folder of event files again and again, and keeps the values that it has read.

    Attributes
    ----------
    runs : list of str
        The runs that have logged something, in the order in which they began. The list only grows
        at its end. So a run keeps its place and its colour when other runs begin.
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
"""A row of the legend has this many names of runs for each panel."""


def picture_of(curves: Curves, order: Sequence[str], x: str = "step") -> Figure:
    """The picture of curves from `Reader.read`, with the runs in the order of `Reader.runs`.

    A thread draws the picture while the kernel may draw something else. So this function sets the
    colours itself, and does not change the settings of matplotlib.
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
    """Draw one line. Mark its points if they are few compared to the run's longest curve."""
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
    """Draw one legend above all panels. Inside a panel it would cover the lines."""
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    named = [lines[run] for run in order if run in lines]
    if len(named) > 1:
        look = {"fontsize": SMALL_PT, "frameon": False, "labelcolor": INK}
        columns = min(len(named), RUNS_BESIDE * len(panels))
        figure.legend(handles=named, loc="outside upper center", ncols=columns, **look)
