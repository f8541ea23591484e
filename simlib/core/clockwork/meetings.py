"""One collective of a group. Members arrive, simlib compares their calls, and they exchange
data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..diagnose.matching import Matcher, disagreement
from ..model.trace import Group
from ..record.transports.plain_group import (
    SharedOutputs,
    forget_values_of,
    joined,
    put,
)

LEAVE_EARLY = frozenset({"broadcast", "scatter", "gather", "reduce"})
"""Kinds of collectives in which a rank may be done before all members have arrived."""
PAIRWISE = ("scatter", "all_to_all")
"""Collectives in which each pair of ranks exchanges a separate part."""


def uncounted(mode: Any, function: Callable, *args: Any) -> Any:
    """The result of ``function(*args)``, which ``mode`` (the rank's dispatch mode) does not
    count."""
    if mode is None:
        return function(*args)
    before, mode.paused = mode.paused, True
    try:
        return function(*args)
    finally:
        mode.paused = before


@dataclass(slots=True)
class Call:
    """One member's call of a collective. The matcher compares the first fields."""

    kind: str
    rank: int
    group: Group
    peer: int | None
    reduce_op: int | None
    dtype: object
    shapes: tuple
    splits: tuple | None
    nbytes: int
    itemsize: int
    request: Any
    brings: Any = ()
    takes: Any = ()
    opts: Any = None
    has_data: bool = True

    @property
    def terms(self) -> tuple:
        """The facts on which all members must agree, unless each pair of members has a separate
        part."""
        return self.kind, self.peer, self.reduce_op, self.dtype, self.shapes


class Meeting:
    """The k-th collective of a group: ``calls`` by position, None for a missing member.

    Parameters
    ----------
    size : int
        The number of members.
    present : int, optional
        The number of members that arrive themselves and represent the rest. The default is all
        members.
    """

    def __init__(self, size: int, present: int | None = None) -> None:
        self._present = size if present is None else present
        self.calls: list[Any] = [None] * size
        self.come: dict[int, Call] = {}  # rank -> Call, in the order of coming
        self.left = 0
        self.is_held = False
        self.in_flight: Any = None
        self.entries: dict[int, float] = {}
        self._results: Any = None
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def join(self, position: int, call: Call, twins: Sequence[int] = ()) -> None:
        """Accept a call. If it disagrees with an earlier call, no more data move.

        ``twins`` are the positions of the members that this member represents.
        """
        self.is_held = self.is_held or self._disagrees(call)
        for one in (position, *twins):
            self.calls[one] = call
        self.come[call.rank] = call
        if self.is_held:
            return
        if call.kind in LEAVE_EARLY or getattr(call.opts, "asyncOp", False):
            # What is brought is what was there at the call: the rank goes on, others come later.
            call.brings = [tensor.clone() for tensor in call.brings]
        if call.kind not in LEAVE_EARLY and self.is_complete and call.brings and self._has_data():
            self._results = results_of_all(call.kind, self.calls, call.opts)
            for other in self.calls:
                other.brings = ()
        call.request.deliver = partial(self._deliver, position)
        if call.kind in LEAVE_EARLY or self.is_complete:
            self._wake(lambda other: self.has_data_for(other) and not self.is_held)

    def _disagrees(self, call):
        """Whether a call breaks a rule together with an earlier call."""
        first = next(iter(self.come.values()), None)
        if first is None or (call.kind not in PAIRWISE and call.terms == first.terms):
            return False
        return any(disagreement(other, call) for other in Matcher._to_compare(self.come, call))

    @property
    def is_complete(self) -> bool:
        """Whether all members have arrived."""
        return len(self.come) == self._present

    def _has_data(self):
        """Whether the results have values. If tensors have no values, no member contributes any."""
        first = next(iter(self.come.values()))
        if first.kind in ("broadcast", "scatter"):
            return self.calls[first.opts.rootRank].has_data
        return all(call.has_data for call in self.come.values())

    def _deliver(self, position):
        """Copy this member's results into its tensors."""
        call = self.calls[position]
        if call.takes and call.has_data and not self._has_data():
            for tensor in call.takes:
                forget_values_of(tensor)
        elif call.takes and call.has_data:
            if call.kind in LEAVE_EARLY:
                result = result_of_rooted(call.kind, self.calls, call.opts, position)
            else:
                result, self._results[position] = self._results[position], None
            if isinstance(call.takes, SharedOutputs):
                call.takes.tensors = result
            elif len(result):
                put(result, call.takes)
        call.takes = ()

    def has_data_for(self, position: int) -> bool:
        """Whether all results of this member have arrived."""
        call = self.calls[position]
        if self.is_complete:
            return True
        if call.kind in ("broadcast", "scatter"):
            return self.calls[call.opts.rootRank] is not None
        return call.kind in LEAVE_EARLY and position != call.opts.rootRank

    def when_data_have_come(self, position: int, wake: Callable[[], None]) -> None:
        """Call ``wake()`` when this member's data have arrived."""
        self._waiting.append((position, wake))

    def let_go(self, position: int) -> None:
        """This member's op has failed, so the member no longer waits for data."""
        self._wake(lambda other: other == position)

    def _wake(self, may_go_on):
        waiting, self._waiting = self._waiting, []
        for position, wake in waiting:
            if may_go_on(position):
                wake()
            else:
                self._waiting.append((position, wake))


# What collectives do to tensors: results are computed once, for all, in rank order. Each member
# copies its own into its tensors when it waits.

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


def reduced(tensors: Sequence[torch.Tensor], reduce_op: Any) -> torch.Tensor:
    """The tensors of all members, combined in rank order; a new tensor."""
    name = _name_of(reduce_op)
    combine = _OPS[name]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = combine(
            total, tensor.reshape(total.shape) if tensor.layout is torch.strided else tensor
        )
    return total / len(tensors) if name == "AVG" else total


def _totals(parts, opts):
    """The reduction of each tensor, over the tensors that all members contribute.

    As with Gloo, members of a coalesced call may divide the same elements into tensors differently.
    """
    lists = [part.brings for part in parts]
    if len({tuple(tensor.numel() for tensor in tensors) for tensors in lists}) > 1:
        lists = [[joined(tensors)] for tensors in lists]
    brought = zip(*lists, strict=True)
    return [reduced(list(same), opts.reduceOp) for same in brought]


def _of_all(parts):
    return [tensor.clone() for part in parts for tensor in part.brings]


def results_of_all(kind: str, parts: list[Call], opts: Any) -> list:
    """The results of a collective that no rank leaves before all have arrived, by position.

    Parameters
    ----------
    kind : str
    parts : list of Call
        The calls by position.
    opts : object
        torch's options of the call.

    Returns
    -------
    list of list of tensor
        By position. Positions with equal results share them, so nobody may write them.
    """
    n = len(parts)
    if kind == "all_reduce":
        return [_totals(parts, opts)] * n
    if kind == "all_gather":
        return [_of_all(parts)] * n
    if kind == "reduce_scatter":
        totals = _totals(parts, opts)
        if len(totals) < n:  # members cut it in other places
            totals = totals[0].chunk(n)
        k = len(totals) // n
        return [totals[position * k : (position + 1) * k] for position in range(n)]
    if kind == "all_to_all":
        return [[part.brings[position].clone() for part in parts] for position in range(n)]
    return [()] * n  # a barrier


def result_of_rooted(kind: str, parts: list[Call], opts: Any, position: int) -> Sequence:
    """One member's results of a collective with a root. Other members may not have arrived yet."""
    root = opts.rootRank
    if kind == "broadcast":
        return parts[root].brings
    if kind == "scatter":
        return [parts[root].brings[position]]
    if position != root or not parts[root].nbytes:  # which the root need not wait for
        return ()
    return _totals(parts, opts) if kind == "reduce" else _of_all(parts)
