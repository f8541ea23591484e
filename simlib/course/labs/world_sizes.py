"""The world-size lab: the timeline of one function, on a number of ranks that a slider sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...core.clusters import ethernet_10g
from ...core.draw.figures import GREY, INK, SMALL_PT, TEXT_PT
from ...core.draw.lanes import unit_of
from ...core.draw.text import clip, count
from ...core.draw.timeline import draw_timeline
from ...core.engines.virtual.simulated_run import simulate
from ...core.model.cluster import Cluster
from ...core.model.errors import InvalidCallError, check_number
from ...core.model.words import seconds_text
from ...core.results.run import Run
from .sliders import Layers, View, lab_of, picture, slider

STRIP_IN = 0.42
NEAREST_PX = 26  # numbers closer than this would cover one another
SLOWNESS = (1, 1.5, 2, 3, 4)
"""The factors that the lab offers for the time of rank 0's work."""


def simulate_sizes(
    function: Callable,
    sizes: Iterable[int] = range(2, 9),
    *,
    slow: Iterable[float] = SLOWNESS,
    args: tuple = (),
    cluster: Cluster | None = None,
    placement: str | list[int] = "block",
    **options: Any,
) -> dict[tuple[int, float], Run]:
    """Simulate a function on several world sizes, and with a slow rank 0, to prepare a lab.

    The function simulates each size once. For a slow rank 0, `Run.replay` computes the times of the
    same run again.

    Parameters
    ----------
    function : callable
        A rank function. It should not print, because the output would appear once for every size.
    sizes : iterable of int
        World sizes.
    slow : iterable of float
        Rank 0 takes so many times longer for its work (`simlib.compute`, `time.sleep`).
    args, cluster, placement
        As for `simulate`. A cluster must have room for the largest size.
    **options
        Options of both `simulate` and `Run.replay`: ``sends``, ``algorithms``, ``all_reduce``...

    Returns
    -------
    dict of (int, float) to Run
        A run for each world size and slowness of rank 0.
    """
    sizes, slow = list(sizes), list(slow)
    if not sizes or not slow:
        raise InvalidCallError("give at least one value of sizes, and one of slow")
    for factor in slow:
        check_number("slow", factor, above=True)
    runs = {}
    for size in sizes:
        run = simulate(function, size, args, cluster=cluster, placement=placement, **options)
        where = cluster or ethernet_10g(nodes=size)  # what `simulate` takes
        for factor in slow:
            runs[size, factor] = run.replay(where, placement, slow={0: factor}, **options)
    return runs


@picture
def draw_world_size(runs: dict[tuple[int, float], Run], world_size: int, slow: float = 1) -> View:
    """Draw the timeline of one of several runs, and the ends of all runs on the same axis.

    Parameters
    ----------
    runs : dict of (int, float) to Run
        Runs from `simulate_sizes`.
    world_size : int
    slow : float
        Rank 0 takes this many times as long for its work as in the original run.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        There is no such run.
    """
    return _WorldSizes(runs), world_size, slow


world_size_lab = lab_of(
    draw_world_size,
    "a slider for the ranks, and, if there are runs with a slow rank 0, a slider for it",
)


class _WorldSizes(Layers):
    """The timeline of one run. The whole picture changes with the state, so it is all
    background."""

    def __init__(self, runs):
        self.runs = runs
        sizes, factors = (sorted({key[k] for key in runs}) for k in (0, 1))
        self.has_slow = len(factors) > 1
        self.controls = {
            "world_size": slider("ranks", sizes, only=True),
            "slow": slider("slowness of rank 0", factors, "{:g} x".format, only=True),
        }

    def tie(self, widgets):
        if not self.has_slow:
            del widgets["slow"]

    def lab(self, *state):
        lab = super().lab(*state)
        for name in lab.controls:
            lab.draw_ahead(name)  # a timeline takes longer to draw than the pictures of other labs
        return lab

    def background_state(self, world_size, slow=None):
        # Without a slider for the slowness there is only one.
        return world_size, next(iter(self.runs))[1] if slow is None else slow

    def background(self, world_size, slow):
        run = self.runs[world_size, slow]
        ends_s = {
            size: other.time_s for (size, factor), other in self.runs.items() if factor == slow
        }
        longest_s = max(ends_s.values()) or 1e-6
        figure = draw_timeline(run, between=(0.0, longest_s))
        figure.texts[0].set_text(_title(run, slow))
        _add_room_below(figure, STRIP_IN)
        _draw_ends(figure, ends_s, world_size, unit_of(longest_s)[1])
        return figure


def _title(run, slow):
    slowly = f", rank 0 takes {slow:g} x as long" if slow != 1 else ""
    ranks = count(run.world_size, "rank")
    return f"{clip(run.name, 24)} on {ranks}{slowly}: {seconds_text(run.time_s)}"


def _add_room_below(figure, more_in):
    """Make a drawn figure higher. All parts keep their distance from the top."""
    width_in, height_in = figure.get_size_inches()
    figure.set_size_inches(width_in, height_in + more_in)

    def moved(y):
        return (y * height_in + more_in) / (height_in + more_in)

    for axes in figure.axes:
        x0, y0, x1, y1 = axes.get_position().extents
        axes.set_position([x0, moved(y0), x1 - x0, moved(y1) - moved(y0)])
    for text in figure.texts:
        text.set_y(moved(text.get_position()[1]))
    for legend in figure.legends:
        x, y = figure.transFigure.inverted().transform(legend.get_bbox_to_anchor().p0)
        legend.set_bbox_to_anchor((x, moved(y)))


def _draw_ends(figure, ends_s, world_size, scale):
    """Draw, below the timeline and on its axis, when the run ends on each number of ranks."""
    lanes = figure.axes[0]
    left, _, right, _ = lanes.get_position().extents
    height_in = figure.get_size_inches()[1]
    strip = figure.add_axes([left, 0.04 / height_in, right - left, STRIP_IN / height_in])
    strip.set_xlim(lanes.get_xlim())
    strip.set_ylim(0, 1)
    strip.set_axis_off()
    strip.plot(lanes.get_xlim(), [0.25] * 2, color=GREY, lw=0.6, zorder=1)
    lanes.axvline(ends_s[world_size] * scale, color=INK, lw=1, zorder=2)
    pixels = strip.get_window_extent().width / (lanes.get_xlim()[1] - lanes.get_xlim()[0])
    for sizes, end in _together(ends_s, NEAREST_PX / pixels / scale):
        chosen = world_size in sizes
        color = INK if chosen else GREY
        strip.plot(end * scale, 0.25, "D", ms=7 if chosen else 4.5, color=color, clip_on=False)
        looks = {"color": color, "weight": "bold" if chosen else "normal", "ha": "center"}
        strip.text(end * scale, 0.55, _sizes_text(sizes), fontsize=TEXT_PT, **looks)
    figure.text(0.1 / 9, (0.04 + 0.55 * STRIP_IN) / height_in, "end, by ranks", fontsize=SMALL_PT)


def _together(ends_s, nearest_s):
    """World sizes whose runs end at nearly the same time, as (sizes, end of the first in
    seconds)."""
    groups = []
    for size, end_s in sorted(ends_s.items(), key=lambda item: (item[1], item[0])):
        if groups and end_s - groups[-1][1] < nearest_s:
            groups[-1][0].append(size)
        else:
            groups.append(([size], end_s))
    return groups


def _sizes_text(sizes):
    """Some world sizes as text: ``"2"``, ``"3, 5"``, ``"5-8"``."""
    sizes = sorted(sizes)
    if len(sizes) > 2 and sizes[-1] - sizes[0] == len(sizes) - 1:
        return f"{sizes[0]}-{sizes[-1]}"
    return ", ".join(map(str, sizes))
