"""Ranks without data: tensors have shapes, dtypes and memory in the ledger, and no values.

Each rank has a fake mode of torch's. What it makes is without data, with two exceptions that cost
next to nothing: tensors that the program fills itself (`torch.tensor`, from numpy), and whole
numbers and truth values of at most `MOST_WHOLE` elements, which programs count and decide with
(indices, lengths, orders of samples). What is computed of such tensors alone has its values, and
has none as soon as a tensor without data has a part in it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from ...model.errors import InvalidCallError
from ...record.this_rank import here as local
from ...record.torch_inside import fake_mode_here, group_by_name
from ...record.transports.plain_group import ADVICE, forget_values_of, is_fake, with_values
from .dispatch_mode import DispatchMode, dispatches, tensors_in
from .op_time import changed_by

MOST_WHOLE = 1 << 16
"""Elements up to which a tensor of whole numbers or truth values has its values."""

ITEM = torch.ops.aten._local_scalar_dense.default
_NO_VALUE = DataDependentOutputException, DynamicOutputShapeException


class DatalessMode(DispatchMode):
    """A `DispatchMode` of a rank without data, and the fake mode below it: enter this one alone.

    Parameters
    ----------
    fake : FakeTensorMode
        The rank's own; its threads have it too.
    on_value : callable
        ``on_value(frame)`` is called where the program asks for the value of a number of floating
        point, and gets NaN.
    *counting
        As for `DispatchMode`.
    """

    is_dataless = True

    def __init__(self, fake: FakeTensorMode, on_value: Callable, *counting: Any) -> None:
        super().__init__(*counting)
        self._fake = fake
        self._on_value = on_value
        self._works: dict[int, tuple] = {}  # storage -> (reference to it, work to wait for)

    def __enter__(self):
        self._fake.__enter__()
        local.dataless = self
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._fake.__exit__(*error)

    @property
    def is_on(self) -> bool:
        """Whether the calling thread makes tensors without data, and its ops count."""
        return not self.paused and fake_mode_here() is self._fake

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, fake = kwargs or {}, fake_mode_here()
        if fake is None:  # the rank pickles objects, say
            return super().__torch_dispatch__(func, types, args, kwargs)
        if self.paused or fake is not self._fake or func.namespace == "prim":
            return func(*args, **kwargs)
        if any(kind is not FakeTensor and dispatches(kind) for kind in types):
            return NotImplemented
        if func.namespace == "_c10d_functional" and _fakes_in((args, kwargs)):
            return self._communicate(func, args, kwargs)
        return self._decomposed_or_counted(func, args, kwargs)

    def _compute(self, func, args, kwargs):
        if fake_mode_here() is None:
            return func(*args, **kwargs)
        _check_device(kwargs.get("device"))
        if not _fakes_in((args, kwargs)):
            return self._with_values(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except _NO_VALUE:
            return self._value(func, args)
        except RuntimeError as error:
            raise _of_unknown_shape(func, error) from None
        if func._schema.is_mutable:
            for tensor in changed_by(func, args, kwargs):
                forget_values_of(tensor)
        return out

    def _with_values(self, func, args, kwargs):
        """No argument lacks data: the result has its values too, unless that would be large."""
        if _has_result_of_its_own(func):
            try:
                out = func(*args, **kwargs)
            except _NO_VALUE:  # such as the places of what is not zero
                return with_values(func, *args, **kwargs)
            given = [tensor.numel() for tensor in tensors_in((args, kwargs))]
            most = max(MOST_WHOLE, sum(given))
            if any(not _is_small(made, most, bool(given)) for made in tensors_in(out)):
                return out
        return with_values(func, *args, **kwargs)

    def _value(self, func, args):
        dtype = next(tensors_in(args)).dtype
        if func is ITEM and dtype.is_floating_point:
            self._on_value(sys._getframe(1))
            return float("nan")
        what = "the value of" if func is ITEM else "what is in"
        raise InvalidCallError(
            f"the program asks for {what} a tensor of {dtype}, and a simulation with data=False "
            f"has no values: {ADVICE}"
        )

    # Functional collectives: with fake tensors torch would run a kernel that calls no group.

    def _communicate(self, func, args, kwargs):
        name = func._overloadpacket.__name__
        if name == "wait_tensor":
            _, work = self._works.pop(_key(args[0]), (None, None))
            if work is not None:
                work.wait()
            return args[0]
        if name == "_wrap_tensor_autograd":
            return functional.AsyncCollectiveTensor(args[0])
        if name not in _FUNCTIONAL:
            raise InvalidCallError(f"{name} cannot be simulated with data=False")
        out = self._counted(func, args, kwargs)
        outs = list(out) if isinstance(out, (list, tuple)) else [out]
        group = kwargs["group_name"] if "group_name" in kwargs else args[-1]
        work = _FUNCTIONAL[name](group_by_name(group), outs, *args)
        for one in outs:
            key, storage = _key(one), one.untyped_storage()
            forget = functools.partial(self._forget, key)
            self._works[key] = weakref.ref(storage, forget), work
        return out

    def _forget(self, key, reference):
        if self._works.get(key, (None,))[0] is reference:
            del self._works[key]


def _options(make, op=None, root=None):
    options = make()
    options.asyncOp = True
    if op is not None:
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
    if root is not None:
        options.rootRank, options.rootTensor = root, 0
    return options


def _all_reduce(group, outs, _, op, *__):
    return group.allreduce(outs, _options(c10d.AllreduceOptions, op))


def _all_reduce_coalesced(group, outs, _, op, *__):
    return group.allreduce_coalesced(outs, _options(c10d.AllreduceCoalescedOptions, op))


def _all_gather(group, outs, tensor, *_):
    return group._allgather_base(outs[0], tensor, _options(c10d.AllgatherOptions))


def _all_gather_coalesced(group, outs, tensors, *_):
    options = _options(c10d.AllgatherOptions)
    return group.allgather_into_tensor_coalesced(outs, list(tensors), options)


def _reduce_scatter(group, outs, tensor, op, *_):
    return group._reduce_scatter_base(outs[0], tensor, _options(c10d.ReduceScatterOptions, op))


def _reduce_scatter_coalesced(group, outs, tensors, op, *_):
    options = _options(c10d.ReduceScatterOptions, op)
    return group.reduce_scatter_tensor_coalesced(outs, list(tensors), options)


def _all_to_all(group, outs, tensor, output_splits, input_splits, *_):
    options = _options(c10d.AllToAllOptions)
    splits = list(output_splits), list(input_splits)
    return group.alltoall_base(outs[0], tensor, *splits, options)


def _broadcast(group, outs, _, root, *__):
    return group.broadcast(outs, _options(c10d.BroadcastOptions, root=root))


_FUNCTIONAL = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_reduce_coalesced_": _all_reduce_coalesced,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "all_gather_into_tensor_coalesced": _all_gather_coalesced,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "broadcast_": _broadcast,
}
"""What torch's op calls of the group: as its C++ code does where there are data."""


# Tensors with and without data


def _fakes_in(value):
    return any(map(is_fake, tensors_in(value)))


def _is_small(tensor, most, is_given):
    """Whether a result has values: a number of floating point only where something is given."""
    is_whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return tensor.numel() <= most and (is_whole or is_given)


@functools.cache
def _has_result_of_its_own(func):
    """Whether what an op returns is no view of its arguments, and it writes none."""
    schema = func._schema
    return not schema.is_mutable and not any(one.alias_info for one in schema.returns)


def _key(tensor):
    return tensor.untyped_storage()._cdata


# What torch does by other ways than ops


def _here():
    """The `DatalessMode` of the calling thread where it is on, or None."""
    mode = local.__dict__.get("dataless")
    return mode if mode is not None and mode.is_on else None


def new_fake_mode() -> FakeTensorMode:
    """The mode by which a rank makes tensors without data."""
    prepare_torch()
    return FakeTensorMode(allow_non_fake_inputs=True)


@functools.cache
def prepare_torch() -> None:
    """Let torch's Python code do without data what it does with them, in ranks that have none."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    is_tracing = functional._are_we_tracing
    functional._are_we_tracing = lambda: _here() is None and is_tracing()
    name = "_propagate_tensor_meta_non_cached"
    setattr(ShardingPropagator, name, _paused(getattr(ShardingPropagator, name)))
    for name in _OF_OBJECTS:
        function = _with_data(getattr(c10d, name))
        setattr(c10d, name, function)
        setattr(dist, name, function)
    torch.nn.Module._apply = _applied(torch.nn.Module._apply)
    scaler = torch.amp.GradScaler
    scaler._maybe_opt_step = _stepping(scaler._maybe_opt_step)
    scaler.update = _without_scale(scaler.update)
    FakeTensor.__reduce_ex__ = _as_meta
    FakeTensor.__format__ = _formatted
    FakeTensor.numpy = _no_numpy


def _check_device(device):
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        raise InvalidCallError(
            f"a simulated rank has no device {str(device)!r}: keep tensors on 'cpu', which stands "
            "for the device of the cluster"
        )


def _of_unknown_shape(func, error):
    """What to say of an op of somebody's own that torch cannot run without data."""
    if "fake impl" not in str(error):
        return error
    name = func.name()
    return InvalidCallError(
        f"the op {name} does not say which shapes it gives, and a simulation with data=False has "
        "no values to run it on: say it by `torch.library.register_fake`"
    )


def _formatted(tensor, how):
    """A tensor without data in a text, as `f"{loss:.3f}"`: a number where it is one."""
    return format(tensor.item(), how) if tensor.dim() == 0 else object.__format__(tensor, how)


def _no_numpy(tensor, *args, **kwargs):
    raise InvalidCallError(
        f"numpy() gives values, and a simulation with data=False has none: {ADVICE}"
    )


def _paused(function):
    """The function, whose ops are no work of the rank."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        mode = _here()
        if mode is None:
            return function(*args, **kwargs)
        before, mode.paused = mode.paused, True
        try:
            return function(*args, **kwargs)
        finally:
            mode.paused = before

    return call


def _without_scale(update):
    """So the scale stays as it is, which takes the device as long as a new one."""

    def update_here(scaler, new_scale=None):
        if _here() is None:
            update(scaler, new_scale)
        elif scaler.is_enabled():
            scaler._scale.fill_(1.0)  # any small kernel
            scaler._per_optimizer_states.clear()

    return update_here


_OF_OBJECTS = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
"""What torch sends as pickled bytes."""


def _with_data(function):
    """The function, whose tensors have values."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if _here() is None:
            return function(*args, **kwargs)
        return with_values(function, *args, **kwargs)

    return call


def _stepping(maybe_step):
    """Gradients that have no values have not overflowed."""

    def step(scaler, optimizer, optimizer_state, *args, **kwargs):
        mode = _here()
        if mode is None:
            return maybe_step(scaler, optimizer, optimizer_state, *args, **kwargs)
        mode.before_read(sys._getframe(1))  # torch asks whether they have
        return optimizer.step(*args, **kwargs)

    return step


def _applied(apply):
    """`Module._apply`, which exchanges fake parameters and fails where somebody refers to them."""

    @functools.wraps(apply)
    def apply_here(module, fn, recurse=True):
        if _here() is None:
            return apply(module, fn, recurse)
        for child in module.children() if recurse else ():
            child._apply(fn)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = _changed(parameter, fn)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = fn(buffer)
        return module

    return apply_here


def _changed(parameter, fn):
    """A parameter as ``fn`` makes it: the same object where that has the same device."""
    with torch.no_grad():
        new = fn(parameter)
    if new is parameter:
        return parameter
    if new.device != parameter.device or type(new) is not type(parameter):
        return torch.nn.Parameter(new, parameter.requires_grad)
    parameter.data = new
    if parameter.grad is not None:
        with torch.no_grad():
            parameter.grad = fn(parameter.grad)
    return parameter


def _as_meta(tensor, protocol):
    """How a tensor without data travels: as one of the device "meta"."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _meta, (shape, stride, tensor.dtype, tensor.requires_grad, is_parameter)


def _meta(shape, stride, dtype, requires_grad, is_parameter):
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
