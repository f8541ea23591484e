"""What collectives do to tensors: pure functions of what all members brought.

A member's part is its `Call`: the tensors it ``brings``, and those that it ``takes``. Results are
computed once, for all, in rank order; each member copies its own into its tensors when it waits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_OPS = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _name_of(reduce_op):
    kind = reduce_op.op if isinstance(reduce_op, dist.ReduceOp) else reduce_op
    return kind.name


def reduced(tensors, reduce_op):
    """The tensors of all members, combined in rank order; a new tensor."""
    name = _name_of(reduce_op)
    combine = _OPS[name]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = combine(
            total, tensor.reshape(total.shape) if tensor.layout is torch.strided else tensor
        )
    return total / len(tensors) if name == "AVG" else total


def put(sources, targets):
    """Copy what has come into the learner's tensors: by elements, shapes may differ.

    As with Gloo, autograd learns nothing of it.
    """
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


def _without_repetition(source, target):
    """Where `expand` made several elements one place in memory: the last one stays there."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            source, target = source.narrow(dim, size - 1, 1), target.narrow(dim, 0, 1)
    return source, target


def _totals(parts, opts):
    """The reduction of each of the tensors that every member brings one of."""
    brought = zip(*(part.brings for part in parts), strict=True)
    return [reduced(list(same), opts.reduceOp) for same in brought]


def _of_all(parts):
    return [tensor.clone() for part in parts for tensor in part.brings]


def results_of_all(kind, parts, opts):
    """What each position takes from a collective that nobody leaves before all have come.

    Parameters
    ----------
    kind : str
    parts : list of Call
        By position.
    opts : object
        torch's options of the call.

    Returns
    -------
    list of list of tensor
        By position; shared between positions where they are the same: nobody may write them.
    """
    n = len(parts)
    if kind == "all_reduce":
        return [_totals(parts, opts)] * n
    if kind == "all_gather":
        return [_of_all(parts)] * n
    if kind == "reduce_scatter":
        totals = _totals(parts, opts)
        k = len(totals) // n
        return [totals[position * k : (position + 1) * k] for position in range(n)]
    if kind == "all_to_all":
        return [[part.brings[position].clone() for part in parts] for position in range(n)]
    return [()] * n  # a barrier


def result_of_rooted(kind, parts, opts, position):
    """What one position takes from a collective with a root; others may not have come yet."""
    root = opts.rootRank
    if kind == "broadcast":
        return parts[root].brings
    if kind == "scatter":
        return [parts[root].brings[position]]
    if position != root or not parts[root].nbytes:  # which the root need not wait for
        return ()
    return _totals(parts, opts) if kind == "reduce" else _of_all(parts)
