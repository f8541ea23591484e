"""A picture of the same training step in several runs, on one scale of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ...core.draw.figures import GREY, INK, SMALL_PT, TEXT_PT, new_picture, own_style
from ...core.draw.palette import OKABE_ITO, mix
from ...core.model.errors import InvalidCallError
from ...core.model.words import seconds_text

WIDTH, LANE, GAP, HEAD, FOOT = 9.0, 0.3, 0.34, 0.2, 0.46  # inches
LEFT, RIGHT = 0.62, 0.12
KINDS = "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send", "recv"
COLORS = dict(zip(KINDS, OKABE_ITO[:7], strict=True))
WORK = {"forward": mix(GREY, "#ffffff", 0.75), "backward": mix(GREY, "#ffffff", 0.4)}
LEAST = 0.003
"""The least width of a bar. Otherwise an op of a few bytes would be invisible."""


@own_style
def draw_steps(runs: Mapping[str, Any], step: int = 1) -> Figure:
    """Draw one training step of several runs below one another, on one scale of time.

    A step begins when the first rank begins its piece of work called ``"forward"`` (see
    `simlib.span`). The step ends when the first rank begins the next such piece, or when the run
    ends.

    Parameters
    ----------
    runs : dict of str to Run
        The runs by their names.
    step : int
        The number of the step, from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A run has no such step.
    """
    windows = {name: _window(name, run, step) for name, run in runs.items()}
    whole_s = max(end - begin for begin, end in windows.values())
    ticks = [tick for tick in MaxNLocator(9).tick_values(0, 1e3 * whole_s) if tick <= 1e3 * whole_s]
    panels = [HEAD * 0.55 + LANE * run.world_size for run in runs.values()]
    height = HEAD + FOOT + sum(panels) + GAP * 0.35 * len(panels)
    figure, top, words = new_picture(WIDTH, height), HEAD, []
    kinds: dict[str, str] = {}
    for (name, run), panel in zip(runs.items(), panels, strict=True):
        begin, end = windows[name]
        top += panel + GAP * 0.35
        lanes = LANE * run.world_size
        box = LEFT / WIDTH, 1 - top / height, 1 - (LEFT + RIGHT) / WIDTH, lanes / height
        axes = figure.add_axes(box, xlim=(0, 1e3 * whole_s), ylim=(run.world_size - 0.5, -0.5))
        found = _draw_lanes(axes, run, begin, end, LEAST * whole_s)
        kinds |= dict.fromkeys(found)
        sent = ", ".join(f"{count} x {kind}" for kind, count in found.items())
        title = f"{name}: {seconds_text(end - begin)}"
        axes.set_title(title, loc="left", fontsize=TEXT_PT, weight="bold", color=INK, pad=3)
        words.append(f"{title}, a rank calls {sent or 'nothing'}")
        axes.set_yticks(range(run.world_size), [f"rank {r}" for r in range(run.world_size)])
        axes.set_xticks(ticks, [""] * len(ticks))
        axes.tick_params(labelsize=TEXT_PT, length=2)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.set_xlabel("time since the forward pass began (ms)", fontsize=TEXT_PT)
    shown = {kind: COLORS[kind] for kind in KINDS if kind in kinds}
    handles = [Patch(color=color, label=label) for label, color in (WORK | shown).items()]
    corner = LEFT / WIDTH - 0.005, 1.0
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=corner, borderpad=0.2,
        ncols=len(handles), fontsize=SMALL_PT + 0.5, frameon=False, handlelength=1.2,
    )  # fmt: skip
    figure.words = "One training step of each run. " + ". ".join(words) + "."
    return figure


def _window(name, run, step):
    """The beginning and the end of the step."""
    starts = [
        [p.start_s for p in run.trace.pieces if p.rank == rank and p.name == "forward"]
        for rank in range(run.world_size)
    ]
    least = min(map(len, starts))
    if not 0 <= step < least:
        raise InvalidCallError(
            f"{name} has {least} pieces of work called 'forward' on each rank, so no step {step}"
        )
    ends = [own[step + 1] for own in starts if step + 1 < len(own)]
    return min(own[step] for own in starts), min(ends, default=run.trace.end_s)


def _draw_lanes(axes, run, begin, end, least_s):
    """Draw the bars of all ranks. Returns the number of rank 0's calls of each kind."""
    bars = [
        (p.rank, p.start_s, p.end_s, WORK[p.name], 0.84) for p in run.trace.pieces if p.name in WORK
    ]
    ops = [op for op in run.trace if op.kind in COLORS and begin <= op.post_s < end and op.done]
    for op in ops:
        bars.append((op.rank, op.post_s, max(op.end_s, op.post_s + least_s), COLORS[op.kind], 0.44))
    for rank, start_s, end_s, color, height in bars:
        if begin <= start_s < end:
            axes.barh(
                rank, 1e3 * (end_s - start_s), height, 1e3 * (start_s - begin), color=color, lw=0
            )
    return Counter(op.kind for op in ops if op.rank == 0)
