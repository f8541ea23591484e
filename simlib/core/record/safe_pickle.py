"""What ranks send, as data only where the code they run is not to be trusted.

A pickle may call anything when it is read, and even one that makes numbers and arrays only can lay
them out so that memory is read that is not theirs. The kernel of a grading run holds what students
must not reach. So there a rank's values cross as a *tree* of Python's own plain types, and the
unpickler that reads it finds no class and no function at all. What the tree says of tensors and the
like is made in `safe_values`, from sizes that are checked and bytes that are copied.

In a tree a tuple that begins with a bytearray stands for what `safe_values` makes by that name; so
bytearrays stand for nothing else. All other plain values stand for themselves.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..environment import are_ranks_trusted
from .safe_values import ELEMENTS, NUMBERS, RECORDS, SCALARS, value_of


def dumps(value: Any, otherwise: Callable[..., bytes] = pickle.dumps) -> bytes:
    """What a rank sends, as bytes for `loads`; by ``otherwise`` where ranks are trusted.

    Of a subclass of Python's containers, numbers and texts its contents are sent: checks compare
    those only.

    Raises
    ------
    PicklingError
        It holds what cannot be sent as data.
    """
    return otherwise(value) if are_ranks_trusted() else dumps_tree(value)


def dumps_tree(value: Any) -> bytes:
    """A value as bytes for `loads_tree`."""
    return pickle.dumps(tree_of(value, {}), protocol=5)


def loads(data: bytes) -> Any:
    """What a rank has sent."""
    return reader()(data)


def reader() -> Callable[[bytes], Any]:
    """What reads what ranks send: pickle itself where they are trusted."""
    return pickle.loads if are_ranks_trusted() else loads_tree


def loads_tree(data: bytes) -> Any:
    """What a rank that is not trusted has sent."""
    tree = TreeUnpickler(io.BytesIO(data)).load()
    try:
        return value_of(tree, {})
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # the rank's own bytes: anything may be wrong with them
        words = f"this is no plain data: {type(error).__name__}: {error}"
        raise pickle.UnpicklingError(words[:300]) from None


class TreeUnpickler(pickle.Unpickler):
    """Makes what the opcodes of a pickle make by themselves; finds nothing that can be called.

    So no opcode that calls, makes an object or sets its state has anything to act on but
    containers, numbers and texts of Python's own, which have no state to be set.
    """

    def find_class(self, module: str, name: str) -> None:
        """Nothing."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def tree_of(value: Any, done: dict) -> Any:
    """The tree of a value; ``done`` holds those of objects met before, which stay one object."""
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
    """`tree_of` what is no list, and no dict of simple keys."""
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
    raise pickle.PicklingError(f"{sort.__module__}.{sort.__qualname__} is no plain data")


def parts_of(value: Any) -> Any:
    """The name of a value's maker and what it is given; None where there is none."""
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
"""Class, maker, and what the maker is given of a value of that class."""
SIMPLER: tuple[tuple[type, Callable], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (list, lambda value: [*list.__iter__(value)]),
)
"""Class, and what stands for a value of a subclass."""


def fields_of(record: Any) -> Any:
    """What the class of a record is given to make the same again."""
    if dataclasses.is_dataclass(record):
        return tuple(getattr(record, field.name) for field in dataclasses.fields(record))
    return list(record), record.at_first


def tensor_parts(tensor: torch.Tensor) -> Any:
    """`parts_of` a tensor. Elements that repeat along a dimension (`expand`) are sent once."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or kind not in ELEMENTS:
        words = f"a tensor of {tensor.layout}, {tensor.dtype} on {tensor.device} is no plain data"
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
    """Whether a value is plain data, without anything that a tree of `safe_pickle` would lose.

    A subclass is no plain data: its tree would give the class that it derives from. No more is what
    is nested more deeply than Python calls.
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
    """Whether all that there is to a tensor are its numbers, and whether it is trained."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and str(tensor.dtype).removeprefix("torch.") in ELEMENTS
        and tensor.is_contiguous()
        and not vars(tensor)
    )
