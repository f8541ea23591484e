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


ONE, TWO, THREE, FIVE = (torch.tensor([float(number)]) for number in (1, 2, 3, 5))


@pytest.mark.parametrize(
    "results, shown",
    [
        # Numbers that moved keep their colour, and computed ones are white.
        (((ONE, [TWO, ONE]), (TWO, THREE)), "1 0 2 1 1 0 2 1 3 white"),
        # Before has the colour of its row, and what several held is grey after.
        (((ONE, ONE), (torch.cat([ONE, TWO]), TWO)), "1 0 1 grey 1 1 2 1 2 1"),
        # A rank that holds nothing has no cells.
        (((None, FIVE), (FIVE, None)), "5 1 5 1"),
    ],
)
def test_every_number_is_there_in_its_colour(results, shown):
    colours = {"0": pale(0), "1": pale(1), "white": WHITE, "grey": "#cccccc"}
    words = shown.split()
    wanted = zip(words[::2], (colours[word] for word in words[1::2]), strict=True)
    assert cells(draw_states(run_with(*results))) == list(wanted)


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


def test_numbers_of_nested_lists():
    assert numbers([torch.tensor([[1, 2]]), None, [torch.tensor(3)]]) == [1, 2, 3]
