"""Rules that a call can break by itself, independent of other ranks.

Most of the rules are the backend's own (`transports.backends`). Gloo lacks a few rules: for some
wrong calls it returns memory that nobody has written. Both engines check a call here before they
record it, so both refuse it with the same message. `simlib.core.diagnose.matching` checks the facts
on which ranks must agree.

A check of a collective takes the call's arguments (without its options), and the rank and the size
of the group. A check costs some microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..model.errors import RefusedCall, RefusedIndex, RefusedLayout, RefusedType, RefusedValue
from .transports.backends import BITS, OPS, TORCHS_TAGS, Capabilities

# Messages


def check_peer(rank: int, size: int, peer: int, role: str) -> None:
    """Refuse a partner that is not another rank of the group."""
    if not 0 <= peer < size:
        raise RefusedCall(
            f"{role}={peer} is not a rank of this group: its ranks are 0 to {size - 1}"
        )
    if peer == rank:
        raise RefusedCall(
            f"{role}={peer} is the rank itself: a rank that "
            f"{'sends to' if role == 'dst' else 'receives from'} itself would wait for itself"
        )


def check_message(
    method: str, tensor: torch.Tensor, tag: Any, capabilities: Mapping[str, Capabilities]
) -> None:
    """Refuse a tag, or a tensor, that the backend cannot send or receive."""
    able = _capabilities_for(method, tensor, capabilities)
    refuse_what_is_lacking(method, able)
    try:
        number = operator.index(tag)
    except TypeError:
        raise RefusedType(f"tag={tag!r} must be a whole number, 0 or more") from None
    if number > TORCHS_TAGS:
        raise RefusedType(_about_tag(tag, able))
    verb, advice = _OF_MESSAGE[method]
    if tensor.layout is not torch.strided:
        raise RefusedLayout(
            f"a sparse tensor cannot be {verb}: use a dense tensor, such as x.to_dense()"
        )
    if not 0 <= number <= able.largest_tag:
        raise RefusedCall(_about_tag(tag, able))
    if able.sends is not None and tensor.dtype not in able.sends:
        raise RefusedCall(
            f"{able.name} cannot {method} {_name(tensor)}: convert the tensor first, for example "
            "with x.float()"
        )
    if able.moves_memory and not tensor.is_contiguous():
        raise RefusedCall(
            f"the tensor that is {verb} must be contiguous: its elements must lie one after the "
            "other in memory. A transposed tensor, a column or a slice with steps is not "
            f"contiguous: {advice}"
        )


_INTO = "received into", "receive into a new tensor and copy from it"
_OF_MESSAGE = {"send": ("sent", "send x.contiguous()"), "recv": _INTO, "recv_anysource": _INTO}


def _about_tag(tag, able):
    if able.largest_tag:
        return f"tag={tag} must be from 0 to {able.largest_tag}"
    return (
        f"tag={tag} is not possible: {able.name} has no tags. Leave tag= out: messages from one "
        "rank to another arrive in the order in which they are sent"
    )


# Backends


def _capabilities_for(what, tensor, capabilities):
    """The backend's capabilities for a tensor. Refuse a tensor on a device that the backend does
    not support."""
    able = capabilities.get(tensor.device.type)
    if able is not None:
        return able
    first = next(iter(capabilities.values()))
    where, otherwise = f"with {first.name}", ", or run with another backend"
    if first.is_simulated:
        where, otherwise = "in a simulation", ". A simulated rank has no GPU"
    raise RefusedCall(
        f"{what} {where} takes tensors on {' or '.join(capabilities)}, but this tensor is on "
        f"{tensor.device}: move the tensor first, for example by x.cpu(){otherwise}"
    )


def refuse_what_is_lacking(method: str, able: Capabilities) -> None:
    """Refuse a method of `dist.ProcessGroup` that a backend does not have."""
    instead = able.lacks.get(method)
    if instead is not None:
        raise RefusedCall(f"{able.name} has no {OPS[method]}: {instead}")


# Collectives


class Place(NamedTuple):
    """The caller: a rank of a group, and the group's size."""

    rank: int
    size: int


def check_collective(
    kind: str,
    method: str,
    place: Place,
    opts: Any,
    args: tuple,
    capabilities: Mapping[str, Capabilities],
) -> None:
    """Refuse calls that no answer of another rank could make right.

    Parameters
    ----------
    kind : str
        The kind of op. The error calls the op by this name.
    method : str
        The method of `dist.ProcessGroup`.
    place : Place
    opts : object or None
        torch's options of the call. They contain the root of a rooted collective.
    args : tuple
        The call's arguments: the tensors first.
    capabilities : dict of str to Capabilities
        The capabilities of the backend, by type of device.
    """
    tensors = list(_tensors_of(args))
    if tensors:
        able = _capabilities_for(kind, tensors[0], capabilities)
        _check_layouts(kind, tensors, adds_sparse=method == "allreduce" and able.adds_sparse)
    root, size = getattr(opts, "rootRank", None), place.size
    if root is not None and not 0 <= root < size:
        raise RefusedCall(f"root {root} is not a rank of this group: its ranks are 0 to {size - 1}")
    check = _CHECKS.get(method)
    if check is not None:
        check(args, size, place.rank, root)
    if not tensors:
        return
    refuse_what_is_lacking(method, able)
    for tensor in tensors:
        _check_tensor(kind, method, tensor, able)
    if len(tensors) > 1:
        _check_devices(kind, tensors)
    count = _MOVED_AS_IT_LIES.get(method)
    if count is not None and not all(map(_is_in_order, tensors)):
        moved = list(_tensors_of(args[:count]))
        if able.moves_memory:
            _check_memory(kind, moved, able)
            _check_order(kind, args, place.rank, able)
        else:
            _refuse_expanded(f"what {kind} takes", moved)
    if kind in _REDUCING:
        _check_reduce_op(opts.reduceOp if opts is not None else None, tensors[0], able)


_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})


def _tensors_of(args):
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list):
            yield from _tensors_of(arg)


def _check_layouts(kind, tensors, adds_sparse):
    allowed = (torch.strided, torch.sparse_coo) if adds_sparse else (torch.strided,)
    for tensor in tensors:
        if tensor.layout not in allowed:
            raise RefusedLayout(
                f"{kind} takes dense tensors only, but this tensor is {_words(tensor.layout)}: "
                "pass x.to_dense()"
            )


def _check_devices(kind, tensors):
    if len({tensor.device.type for tensor in tensors}) > 1:
        devices = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise RefusedCall(
            f"the tensors of one {kind} must be on one kind of device, but these are on "
            f"{devices}: move them all to one device, for example by x.cpu()"
        )


def _check_tensor(kind, method, tensor, able):
    if method in able.not_complex and tensor.is_complex():
        raise RefusedCall(
            f"{kind} cannot carry {_name(tensor)} with {able.name}: pass torch.view_as_real(x)"
        )
    carries = able.reduces if kind in _REDUCING else able.carries
    if carries is not None and tensor.dtype not in carries:
        as_bytes = ", or send its bytes with x.view(torch.uint8)" if kind not in _REDUCING else ""
        raise RefusedCall(
            f"{kind} cannot carry {_name(tensor)} with {able.name}: convert the tensor first, "
            f"for example with x.float(){as_bytes}"
        )


_MOVED_AS_IT_LIES = {"broadcast": 1, "allreduce": 1, "reduce": 1, "scatter": 2, "reduce_scatter": 1}
"""The number of a method's arguments whose memory Gloo and NCCL move as one block.

Gloo and NCCL move as many elements as the tensor has, and ignore strides (pytorch issue 192920). So
for a slice with steps they move neighbouring elements, and for an expanded tensor they move the
memory behind it. Other methods copy the tensor first.
"""


def _is_in_order(tensor):
    return tensor.layout is not torch.strided or tensor.is_contiguous()


def _check_memory(kind, moved, able):
    """Refuse tensors that leave gaps in the memory which the backend moves."""
    for tensor in moved:
        if not _fills_its_memory(tensor):
            raise RefusedCall(
                f"{kind} with {able.name} reads and writes one whole piece of memory. The "
                "elements of this tensor do not fill one piece: the tensor is perhaps a slice "
                "with steps, a column or a result of expand(). Memory between the elements would "
                "be overwritten: pass y = x.contiguous(), and copy y back afterwards"
            )


def _check_order(kind, args, rank, able):
    """Refuse a scatter or reduce_scatter whose tensors have another memory order than its output.

    Each part must have the order of its receiver's output. This rank does not know the other ranks'
    outputs, and assumes that they have the order of its own output. The part that a reduce_scatter
    leaves on its rank is copied, by elements.
    """
    if kind not in ("scatter", "reduce_scatter") or not args[1]:
        return
    for output, parts in zip(args[0], args[1], strict=True):
        for number, part in enumerate(parts):
            is_copied = kind == "reduce_scatter" and number == rank
            if part.shape == output.shape and not is_copied and _order(part) != _order(output):
                raise RefusedCall(
                    f"all tensors of a {kind} must have the same order in memory with {able.name}, "
                    "but one is transposed and another is not: pass x.contiguous() for each"
                )


def _fills_its_memory(tensor):
    return torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def _order(tensor):
    """The order of elements that Gloo assumes. torch first copies a tensor with gaps in order."""
    if tensor.is_contiguous() or not _fills_its_memory(tensor):
        return ()
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)


def _check_reduce_op(reduce_op, tensor, able):
    """Refuse the calls that Gloo refuses, in its words, and calls that another backend lacks."""
    if reduce_op is None:
        return
    name = getattr(reduce_op, "op", reduce_op).name
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    if name not in able.reduce_ops:
        raise RefusedCall(
            f"Cannot use ReduceOp.{name} with {able.name}: take one of {', '.join(able.reduce_ops)}"
        )
    if name in BITS and not is_whole:
        raise RefusedCall(
            f"Cannot use ReduceOp.{name} with non-integral dtype: it combines the bits of "
            f"integers, and this tensor has dtype {_name(tensor)}"
        )
    if name == "AVG" and is_whole:
        raise RefusedCall(
            f"ReduceOp.AVG gives fractions, which {_name(tensor)} cannot hold: "
            "convert the tensor first, for example with x.float()"
        )
    if tensor.layout is not torch.strided and name != "SUM":
        raise RefusedCall(
            f"all_reduce adds sparse tensors, and cannot use ReduceOp.{name} on them: "
            "pass x.to_dense()"
        )


def _check_gather(args, size, rank, root):
    outputs, (tensor,) = args[:2]
    if rank == root:
        _check_length("gather's list", outputs[0], size)
        _check_shapes("gather's list", outputs[0], tensor.shape, "brings")
        _refuse_expanded("gather's list", outputs[0])


def _check_scatter(args, size, rank, root):
    (output,), inputs = args[:2]
    if rank == root:
        _check_length("scatter's list", inputs[0], size)
        _check_shapes("scatter's list", inputs[0], output.shape, "receives")


def _check_all_gather(args, size, *_):
    for tensors, tensor in zip(*args[:2], strict=True):
        _check_length("all_gather's list", tensors, size)
        _check_shapes("all_gather's list", tensors, tensor.shape, "brings")
        _refuse_expanded("all_gather's list", tensors)


def _check_all_gather_coalesced(args, size, *_):
    lists, inputs = args[:2]
    if not inputs:
        raise RefusedLayout("the list of all_gather_coalesced is empty: pass one or more tensors")
    _check_length("all_gather_coalesced's list", lists, size, "list of tensors")
    for tensors in lists:
        if len(tensors) != len(inputs):
            raise RefusedCall(
                "each inner list of all_gather_coalesced must have as many tensors as the rank "
                f"passes: the rank passes {len(inputs)}, but one list has {len(tensors)}"
            )
        _refuse_expanded("all_gather_coalesced's list", tensors)
        for output, tensor in zip(tensors, inputs, strict=True):
            _check_shapes("all_gather_coalesced's list", [output], tensor.shape, "brings")


def _check_all_gather_single(args, size, *_):
    for output, tensor in zip(*map(_listed, args[:2]), strict=True):
        expected = (tensor.shape[0] * size, *tensor.shape[1:]) if tensor.ndim else None
        if tensor.ndim == 0:
            raise RefusedCall(
                "all_gather cannot join tensors without dimensions into one: pass x.reshape(1)"
            )
        if tuple(output.shape) != expected:
            raise RefusedCall(
                f"{size} ranks bring shape {_shape(tensor)} each, so the output must have shape "
                f"{expected}, but its shape is {_shape(output)}"
            )
        _check_dtypes(output, tensor)
        _refuse_expanded("the output of all_gather", [output])


def _check_all_reduce_coalesced(args, size, *_):
    if not args[0]:
        raise RefusedLayout("the list of all_reduce_coalesced is empty: pass one or more tensors")
    _refuse_expanded("all_reduce_coalesced's list", args[0])


def _check_reduce_scatter(args, size, rank, _):
    for output, inputs in zip(*args[:2], strict=True):
        _check_length("reduce_scatter's list", inputs, size)
        if inputs[rank].shape != output.shape:  # Gloo lets those of other ranks have other lengths
            raise RefusedCall(
                f"tensor {rank} of reduce_scatter's list is for this rank, and must have the shape "
                f"of the output, {_shape(output)}: it has {_shape(inputs[rank])}"
            )


def _check_reduce_scatter_single(args, size, *_):
    for output, tensor in zip(*map(_listed, args[:2]), strict=True):
        if not (output.ndim and tensor.ndim):
            raise RefusedCall(
                "reduce_scatter cuts a tensor by its rows, but a tensor without dimensions has no "
                "rows: pass x.reshape(1)"
            )
        expected = (output.shape[0] * size, *output.shape[1:])
        if tuple(tensor.shape) != expected:
            raise RefusedCall(
                f"{size} ranks receive shape {_shape(output)} each, so the input must have shape "
                f"{expected}, but its shape is {_shape(tensor)}"
            )
        _check_dtypes(output, tensor)
        _refuse_expanded("the output of reduce_scatter", [output])


def _check_all_to_all(args, size, *_):
    outputs, inputs = args[:2]
    for name, tensors in (("inputs", inputs), ("outputs", outputs)):
        _check_length(f"the {name} of all_to_all", tensors, size)
    sizes = [tensor.numel() for tensor in chain(inputs, outputs)]
    if len(set(sizes)) > 1:
        raise RefusedCall(
            "the inputs and outputs of all_to_all must be tensors of one size, but have "
            f"{sizes[:size]} and {sizes[size:]} elements. For parts of several sizes, use "
            "all_to_all_single with split sizes"
        )
    _refuse_expanded("the outputs of all_to_all", outputs)


def _check_all_to_all_single(args, size, *_):
    output, tensor, output_splits, input_splits = args[:4]
    for name, whole, refused in (("input", tensor, RefusedValue), ("output", output, RefusedCall)):
        if not whole.is_contiguous():
            raise refused(
                f"the {name} of all_to_all_single must be contiguous: its elements must lie one "
                "after the other in memory, unlike those of a transposed tensor. Pass "
                "x.contiguous()"
            )
    refused = RefusedIndex if output_splits or input_splits else RefusedCall
    for name, whole, splits in (("output", output, output_splits), ("input", tensor, input_splits)):
        if whole.ndim == 0:
            raise refused(
                f"all_to_all_single cuts the {name} by its rows, but a tensor without dimensions "
                "has no rows: pass x.reshape(1)"
            )
        _check_splits(name, whole.shape[0], list(splits or ()), size)


def _check_splits(name, rows, splits, size):
    """Refuse split sizes that do not cut the rows into one part for each rank."""
    if not splits:
        if rows % size:
            raise RefusedCall(
                f"the {name} has {rows} rows, which {size} ranks cannot share evenly: give "
                f"{name}_split_sizes, the number of rows for each rank"
            )
        return
    if len(splits) != size:
        raise RefusedCall(
            f"{name}_split_sizes must have one number for each of the {size} ranks, but has "
            f"{len(splits)}"
        )
    if min(splits) < 0:
        raise RefusedCall(f"{name}_split_sizes is {splits}: give only numbers of 0 or more")
    if sum(splits) != rows:
        raise RefusedCall(
            f"{name}_split_sizes {splits} add up to {sum(splits)}, but the {name} has {rows} rows"
        )


def _check_length(name, items, size, what="tensor"):
    if len(items) != size:
        raise RefusedCall(
            f"{name} must have one {what} for each of the {size} ranks, but has {len(items)}"
        )


def _check_shapes(name, tensors, shape, verb):
    for number, tensor in enumerate(tensors):
        if tensor.shape != shape:
            raise RefusedCall(
                f"each tensor of {name} must have shape {tuple(shape)}, like the tensor that the "
                f"rank {verb}: tensor {number} has shape {_shape(tensor)}"
            )


def _check_dtypes(output, tensor):
    if output.dtype != tensor.dtype:
        raise RefusedCall(
            f"the output is {_name(output)} and the input {_name(tensor)}: make both the same dtype"
        )


def _refuse_expanded(name, tensors):
    """Refuse to receive into a tensor in which several elements share one place in memory."""
    for tensor in tensors:
        if 0 in tensor.stride() and tensor.numel() > 1:
            if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
                raise RefusedCall(
                    f"{name} must not be made by expand(): several elements share one place in "
                    "memory. Pass x.clone()"
                )


def _listed(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _shape(tensor):
    return tuple(tensor.shape)


def _name(tensor):
    return _words(tensor.dtype)


def _words(name):
    return str(name).removeprefix("torch.")


_CHECKS = {
    "allreduce_coalesced": _check_all_reduce_coalesced,
    "gather": _check_gather,
    "scatter": _check_scatter,
    "allgather": _check_all_gather,
    "allgather_coalesced": _check_all_gather_coalesced,
    "all_gather_single": _check_all_gather_single,
    "_allgather_base": _check_all_gather_single,
    "all_gather_single_coalesced": _check_all_gather_single,
    "allgather_into_tensor_coalesced": _check_all_gather_single,
    "reduce_scatter": _check_reduce_scatter,
    "reduce_scatter_single": _check_reduce_scatter_single,
    "_reduce_scatter_base": _check_reduce_scatter_single,
    "reduce_scatter_single_coalesced": _check_reduce_scatter_single,
    "reduce_scatter_tensor_coalesced": _check_reduce_scatter_single,
    "alltoall": _check_all_to_all,
    "all_to_all_single": _check_all_to_all_single,
    "alltoall_base": _check_all_to_all_single,
}
"""Further conditions on a call, by the name of the call in torch."""
