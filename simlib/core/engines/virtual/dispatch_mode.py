"""Observe the ops of one simulated rank, to count their flops and to fill the memory ledger.

simlib computes the floating-point operations of an op from its shapes. These ops count: products of
matrices and vectors, convolutions, attention and recurrent layers. A multiply-add is two
operations, in forward, backward and recomputation. Every other op (elementwise, reduction,
normalisation, loss, optimizer, copy) counts nothing. torch's own counter
(`torch.utils.flop_counter`, whose table this uses) does the same. Publications do the same when
they state the FLOPs of a model, because the other operations are few, and memory determines their
time. So a collective written by hand (``chunk += received``) costs as much as the built-in one,
whose reduction is free. If elementwise work matters, use ``simlib.compute(seconds=...)`` for its
time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ...environment import is_learners
from ...record.pending import has_memory
from ...record.torch_inside import is_composite, leave_uncompiled
from .arguments import tensors_in


class DispatchMode(TorchDispatchMode):
    """A mode that sees every op of torch that its rank runs, forward and backward.

    One mode counts flops and memory, because a mode costs about 4 us per op. A second mode would
    add 2 us. A rank without a modelled device has no mode.

    Parameters
    ----------
    on_op : callable, optional
        simlib calls ``on_op(cost)``, with a `Cost`, after each op that takes time.
    op_times : OpTimes, optional
        Needed with ``on_op``. The ranks of a process share the same object.
    memory : MemoryMeter, optional
        The meter gets the arguments and results of each op before simlib calls ``on_op``, because
        the results of an op need memory from its beginning.
    lock : RLock, optional
        The mode holds this lock while an op of another thread of the rank runs and is counted.
    on_read : callable, optional
        simlib calls it before an op that returns a value to the rank itself.

    Attributes
    ----------
    paused : bool
        While True, the mode ignores ops. simlib sets it for its own work in the rank's thread.
    """

    has_data = True
    """Whether the rank's tensors have values. If not, the mode must handle every op."""

    def __init__(self, on_op=None, op_times=None, memory=None, lock=None, on_read=None):
        super().__init__()
        self.paused = False
        self._on_op = on_op
        self._op_times = op_times
        self._memory = memory
        self._lock = lock
        self._on_read = on_read

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # torch would put a wrapper around each op, of several microseconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # With fake tensors torch works out shapes.
        if FakeTensor in types or (self.paused and self.has_data):
            return func(*args, **kwargs)
        if types and not all(map(has_memory, types)):
            # A DTensor, say: what it does to its local tensors is what the rank does.
            return NotImplemented
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if self._lock is None:
            return self._counted(func, args, kwargs)
        with self._lock:
            return self._counted(func, args, kwargs)

    def before_read(self, frame: Any) -> None:
        """The code of this frame asks for values, so the rank waits for its launched work."""
        if self._on_read is not None and not self.paused and not _is_on_host(frame):
            self._on_read()

    def _compute(self, func, args, kwargs):
        return func(*args, **kwargs)

    def _counted(self, func, args, kwargs):
        if self.paused:
            return self._compute(func, args, kwargs)
        if self._on_read is not None and func in _READS and _READS[func](args, kwargs):
            self.before_read(sys._getframe(1))
        out = self._compute(func, args, kwargs)
        if self._memory is not None:
            self._memory.saw(args, out, func)
        if self._on_op is not None:
            cost = self._op_times.cost(func, args, kwargs, out)
            if cost is not None:
                self._on_op(cost)
        return out


leave_uncompiled(DispatchMode.__torch_dispatch__)


aten = torch.ops.aten


def _always(args, kwargs):
    return True


def _by_mask(args, kwargs):
    """Whether an op by mask must count the elements of the mask. A single value needs no count."""
    value = args[2] if len(args) > 2 else None
    return (value is None or value.numel() > 1) and any(
        index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1])
    )


def _of_unknown_length(args, kwargs):
    return kwargs.get("output_size") is None


_READS: dict[Any, Callable[[tuple, dict], bool]] = {
    aten._local_scalar_dense.default: _always,
    aten.equal.default: _always,
    aten.is_nonzero.default: _always,
    aten.masked_select.default: _always,
    aten.nonzero.default: _always,
    aten._unique2.default: _always,
    aten.unique_consecutive.default: _always,
    aten.unique_dim.default: _always,
    aten.bincount.default: _always,
    aten.repeat_interleave.Tensor: _of_unknown_length,
    aten.index.Tensor: _by_mask,
    aten.index_put.default: _by_mask,
    aten.index_put_.default: _by_mask,
    aten._index_put_impl_.default: _by_mask,
}
"""Ops for which a rank waits for its device, because it gets numbers or their count."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_ON_HOST = _TORCH + "optim" + os.sep, os.path.join(_TORCH, "utils", "data") + os.sep

_OF_A_LOSS = "lr_scheduler.py", "lbfgs.py"
"""Functions of torch's optimizers that ask for the value of a loss."""


def _is_on_host(frame):
    """Whether torch asks for one of its own numbers that is on the host even if there is a GPU.

    Optimizers count their steps on the host, and loaders draw their seeds there.
    """
    while frame is not None and not is_learners(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        if file.startswith(_ON_HOST):
            return not file.endswith(_OF_A_LOSS)
        frame = frame.f_back
    return False


def _rnn_layer(steps, input_weight, hidden_weight, *_, **__):
    """One layer in one direction: both weights multiply every item of every step."""
    return 2 * prod(steps[:-1]) * (prod(input_weight) + prod(hidden_weight))


def _rnn_layer_backward(*shapes, **_):
    return 2 * _rnn_layer(*shapes)


def _of_torch(op):
    """torch's formula for an op, without the wrapper that looks for tensors in the arguments."""
    return flop_registry[op].__wrapped__


# What torch's table leaves out: products with vectors, and ops that only CPUs have.
_MORE = {
    aten.mv: lambda matrix, vector, **_: 2 * prod(matrix),
    aten.addmv: lambda bias, matrix, vector, **_: 2 * prod(matrix),
    aten.dot: lambda one, other, **_: 2 * prod(one),
    aten.vdot: lambda one, other, **_: 2 * prod(one),
    aten.addbmm: lambda bias, one, other, **_: 2 * prod(one) * other[-1],
    aten._addmm_activation: _of_torch(aten.addmm),
    aten._scaled_dot_product_flash_attention_for_cpu: _of_torch(
        aten._scaled_dot_product_flash_attention
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _of_torch(
        aten._scaled_dot_product_flash_attention_backward
    ),
    aten.mkldnn_rnn_layer: _rnn_layer,
    aten.mkldnn_rnn_layer_backward: _rnn_layer_backward,
}


class FlopCounts:
    """Floating-point operations by op and shapes. All ranks of a process may share one.

    **Cost** tens of microseconds for the first op of its shapes, one or two for the next, a tenth
    of one for an op that does not count.
    """

    def __init__(self):
        self._formulas = {}
        self._counts = {}

    def of(self, func, args, kwargs, out):
        """Floating-point operations of ``func(*args, **kwargs)``, which returned ``out``.

        Parameters
        ----------
        func : OpOverload
            The op, as a `TorchDispatchMode` gets it.
        args : tuple
        kwargs : dict
        out : Tensor or tuple

        Returns
        -------
        int
        """
        try:
            formula, from_shapes = self._formulas[func]
        except KeyError:
            formula, from_shapes = self._formulas[func] = _formula(func)
        if formula is None:
            return 0
        if not from_shapes:
            return formula(*args, **kwargs, out_val=out)
        args = _shape(args)
        named = _shape(tuple(kwargs.items()))
        count = self._counts.get((func, args, named))
        if count is None:
            count = int(formula(*args, **dict(named), out_shape=_shape(out)))
            self._counts[func, args, named] = count
        return count


def _formula(func):
    """The formula of an op, None if it does not count; and whether it needs only shapes."""
    op = func._overloadpacket
    if op in _MORE:
        return _MORE[op], True
    formula = flop_registry.get(op)
    wrapped = getattr(formula, "__wrapped__", None)
    return (formula, False) if wrapped is None else (wrapped, True)


def _shape(value):
    """A value with every tensor in it replaced by its shape, and every list by a tuple."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return tuple(map(_shape, value)) if isinstance(value, (tuple, list)) else value
