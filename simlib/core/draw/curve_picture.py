"""The picture of what ranks have logged: a panel for each name, a line for each run."""

from __future__ import annotations

from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from .palette import rank_color, visible

PANEL_IN = (3.6, 2.4)
RUNS_BESIDE = 2
"""Names of runs in a row, for each panel."""


def picture_of(curves, order, x="step"):
    """The picture of curves as `Reader.read` gives them, of runs in the order of `Reader.runs`.

    It is drawn in a thread, beside whatever the kernel draws, so it leaves matplotlib's common
    settings alone and says its colours itself.
    """
    width, height = PANEL_IN
    figure = Picture(figsize=(width * len(curves), height), dpi=DPI, facecolor=PAPER)
    figure.set_layout_engine("constrained")
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
