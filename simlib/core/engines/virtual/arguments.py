"""The arguments of an op: its tensors, their shapes, and the tensors that it changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

_OPTIONS = frozenset(
    (int, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.Size, torch.device)
)
"""Types of arguments that determine the work of an op."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def shapes_of(args: tuple, kwargs: dict, out: Any, *, is_exact: bool = False) -> tuple:
    """What determines an op's cost and result: shapes, dtypes, options, and repeated tensors.

    Floating-point numbers do not determine them, and may change from call to call. A few ops are
    exceptions, for which ``is_exact`` is True.
    """
    seen: dict[int, int] = {}
    if kwargs:
        args = (*args, *kwargs, *kwargs.values())
    return _shape_of(args, seen, is_exact), out is not None and _shape_of(out, seen, is_exact)


def _shape_of(value, seen, is_exact):
    kind = type(value)
    if kind is tuple or kind is list:
        return tuple([_shape_of(one, seen, is_exact) for one in value])
    if kind in _OPTIONS:
        return value
    if kind is bool or (kind is float and is_exact):
        return kind, value  # for True equals 1, as does 1.0
    if isinstance(value, torch.Tensor):
        place = seen.setdefault(id(value), len(seen))
        return place, value.shape, value.stride(), value.dtype, value.is_cpu
    return kind


@functools.cache
def _written(func):
    """Places and names of the arguments that an op changes."""
    arguments = enumerate(func._schema.arguments)
    return [(at, one.name) for at, one in arguments if one.alias_info and one.alias_info.is_write]


def changed_by(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The tensors that an op changes."""
    values = (args[at] if at < len(args) else kwargs.get(name) for at, name in _written(func))
    return list(tensors_in(list(values)))
