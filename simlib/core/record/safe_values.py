"""Values made of the trees that a distrusted rank sends (`safe_pickle`): each size is checked."""

from __future__ import annotations

import collections
import math
import pickle
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from ..model.errors import FailureReport
from ..model.ledger import Ledger
from ..model.trace import Group, WireMessage

SCALARS = frozenset({type(None), bool, int, float, str, bytes})
NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128".split()
)
"""Kinds of numpy's numbers that cross."""
ELEMENTS = NUMBERS | {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
"""Kinds of torch's elements that cross."""
DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}


class Exchanged(list):
    """A list of tensors in which an answer put others in their place, and ``at_first``: those."""

    def __init__(self, now: list, at_first: list) -> None:
        super().__init__(now)
        self.at_first = at_first


RECORDS = {one.__name__: one for one in (Exchanged, FailureReport, Group, Ledger, WireMessage)}
"""Classes of our own that cross, by name."""
MAX_DIMENSIONS, MAX_ELEMENTS = 64, 1 << 40
"""Of a tensor; one that repeats its elements has more of them than bytes."""


def value_of(tree: Any, done: dict) -> Any:
    """The value of a tree; ``done`` holds those of trees met before, which stay one object."""
    sort = type(tree)
    value: Any
    if sort in SCALARS:
        return tree
    if id(tree) in done:
        return done[id(tree)]
    if sort is list:
        value = done[id(tree)] = []
        value.extend(value_of(one, done) for one in tree)
    elif sort is dict:
        value = done[id(tree)] = {}
        value.update((value_of(key, done), value_of(one, done)) for key, one in tree.items())
    elif sort is not tuple:
        raise pickle.UnpicklingError(f"{sort.__name__} is no plain data")
    elif tree and type(tree[0]) is bytearray:
        maker = MAKERS[tree[0].decode("ascii")]
        value = done[id(tree)] = maker(*(value_of(part, done) for part in tree[1:]))
    else:
        value = done[id(tree)] = tuple(value_of(one, done) for one in tree)
    return value


def make_tensor(
    kind: str, stored: tuple, shape: tuple, data: bytes, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    """A tensor with its own memory; elements repeat where ``stored`` has 1 and ``shape`` more."""
    dtype = DTYPES[one_of(kind, ELEMENTS)]
    check_shape(shape)
    elements = make_bytes(stored, data, dtype.itemsize)
    pairs = zip(stored, shape, strict=True)
    if any(one != size and not (one == 1 and size > 1) for one, size in pairs):
        raise ValueError(f"{stored} does not repeat to {shape}")
    if not data:
        tensor = torch.empty(shape, dtype=dtype)
    elif dtype is torch.bool:
        tensor = torch.from_numpy(elements != 0).reshape(stored).expand(shape)
    else:
        tensor = torch.from_numpy(elements).view(dtype).reshape(stored).expand(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=bool(requires_grad))
    return tensor.requires_grad_(bool(requires_grad))


def make_array(kind: str, shape: tuple[int, ...], data: bytes, is_array: bool) -> Any:
    """An array of numpy's with its own memory, or one number."""
    dtype = np.dtype(one_of(kind, NUMBERS))
    flat = make_bytes(shape, data, dtype.itemsize)
    array = (flat != 0 if dtype.kind == "b" else flat.view(dtype)).reshape(shape)
    return array if is_array else array[()]


def make_bytes(shape: tuple[int, ...], data: bytes, itemsize: int) -> Any:
    """A copy of ``data`` as numpy's bytes, if they are what elements of a shape take."""
    check_shape(shape)
    if len(only(data, bytes)) != math.prod(shape) * itemsize:
        raise ValueError(f"{len(data)} bytes for shape {shape} of {itemsize} bytes each")
    return np.frombuffer(data, np.uint8).copy()


def check_shape(shape: tuple[int, ...]) -> None:
    """Hold that a shape is one: few numbers, none negative, not too many elements."""
    sizes = [only(size, int) for size in only(shape, tuple)]
    if len(sizes) > MAX_DIMENSIONS or min(sizes, default=0) < 0:
        raise ValueError(f"{shape} is no shape")
    if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
        raise ValueError(f"{shape} is too large")


def make_record(name: str, fields: Any) -> Any:
    """An instance of one of `RECORDS`."""
    return RECORDS[name](*only(fields, tuple))


def make_size(sizes: Any) -> torch.Size:
    """A torch.Size."""
    check_shape(sizes)
    return torch.Size(sizes)


def make_range(*limits: int) -> range:
    """A range."""
    return range(*(only(limit, int) for limit in limits))


def make_complex(parts: float) -> complex:
    """A complex number."""
    return complex(*(only(part, float) for part in only(parts, tuple)))


def made_of(maker: Callable, sort: Any) -> Callable:
    """A maker that takes one value of exactly this type."""
    return lambda value: maker(only(value, sort))


def one_of(value: Any, allowed: Collection[str]) -> Any:
    """The value, if it is one of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {sorted(allowed)}")
    return value


def only(value: Any, sort: Any) -> Any:
    """The value, if it is of exactly this type."""
    if type(value) is not sort:
        raise TypeError(f"a {type(value).__name__} where a {sort.__name__} is to be")
    return value


MAKERS: dict[str, Callable[..., Any]] = {
    "record": make_record,
    "tensor": make_tensor,
    "array": make_array,
    "dtype": DTYPES.__getitem__,
    "size": make_size,
    "slice": slice,
    "range": make_range,
    "complex": make_complex,
    "bytearray": made_of(bytearray, bytes),
    "dict": made_of(dict, list),
    "set": made_of(set, list),
    "frozenset": made_of(frozenset, list),
    "deque": made_of(collections.deque, list),
}
"""What makes a value of the parts that a tree holds of it."""
