"""Values that are called plain data come back from a tree as they were, with their types."""

import collections
import enum
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simlib.core.model.errors import FailureReport
from simlib.core.record.safe_pickle import dumps_tree, is_plain, loads_tree

NUMBERS = st.integers() | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=10,
)


@settings(max_examples=50)
@given(VALUES)
def test_whatever_is_made_of_plain_values(value):
    assert is_plain(value)
    again = loads_tree(dumps_tree(value))
    assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(3, dtype=torch.int8),
        torch.ones(2, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(2)),
        np.arange(4).reshape(2, 2),
        np.float32(2.5),
        1 + 2j,
        range(3),
        slice(1, 2),
        torch.float16,
        torch.Size([1, 2]),
        frozenset({1}),
        bytearray(b"x"),
        FailureReport("KeyError", "a", [("a.py", 1, "f")], "text", False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_plain_values(value):
    assert is_plain([value])
    (again,) = loads_tree(dumps_tree([value]))
    assert type(again) is type(value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)
    assert repr(again) == repr(value)


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Point(1, 2),
        collections.OrderedDict(a=1),
        collections.defaultdict(list),
        collections.deque([1], maxlen=2),
        torch.ones(2, 3).T,
        torch.ones(2).to_sparse(),
        np.array(["a"]),
        np.arange(6).reshape(2, 3).T,
        np.ma.masked_array([1]),
        print,
        Colour,
        {Point(1, 2): 3},
        nested(10_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_tree_would_change_is_no_plain_data(value):
    assert not is_plain(value)


def test_a_value_that_holds_itself():
    value = []
    value.append(value)
    assert is_plain(value)
    again = loads_tree(dumps_tree(value))
    assert again[0] is again
    with pytest.raises(pickle.UnpicklingError):
        loads_tree(pickle.dumps(Colour.RED))
