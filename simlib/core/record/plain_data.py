"""Which values come back from `safe_pickle` just as they were: those need no pickle that calls."""

from __future__ import annotations

import numpy as np
import torch

from .safe_pickle import fields_of
from .safe_values import ELEMENTS, NUMBERS, RECORDS, SCALARS

OTHERS = frozenset({complex, bytearray, range, slice, torch.Size, torch.dtype})
SEQUENCES = frozenset({list, tuple, set, frozenset})


def is_plain(value):
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
