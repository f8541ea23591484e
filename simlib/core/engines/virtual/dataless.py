"""Ranks without data. Tensors have shapes and dtypes and count in the ledger, but lack values.

For torch's Python code, these are normal tensors. No kernel gets such a tensor: simlib derives the
result of an op from shapes. Two kinds of tensors have values, because they cost almost nothing. The
first kind is tensors that the program fills itself (`torch.tensor`, from numpy). The second kind is
tensors of whole numbers and truth values of at most `MOST_WHOLE` elements, with which programs
count and decide (indices, lengths, orders of samples). If all arguments of an op have values, its
result has values. If one argument has no data, the result has none.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from ...model.errors import InvalidCallError
from ...record.pending import is_storage_without_data, is_without_data
from ...record.this_rank import here as local
from ...record.torch_inside import (
    group_by_name,
    is_itself,
    without_torch_function,
    works_out_shapes,
)
from ...record.transports.plain_group import ADVICE, forget_values_of
from .arguments import changed_by, tensors_in
from .dispatch_mode import DispatchMode
from .dtensor import prepare_dtensor
from .outcome import outcome_of, without_data

MOST_WHOLE = 1 << 16
"""A tensor of whole numbers or truth values has values if it has at most this many elements."""

ITEM = torch.ops.aten._local_scalar_dense.default
RESIZING = torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default
_NO_VALUE = DataDependentOutputException, DynamicOutputShapeException
_real_nbytes = torch.UntypedStorage.nbytes
_BY_VALUES = {ITEM}
"""Ops whose results depend on values, such as the places of non-zero elements."""


class DatalessMode(DispatchMode):
    """A `DispatchMode` of a rank without data.

    Parameters
    ----------
    on_value : callable
        simlib calls ``on_value(frame)`` when the program asks for the value of a floating-point
        number and gets NaN.
    *counting
        As for `DispatchMode`.

    Attributes
    ----------
    gives_values : bool
        While True, results of ops whose tensor arguments all have values, or that have none, have
        values.
    """

    has_data = False

    def __init__(self, on_value: Callable, *counting: Any) -> None:
        super().__init__(*counting)
        self.gives_values = False
        self._on_value = on_value
        self._works: dict[int, tuple] = {}  # storage -> (reference to it, work to wait for)

    def __enter__(self):
        local.dataless = self
        return super().__enter__()

    def _compute(self, func, args, kwargs):
        if works_out_shapes():
            return func(*args, **kwargs)
        given = list(tensors_in((args, kwargs) if kwargs else args))
        if func.namespace == "_c10d_functional" and any(map(is_without_data, given)):
            return self._communicate(func, args, kwargs, given)
        return self._result(func, args, kwargs, given)

    def _result(self, func, args, kwargs, given):
        if not any(map(is_without_data, given)):
            return self._with_values(func, args, kwargs, given)
        if _is_view(func):
            return func(*args, **kwargs)
        try:
            outcome = outcome_of(func, args, kwargs, given)
        except _NO_VALUE:
            return self._value(func, given)
        except RuntimeError as error:
            raise _of_unknown_shape(func, error) from None
        for number, shape, stride in outcome.resized:
            _reshape(given[number], shape, stride)
        for tensor in changed_by(func, args, kwargs):
            forget_values_of(tensor)
        return outcome.result.made(given)

    def _with_values(self, func, args, kwargs, given):
        """Run an op whose arguments have data. The result has values, unless it would be large."""
        is_small = func in _BY_VALUES or not _has_result_of_its_own(func)
        if is_small or self.paused or self.gives_values:
            return func(*args, **kwargs)
        try:
            outcome = outcome_of(func, args, kwargs, given)
        except _NO_VALUE:
            _BY_VALUES.add(func)
            return func(*args, **kwargs)
        known = [tensor.numel() for tensor in given if tensor.device.type == "cpu"]
        most = max(MOST_WHOLE, sum(known))
        if all(_is_small(new, most, bool(known)) for new in outcome.new()):
            return func(*args, **kwargs)
        return outcome.result.made(given)

    def _value(self, func, given):
        dtype = given[0].dtype
        if func is ITEM and dtype.is_floating_point:
            self._on_value(sys._getframe(1))
            return float("nan")
        what = "value" if func is ITEM else "values"
        raise InvalidCallError(
            f"the program asks for the {what} of a tensor of {dtype}, but a simulation with "
            f"data=False has no values: {ADVICE}"
        )

    # Functional collectives: torch's own kernel would copy what has no data.

    def _communicate(self, func, args, kwargs, given):
        name = func._overloadpacket.__name__
        if name == "wait_tensor":
            _, work = self._works.pop(_key(args[0]), (None, None))
            if work is not None:
                work.wait()
            return args[0]
        if name == "_wrap_tensor_autograd":
            return functional.AsyncCollectiveTensor(args[0])
        if name not in _FUNCTIONAL:
            raise InvalidCallError(f"{name} needs values: simulate a small model with data=True")
        out = self._result(func, args, kwargs, given)
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
"""The call of the group by torch's op, in the way of its C++ code for tensors with data."""


# Tensors with and without data


def _is_small(new, most, is_given):
    """Whether a result has values. A floating-point result needs a tensor argument for this."""
    if new.device.type != "cpu":
        return True  # it has none anyway
    is_whole = not (new.dtype.is_floating_point or new.dtype.is_complex)
    return math.prod(new.shape) <= most and (is_whole or is_given)


@functools.cache
def _is_view(func):
    """Whether an op reads no data, and only gives a tensor another shape."""
    if torch.Tag.inplace_view in func.tags:
        return func not in RESIZING
    returns = func._schema.returns
    return (
        bool(returns)
        and not func._schema.is_mutable
        and all(one.alias_info is not None for one in returns)
    )


def _reshape(tensor, shape, stride):
    """Give a tensor another shape, as `Tensor.resize_` does. Its views keep the old memory."""
    needed = torch.empty_strided(shape, stride, dtype=tensor.dtype, device="meta")
    storage = tensor.untyped_storage()
    if is_without_data(tensor) and needed.untyped_storage().nbytes() > _real_nbytes(storage):
        storage = without_data(shape, stride, tensor.dtype).untyped_storage()
        tensor.set_(storage, 0, shape, stride)
    elif is_without_data(tensor):
        tensor.set_(storage, tensor.storage_offset(), shape, stride)
    else:
        tensor.resize_(shape)


@functools.cache
def _has_result_of_its_own(func):
    """Whether an op's result is not a view of its arguments, and the op does not change them."""
    schema = func._schema
    return not schema.is_mutable and not any(one.alias_info for one in schema.returns)


def _key(tensor):
    return tensor.untyped_storage()._cdata


# What torch does by other ways than ops


def _here():
    """The `DatalessMode` of the calling thread if its ops count, or None."""
    mode = local.__dict__.get("dataless")
    return None if mode is None or mode.paused else mode


@functools.cache
def prepare_torch() -> None:
    """Replace the functions of torch that read data without an op."""
    for name in _OF_OBJECTS:
        function = _with_data(getattr(c10d, name))
        setattr(c10d, name, function)
        setattr(dist, name, function)
    scaler = torch.amp.GradScaler
    scaler._maybe_opt_step = _stepping(scaler._maybe_opt_step)
    scaler.update = _without_scale(scaler.update)
    tensor, parameter, storage = torch.Tensor, torch.nn.Parameter, torch.UntypedStorage
    for kind, name, method in (
        (tensor, "numpy", _refuse("numpy()")),
        (tensor, "tolist", _refuse("tolist()")),
        (tensor, "__dlpack__", _refuse("__dlpack__()")),
        (tensor, "share_memory_", _refuse("share_memory_()")),
        (tensor, "__repr__", _in_words),
        (tensor, "__format__", _formatted),
        (tensor, "__reduce_ex__", _as_meta),
        (parameter, "__reduce_ex__", _as_meta),
    ):
        setattr(kind, name, _where(_lacks_data, method, getattr(kind, name)))
    for name, method in (("resize_", _resize), ("clone", _clone)):
        method = _where(is_storage_without_data, method, getattr(storage, name))
        setattr(storage, name, method)
    for name in ("nbytes", "size", "__len__"):
        setattr(storage, name, _claimed(getattr(storage, name)))
    prepare_dtensor()


def _lacks_data(tensor):
    with without_torch_function():
        return is_itself(tensor) and is_without_data(tensor)


def _where(holds, method, original):
    """A method that calls ``method`` if ``holds(self)``, and the original otherwise."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        return (method if holds(self) else original)(self, *args, **kwargs)

    return call


def _of_unknown_shape(func, error):
    """The error for a user's own op that torch cannot run without data."""
    if "fake impl" not in str(error):
        return error
    name = func.name()
    return InvalidCallError(
        f"the op {name} does not say which shapes its results have, and a simulation with "
        "data=False cannot run the op to find out: register the shapes with "
        "`torch.library.register_fake`"
    )


def _formatted(tensor, how):
    """A tensor without data in a text, as in `f"{loss:.3f}"`. A number has a number's form."""
    return format(tensor.item(), how) if tensor.dim() == 0 else object.__format__(tensor, how)


def _refuse(call):
    def refuse(tensor, *args, **kwargs):
        raise InvalidCallError(
            f"{call} returns values, but a simulation with data=False has no values: {ADVICE}"
        )

    return refuse


def _in_words(tensor, **_):
    gradient = ", requires_grad=True" if tensor.requires_grad else ""
    return f"tensor(without data, size={tuple(tensor.shape)}, dtype={tensor.dtype}{gradient})"


def _resize(storage, nbytes):
    """Resize a storage. torch cannot change its memory, so `_claimed` returns the size that was
    set."""
    if nbytes > _real_nbytes(storage):
        raise InvalidCallError(
            f"a storage of {_real_nbytes(storage):,} bytes cannot grow to {nbytes:,} in a "
            "simulation with data=False: create it with its final size"
        )
    storage.claimed_nbytes = nbytes
    return storage


def _claimed(original):
    """The size of a storage, or its claimed size."""

    @functools.wraps(original)
    def nbytes(storage):
        claimed = storage.__dict__.get("claimed_nbytes")
        return original(storage) if claimed is None else claimed

    return nbytes


def _clone(storage):
    made = without_data((_real_nbytes(storage),), (1,), torch.uint8).untyped_storage()
    made.claimed_nbytes = storage.nbytes()
    return made


def _without_scale(update):
    """Update without changing the scale. On the device this takes as long as a new scale."""

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
"""Objects that torch sends as pickled bytes."""


def _with_data(function):
    """The function, with tensors that have values."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        mode = _here()
        if mode is None:
            return function(*args, **kwargs)
        before, mode.gives_values = mode.gives_values, True
        try:
            return function(*args, **kwargs)
        finally:
            mode.gives_values = before

    return call


def _stepping(maybe_step):
    """Let the scaler take its step: gradients without values count as not overflowed."""

    def step(scaler, optimizer, optimizer_state, *args, **kwargs):
        mode = _here()
        if mode is None:
            return maybe_step(scaler, optimizer, optimizer_state, *args, **kwargs)
        mode.before_read(sys._getframe(1))  # torch asks whether they have
        return optimizer.step(*args, **kwargs)

    return step


def _as_meta(tensor, protocol):
    """The form in which a tensor without data is sent: as a tensor of the device "meta"."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _meta, (shape, stride, tensor.dtype, tensor.requires_grad, is_parameter)


def _meta(shape, stride, dtype, requires_grad, is_parameter):
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
