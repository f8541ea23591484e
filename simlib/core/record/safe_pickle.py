"""The data that ranks send. If simlib does not trust the ranks' code, they send only plain data.

A pickle may call anything when it is read. Even a pickle that makes only numbers and arrays can
arrange these so that a program reads foreign memory. The kernel of a grading run has data that
students must not reach. So in a grading run, ranks send their values as a *tree* of Python's own
plain types, and the unpickler that reads it finds no class and no function at all. This module
makes tensors and similar objects from the tree's descriptions, with checked sizes and copied bytes.

In a tree, a tuple that begins with a bytearray describes an object. The bytearray is the name of
its maker in `MAKERS`. Bytearrays have no other meaning. All other plain values stand for
themselves.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import math
import pickle
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from ..environment import are_ranks_trusted
from ..model.errors import FailureReport
from ..model.ledger import Ledger
from ..model.trace import Group, WireMessage
from .pending import is_without_data

SCALARS = frozenset({type(None), bool, int, float, str, bytes})
NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128".split()
)
"""The kinds of numpy's numbers that can be sent."""
ELEMENTS = NUMBERS | {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
"""The kinds of torch's elements that can be sent."""
DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}


class Exchanged(list):
    """A list of tensors in which an answer has replaced tensors; ``at_first`` contains the old
    tensors."""

    def __init__(self, now: list, at_first: list) -> None:
        super().__init__(now)
        self.at_first = at_first


RECORDS = {one.__name__: one for one in (Exchanged, FailureReport, Group, Ledger, WireMessage)}
"""Our own classes that can be sent, by name."""
MAX_DIMENSIONS, MAX_ELEMENTS = 64, 1 << 40
"""The most dimensions and elements of a tensor. With repeated elements, it has fewer bytes."""


def dumps(value: Any, otherwise: Callable[..., bytes] = pickle.dumps) -> bytes:
    """A rank's data as bytes for `loads`; ``otherwise`` makes the bytes if ranks are trusted.

    If an object is of a subclass of Python's containers, numbers or texts, simlib sends only its
    contents, because checks compare only the contents.

    Raises
    ------
    PicklingError
        The value contains an object that cannot be sent as data.
    """
    return otherwise(value) if are_ranks_trusted() else dumps_tree(value)


def dumps_tree(value: Any) -> bytes:
    """A value as bytes for `loads_tree`."""
    return pickle.dumps(tree_of(value, {}), protocol=5)


def loads(data: bytes) -> Any:
    """The data that a rank has sent."""
    return reader()(data)


def reader() -> Callable[[bytes], Any]:
    """The reader of ranks' data: pickle itself if the ranks are trusted."""
    return pickle.loads if are_ranks_trusted() else loads_tree


def loads_tree(data: bytes) -> Any:
    """The data that an untrusted rank has sent."""
    tree = TreeUnpickler(io.BytesIO(data)).load()
    try:
        return value_of(tree, {})
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # the rank's own bytes: anything may be wrong with them
        words = f"this is not plain data: {type(error).__name__}: {error}"
        raise pickle.UnpicklingError(words[:300]) from None


class TreeUnpickler(pickle.Unpickler):
    """Makes only values that a pickle's opcodes make by themselves. A pickle can call no function.

    Some opcodes call, make an object or set its state. Here they can only act on containers,
    numbers and texts of Python's own, which have no state to set.
    """

    def find_class(self, module: str, name: str) -> None:
        """Refuse every name."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def tree_of(value: Any, done: dict) -> Any:
    """The tree of a value. ``done`` contains the trees of earlier objects, so that one object in
    the value stays one object."""
    sort = type(value)
    if sort in SCALARS:
        return value
    if id(value) in done:
        return done[id(value)][1]
    tree: Any
    if sort is list:
        tree = []
        done[id(value)] = value, tree
        tree.extend(tree_of(one, done) for one in value)
        return tree
    if isinstance(value, dict) and all(type(key) in SCALARS for key in dict.keys(value)):
        tree = {}
        done[id(value)] = value, tree
        tree.update((key, tree_of(one, done)) for key, one in dict.items(value))
        return tree
    tree = other_tree(value, done)
    done[id(value)] = value, tree
    return tree


def other_tree(value: Any, done: dict) -> Any:
    """`tree_of` for a value that is neither a list nor a dict with simple keys."""
    parts = parts_of(value)
    if parts is not None:
        name, *parts = parts
        return (bytearray(name, "ascii"), *(tree_of(part, done) for part in parts))
    if isinstance(value, tuple):
        return tuple(tree_of(one, done) for one in tuple.__iter__(value))
    for base, simple in SIMPLER:
        if isinstance(value, base):
            return tree_of(simple(value), done)
    sort = type(value)
    raise pickle.PicklingError(f"{sort.__module__}.{sort.__qualname__} is not plain data")


def parts_of(value: Any) -> Any:
    """The name of a value's maker, and the maker's arguments; None if there is no maker."""
    sort = type(value)
    if RECORDS.get(sort.__name__) is sort:
        return "record", sort.__name__, fields_of(value)
    if isinstance(value, torch.Tensor):
        return tensor_parts(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.name in NUMBERS:
        native = np.asarray(value).astype(value.dtype.newbyteorder("="))
        is_array = isinstance(value, np.ndarray)
        return "array", native.dtype.name, native.shape, native.tobytes(), is_array
    if isinstance(value, torch.dtype):
        return "dtype", str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return "size", tuple(value)
    if isinstance(value, slice | range):
        return sort.__name__, value.start, value.stop, value.step
    for base, name, simple in CONTENTS:
        if isinstance(value, base):
            return name, simple(value)
    return None


CONTENTS: tuple[tuple[type, str, Callable], ...] = (
    (complex, "complex", lambda value: (value.real, value.imag)),
    (bytearray, "bytearray", bytes),
    (dict, "dict", lambda value: [*dict.items(value)]),
    (set, "set", list),
    (frozenset, "frozenset", list),
    (collections.deque, "deque", list),
)
"""Class, maker, and a function that returns the maker's arguments for a value of this class."""
SIMPLER: tuple[tuple[type, Callable], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (list, lambda value: [*list.__iter__(value)]),
)
"""Class, and a function that replaces a value of a subclass."""


def fields_of(record: Any) -> Any:
    """The arguments with which the class of a record makes the same record again."""
    if dataclasses.is_dataclass(record):
        return tuple(getattr(record, field.name) for field in dataclasses.fields(record))
    return list(record), record.at_first


def tensor_parts(tensor: torch.Tensor) -> Any:
    """`parts_of` a tensor. Elements that `expand` repeats along a dimension are sent once."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if is_without_data(tensor):
        raise pickle.PicklingError("a tensor without data is not plain data")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or kind not in ELEMENTS:
        words = f"a tensor of {tensor.layout}, {tensor.dtype} on {tensor.device} is not plain data"
        raise pickle.PicklingError(words)
    base = tensor.detach().as_subclass(torch.Tensor)
    for dim, stride in enumerate(base.stride()):
        if stride == 0 and base.shape[dim] > 1:
            base = base.narrow(dim, 0, 1)
    whole = base.resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a size of 1 may have kept any stride
    data = flat.view(torch.uint8).numpy().tobytes()
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    shapes = tuple(base.shape), tuple(tensor.shape)
    return "tensor", kind, *shapes, data, tensor.requires_grad, is_parameter


OTHERS = frozenset({complex, bytearray, range, slice, torch.Size, torch.dtype})
SEQUENCES = frozenset({list, tuple, set, frozenset})


def is_plain(value: Any) -> bool:
    """Whether a value is plain data, so that a tree of `safe_pickle` loses no part of it.

    An object of a subclass is not plain data, because its tree would become an object of the base
    class. A value that is nested more deeply than Python's recursion limit is not plain data
    either.
    """
    try:
        return _is_plain(value, set())
    except RecursionError:
        return False


def _is_plain(value, met):
    sort = type(value)
    if sort in SCALARS or sort in OTHERS:
        return True
    if id(value) in met:
        return True
    met.add(id(value))
    if sort in SEQUENCES:
        return all(_is_plain(one, met) for one in value)
    if sort is dict:
        return all(_is_plain(key, met) and _is_plain(one, met) for key, one in value.items())
    if sort is torch.Tensor or sort is torch.nn.Parameter:
        return _is_plain_tensor(value)
    if sort is np.ndarray:
        return value.dtype.name in NUMBERS and value.dtype.isnative and value.flags.c_contiguous
    if isinstance(value, np.generic):
        return value.dtype.name in NUMBERS and sort is value.dtype.type
    if RECORDS.get(sort.__name__) is sort:
        return all(_is_plain(one, met) for one in fields_of(value))
    return False


def _is_plain_tensor(tensor):
    """Whether a tensor consists only of its numbers, and of the flag whether it is trained."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and str(tensor.dtype).removeprefix("torch.") in ELEMENTS
        and tensor.is_contiguous()
        and not vars(tensor)
    )


# What a tree says is made with each size checked, and of bytes that are copied.


def value_of(tree: Any, done: dict) -> Any:
    """The value of a tree. ``done`` contains the values of earlier trees, so that one object stays
    one object."""
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
        raise pickle.UnpicklingError(f"{sort.__name__} is not plain data")
    elif tree and type(tree[0]) is bytearray:
        maker = MAKERS[tree[0].decode("ascii")]
        value = done[id(tree)] = maker(*(value_of(part, done) for part in tree[1:]))
    else:
        value = done[id(tree)] = tuple(value_of(one, done) for one in tree)
    return value


def make_tensor(
    kind: str, stored: tuple, shape: tuple, data: bytes, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    """A tensor with its own memory. Elements repeat along a dimension that is 1 in ``stored`` and
    larger in ``shape``."""
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
    """A copy of ``data`` as bytes of numpy. Its size must fit the shape and ``itemsize``."""
    check_shape(shape)
    if len(only(data, bytes)) != math.prod(shape) * itemsize:
        raise ValueError(f"{len(data)} bytes for shape {shape} of {itemsize} bytes each")
    return np.frombuffer(data, np.uint8).copy()


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse an impossible shape: too many dimensions, a negative number, or too many elements."""
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
        raise ValueError(f"{value!r} is not one of {sorted(allowed)}")
    return value


def only(value: Any, sort: Any) -> Any:
    """The value, if it is of exactly this type."""
    if type(value) is not sort:
        raise TypeError(f"a {type(value).__name__} where a {sort.__name__} is expected")
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
"""The function that makes a value from its parts in a tree."""
