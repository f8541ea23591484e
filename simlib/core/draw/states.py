"""`draw_states`: the numbers of every rank before and after an operation, drawn from a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .figures import Picture, bare_axes
from .palette import INK_THAT_STAYS, is_bright, mix, on_dark, rank_color

Cell = tuple[str, str]
"""The text and the colour of a cell."""
CELL_IN = 0.42
LABEL_IN = 0.75
GAP_CELLS = 1.6  # room for the arrow between the two halves
MAX_CELLS = 12  # of one rank, before or after; what is more is elided
MAX_LETTERS = 7
COMPUTED, AMBIGUOUS = "#ffffff", "#cccccc"


def draw_states(run: Any) -> Figure:
    """Draw the numbers of every rank before and after an operation.

    Each rank is a row, and each number is a cell.

    A cell "before" has the colour of its rank. A cell "after" has the colour of the one rank that
    had its number before. The cell is white if no rank had the number before: the operation
    computed it. The cell is grey if several ranks had the number before, because its source is
    unknown. A rank without numbers (None) has no cells.

    Parameters
    ----------
    run : Run
        A run whose rank function returned ``(before, after)``. Each of the two is a tensor, a list
        of tensors or None. If the operation writes into a tensor, return a ``.clone()`` of it as
        ``before``. Otherwise both halves show the result.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        A rank returned another kind of value.
    """
    for rank, pair in enumerate(run.results):
        refuse_unless_states(rank, pair)
    before, after = ([numbers(pair[side]) for pair in run.results] for side in range(2))
    colors = colors_after(before)
    cells = [
        [
            [(text_of(x), own_color(rank)) for x in before[rank]],
            [(text_of(x), colors.get(x, COMPUTED)) for x in after[rank]],
        ]
        for rank in range(run.world_size)
    ]
    return draw_cells([[elided(half) for half in row] for row in cells])


def refuse_unless_states(rank: int, pair: Any) -> None:
    """Raise a ValueError if a rank did not return ``(before, after)``."""
    wanted = "draw_states needs a rank function that returns (before, after)"
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"{wanted}; rank {rank} returned {sort_of(pair)}")
    for side, state in zip(("before", "after"), pair, strict=True):
        if not is_state(state):
            raise ValueError(
                f"{wanted}, each a tensor, a list of tensors or None; rank {rank} returned "
                f"{sort_of(state)} for {side}"
            )


def is_state(value: Any) -> bool:
    """Whether a value is None, a tensor, or a list of tensors."""
    if isinstance(value, (list, tuple)):
        return all(map(is_state, value))
    return value is None or isinstance(value, torch.Tensor)


def sort_of(value: Any) -> str:
    """The kind of a value, in words: ``"a tensor"``."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def own_color(rank: int) -> str:
    """The pale colour of a rank's cells."""
    return mix(rank_color(rank), "#ffffff", 0.45)


def colors_after(before: Iterable[Iterable[float]]) -> dict[float, str]:
    """``{number: colour}`` of the numbers before: the colour of the only rank with it, or grey."""
    owners: dict[float, set[int]] = {}
    for rank, held in enumerate(before):
        for number in held:
            owners.setdefault(number, set()).add(rank)
    return {
        number: own_color(*ranks) if len(ranks) == 1 else AMBIGUOUS
        for number, ranks in owners.items()
    }


def text_of(number: float) -> str:
    """A number as text of seven letters or a few more."""
    text = f"{number:g}"
    return text if len(text) <= MAX_LETTERS else f"{number:.3g}"


def elided(cells: list[Cell]) -> list[Cell]:
    """The cells. If there are too many: the first cells, and a cell that says so."""
    if len(cells) <= MAX_CELLS:
        return cells
    return cells[: MAX_CELLS - 1] + [("...", COMPUTED)]


def draw_cells(rows: Sequence[Sequence[list[Cell]]]) -> Figure:
    """Draw rows of cells. Each rank has two halves, each a list of (text, colour)."""
    width = max([1] + [len(before) for before, _ in rows])
    total = width + GAP_CELLS + max([1] + [len(after) for _, after in rows])
    figure = Picture(
        figsize=(LABEL_IN + total * CELL_IN + 0.1, (len(rows) + 0.9) * CELL_IN), facecolor="white"
    )
    xlim = -LABEL_IN / CELL_IN, total + 0.1 / CELL_IN
    axes = bare_axes(figure, xlim, (len(rows), -0.9))
    axes.text(0, -0.35, "before", fontsize=9, va="center")
    axes.text(width + GAP_CELLS, -0.35, "after", fontsize=9, va="center")
    for rank, (before, after) in enumerate(rows):
        axes.text(-0.2, rank + 0.5, f"rank {rank}", fontsize=9, ha="right", va="center")
        middle = {"y": rank + 0.5, "dy": 0, "head_width": 0.2, "color": "#777777", "lw": 0.8}
        axes.arrow(width + 0.3, dx=GAP_CELLS - 0.8, **middle)
        draw_row(axes, rank, 0, before)
        draw_row(axes, rank, width + GAP_CELLS, after)
    return figure


def draw_row(axes: Any, rank: int, x: float, cells: Iterable[Cell]) -> None:
    """Draw the cells of one rank from `x` to the right."""
    for index, (text, color) in enumerate(cells):
        axes.add_patch(
            Rectangle((x + index, rank + 0.08), 1, 0.84, facecolor=color, edgecolor="#444444")
        )
        size = min(9, 44 / max(1, len(text)))  # as wide as the cell, whatever its length
        ink = INK_THAT_STAYS if is_bright(on_dark(color)) else "black"
        looks = {"fontsize": size, "color": ink, "ha": "center", "va": "center"}
        axes.text(x + index + 0.5, rank + 0.5, text, **looks)


def numbers(state: Any) -> list[float]:
    """The numbers in a tensor, a list of tensors or None, as one flat list."""
    if state is None:
        return []
    if isinstance(state, torch.Tensor):
        return state.flatten().tolist()
    return [number for part in state for number in numbers(part)]
