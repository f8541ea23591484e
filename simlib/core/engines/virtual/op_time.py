"""How long an operation takes on a device: by its arithmetic, or by the bytes that it moves.

The model is the roofline of Williams, Waterman and Patterson (2009). An operation takes the longer
of two times: its floating-point operations over the rate of its dtype, and its bytes over the
bandwidth of the memory. It reads each tensor that it is given once, and writes each that it
returns or changes once. Caches and the shape of a matrix are not in the model, so a kernel that
does not fill the device is slower than this says, unless the device has a table of measurements:
that says how much slower, by the shape of a product or of attention and by the bytes of other ops.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from ...model.cluster import Device
from .dispatch_mode import tensors_in

_MAKES_NOTHING = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided lift_fresh detach detach_ alias "
    "set_ resize_ resize_as_ _local_scalar_dense _reshape_alias _unsafe_view".split()
)
"""Ops that begin no kernel, though they return no view: they give memory, or a number."""
_ONLY_WRITES = frozenset(
    "copy_ fill_ zero_ random_ uniform_ normal_ exponential_ bernoulli_ _foreach_zero_ "
    "_foreach_copy_".split()
)
"""Ops that do not read what they change."""
_BY_RESULT = frozenset("embedding index_select gather index".split())
"""Ops that read of their first argument only as much as they return."""
_NO_KERNELS = frozenset(("prim", "profiler", "_c10d_functional"))
"""Namespaces of ops that compute nothing; those of collectives take their time on the network."""
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices -> the place of their first factor."""


class OpTimes:
    """The time of operations on one sort of device, from shapes and dtypes alone.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._rates = {getattr(torch, dtype): rate for dtype, rate in (device.rates or {}).items()}
        self._other_rate = device.flops_per_s
        self._memory_Bps = device.memory_Bps
        # A device that works through queues is launched by the rank: that is the rank's time.
        self._launch_s = 0.0 if device.asynchronous else device.launch_s
        self._table = device.table
        self._slowdowns: dict[tuple, float] = {}

    def seconds(self, func: Any, args: tuple, kwargs: dict, out: Any, flops: int) -> float | None:
        """How long ``func(*args, **kwargs)`` takes, which has returned ``out``.

        Parameters
        ----------
        func : OpOverload
        args, kwargs : tuple, dict
        out : Tensor, or a sequence of them
        flops : int
            What `FlopCounts` says of it.

        Returns
        -------
        float or None
            None where no kernel begins, as for a view.

        **Cost** some microseconds.
        """
        sort = _sort_of(func)
        if sort is None:
            return None
        seconds = nbytes = 0.0
        if flops:
            seconds = self.full_rate_s(args, flops) * _part_worked(func, args, kwargs)
        if self._memory_Bps < math.inf:
            nbytes = _bytes_moved(sort, func, args, kwargs, out)
            seconds = max(seconds, nbytes / self._memory_Bps)
        if self._table is not None and seconds:
            seconds *= self._slowdown(sort, args, int(nbytes))
        return self._launch_s + seconds

    def _slowdown(self, sort, args, nbytes):
        key = _row_of(sort, args, nbytes)
        slowdown = self._slowdowns.get(key)
        if slowdown is None:
            slowdown = self._slowdowns[key] = self._table.slowdown(*key)
        return slowdown

    def full_rate_s(self, args: tuple, flops: int) -> float:
        """How long they take at the rate of their dtype, 0 where it has none."""
        return flops / self._rates.get(_dtype_of(args), self._other_rate)


class FlopTimes:
    """The time of operations that take their floating-point operations over a rate, and no more.

    Parameters
    ----------
    flops_per_s : float
    """

    def __init__(self, flops_per_s: float) -> None:
        self._flops_per_s = flops_per_s

    def seconds(self, func: Any, args: tuple, kwargs: dict, out: Any, flops: int) -> float | None:
        """As `OpTimes.seconds`; None where an operation takes no time."""
        return flops / self._flops_per_s if flops else None

    def full_rate_s(self, args: tuple, flops: int) -> float:
        """As `OpTimes.full_rate_s`."""
        return flops / self._flops_per_s


def op_times_of(device: Device | None) -> OpTimes | FlopTimes | None:
    """The time of operations on a device; None where none takes any."""
    if device is None:
        return None
    if device.rates or device.memory_Bps < math.inf or device.launch_s or device.table:
        return OpTimes(device)
    return FlopTimes(device.flops_per_s) if device.flops_per_s < math.inf else None


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
def _written(func):
    """Places and names of the arguments that an op changes."""
    arguments = enumerate(func._schema.arguments)
    return [(at, one.name) for at, one in arguments if one.alias_info and one.alias_info.is_write]


def changed_by(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The tensors that an op changes."""
    values = (args[at] if at < len(args) else kwargs.get(name) for at, name in _written(func))
    return list(tensors_in(list(values)))


@functools.cache
def _causal_at(func):
    """The place of ``is_causal`` among the arguments of attention, or None."""
    names = [one.name for one in func._schema.arguments]
    return names.index("is_causal") if "is_causal" in names else None


def _part_worked(func, args, kwargs):
    """Of causal attention the upper half is left out."""
    at = _causal_at(func)
    if at is None:
        return 1.0
    is_causal = args[at] if at < len(args) else kwargs.get("is_causal", False)
    return 0.5 if is_causal else 1.0


def _row_of(sort, args, nbytes):
    """Sort, dtype, layout and sizes, as a `Card` has them."""
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
    return next((one.dtype for one in tensors_in(args) if one.dtype.is_floating_point), None)


def _bytes_moved(name, func, args, kwargs, out):
    given = {id(one): one for one in tensors_in((args, kwargs))}
    made = [one for one in tensors_in(out) if id(one) not in given]
    results = sum(map(_nbytes, made))
    if name in _BY_RESULT:
        return 2 * results + sum(map(_nbytes, tensors_in(args[1:])))
    read = sum(map(_nbytes, given.values()))
    written = sum(map(_nbytes, changed_by(func, args, kwargs)))
    if name in _ONLY_WRITES:
        read -= written
    return read + results + written


def _nbytes(tensor):
    """Bytes in memory, each once: `expand` repeats elements that are there once."""
    if 0 not in tensor.stride():
        return tensor.numel() * tensor.element_size()
    ways = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, step in ways if step) * tensor.element_size()
