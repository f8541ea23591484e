"""Write a trace as dumps of torch's flight recorder, in the format of torch 2.13: one file per
rank.

A dump contains no root, reduce op, tag or split. If a `Trace` lacks other data of a dump, simlib
writes the most frequent form of NCCL's recorder. For example, it writes gathering ops as ops on
lists of tensors.

**Source** ``c10d/FlightRecorderDetail.hpp`` and ``ProcessGroupNCCL.cpp`` of PyTorch 2.13.
"""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..model.errors import InvalidCallError
from ..model.trace import Group, Op, Site, Trace
from .names import word_of_dtype

VERSION = "2.10"
PREFIX = "nccl_trace_rank_"
ZERO_NS = 10**18
"""The date of a trace's moment 0, in nanoseconds since 1970. A dump needs a date, but a trace has
none."""
TIMEOUT_MS = 600_000
NO_TENSOR = [[0]]
"""The sizes that replace missing tensors on ranks that are not the root."""
UNEVEN = frozenset({"scatter", "gather", "all_to_all"})
"""Kinds of collectives in which ranks may pass tensors of different shapes."""


def write_dumps(trace: Trace, folder: str | Path, last: int | None = None) -> Path:
    """Write a file ``nccl_trace_rank_N`` for each rank that could write a dump; see
    `Run.to_recorder`.

    Parameters
    ----------
    trace : Trace
    folder : str or Path
        simlib creates the folder if it does not exist.
    last : int, optional
        Write only this many last entries of each rank, like a ring buffer of this length.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InvalidCallError
        ``last`` is less than 1, or the folder contains dumps of ranks for which this call writes
        none.
    """
    if last is not None and last < 1:
        raise InvalidCallError(f"last is {last}: give the number of last calls to keep, 1 or more")
    folder = Path(folder)
    gone = set(trace.deaths) | set(trace.missing)
    ranks = [rank for rank in range(trace.world_size) if rank not in gone]
    make_folder(folder, f"{PREFIX}*", {f"{PREFIX}{rank}" for rank in ranks})
    numbers = numbers_of_groups(trace)
    ends = _ends(trace)
    ops = trace.by_rank()
    for rank in ranks:
        dump = _dump(rank, ops[rank], numbers, ends, last)
        (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def make_folder(folder: Path, pattern: str, names: set[str]) -> None:
    """Make a folder for files of these names. Refuse a folder with other files that fit the
    pattern."""
    others = sorted({path.name for path in folder.glob(pattern)} - names)
    if others:
        raise InvalidCallError(
            f"{folder} has {others[0]}, which is not from this run. A reader would take all these "
            "files for one job: name an empty folder"
        )
    folder.mkdir(parents=True, exist_ok=True)


def numbers_of_groups(trace: Trace) -> dict[Group, int]:
    """Return the number that names each group in a dump. The world is 0."""
    world = next((op.group for op in trace if len(op.group) == trace.world_size), None)
    numbers = {world or Group("world", tuple(range(trace.world_size))): 0}
    for op in trace:
        numbers.setdefault(op.group, len(numbers))
    return numbers


def _ends(trace: Trace) -> dict[int, float]:
    """Return ``{id of an op: when it was complete, in seconds}``, even if no rank waited for the
    op."""
    ends = {id(op): op.end_s for op in trace if op.end_s is not None}
    meetings: list[Iterable[Op]] = [
        collective.ops.values()
        for collective in trace.collectives
        if len(collective.ops) == len(collective.group)
    ]
    meetings += [(one.send, one.recv) for one in trace.messages if one.recv is not None]
    for ops in meetings:
        if len({_what_must_agree(op) for op in ops}) == 1 and all(
            op.failed_s is None for op in ops
        ):
            met_s = max(op.post_s for op in ops)
            for op in ops:
                ends.setdefault(id(op), met_s)
    return ends


def _what_must_agree(op: Op) -> tuple:
    if op.is_p2p:
        return op.nbytes, op.dtype
    shapes = None if op.kind in UNEVEN else op.shapes
    return op.kind, op.peer, op.reduce_op, op.dtype, shapes


def _dump(
    rank: int, ops: list[Op], numbers: dict[Group, int], ends: dict[int, float], last: int | None
) -> dict[str, Any]:
    config, statuses = {}, {}
    for group, number in numbers.items():
        if rank in group.ranks:
            name = str(number)
            ranks = str(list(group.ranks))
            config[name] = {"name": name, "desc": _description(group, number), "ranks": ranks}
            statuses[name] = _Status()
    entries = []
    frames: dict[tuple[str, Site], list] = {}
    for record_id, op in enumerate(ops, _lost_before(ops)):
        number = numbers[op.group]
        end_s = ends.get(id(op))
        place = statuses[str(number)].enter(op, end_s is not None)
        is_running = place["state"] != "scheduled"
        call = f"i{op.kind}" if op.is_p2p and op.async_op else op.kind
        if (call, op.site) not in frames:
            frames[call, op.site] = _frames(call, op.site)
        entries.append(
            {
                "frames": frames[call, op.site],
                "record_id": record_id,
                "pg_id": number,
                "process_group": (str(number), _description(op.group, number)),
                "thread_name": "python",
                "thread_id": "1",
                **place,
                "profiling_name": f"nccl:{_name(op)}",
                "time_created_ns": _ns(op.post_s),
                **_tensors(op),
                "time_discovered_started_ns": _ns(op.post_s if is_running else None),
                "time_discovered_completed_ns": _ns(end_s),
                "retired": end_s is not None,
                "timeout_ms": TIMEOUT_MS,
                "is_p2p": op.is_p2p,
            }
        )
    return {
        "version": VERSION,
        "pg_config": config,
        "comm_lib_version": "simlib",
        "nccl_comm_state": {},
        "pg_status": {name: status.record() for name, status in statuses.items()},
        "entries": entries if last is None else entries[-last:],
    }


def _lost_before(ops: list[Op]) -> int:
    """For each group, return how many collectives the rank called before the first one in the
    trace."""
    first: dict[Group, int] = {}
    for op in ops:
        if op.number is not None:
            first.setdefault(op.group, op.number)
    return sum(first.values())


class _Status:
    """The progress of a rank in one group. The group's ops run one after the other, as in a
    stream."""

    def __init__(self) -> None:
        self.collectives = self.messages = self.ops = 0
        self.started = self.completed = -1
        self._is_busy = False

    def enter(self, op: Op, is_complete: bool) -> dict[str, Any]:
        """Return the numbers and the state of the next op."""
        self.ops += 1
        if op.is_p2p:
            self.messages += 1
        else:
            self.collectives = self.collectives + 1 if op.number is None else op.number + 1
        state = "completed" if is_complete else "scheduled" if self._is_busy else "started"
        self._is_busy = self._is_busy or not is_complete
        if not op.is_p2p:
            if state != "scheduled":
                self.started = self.collectives
            if state == "completed":
                self.completed = self.collectives
        return {
            "collective_seq_id": self.collectives,
            "p2p_seq_id": self.messages,
            "op_id": self.ops,
            "state": state,
        }

    def record(self) -> dict[str, int]:
        return {
            "last_enqueued_collective": self.collectives or -1,
            "last_started_collective": self.started,
            "last_completed_collective": self.completed,
        }


def _description(group: Group, number: int) -> str:
    return group.description or ("undefined" if number else "default_pg")


def _name(op: Op) -> str:
    """Return the recorder's name of an op. For messages, it contains both ranks' positions in the
    group."""
    if op.kind == "barrier":
        return "all_reduce_barrier"  # NCCL has no barrier
    if op.kind == "reduce_scatter" and len(op.shapes) == 1:
        return "_reduce_scatter_base"
    if not op.is_p2p:
        return op.kind
    mine = op.group.ranks.index(op.rank)
    peer = "?" if op.peer is None else op.group.ranks.index(op.peer)
    return f"{op.kind} {mine}{'->' if op.kind == 'send' else '<-'}{peer}"


def _tensors(op: Op) -> dict[str, Any]:
    """Return the sizes and dtypes of the op's inputs and outputs."""
    shapes = [list(shape) for shape in op.shapes] or [[1]]
    dtype = word_of_dtype(op.dtype) or "Float"
    size = len(op.group)
    takes, gives = shapes, shapes
    is_root = op.rank == op.peer
    if op.kind == "all_gather":
        gives = [[size, *shapes[0]]]
    elif op.kind == "reduce_scatter":
        takes, gives = _of_reduce_scatter(shapes, size)
    elif op.kind == "all_to_all":
        gives = _of_all_to_all(shapes, op.splits)
    elif op.kind == "gather":
        gives = shapes * size if is_root else NO_TENSOR
    elif op.kind == "scatter":
        takes, gives = (shapes, shapes[:1]) if is_root else (NO_TENSOR, shapes)
    return {
        "input_sizes": takes,
        "input_dtypes": ["Undefined" if takes is NO_TENSOR else dtype] * len(takes),
        "output_sizes": gives,
        "output_dtypes": ["Undefined" if gives is NO_TENSOR else dtype] * len(gives),
    }


def _of_reduce_scatter(shapes: list, size: int) -> tuple[list, list]:
    if len(shapes) > 1:
        return [[size, *shapes[0]]], shapes[:1]
    rows, *others = shapes[0] or [1]
    if rows % size == 0:
        return shapes, [[rows // size, *others]]
    return shapes, [[math.prod(shapes[0]) // size]]


def _of_all_to_all(shapes: list, splits: tuple | None) -> list:
    if splits is None:
        return shapes
    expected = splits[1]
    if len(shapes) > 1:
        return [[elements] for elements in expected]
    row = math.prod(shapes[0][1:]) or 1
    return [[sum(expected) // row, *shapes[0][1:]]]


def _frames(call: str, site: Site) -> list[dict[str, Any]]:
    """Return torch's own frame and the learner's frame; empty if no line of the learner is
    known."""
    if not site.lineno:
        return []
    code = inspect.unwrap(getattr(dist, call)).__code__
    return [
        {"name": call, "filename": code.co_filename, "line": code.co_firstlineno},
        {"name": site.function, "filename": site.file, "line": site.lineno},
    ]


def _ns(moment_s: float | None) -> int | None:
    return None if moment_s is None else ZERO_NS + round(moment_s * 1e9)
