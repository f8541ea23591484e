"""Tensors without data: torch's own, of any size, whose memory is one place that holds nothing.

Their storages differ, and all begin at the same address. So one look tells such a tensor, and any
number of them takes no memory. Whoever makes them sees to it that no kernel gets them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..model.errors import InvalidCallError
from .torch_inside import storage_at

ADVICE = "let no value decide what is computed, or simulate a small model with data"

_MAPPED = 1 << 30
"""Bytes at the common address, for a kernel that we have missed: they cost no memory unwritten."""
_places: dict[int, Tensor] = {}
"""The common address, if there is one -> what keeps its memory."""


def _address():
    if not _places:
        memory = torch.empty(_MAPPED, dtype=torch.uint8, device="cpu")
        _places[memory.data_ptr()] = memory
    return next(iter(_places))


def without_data(shape: Iterable[int], stride: Iterable[int], dtype: torch.dtype) -> Tensor:
    """A tensor without data. Call it where no dispatch mode sees it.

    **Cost** 6 us, whatever its size.
    """
    nbytes = dtype.itemsize * _elements(shape, stride)
    storage = storage_at(_address(), nbytes)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, stride)


def _elements(shape, stride):
    """Elements from the first to the last, those between as well."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_without_data(tensor: Tensor) -> bool:
    """Whether a tensor has no data.

    **Cost** half a microsecond; nothing where there has been no such tensor.
    """
    if not _places or not has_memory(type(tensor)) or tensor.layout is not torch.strided:
        return False
    return is_storage_without_data(tensor.untyped_storage())


def has_memory(kind: Any) -> bool:
    """Whether tensors of a class have memory of their own, unlike those that wrap others."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__


def is_storage_without_data(storage: torch.UntypedStorage) -> bool:
    """Whether a storage is that of a tensor without data."""
    return storage.data_ptr() in _places


def forget_values_of(tensor: Tensor) -> None:
    """A tensor has been given what has no data: if it had any, it is NaN from now on."""
    if is_without_data(tensor):
        return
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise InvalidCallError(
            f"a tensor of {tensor.dtype} that has values is given what has none in a simulation "
            f"with data=False: {ADVICE}"
        )
    with torch.no_grad():
        tensor.fill_(float("nan"))
