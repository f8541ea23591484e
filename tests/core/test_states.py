"""The before/after picture: every number is there, in the colour of the rank that brought it."""

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

import simlib
from simlib.core.draw import draw_states
from simlib.core.draw.palette import mix, rank_color
from simlib.core.draw.states import numbers

WHITE = "#ffffff"


def run_with(*results):
    """A run whose ranks returned these."""
    return simlib.Run("main", simlib.Trace(len(results)), results, [""] * len(results))


def cells(figure):
    """``[(number, colour)]``, row by row, before and after."""
    axes = figure.axes[0]
    shown = [text.get_text() for text in axes.texts]
    shown = [text for text in shown if text not in ("before", "after") and "rank" not in text]
    boxes = [patch for patch in axes.patches if hasattr(patch, "get_height")]
    return list(zip(shown, [to_hex(box.get_facecolor()) for box in boxes], strict=True))


def pale(rank):
    return mix(rank_color(rank), WHITE, 0.45)


def test_moved_numbers_keep_their_colour_and_computed_ones_are_white():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    figure = draw_states(run_with((one, [two, one]), (two, torch.tensor([3.0]))))
    assert cells(figure) == [
        ("1", pale(0)), ("2", pale(1)), ("1", pale(0)), ("2", pale(1)), ("3", WHITE),
    ]  # fmt: skip


def test_before_has_the_colour_of_its_row_and_what_several_held_is_grey_after():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    figure = draw_states(run_with((one, one), (torch.cat([one, two]), two)))
    assert cells(figure) == [
        ("1", pale(0)), ("1", "#cccccc"), ("1", pale(1)), ("2", pale(1)), ("2", pale(1)),
    ]  # fmt: skip


def test_long_tensors_are_elided_and_long_numbers_fit_their_cells():
    figure = draw_states(run_with((torch.arange(50), torch.tensor([-0.1234567, 1e-30]))))
    shown = cells(figure)
    assert len(shown) == 12 + 2
    assert shown[10:12] == [("10", pale(0)), ("...", WHITE)]
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for text in figure.axes[0].texts if "-0.1" in text.get_text()]
    boxes = [patch for patch in figure.axes[0].patches if hasattr(patch, "get_height")]
    assert texts[0].get_window_extent(renderer).width <= boxes[-1].get_window_extent().width


@pytest.mark.parametrize(
    "results, words",
    [
        (torch.zeros(2), "returns (before, after); rank 0 returned a tensor"),
        ([torch.zeros(2), torch.zeros(2)], "rank 0 returned a list"),
        (None, "rank 0 returned None"),
        (7, "rank 0 returned an int"),
        ((1, 2, 3), "rank 0 returned a tuple of 3"),
        ((torch.zeros(2), 7), "rank 0 returned an int for after"),
    ],
)
def test_anything_but_before_and_after_is_refused(results, words):
    with pytest.raises(ValueError, match="draw_states needs a rank function") as told:
        draw_states(run_with(results))
    assert words in str(told.value)


def test_rank_that_holds_nothing_has_no_cells():
    figure = draw_states(run_with((None, torch.tensor([5.0])), (torch.tensor([5.0]), None)))
    assert cells(figure) == [("5", pale(1)), ("5", pale(1))]


def test_numbers_of_nested_lists():
    assert numbers([torch.tensor([[1, 2]]), None, [torch.tensor(3)]]) == [1, 2, 3]
