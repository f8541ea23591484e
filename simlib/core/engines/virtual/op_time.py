"""How long an operation takes on a device, from its arithmetic and the bytes that it moves.

The model is the roofline of Williams, Waterman and Patterson (2009). An operation takes the longer
of two times: its floating-point operations divided by the rate for its dtype, and its bytes divided
by the bandwidth of the memory. It reads each argument once, and writes each result and each changed
tensor once. If it reads or changes a tensor by index, only the indexed elements count. The model
leaves out caches and the shape of a matrix. So a kernel that does not fill the device is slower in
reality. A device may have a table of measurements. The table says by which factor such an operation
is slower, for shapes of products and attention, and for the bytes of other ops.
"""

from __future__ import annotations

import functools
import math
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from ...model.cluster import Device
from ...model.errors import InvalidCallError
from .arguments import changed_by, shapes_of, tensors_in
from .dispatch_mode import FlopCounts

_MAKES_NOTHING = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided lift_fresh detach detach_ alias "
    "set_ resize_ resize_as_ _local_scalar_dense _reshape_alias _unsafe_view".split()
)
"""Ops that return no view and start no kernel. They allocate memory, or return a number."""
_ONLY_WRITES = frozenset(
    "copy_ fill_ zero_ random_ uniform_ normal_ exponential_ bernoulli_ _foreach_zero_ "
    "_foreach_copy_".split()
)
"""Ops that do not read the tensors that they change."""
_BY_RESULT = frozenset("embedding index_select gather index".split())
"""Ops that read only as much of their first argument as they return."""
_BY_INDEX = frozenset(
    "index_put_ _index_put_impl_ index_copy_ index_fill_ index_add_ index_reduce_ scatter_ "
    "scatter_add_ scatter_reduce_".split()
)
"""Ops that change a part of their first argument."""
_NO_KERNELS = frozenset(("prim", "profiler", "_c10d_functional"))
"""Namespaces of ops that compute nothing. Collectives take their time on the network."""
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices -> the place of their first factor."""
_MOST_SHAPES = 10_000
"""simlib remembers at most this many costs of one op."""


class Cost(NamedTuple):
    """The cost of an operation: its flops, its time, and the time of its flops at the full rate."""

    flops: int
    seconds: float
    full_rate_s: float


class OpTimes:
    """The time of operations on one kind of device, from shapes and dtypes alone.

    Parameters
    ----------
    device : Device
    flop_counts : FlopCounts
    """

    def __init__(self, device: Device, flop_counts: FlopCounts) -> None:
        self._rates = {getattr(torch, dtype): rate for dtype, rate in (device.rates or {}).items()}
        self._other_rate = device.flops_per_s
        self._memory_Bps = device.memory_Bps
        # A device that works through queues is launched by the rank: that is the rank's time.
        self._launch_s = 0.0 if device.asynchronous else device.launch_s
        self._table = device.table
        self._flop_counts = flop_counts
        self._known: dict[Any, tuple[bool, dict[tuple, Cost]] | None] = {}

    def cost(self, func: Any, args: tuple, kwargs: dict, out: Any) -> Cost | None:
        """The cost of ``func(*args, **kwargs)``, which has returned ``out``.

        Parameters
        ----------
        func : OpOverload
        args, kwargs : tuple, dict
        out : Tensor, or a sequence of them

        Returns
        -------
        Cost or None
            None if no kernel begins, as for a view.

        **Cost** tens of microseconds for the first op with some shapes, a few for later ones.
        """
        try:
            known = self._known[func]
        except KeyError:
            known = None if _sort_of(func) is None else (_is_told_by_result(func), {})
            self._known[func] = known
        if known is None:
            return None
        by_result, costs = known
        key = shapes_of(args, kwargs, out if by_result else None)
        cost = costs.get(key)
        if cost is None:
            if len(costs) >= _MOST_SHAPES:
                costs.clear()
            cost = costs[key] = self._cost_of_shapes(func, args, kwargs, out)
        return cost

    def _cost_of_shapes(self, func, args, kwargs, out):
        sort, flops = _sort_of(func), self._flop_counts.of(func, args, kwargs, out)
        full_rate_s = seconds = nbytes = 0.0
        if flops:
            full_rate_s = flops / self._rate(sort, args)
            seconds = full_rate_s * _part_worked(func, args, kwargs)
        if self._memory_Bps < math.inf:
            nbytes = _bytes_moved(sort, func, args, kwargs, out)
            seconds = max(seconds, nbytes / self._memory_Bps)
        if self._table is not None and seconds:
            row = _row_of(sort, args, int(nbytes))
            if not flops or row[0] != sort:  # of convolutions, say, no card has rows
                seconds *= self._table.slowdown(*row)
        return Cost(flops, self._launch_s + seconds, full_rate_s)

    def _rate(self, sort, args):
        dtype = _dtype_of(args)
        rate = self._rates.get(dtype, self._other_rate)
        if self._rates and rate == math.inf:
            has = ", ".join(str(one).removeprefix("torch.") for one in self._rates)
            name = str(dtype).removeprefix("torch.")
            raise InvalidCallError(
                f"{sort} computes in {name}, but the device has rates only for {has}: add a "
                f"rate for {name} to Device(rates=), or set flops_per_s= for all other dtypes"
            )
        return rate


class FlopTimes:
    """The time of operations from their floating-point operations and a rate alone.

    Parameters
    ----------
    flops_per_s : float
    flop_counts : FlopCounts
    """

    def __init__(self, flops_per_s: float, flop_counts: FlopCounts) -> None:
        self._flops_per_s = flops_per_s
        self._flop_counts = flop_counts

    def cost(self, func: Any, args: tuple, kwargs: dict, out: Any) -> Cost | None:
        """As `OpTimes.cost`; None if an operation takes no time."""
        flops = self._flop_counts.of(func, args, kwargs, out)
        seconds = flops / self._flops_per_s
        return Cost(flops, seconds, seconds) if flops else None


def op_times_of(device: Device | None) -> OpTimes | FlopTimes | None:
    """The time of operations on a device. None if no operation takes time.

    All ranks of a process may share the result.
    """
    if device is None:
        return None
    if device.rates or device.memory_Bps < math.inf or device.launch_s or device.table:
        return OpTimes(device, FlopCounts())
    return FlopTimes(device.flops_per_s, FlopCounts()) if device.flops_per_s < math.inf else None


def _is_told_by_result(func):
    """Whether the size of an op's result does not follow, or may not follow, from shapes alone."""
    has_tensors = any("Tensor" in str(one.type) for one in func._schema.arguments)
    depends = torch.Tag.dynamic_output_shape in func.tags
    return depends or not has_tensors or func.namespace != "aten"


@functools.cache
def _sort_of(func):
    """The name of an op that begins a kernel; None for any other."""
    name = func._overloadpacket.__name__
    if name in _MAKES_NOTHING or func.namespace in _NO_KERNELS:
        return None
    returns = func._schema.returns
    is_view = any(one.alias_info and not one.alias_info.is_write for one in returns)
    return None if is_view else name


@functools.cache
def _causal_at(func):
    """The place of ``is_causal`` among the arguments of attention, or None."""
    names = [one.name for one in func._schema.arguments]
    return names.index("is_causal") if "is_causal" in names else None


def _part_worked(func, args, kwargs):
    """The share of an op's work that the device does. Causal attention leaves out the upper
    half."""
    at = _causal_at(func)
    if at is None:
        return 1.0
    is_causal = args[at] if at < len(args) else kwargs.get("is_causal", False)
    return 0.5 if is_causal else 1.0


def _row_of(sort, args, nbytes):
    """Sort, dtype, layout and sizes, as in a `Card`."""
    dtype = str(_dtype_of(args)).removeprefix("torch.")
    if sort in _PRODUCTS:
        one, other = args[_PRODUCTS[sort] :][:2]
        sizes = math.prod(one.shape[:-1]), other.shape[-1], one.shape[-1]
        return "product", dtype, _layout(one) + _layout(other), sizes
    if sort.startswith("_scaled_dot_product"):
        is_backward = sort.endswith("backward")
        *heads, length, width = args[1 if is_backward else 0].shape
        name = "attention_backward" if is_backward else "attention"
        return name, dtype, "", (math.prod(heads), length, width)
    return sort, dtype, "", (nbytes,)


def _layout(matrix):
    return "n" if matrix.stride(-1) == 1 else "t"


def _dtype_of(args):
    """The dtype of the first floating-point or complex tensor, or else of the first tensor."""
    dtypes = [one.dtype for one in tensors_in(args)]
    inexact = (one for one in dtypes if one.is_floating_point or one.is_complex)
    return next(inexact, dtypes[0] if dtypes else None)


def _bytes_moved(name, func, args, kwargs, out):
    given = {id(one): one for one in tensors_in((args, kwargs))}
    made = [one for one in tensors_in(out) if id(one) not in given]
    results = sum(map(_nbytes, made))
    if name in _BY_RESULT:
        return 2 * results + sum(map(_nbytes, tensors_in(args[1:])))
    read = sum(map(_nbytes, given.values()))
    if name in _BY_INDEX:
        return read - _nbytes(args[0]) + _part_moved(name, *args)
    written = sum(map(_nbytes, changed_by(func, args, kwargs)))
    if name.startswith("_fused_") and kwargs.get("grad_scale") is None:
        written -= sum(map(_nbytes, tensors_in(args[1])))  # gradients change where they are scaled
    if name in _ONLY_WRITES or torch.Tag.out in func.tags:
        read -= written
    return read + results + written


def _part_moved(name, target, where, *more):
    """Bytes of a tensor that an op changes by index, and reads if it adds to them."""
    adds = name.endswith(("add_", "reduce_"))
    if "index_put" in name:
        elements, adds = _elements_at(target, where), more[1:] == (True,)
    elif name.startswith("scatter"):
        elements = more[0].numel()
    else:
        rows = target.shape[where] if target.dim() else 1
        elements = target.numel() // max(rows, 1) * more[0].numel()
    return (1 + adds) * elements * target.element_size()


def _elements_at(target, indices):
    """The number of elements of ``target[indices]``. If a mask decides, all elements."""
    given = [one for one in indices if one is not None]
    if any(one.dtype in (torch.bool, torch.uint8) for one in given):
        return target.numel()
    places = torch.broadcast_shapes(*(one.shape for one in given))
    ways = zip_longest(target.shape, indices)
    return math.prod(places) * math.prod(size for size, index in ways if index is None)


def _nbytes(tensor):
    """Bytes in memory, each once, because `expand` repeats elements that exist once."""
    if 0 not in tensor.stride():
        return tensor.numel() * tensor.element_size()
    ways = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, step in ways if step) * tensor.element_size()
