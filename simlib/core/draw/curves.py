"""Curves of what ranks log while they train: drawn live from TensorBoard's event files, and after.

Ranks are processes and the kernel waits for them, so what they log travels through files: a rank
writes with ``torch.utils.tensorboard.SummaryWriter(folder)``, a thread of the kernel reads.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..environment import need
from .display import in_notebook

if TYPE_CHECKING:  # matplotlib is loaded where a picture is drawn
    from matplotlib.figure import Figure

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

    from .curve_picture import picture_of

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
    from .curve_picture import picture_of

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
    from .curve_picture import picture_of

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

    def __init__(self, folder):
        self._folder = Path(folder)
        self._accumulators = {}
        self.runs = []

    def read(self):
        """``{name: {run: [(step, value), ...]}}`` of everything logged until now."""
        need("course", "tensorboard", what="the picture of curves")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for file in sorted(self._folder.rglob("events.out.tfevents.*")):
            run = str(file.parent.relative_to(self._folder))
            if run not in self._accumulators:
                accumulator = EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
                self._accumulators[run] = accumulator
        curves, began_s = {}, {}
        for run, accumulator in self._accumulators.items():
            accumulator.Reload()
            for name in accumulator.Tags()["scalars"]:
                events = accumulator.Scalars(name)
                curves.setdefault(name, {})[run] = [(event.step, event.value) for event in events]
                began_s[run] = min(events[0].wall_time, began_s.get(run, events[0].wall_time))
        self.runs += sorted(began_s.keys() - set(self.runs), key=lambda run: (began_s[run], run))
        return curves
