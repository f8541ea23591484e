"""Values as short text, whatever an answer returns."""

import pytest
import torch

from simlib.classroom.checks.compare import describe, difference


def lists_in_lists(levels, each):
    """Lists of one list, many times, so that it has ``each ** levels`` values."""
    found = "x"
    for _ in range(levels):
        found = [found] * each
    return found


@pytest.mark.parametrize(
    "value",
    [lists_in_lists(40, 10), lists_in_lists(5000, 1), {1: lists_in_lists(40, 10)}, 10**100_000],
    ids=["wide", "deep", "in a dict", "many digits"],
)
def test_what_has_no_end_gets_a_short_text(value):
    assert len(describe(value)) < 10_000


def test_of_a_huge_tensor_the_first_elements_are_looked_at_only():
    huge = torch.ones(1).expand(10**6, 10**6)
    assert describe(huge) == "tensor([1., 1., 1., 1., 1., 1., ...]) of shape (1000000, 1000000)"


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (1, 1, 2, 5), (4, 1, 1)])
def test_the_first_elements_are_those_of_the_flat_tensor(shape):
    number = torch.Size(shape).numel()
    text = describe(torch.arange(number).reshape(shape))
    shown = text.partition("(")[2].partition(")")[0].strip("[]").split(", ")
    assert shown[:6] == [str(one) for one in range(number)][:6] or number == 0


def test_a_number_too_large_for_a_float_is_a_wrong_value():
    assert difference(10**400, 1.5) == "has the wrong value"
