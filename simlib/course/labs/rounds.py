"""The rounds lab: step through an all_reduce, seeing whose parts each rank has of each chunk."""

from __future__ import annotations

from ...core.draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT, Picture
from ...core.draw.palette import rank_color
from ...core.model.errors import InvalidCallError
from .cells import LEFT, TOP, WIDTH, Grid, draw_bars, draw_cells, draw_messages
from .contributions import steps_of
from .layers import Layers
from .sliders import Lab, check_choice, menu, slider, whole_numbers

NAMES = {
    "naive": "naive",
    "binomial": "tree (binomial)",
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "rabenseifner": "Rabenseifner",
}
MAX_RANKS = 8


def draw_rounds(algorithm="ring", n=4, rounds_done=0):
    """Draw what every rank holds of every chunk after some rounds of an all_reduce.

    In a cell stands which ranks' contributions are summed in it; arrows are the messages of the
    last round. On the right is what each rank has sent so far, beside the bound 2 (n-1)/n.

    Parameters
    ----------
    algorithm : {"naive", "binomial", "ring", "recursive_doubling", "rabenseifner"}
    n : int
        Number of ranks, 2 to 8.
    rounds_done : int
        0 for the beginning.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        Another algorithm, number of ranks or of rounds.
    """
    check_choice("algorithm", algorithm, NAMES)
    check_choice("n", n, range(2, MAX_RANKS + 1))
    steps = steps_of(algorithm, n)
    if rounds_done not in range(len(steps.rounds) + 1):
        raise InvalidCallError(
            f"rounds_done is {rounds_done!r}: {NAMES[algorithm]} on {n} ranks "
            f"has rounds 1 to {len(steps.rounds)}, and 0 is before them"
        )
    return _Rounds().draw(algorithm, n, rounds_done)


def rounds_lab(algorithm="ring", n=4, rounds_done=0):
    """The picture of `draw_rounds` with controls for algorithm, ranks and rounds.

    Parameters
    ----------
    algorithm, n, rounds_done
        As for `draw_rounds`; where the controls stand first.

    Returns
    -------
    Lab
    """
    draw_rounds(algorithm, n, rounds_done)  # refuses what cannot be drawn
    names = menu("algorithm", {text: name for name, text in NAMES.items()}, algorithm)
    ranks = slider("ranks", range(2, MAX_RANKS + 1), n)
    rounds = whole_numbers("rounds done", 0, len(steps_of(algorithm, n).rounds), rounds_done)

    def set_last(_change):
        rounds.max = len(steps_of(names.value, ranks.value).rounds)  # a larger value follows

    for control in (names, ranks):
        control.observe(set_last, names="value")
    return Lab(_Rounds(), {"algorithm": names, "n": ranks, "rounds_done": rounds})


class _Rounds(Layers):
    """The vectors of all ranks. Names of rows and columns, how to read it and the bound stay."""

    def background_state(self, algorithm, n, rounds_done):
        return algorithm, n

    def background(self, algorithm, n):
        grid = Grid(steps_of(algorithm, n))
        figure = Picture(figsize=(WIDTH, grid.height), dpi=DPI, facecolor=PAPER)
        grid.axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
        grid.axes.set_xlim(0, WIDTH)
        grid.axes.set_ylim(grid.height, 0)
        grid.axes.set_axis_off()
        _write_names(grid)
        _draw_bound(grid)
        return figure

    def foreground(self, figure, algorithm, n, rounds_done):
        """What a round changes: cells, messages, bytes sent, the title."""
        steps = steps_of(algorithm, n)
        grid = Grid(steps, figure.axes[0])
        title = f"all_reduce on {n} ranks by {NAMES[algorithm]}: {_moment(steps, rounds_done)}"
        return [
            grid.axes.text(0.1, 0.1, title, fontsize=TITLE_PT, va="top"),
            *draw_cells(grid, steps, rounds_done),
            *(draw_messages(grid, steps, rounds_done) if rounds_done else ()),
            *draw_bars(grid, steps.sent[rounds_done]),
        ]


def _draw_bound(grid):
    """The name of the bound, and where the bars begin."""
    low, high = grid.middle(-0.5), grid.middle(grid.n - 0.5)
    grid.axes.plot([grid.bars] * 2, [low, high], color=GREY, lw=0.8)
    grid.axes.text(
        grid.bars + grid.bound * grid.bar_scale,
        high + 0.06,
        f"2(n-1)/n = {grid.bound:.3g}",
        fontsize=SMALL_PT,
        ha="center",
        va="top",
    )


def _write_names(grid):
    """Names of rows and columns, and how to read it."""
    axes = grid.axes
    head = {"fontsize": TEXT_PT, "va": "bottom", "color": INK}
    for chunk in range(grid.chunks):
        name = f"chunk {chunk}" if grid.chunks > 1 else "the whole vector"
        x, _ = grid.corner(0, chunk)
        axes.text(x + grid.cell / 2, TOP - 0.03, name, ha="center", **head)
    axes.text(grid.bars, TOP - 0.03, "sent so far (vectors)", ha="left", **head)
    for rank in range(grid.n):
        y = grid.middle(rank)
        axes.text(LEFT - 0.12, y, f"rank {rank}", fontsize=TEXT_PT, ha="right", va="center")
        axes.plot(0.12, y, "s", ms=6, color=rank_color(rank))
    note = (
        "a number in a cell: what this rank brought is in the sum; full colour: "
        "the sum is complete; coloured frame: received in this round"
    )
    axes.text(0.1, grid.height - 0.08, note, fontsize=SMALL_PT, color="#555555", va="bottom")


def _moment(steps, rounds_done):
    """Which round, and what became of its messages, in words."""
    last = len(steps.rounds)
    if not rounds_done:
        return f"before the first of {last} rounds"
    adds = steps.rounds[rounds_done - 1].adds
    what = "added" if adds.all() else "put in place" if not adds.any() else "added or put in place"
    return f"after round {rounds_done} of {last}; what came was {what}"
