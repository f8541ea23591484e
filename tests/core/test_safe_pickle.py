"""What ranks send is read as data where they are not to be trusted."""

import os
import pickle
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import IntEnum

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy._core.multiarray import _reconstruct

from simlib.classroom.checks.compare import difference
from simlib.core.environment import VARIABLE
from simlib.core.model.errors import FailureReport
from simlib.core.model.ledger import CATEGORIES, Ledger
from simlib.core.model.trace import Group, WireMessage
from simlib.core.record import safe_pickle
from simlib.core.record.returned import answer_of
from simlib.core.record.safe_pickle import Exchanged, is_plain


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


class Own:
    pass


class Texts(str):
    __slots__ = ()


class Numbers(list):
    pass


Pair = namedtuple("Pair", "left right")
Level = IntEnum("Level", "LOW HIGH")
LEDGER = Ledger(0, dict.fromkeys(CATEGORIES, 1), dict.fromkeys(CATEGORIES, 2), 0.0, [])
GROUP = Group("world", (0, 1))


@pytest.fixture
def distrusted(monkeypatch):
    """A kernel that must not trust its ranks."""
    monkeypatch.setenv(VARIABLE, "1")


def sent(value):
    """A value as the kernel gets it from a rank."""
    word, arrived = safe_pickle.loads(answer_of(lambda: value))
    assert word == "result", arrived
    return arrived


DATA = [
    None,
    3,
    -(10**30),
    (1.5, "text", b"bytes", [True], {"a": {1, 2}}),
    {(1, 2): "a", torch.float32: "b", None: torch.Size([1])},
    (bytearray(b"tensor"), [bytearray(b"size")], frozenset({frozenset({1})})),
    torch.tensor([1, 2], dtype=torch.int16),
    torch.tensor(True),
    torch.empty(0, 3, dtype=torch.complex64),
    torch.tensor([1 + 2j, 3j]).conj(),
    torch.arange(4)[1::2][:1],
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    torch.nn.Parameter(torch.ones(2), requires_grad=False),
    [torch.Size([2]), torch.float16, complex(1, 2)],
    [range(3), slice(1, None)],
    np.arange(3),
    np.array(2.5),
    np.zeros((0, 2), dtype=bool),
    np.float64(2.5),
    np.bool_(True),
    Exchanged([torch.ones(1)], [torch.zeros(1)]),
    LEDGER,
    FailureReport("KeyError", "1", [("t.py", 3, "main")], "KeyError: 1", False, False),
    WireMessage("all_reduce", GROUP, 0, 0, 1, 4, 0.0, 1.0),
]


CHANGED = [
    torch.arange(6.0).reshape(2, 3).t(),
    torch.arange(8).reshape(2, 4)[1, ::2],
    torch.ones(3, 1).expand(3, 4),
    [deque([1])],
]
"""What a tree changes, and nobody sees it."""


@pytest.mark.parametrize("value", [*DATA, *CHANGED], ids=lambda value: type(value).__name__)
def test_data_arrive_as_they_were(distrusted, value):
    assert is_plain([value]) == any(value is one for one in DATA)
    arrived = sent(value)
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)
    for name in ("at_first", "requires_grad"):
        assert repr(getattr(arrived, name, None)) == repr(getattr(value, name, None))


@pytest.mark.parametrize("kind", sorted(safe_pickle.ELEMENTS))
def test_tensors_of_every_kind_arrive_bit_by_bit(distrusted, kind):
    value = (torch.arange(12).reshape(3, 4) % 7).to(safe_pickle.DTYPES[kind])
    views = value, value.t(), value[1:, ::2], value[0, 0], value[:0], value[1:, 1:2][:1]
    for one in (*views, value[2:, :1].expand(2, 3)):
        arrived = sent(one)
        assert (arrived.dtype, arrived.shape) == (one.dtype, one.shape)
        assert arrived.tolist() == one.tolist()


def test_what_autograd_made_and_bytes_of_another_order_arrive_as_values(distrusted):
    made = sent(torch.ones(2, requires_grad=True) * 2)
    assert made.requires_grad and made.tolist() == [2.0, 2.0]
    assert sent(np.array([1, 2], dtype=">i4")).tolist() == [1, 2]


def test_elements_and_objects_that_repeat_are_sent_once(distrusted):
    assert len(safe_pickle.dumps(torch.ones(1).expand(10**12))) < 1000
    arrived = sent(torch.ones(1).expand(10**12))
    assert arrived.shape == (10**12,) and arrived[-1] == 1
    value = [torch.ones(1000)] * 1000
    value.append(value)
    assert len(safe_pickle.dumps(value)) < 20_000 and is_plain(value)
    arrived = sent(value)
    assert arrived[0] is arrived[999] and arrived[1000] is arrived


SUBCLASSES = [
    (Counter("aab"), {"a": 2, "b": 1}),
    (defaultdict(list, a=[1]), {"a": [1]}),
    (OrderedDict({(1,): 1}), {(1,): 1}),
    (Pair(1, Pair(2, torch.Size([2]))), (1, (2, torch.Size([2])))),
    (torch.tensor([3, 5]).max(0), (torch.tensor(5), torch.tensor(1))),
    (Numbers([1]), [1]),
    (Texts("text"), "text"),
    (np.str_("text"), "text"),
    (Level.HIGH, 2),
]


@pytest.mark.parametrize(("value", "simple"), SUBCLASSES, ids=lambda one: type(one).__name__)
def test_of_a_subclass_the_contents_arrive_which_is_what_checks_compare(distrusted, value, simple):
    assert not is_plain(value)
    assert difference(value, simple) is None
    arrived = sent(value)
    assert type(arrived) is type(simple)
    assert difference(arrived, simple) is None


NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
KINDS = st.sampled_from(sorted(safe_pickle.NUMBERS)).map(np.dtype)
ARRAYS = KINDS.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0)))
LEAVES = NUMBERS | st.text() | st.binary() | ARRAYS | ARRAYS.map(torch.from_numpy)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda one: st.lists(one) | st.lists(one).map(tuple) | st.dictionaries(KEYS, one),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_whatever_is_plain_arrives(value):
    assert is_plain(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        assert pickle.dumps(safe_pickle.tree_of(sent(value), {})) == pickle.dumps(
            safe_pickle.tree_of(value, {})
        )


NESTED = []
for _ in range(10_000):
    NESTED = [NESTED]
ARRAYS_OF_OTHERS = np.array(["a"]), np.arange(6).reshape(2, 3).T, np.ma.masked_array([1])
OTHERS = *ARRAYS_OF_OTHERS, torch.ones(2).to_sparse(), print, Level, {Pair(1, 2): 3}, NESTED


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_what_a_tree_would_change_or_lose_is_no_plain_data(value):
    assert not is_plain(value)


ACTING = {"evil": Evil(), "own": Own(), "system": os.system, "lambda": lambda: 1, "list": [Evil()]}


@pytest.mark.parametrize("value", ACTING.values(), ids=ACTING)
def test_anything_else_is_refused_before_it_acts(distrusted, monkeypatch, tmp_path, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="is not plain data"):
        safe_pickle.loads(cloudpickle.dumps(value))
    word, said = safe_pickle.loads(answer_of(lambda: value))
    assert word == "unpicklable"
    assert "is not plain data" in said[1]
    assert not os.listdir(tmp_path)


class Call:
    """Pickled, it asks for a call when it is read, and for a state to be set."""

    def __init__(self, *words):
        self._words = words

    def __reduce__(self):
        return self._words


STORAGE = torch.storage.TypedStorage(4, dtype=torch.float32, _internal=True)
TOO_LARGE = torch._utils._rebuild_tensor_v2, (STORAGE, 0, (5,), (1,), False, OrderedDict())
POINTERS = Call(
    np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
)
POINTER = struct.pack("<Q", 0x4141414141414141)
HARMFUL = {
    "an array of pointers": Call(
        _reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), POINTERS, False, POINTER)
    ),
    "a dtype of pointers": POINTERS,
    "a tensor larger than its memory": Call(*TOO_LARGE),
    "a storage": Call(torch.storage._load_from_bytes, (b"",)),
    "a tensor with another state": Call(
        torch._utils._rebuild_parameter, (torch.ones(1), True, OrderedDict()), (STORAGE, 9, (9,))
    ),
    "a module of torch's": Call(torch.Size, ((1,),)),
}


@pytest.mark.parametrize("value", HARMFUL.values(), ids=HARMFUL)
def test_a_pickle_makes_no_array_tensor_or_other_object_by_itself(distrusted, value):
    with pytest.raises(pickle.UnpicklingError, match="is not plain data"):
        safe_pickle.loads(pickle.dumps(("result", value), protocol=4))


FOUR = bytes(4)
LIES = {
    "more elements than bytes": ("tensor", "float32", (5,), (5,), FOUR, False, False),
    "fewer": ("tensor", "float32", (), (0,), FOUR, False, False),
    "negative": ("tensor", "float32", (-1,), (-1,), FOUR, False, False),
    "negative twice": ("tensor", "float32", (-1, -1), (-1, -1), FOUR, False, False),
    "another shape": ("tensor", "float32", (1,), (2, 0), FOUR, False, False),
    "endless": ("tensor", "float32", (1,), (1 << 31, 1 << 33), FOUR, False, False),
    "empty but endless": ("tensor", "float32", (0, 1 << 62), (0, 1 << 62), b"", False, False),
    "quantised": ("tensor", "qint8", (4,), (4,), FOUR, False, False),
    "a text for bytes": ("tensor", "int8", (4,), (4,), "four", False, False),
    "a list for a shape": ("tensor", "int8", [4], [4], FOUR, False, False),
    "pointers": ("array", "object", (1,), POINTER, True),
    "a structure": ("array", "V8", (1,), POINTER, True),
    "an array beyond its bytes": ("array", "int8", (5,), FOUR, True),
    "a class that is not ours": ("record", "Popen", (["id"],)),
    "a class with other fields": ("record", "Ledger", (1,)),
    "a maker that is none": ("os.system", "id"),
    "too few words": ("tensor",),
    "no name": (b"\xff", 1),
    "a set of a range": ("set", (bytearray(b"range"), 0, 1 << 40, 1)),
}


@pytest.mark.parametrize("words", LIES.values(), ids=LIES)
def test_a_tree_that_lies_is_refused(distrusted, words):
    name, *parts = words
    name = bytearray(name if isinstance(name, bytes) else name.encode())
    with pytest.raises(pickle.UnpicklingError, match="not plain data"):
        safe_pickle.loads(pickle.dumps(("result", (name, *parts)), protocol=5))


def test_no_bytes_make_a_bool_that_is_neither(distrusted):
    for tree in (
        (bytearray(b"tensor"), "bool", (2,), (2,), b"\x02\0", False, False),
        (bytearray(b"array"), "bool", (2,), b"\x02\0", True),
    ):
        data = safe_pickle.loads(pickle.dumps(tree, protocol=5))
        assert bytes(np.asarray(data)) == b"\x01\0"


def test_elsewhere_ranks_may_send_what_they_like(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert isinstance(sent(Own()), Own)
