"""The common part of simlib's own groups. It turns each of torch's collectives into one plain
call."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...environment import loopback
from ...model.errors import InvalidCallError
from ..pending import is_without_data, places
from . import FOREVER

ADVICE = "do not let a value decide what to compute, or simulate a small model with data"
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives whose options name a reduction."""


class PlainGroup:
    """Implements the collectives of `dist.ProcessGroup` through one method `_collective`.

    A subclass defines ``_group`` (whose length is the number of members), ``_position``, ``send``,
    ``recv``, and ``_collective(kind, brings, takes, opts, payload, splits=None)``. This method
    posts a collective. ``brings`` are the tensors that the rank contributes, ``takes`` are the
    tensors that it receives, and ``payload`` are the tensors that count as its bytes.
    """

    copies_results = False
    limit_s: float | None = None
    """A wait gives up after this many seconds. None means that waits never give up."""
    patience_s = 1800.0
    """Without ``limit_s``, an op may take this many seconds: torch's 30 minutes."""
    _group: Any
    _position: int
    recv: Callable[..., Any]
    _collective: Callable[..., Any]

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        return self._collective("broadcast", tensors, tensors, opts, tensors)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = dist.AllreduceOptions() if opts is None else opts
        return self._collective("all_reduce", tensors, tensors, opts, tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        return self._collective("reduce", tensors, tensors, opts, tensors)

    def gather(self, outputs: list, inputs: list, opts: Any) -> Any:
        takes = outputs[0] if outputs else []
        return self._collective("gather", inputs, takes, opts, inputs)

    def scatter(self, outputs: list, inputs: list, opts: Any) -> Any:
        is_root = opts.rootRank == self._position
        brings = inputs[0] if is_root else []
        return self._collective("scatter", brings, outputs, opts, brings or outputs)

    def allgather(self, outputs: list, inputs: list, opts: Any = None) -> Any:
        if isinstance(outputs[0], SharedOutputs):
            return self._collective("all_gather", inputs, outputs[0], opts, inputs)
        takes = [outputs[i][r] for r in range(len(self._group)) for i in range(len(inputs))]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def allgather_coalesced(self, output_lists: list, inputs: list, opts: Any = None) -> Any:
        takes = [tensor for tensors in output_lists for tensor in tensors]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts: Any = None) -> Any:
        n = len(self._group)
        cut = [rows(output, None, n) for output in outputs]
        takes = [parts[r] for r in range(n) for parts in cut]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def reduce_scatter(self, outputs: list, input_lists: list, opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        n = len(self._group)
        brings = [tensors[r] for r in range(n) for tensors in input_lists]
        return self._collective("reduce_scatter", brings, outputs, opts, brings)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list, inputs: list, opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        n = len(self._group)
        cut = [rows(tensor, None, n) for tensor in inputs]
        brings = [parts[r] for r in range(n) for parts in cut]
        return self._collective("reduce_scatter", brings, outputs, opts, inputs)

    def alltoall(self, outputs: list, inputs: list, opts: Any = None) -> Any:
        sizes = tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)
        return self._collective("all_to_all", inputs, outputs, opts, inputs, sizes)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list,
        input_splits: list,
        opts: Any = None,
    ) -> Any:
        n = len(self._group)
        brings, takes = rows(tensor, input_splits, n), rows(output, output_splits, n)
        sizes = tuple(t.numel() for t in brings), tuple(t.numel() for t in takes)
        return self._collective("all_to_all", brings, takes, opts, [tensor], sizes)

    def barrier(self, opts: Any = None) -> Any:
        return self._collective("barrier", [], [], opts, [])

    def monitored_barrier(self, timeout: timedelta = FOREVER, wait_all_ranks: bool = False) -> None:
        self.barrier().wait(timeout if timeout < FOREVER else None)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def rows(tensor: Tensor, splits: Sequence[int] | None, n: int) -> list[Tensor]:
    """Return the parts of a tensor, cut along its first dimension. Without ``splits``, the parts
    are even."""
    sizes = list(splits) if splits else [tensor.shape[0] // n] * n
    return list(tensor.split(sizes))


def put(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy results into the learner's tensors, element by element. Shapes and cuts may differ.

    As with Gloo, autograd does not notice this copy.
    """
    sizes = [*map(Tensor.numel, targets)]
    if [*map(Tensor.numel, sources)] != sizes:
        sources = joined(sources).split(sizes)
    for source, target in zip(sources, targets, strict=True):
        if target.layout is not torch.strided:
            with torch.no_grad():
                target.copy_(source)
            continue
        if source.shape != target.shape:
            source = source.reshape(target.shape)
        target = target.data
        if 0 in target.stride():
            source, target = _without_repetition(source, target)
        target.copy_(source)


def forget_values_of(tensor: Tensor) -> None:
    """Mark a tensor that has received a result without data. If the tensor itself has data, set it
    to NaN."""
    if is_without_data(tensor):
        return
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise InvalidCallError(
            "in a simulation with data=False, the program copies a tensor without values into a "
            f"tensor of {tensor.dtype} that has values: {ADVICE}"
        )
    with torch.no_grad():
        tensor.fill_(float("nan"))


def hand_over(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy results into a rank's tensors, as far as both sides have values."""
    if places and any(map(is_without_data, targets)):
        return
    if places and any(map(is_without_data, sources)):
        for target in targets:
            forget_values_of(target)
    else:
        put(sources, targets)


MOST_BYTES = 1 << 16
"""simlib copies the memory of plain tensors up to this size directly, which is faster."""
_PLAIN = torch.Tensor, torch.nn.Parameter


def copy_of(tensor: Tensor) -> Tensor | bytes:
    """A copy of a tensor that a rank sends: the bytes of its memory, or a tensor."""
    if _is_plain(tensor) and 0 < (nbytes := tensor.nbytes) <= MOST_BYTES:
        return ctypes.string_at(tensor.data_ptr(), nbytes)
    return (tensor.detach() if tensor.requires_grad else tensor).clone()


def hand_over_copy(content: Tensor | bytes, dtype: torch.dtype, target: Tensor) -> None:
    """`hand_over` of a `copy_of` a tensor of this dtype."""
    if not isinstance(content, bytes):
        hand_over((content,), (target,))
    elif _is_plain(target) and target.nbytes == len(content):
        ctypes.memmove(target.data_ptr(), content, len(content))
    else:
        hand_over((torch.frombuffer(bytearray(content), dtype=dtype),), (target,))


def _is_plain(tensor):
    """Whether the memory of a tensor contains its elements, one after the other."""
    if places or type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return False
    if tensor.is_neg() or tensor.is_conj() or tensor.is_inference():
        return False
    return tensor.is_cpu and tensor.is_contiguous() and tensor.data_ptr() != 0


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return all elements of the tensors, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _without_repetition(source, target):
    """If `expand` has mapped several elements to one place in memory, keep only the last element
    for it."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            source, target = source.narrow(dim, size - 1, 1), target.narrow(dim, 0, 1)
    return source, target


class SharedOutputs:
    """Takes the result of an all_gather without a copy: the tensors of all ranks, which nobody may
    change."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.tensors = ()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator:
        return iter(())


def stand_in_backend() -> dist.Backend:
    """Return a Gloo backend of one rank. torch's own C++ code asks it for names and options.

    DDP's logger treats any backend called "gloo" as such an object. This backend never moves a
    byte.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=FOREVER)
