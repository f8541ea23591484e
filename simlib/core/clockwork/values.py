"""Tensors that have no values, in a simulation without data, and how they meet those that have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ..model.errors import InvalidCallError
from ..record.transports.plain_group import put

ADVICE = "let no value decide what is computed, or simulate a small model with data"


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no data."""
    return type(tensor) is FakeTensor


def with_values(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``function`` gives where the tensors that it makes have values."""
    with unset_fake_temporarily():
        return function(*args, **kwargs)


def forget_values_of(tensor: torch.Tensor) -> None:
    """A tensor has been given what has no data: if it had any, it is NaN from now on."""
    if is_fake(tensor):
        return
    if not tensor.dtype.is_floating_point:
        raise InvalidCallError(
            f"a tensor of {tensor.dtype} that has values is given what has none in a simulation "
            f"with data=False: {ADVICE}"
        )
    with torch.no_grad():
        with_values(tensor.fill_, float("nan"))


def hand_over(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy what has come into a rank's tensors, as far as both have values."""
    if any(map(is_fake, targets)):
        return
    if any(map(is_fake, sources)):
        for target in targets:
            forget_values_of(target)
    else:
        put(sources, targets)
