"""The calls into torch.distributed in one rank's trace of torch's profiler, as ops.

For NCCL, the trace contains a ``record_param_comms`` for each call. For Gloo, the trace contains
the ops of torch's dispatcher, such as ``c10d::allreduce_``, and the work of Gloo's threads, such as
``gloo:all_reduce``, in the same order. No record says when a rank waited for a request. If a thread
did nothing until the work was done and then continued, simlib assumes that it waited.

Source: ``record_function.h`` and ``Ops.cpp`` of torch 2.13 for the arguments.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from math import inf, prod
from typing import Any, NamedTuple

from ..model.profile import Part
from ..model.trace import P2P_KINDS, Group, Op, Site, describe_call
from ..record.kineto import COLLECTIVE, ODD, KinetoTrace
from .names import dtype_of, kind_of

Event = dict[str, Any]
MOST_ELEMENTS = 1 << 60
SHORTEST_WAIT_S = 50e-6
"""If a thread does nothing for less than this, it is between two operators."""
SOON_S = 1e-3
"""After a shorter wait than this, the thread continues at most this many seconds later."""
EARLY = 0.1
"""Gloo wakes the waiting thread first, and records the end later, by at most this share of the
wait."""
EARLY_S = 5e-3
"""Gloo records the end at most this many seconds later."""
NO_CALLS = frozenset({"wait", "init", "coalesced"})
"""Further data that a ``record_param_comms`` may contain."""
UNKNOWN_DTYPE = ("", 4)


class GlooCall(NamedTuple):
    """How to read an operator of the dispatcher.

    Attributes
    ----------
    kind : str
    tensors : int
        The number of the argument with the tensors that ``Op.nbytes`` counts.
    peer : int or None
        The number of the argument for the root, dst or src.
    span : str
        Gloo's name for its work, after ``gloo:``.
    """

    kind: str
    tensors: int
    peer: int | None
    span: str


GLOO_CALLS = {
    "allreduce_": GlooCall("all_reduce", 0, None, "all_reduce"),
    "allreduce_coalesced_": GlooCall("all_reduce", 0, None, "all_reduce"),
    "broadcast_": GlooCall("broadcast", 0, 2, "broadcast"),
    "reduce_": GlooCall("reduce", 0, 3, "reduce"),
    "allgather_": GlooCall("all_gather", 1, None, "all_gather"),
    "allgather_coalesced_": GlooCall("all_gather", 1, None, "all_gather"),
    "_allgather_base_": GlooCall("all_gather", 1, None, "all_gather"),
    "allgather_into_tensor_coalesced_": GlooCall("all_gather", 1, None, "all_gather"),
    "reduce_scatter_": GlooCall("reduce_scatter", 0, None, "all_reduce"),
    "_reduce_scatter_base_": GlooCall("reduce_scatter", 1, None, "all_reduce"),
    "reduce_scatter_tensor_coalesced_": GlooCall("reduce_scatter", 1, None, "all_reduce"),
    "gather_": GlooCall("gather", 1, 3, "gather"),
    "scatter_": GlooCall("scatter", 0, 3, "scatter"),
    "alltoall_": GlooCall("all_to_all", 1, None, "all_to_all"),
    "alltoall_base_": GlooCall("all_to_all", 1, None, "all_to_all"),
    "barrier": GlooCall("barrier", 0, None, "barrier"),
    "monitored_barrier_": GlooCall("barrier", 0, None, ""),
    "send": GlooCall("send", 0, 2, "send"),
    "recv_": GlooCall("recv", 0, 2, "recv"),
    "recv_any_source_": GlooCall("recv", 0, None, "recvAnySource"),
}


@dataclass
class Calls:
    """The calls of one rank.

    Attributes
    ----------
    ops : list of Op
        In the rank's order, with times in seconds since the file's first event.
    notes : Counter of str
        Missing facts. A fact is the end of a sentence about the file, with a place for a number.
    """

    ops: list[Op] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


def calls_of(trace: KinetoTrace, rank: int, world: Group, groups: dict[str, Group]) -> Calls:
    """The calls in a rank's trace.

    Parameters
    ----------
    trace : KinetoTrace
    rank : int
    world : Group
    groups : dict of str to Group
        By torch's name, the rank's groups whose members the file lists.

    Raises
    ------
    ValueError
        The file contains a call that torch does not write, or a call of an unknown group. The
        message is the end of a sentence about the file.

    **Cost** O(n log n) for n events.
    """
    events = sorted(trace.calls, key=lambda event: (event["ts"], -event["dur"]))
    by_nccl = [event for event in events if event["name"] == COLLECTIVE]
    by_gloo = [event for event in events if event["name"].startswith("c10d::")]
    reader = _Reader(trace, rank, world, groups)
    if by_nccl:
        reader.each(by_nccl, reader.of_nccl)
        if any(event["name"] != "gloo:barrier" for event in trace.works):
            reader.notes[
                "also has calls by Gloo, but simlib reads only NCCL's calls of such a trace"
            ] += 1
    elif by_gloo:
        if len(groups) > 1:
            raise ValueError(
                "is from a job with more groups than the world, and does not say to which group "
                "Gloo's calls belong: profile a run that uses only the world, or a run with NCCL"
            )
        reader.each(by_gloo, reader.of_gloo)
    return Calls(reader.ops, reader.notes)


class _Reader:
    """Makes ops from one rank's events, in order of their start."""

    def __init__(self, trace, rank, world, groups):
        self.ops: list[Op] = []
        self.notes: Counter[str] = Counter()
        self._trace, self._rank = trace, rank
        self._world, self._groups = world, groups
        self._starts = {
            thread: [start for start, _ in parts] for thread, parts in trace.busy.items()
        }
        self._works: defaultdict[str, deque[Event]] = defaultdict(deque)
        for work in sorted(trace.works, key=lambda event: event["ts"]):
            self._works[work["name"].removeprefix("gloo:")].append(work)

    def each(self, events: list[Event], read: Callable[[Event], Op | None]) -> None:
        for event in events:
            try:
                op = read(event)
            except _Unclear:
                raise
            except ODD:
                raise ValueError(
                    f"contains a damaged call ({event['name']}, number {len(self.ops)}): profile "
                    "the run again"
                ) from None
            if op is not None:
                self.ops.append(op)

    def of_nccl(self, event: Event) -> Op | None:
        about = event["args"]
        name = about.get("Collective name")
        if name is None:
            self.notes["does not name the calls by NCCL ({} calls), because torch was too old"] += 1
            return None
        kind = kind_of(name)
        if kind is None:
            if name not in NO_CALLS:
                self.notes[f"has calls of NCCL that simlib does not know: {str(name)[:40]!r}"] += 1
            return None
        brought = _count(about["In msg nelems"]) or _count(about["Out msg nelems"])
        shapes = () if kind == "barrier" else ((brought,),)
        group = self._group_of(about)
        peer = {"send": about.get("Dst Rank"), "recv": about.get("Src Rank")}.get(kind)
        splits = None
        if kind == "all_to_all":
            received = _count(about["Out msg nelems"])
            lists = about.get("In split size", "[]"), about.get("Out split size", "[]")
            splits = _splits(lists, (brought, received), len(group))
        start_s, end_s = self._times(event)
        began_s, done_s = self._trace.kernel_times.get(_id_of(event), (None, end_s))
        times = start_s, None, max(start_s, done_s)
        to = _rank_or_none(peer, group), None
        op = self._op(kind, group, to, (shapes, about["dtype"]), times)
        counted = about.get("Seq") if kind not in P2P_KINDS else None
        op.began_s, op.splits = began_s, splits
        op.number = _count(counted) - 1 if counted else None
        return op

    def _group_of(self, about: Event) -> Group:
        name = str(about.get("Process Group Name", about.get("Process Group ID")))
        known = self._groups.get(name)
        if known is not None:
            return known
        told = about.get("Process Group Ranks")
        if isinstance(told, str) and "..." not in told:
            ranks = json.loads(told)
        elif _count(about.get("Global rank stride", 0)):
            start, step = about["Global rank start"], about["Global rank stride"]
            ranks = range(start, start + step * min(about["Group size"], len(self._world)), step)
        else:
            raise _Unclear(f"does not say which ranks are in the group {name!r}: profile again")
        words = str(about.get("Process Group Description", ""))
        group = self._groups[name] = group_of(name, ranks, words, self._world)
        return group

    def of_gloo(self, event: Event) -> Op | None:
        name = event["name"].removeprefix("c10d::")
        call, about = GLOO_CALLS.get(name), event["args"]
        if call is None:
            self.notes[f"has calls that simlib does not know: c10d::{name[:40]}"] += 1
            return None
        if "Input Dims" not in about or "Concrete Inputs" not in about:
            raise _Unclear(
                "does not say the sizes of its calls: profile with profile(record_shapes=True)"
            )
        dims, inputs = about["Input Dims"], about["Concrete Inputs"]
        shapes = () if call.kind == "barrier" else _shapes(dims[call.tensors])
        works = self._works_of(event, call, name, shapes)
        dtype = next((one["args"]["Input type"][0] for one in works if _has_type(one)), "")
        splits = self._gloo_splits(call, name, dims, inputs)
        peer = None if call.peer is None else int(inputs[call.peer])
        if name == "reduce_scatter_" or (call.kind == "scatter" and peer == self._rank):
            shapes = shapes * len(self._world)
        tag = int(inputs[-1]) if call.kind in ("send", "recv") else None
        times, is_async = self._gloo_times(event, call, name, inputs, works)
        to = _rank_or_none(peer, self._world), tag
        op = self._op(call.kind, self._world, to, (shapes, dtype), times)
        op.async_op, op.site = is_async, _site_of(call.kind, to, is_async)
        if call.kind == "recv" and call.peer is None:
            op.any_source = True
            self.notes["does not name the source of receives from any source ({} receives)"] += 1
        op.splits = splits
        return op

    def _gloo_splits(self, call, name, dims, inputs):
        if call.kind != "all_to_all":
            return None
        if name == "alltoall_":
            lists = [list(map(prod, _shapes(dims[side]))) for side in (1, 0)]
            return tuple(map(tuple, lists))
        counts = prod(_shape(dims[1])), prod(_shape(dims[0]))
        return _splits((inputs[4], inputs[3]), counts, len(self._world))

    def _works_of(self, event: Event, call: GlooCall, name: str, shapes: tuple) -> list[Event]:
        """Gloo's spans of a call. Spans of messages begin within it; others have the same order."""
        queue, found = self._works[call.span], []
        is_message = call.kind in ("send", "recv")
        wanted = len(self._world) if name == "reduce_scatter_" else 1
        while queue and queue[0]["ts"] < event["ts"]:
            queue.popleft()  # of calls before the first that was recorded
        if is_message:
            end = event["ts"] + event["dur"]
            inside = takewhile(lambda one: one["ts"] <= end, queue)
            found = [one for one in inside if one["tid"] == event["tid"]][:1]
        else:
            alike = (one for one in queue if call.kind == "scatter" or _brings(one, shapes))
            found = list(islice(alike, wanted))
        for one in found:
            queue.remove(one)
        return found

    def _gloo_times(self, event, call, name, inputs, works):
        """``(post_s, wait_s, end_s)`` and whether the call was asynchronous."""
        post_s, called_s = self._times(event)
        if name == "monitored_barrier_":
            return (post_s, post_s, called_s), False
        done_s = max((self._times(one)[1] for one in works), default=None)
        flag = inputs[-2] if call.kind not in ("send", "recv") else None
        if flag == "False":
            return (post_s, post_s, done_s), False
        wait_s = None if done_s is None else self._wait(event["tid"], called_s, done_s)
        waits_at_once = flag is None and wait_s == called_s
        return (post_s, post_s if waits_at_once else wait_s, done_s), not waits_at_once

    def _wait(self, thread: int, called_s: float, done_s: float) -> float | None:
        """When a thread began to wait for work that ended at ``done_s``. None if it did not
        wait."""
        parts = self._trace.busy.get(thread, [])
        after = bisect.bisect_right(self._starts.get(thread, []), done_s)
        longest_s, since_s = SHORTEST_WAIT_S, None
        for at in range(after, -1, -1):
            free_s = max(called_s, parts[at - 1][1] if at else called_s)
            goes_on_s = parts[at][0] if at < len(parts) else inf
            if goes_on_s < max(called_s, done_s - EARLY_S):
                break
            silent_s, late_s = min(goes_on_s, done_s) - free_s, goes_on_s - done_s
            is_soon = -EARLY * silent_s <= late_s <= max(SOON_S, silent_s) or goes_on_s == inf
            if is_soon and silent_s >= longest_s:
                longest_s, since_s = silent_s, free_s
        return since_s

    def _times(self, event: Event) -> Part:
        start_us = event["ts"] - self._trace.first_us
        return start_us / 1e6, (start_us + event["dur"]) / 1e6

    def _op(self, kind, group, to, data, times) -> Op:
        (peer, tag), (shapes, dtype) = to, data
        name, itemsize = _known_dtype(dtype) if dtype and shapes else UNKNOWN_DTYPE
        return Op(
            rank=self._rank,
            seq=len(self.ops),
            kind=kind,
            group=group,
            peer=peer,
            tag=tag,
            nbytes=itemsize * sum(map(prod, shapes)),
            shapes=shapes,
            dtype=name,
            reduce_op=None,
            splits=None,
            async_op=True,
            any_source=False,
            site=_site_of(kind, to, True),
            post_s=times[0],
            wait_s=times[1],
            end_s=times[2],
        )


def _site_of(kind: str, to: tuple[int | None, int | None], is_async: bool) -> Site:
    return Site(describe_call(kind, *to, None, is_async), "", 0)


class _Unclear(ValueError):
    """A sentence about a missing fact of a file."""


def group_of(name: str, ranks: Any, words: Any, world: Group) -> Group:
    """A `Group` as a file names it, the world ``""``. ValueError if its ranks are impossible."""
    members = tuple(ranks)
    if not all(isinstance(rank, int) and 0 <= rank < len(world) for rank in members):
        raise ValueError("ranks out of the world")
    if len(set(members)) < len(members) or not members:
        raise ValueError("a rank twice")
    is_world = name == "0" and members == world.ranks
    description = "" if is_world or words == "undefined" else str(words)
    return Group("" if is_world else name, members, description)


def _known_dtype(name: Any) -> tuple[str, int]:
    found = dtype_of(str(name))
    if found is None:
        raise _Unclear(f"has a call with the dtype {str(name)[:40]!r}, which simlib does not know")
    return found


def _count(value: Any) -> int:
    if isinstance(value, int) and 0 <= value < MOST_ELEMENTS:
        return value
    raise ValueError("no number of elements")


def _id_of(event: Event) -> int:
    return int(event["args"].get("External id", -1))


def _shape(dims: Any) -> tuple[int, ...]:
    shape = tuple(map(_count, dims))
    _count(prod(shape))
    return shape


def _shapes(dims: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of one tensor or of a list of them; a scalar's is empty."""
    if any(isinstance(one, list) for one in dims):
        return tuple(map(_shape, dims))
    return (_shape(dims),)


def _splits(lists: Any, counts: tuple[int, int], size: int) -> tuple:
    """Elements sent to each rank and expected from each rank; lists are in rows."""
    found = []
    for words, count in zip(lists, counts, strict=True):
        rows = [_count(one) for one in json.loads(words or "[]")] or [1] * size
        if len(rows) != size:
            raise ValueError("not a number for each rank")
        row = count // max(1, sum(rows))
        found.append(tuple(one * row for one in rows))
    return tuple(found)


def _rank_or_none(peer: Any, group: Group) -> int | None:
    if peer is None:
        return None
    if peer in group.ranks:
        return int(peer)
    raise ValueError("a rank that is not in the group")


def _has_type(work: Event) -> bool:
    return bool(work["args"].get("Input type"))


def _brings(work: Event, shapes: tuple) -> bool:
    """Whether Gloo's work has tensors of these shapes, as far as it records them."""
    told = work["args"].get("Input Dims")
    return told is None or _shapes(told) == shapes
