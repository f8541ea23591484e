"""Curves of what ranks log while they train: drawn live from TensorBoard's event files, and after.

Ranks are processes and the kernel waits for them, so what they log travels through files: a rank
writes with ``torch.utils.tensorboard.SummaryWriter(folder)``, a thread of the kernel reads.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from pathlib import Path

from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture, png_of
from .palette import rank_color
from .processes.live import in_notebook

EVERY_S = 0.5
PANEL_IN = (3.6, 2.4)


@contextlib.contextmanager
def live_curves(folder):
    """Show what is logged into a folder: live while the block runs, as a picture when it ends.

    In a notebook, a display that begins and ends empty shows the curves about twice a second; then
    the last picture is shown once. So the stored form is the same for every run. Elsewhere nothing
    is shown: `draw_curves` gives the picture.

    Parameters
    ----------
    folder : str or path
        Where ``SummaryWriter`` writes; see `draw_curves`. It may come into being later.
    """
    if not in_notebook():
        yield
        return
    from IPython.display import display

    reader, done = Reader(folder), threading.Event()
    handle = display(_bundle(None), raw=True, display_id=True)
    arguments = (handle, reader, done)
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
            display(picture_of(curves))
        else:
            print("no curves: nothing was logged")


def _keep_showing(handle, reader, done):
    """Bring the display up to date until ``done``, where something new was logged."""
    shown = {}
    while not done.wait(EVERY_S):
        curves = reader.read()
        if curves != shown:
            handle.update(_bundle(picture_of(curves)), raw=True)
            shown = curves


def _bundle(picture):
    """What the live display holds: a picture, or nothing."""
    if picture is None:
        return {"text/plain": "", "text/html": ""}
    data = base64.b64encode(png_of(picture)).decode()
    return {"text/plain": "", "text/html": f'<img src="data:image/png;base64,{data}">'}


def draw_curves(folder):
    """Draw what was logged into a folder: one panel per name, one line per run.

    Parameters
    ----------
    folder : str or path
        With TensorBoard's event files. Each folder below it that holds such files is a run of its
        own, as in TensorBoard, and its line carries the folder's name.

    Returns
    -------
    Picture

    Raises
    ------
    FileNotFoundError
        Nothing was logged there.
    """
    curves = Reader(folder).read()
    if not curves:
        raise FileNotFoundError(f"{folder} holds no curve: has a rank logged into it, and closed?")
    return picture_of(curves)


class Reader:
    """Reads a folder of event files again and again; what was read before is kept."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._runs = {}

    def read(self):
        """``{name: {run: [(step, value), ...]}}`` of everything logged until now."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for file in sorted(self._folder.rglob("events.out.tfevents.*")):
            run = str(file.parent.relative_to(self._folder))
            if run not in self._runs:
                self._runs[run] = EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
        curves = {}
        for run, accumulator in self._runs.items():
            accumulator.Reload()
            for name in accumulator.Tags()["scalars"]:
                points = [(event.step, event.value) for event in accumulator.Scalars(name)]
                curves.setdefault(name, {})[run] = points
        return curves


def picture_of(curves):
    """The picture of curves as `Reader.read` gives them.

    It is drawn in a thread, beside whatever the kernel draws, so it leaves matplotlib's common
    settings alone and says its colours itself.
    """
    width, height = PANEL_IN
    figure = Picture(figsize=(width * len(curves), height), dpi=DPI, facecolor=PAPER)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (name, runs) in zip(panels, sorted(curves.items()), strict=True):
        _draw_panel(panel, name, runs)
    return figure


def _draw_panel(panel, name, runs):
    for number, (run, points) in enumerate(sorted(runs.items())):
        steps, values = zip(*points, strict=True)
        marker = "o" if len(points) < 30 else None
        color = rank_color(number)
        panel.plot(steps, values, color=color, lw=1.5, marker=marker, ms=3.5, label=run)
    panel.set_facecolor(PAPER)
    panel.set_title(name, fontsize=TITLE_PT, color=INK)
    panel.set_xlabel("step", fontsize=TEXT_PT, color=INK)
    panel.tick_params(labelsize=TEXT_PT, color=GREY, labelcolor=INK)
    panel.grid(True, color="#e8e8e8", linewidth=0.6)
    for side, spine in panel.spines.items():
        spine.set_color(GREY)
        spine.set_visible(side in ("left", "bottom"))
    if len(runs) > 1:
        panel.legend(fontsize=SMALL_PT, frameon=False, labelcolor=INK)
