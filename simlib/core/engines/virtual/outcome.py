"""The result of an op, from shapes and dtypes alone: torch's fake tensors compute it once.

An `Outcome` then makes the results without data, for any arguments of the same shapes and options.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ...model.errors import InvalidCallError
from ...record.pending import places
from ...record.torch_inside import storage_at
from .arguments import shapes_of

_MAPPED = 1 << 30
"""All tensors without data share an address with this many bytes. Unwritten bytes cost no
memory."""
_MOST_SHAPES = 10_000
"""simlib remembers at most this many outcomes of one op."""
_BY_NUMBERS = "arange", "range", "upsample"
"""The beginnings of names of ops for which floating-point numbers determine the shape."""
_outcomes: dict[Any, dict[Any, Outcome]] = {}
_lock = threading.RLock()
_fake_mode = functools.cache(FakeTensorMode)


def _address():
    if not places:
        memory = torch.empty(_MAPPED, dtype=torch.uint8, device="cpu")
        places[memory.data_ptr()] = memory
    return next(iter(places))


def without_data(shape: Iterable[int], stride: Iterable[int], dtype: torch.dtype) -> Tensor:
    """A tensor without data.

    **Cost** 6 us, for any size.
    """
    nbytes = dtype.itemsize * _elements(shape, stride)
    storage = storage_at(_address(), nbytes)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, stride)


def _elements(shape, stride):
    """The number of elements from the first to the last, with the gaps between them."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


class New(NamedTuple):
    """A result with its own memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self, given: Sequence[Tensor]) -> Tensor:
        if self.device.type != "cpu":
            return torch.empty_strided(
                self.shape, self.stride, dtype=self.dtype, device=self.device
            )
        return without_data(self.shape, self.stride, self.dtype)


class Given(NamedTuple):
    """A result that is one of the arguments, perhaps with another shape."""

    number: int

    def made(self, given: Sequence[Tensor]) -> Tensor:
        return given[self.number]


class Part(NamedTuple):
    """A result in the memory of an argument."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    further: int

    def made(self, given: Sequence[Tensor]) -> Tensor:
        base = given[self.number]
        return base.as_strided(self.shape, self.stride, base.storage_offset() + self.further)


class Several(NamedTuple):
    """A list or tuple of results."""

    kind: type
    parts: tuple[Any, ...]

    def made(self, given: Sequence[Tensor]) -> Any:
        return self.kind([one.made(given) for one in self.parts])


class Plain(NamedTuple):
    """A result that is not a tensor."""

    value: Any

    def made(self, given: Sequence[Tensor]) -> Any:
        return self.value


class Outcome(NamedTuple):
    """The result of an op.

    Attributes
    ----------
    result : New, Given, Part, Several or Plain
        ``result.made(given)`` makes the op's result from the tensors among the arguments.
    resized : list of (int, tuple, tuple)
        The index, the new shape and the new stride of each argument that the op resizes, as for
        ``out=``.
    """

    result: Any
    resized: list[tuple[int, tuple[int, ...], tuple[int, ...]]]

    def new(self) -> list[New]:
        """The results with their own memory."""
        parts = self.result.parts if isinstance(self.result, Several) else (self.result,)
        return [one for one in parts if isinstance(one, New)]


def outcome_of(func: Any, args: tuple, kwargs: dict, given: Sequence[Tensor]) -> Outcome:
    """The outcome of ``func(*args, **kwargs)``; ``given`` are all tensors among the arguments.

    Raises
    ------
    DataDependentOutputException, DynamicOutputShapeException
        The outcome depends on the values of tensors.
    InvalidCallError
        The result is sparse. All other errors come from torch, for example if torch cannot run an
        op without data.

    **Cost** one or two milliseconds for the first op with some shapes, microseconds for later ones.
    """
    known = _outcomes.setdefault(func, {})
    is_exact = func._overloadpacket.__name__.startswith(_BY_NUMBERS)
    key = shapes_of(args, kwargs, None, is_exact=is_exact), torch.get_default_dtype()
    outcome = known.get(key)
    if outcome is None:
        if len(known) >= _MOST_SHAPES:
            known.clear()
        outcome = known[key] = _foreseen(func, args, kwargs, given)
    return outcome


def _foreseen(func, args, kwargs, given):
    with _lock, _fake_mode():
        twins = {id(one): _twin(one) for one in given}
        out = func(*_with_twins(args, twins), **_with_twins(kwargs, twins))
        stand_ins = [twins[id(one)] for one in given]
        resized = [
            (number, tuple(twin.shape), twin.stride())
            for number, (one, twin) in enumerate(zip(given, stand_ins, strict=True))
            if twin.shape != one.shape
        ]
        return Outcome(_described(out, stand_ins), resized)


def _twin(tensor):
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _with_twins(value, twins):
    if isinstance(value, Tensor):
        return twins[id(value)]
    if isinstance(value, dict):
        return {name: _with_twins(one, twins) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_with_twins(one, twins) for one in value])
    return value


def _described(out, twins):
    if isinstance(out, (list, tuple)):
        return Several(type(out), tuple(_described(one, twins) for one in out))
    if not isinstance(out, Tensor):
        return Plain(out)
    if out.layout is not torch.strided:
        raise InvalidCallError(
            "sparse tensors cannot be simulated with data=False: use dense ones, such as gradients "
            "of nn.Embedding(sparse=False)"
        )
    for number, twin in enumerate(twins):
        if out is twin:
            return Given(number)
        if out.untyped_storage()._cdata == twin.untyped_storage()._cdata:
            further = out.storage_offset() - twin.storage_offset()
            return Part(number, tuple(out.shape), out.stride(), further)
    return New(tuple(out.shape), out.stride(), out.dtype, out.device)
