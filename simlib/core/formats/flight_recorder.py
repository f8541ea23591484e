"""Dumps of torch's flight recorder as a trace: the last calls of each rank of a real job.

A recorder holds the last calls of its process, about 2,000. It does not record roots, reduce ops,
tags, splits and waits. These are None in the ops, and simlib does not guess them. Versions 2.0 to
2.10 of the format differ only in keys that simlib does not need.

Source: ``FlightRecorder.hpp`` of torch 2.13, which names the fields of a dump.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from ..model.trace import P2P_KINDS, Group, Op, Site, Trace, describe_call, source_line
from .dump_files import BROKEN, DumpFile, world_of
from .names import dtype_of, kind_of
from .nccl_log import NcclLog

ENDS_A_GROUP = "coalesced"
"""The entry at the end of several calls that NCCL runs as one. It contains the calls' state."""
OWN_SIZES = frozenset({"all_to_all", "barrier"})
"""Collectives to which ranks may contribute different numbers of elements."""
RECEIVES = frozenset({"recv", "scatter"})
"""Calls for which the outputs of members must agree, and not the inputs."""
MOST_ELEMENTS = 1 << 60
LIBRARY = re.compile(r"(/(site|dist)-packages/|/lib/python\d|^<)")
TORCH = re.compile(r"(/torch/|^<|/lib/python\d\.\d+/[a-z_]+(/[a-z_]+)*\.py$)")


@dataclass(slots=True)
class Recorded:
    """The calls of a job, from its flight recorders.

    Attributes
    ----------
    trace : Trace
        The calls of all ranks, in the order of their recorded times. A call that has not completed
        has no ``end_s``.
    by_rank : dict of int to list of Op
        The calls of each rank, in the rank's order. The dict leaves out ranks without a dump.
    first : dict of (Group, int) to int
        If a rank's ring has lost calls of a group, the number of the group's first collective that
        is still in the ring. All other rings begin with the first collective.
    timed_out : set of (int, int)
        Rank and ``seq`` of calls that ended by the rank's timeout.
    unstarted : set of (int, int)
        Rank and ``seq`` of calls whose kernel has not begun, if the recorders contain this fact.
    together : dict of (int, int) to list of Op
        By rank and ``seq``: the calls that the rank made as one, if it made several.
    backend : str
        ``"nccl"``, ``"gloo"``...; empty if no rank made a call.
    origin_ns : int
        The time of the first call in nanoseconds since 1970. Times of the trace count from it.
    """

    trace: Trace
    by_rank: dict[int, list[Op]]
    first: dict[tuple[Group, int], int] = field(default_factory=dict)
    timed_out: set[tuple[int, int]] = field(default_factory=set)
    unstarted: set[tuple[int, int]] = field(default_factory=set)
    together: dict[tuple[int, int], list[Op]] = field(default_factory=dict)
    backend: str = ""
    origin_ns: int = 0


def read_dumps(dumps: Mapping[int, DumpFile]) -> Recorded:
    """The calls in the dumps of a job.

    Parameters
    ----------
    dumps : dict of int to DumpFile
        The dump of each rank.

    Raises
    ------
    ValueError
        A dump contains data that no recorder writes, or calls on groups whose members it does not
        list, so that simlib cannot judge them.

    **Cost** O(number of calls x depth of their stacks).
    """
    members = {rank for dump in dumps.values() for ranks in dump.members.values() for rank in ranks}
    size = max(members | set(dumps)) + 1
    origin_ns = min(filter(None, map(_first_ns, dumps.values())), default=0)
    reader = _Reader(size, origin_ns)
    for rank, dump in sorted(dumps.items()):
        reader.read(rank, dump)
    ops = [op for own in reader.by_rank.values() for op in own]
    if not ops:
        raise ValueError(
            "none of these dumps contains a call. Was TORCH_FR_BUFFER_SIZE 0? Gloo's recorder "
            "does not record send and recv: use `simlib run` for a job that calls only these"
        )
    ops.sort(key=lambda op: (op.post_s, op.rank, op.seq))
    spans = [(0.0, None) if rank in dumps else (None, None) for rank in range(size)]
    trace = Trace(size, ops, spans)
    trace.missing = tuple(rank for rank in range(size) if rank not in dumps)
    trace.last_seen_s = {
        rank: max((op.ends_by(op.post_s) for op in own), default=0.0)
        for rank, own in reader.by_rank.items()
    }
    return Recorded(
        trace,
        reader.by_rank,
        first=_number(reader.by_rank, reader.lost),
        timed_out=reader.timed_out,
        unstarted=reader.unstarted,
        together=reader.together,
        backend=reader.backend,
        origin_ns=origin_ns,
    )


def _first_ns(dump: DumpFile) -> int:
    moments = (entry.get("time_created_ns") for entry in _entries_of(dump))
    return next((moment for moment in moments if isinstance(moment, int) and moment > 0), 0)


def _entries_of(dump: DumpFile) -> list[dict[str, Any]]:
    entries = dump.content["entries"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{dump.name} is not a flight-recorder dump: its entries are not a list")
    return entries


class _Reader:
    """Turns dumps into ops, one rank at a time."""

    def __init__(self, size: int, origin_ns: int) -> None:
        self.size, self.origin_ns = size, origin_ns
        self.by_rank: dict[int, list[Op]] = {}
        self.timed_out: set[tuple[int, int]] = set()
        self.unstarted: set[tuple[int, int]] = set()
        self.together: dict[tuple[int, int], list[Op]] = {}
        self.lost: dict[int, dict[Group, int]] = {}  # rank -> group -> last collective it called
        self.backend = ""
        self._groups: dict[tuple, Group] = {}
        self._sites: dict[tuple, Site] = {}

    def read(self, rank: int, dump: DumpFile) -> None:
        """Read the dump of a rank."""
        entries = _entries_of(dump)
        groups = self._groups_of(dump)
        ends = _ends_of_groups(entries)
        ops: list[Op] = []
        joined: dict[tuple, list[Op]] = defaultdict(list)
        for place, entry in enumerate(entries):
            try:
                if not _name_of(entry["profiling_name"]).is_no_call:
                    end = ends.get(_joined(entry), entry) if ends else entry
                    op = self._op(rank, len(ops), entry, end, self._group(entry, groups, dump))
                    if ops:
                        op.post_s = max(op.post_s, ops[-1].post_s)
                    ops.append(op)
                    if end is not entry and not op.done:
                        joined[_joined(entry)].append(op)
                        self.together[rank, op.seq] = joined[_joined(entry)]
            except _NotTold:
                raise
            except BROKEN as error:
                why = " ".join(str(error).split())[:100]
                raise ValueError(
                    f"entry {place} of {dump.name} is not an entry that a flight recorder writes "
                    f"({type(error).__name__}: {why})"
                ) from None
        self.by_rank[rank] = ops
        if entries and entries[0].get("record_id", 0) > 0:
            self.lost[rank] = _last_called(dump, groups, entries)

    def _groups_of(self, dump: DumpFile) -> dict[str, Group]:
        world = world_of(dump) or tuple(range(self.size))
        found = {}
        for name, about in dump.content["pg_config"].items():
            ranks = dump.members[str(name)]
            description = str(about.get("desc", ""))
            if description == "default_pg" or name == "":
                found[str(name)] = self._shared("", world, "")
            else:
                description = "" if description == "undefined" else description[:60]
                found[str(name)] = self._shared(str(name), ranks, description)
        return found

    def _shared(self, name: str, ranks: tuple[int, ...], description: str) -> Group:
        key = name, ranks, description
        return self._groups.setdefault(key, Group(*key))

    def _group(self, entry: dict[str, Any], groups: dict[str, Group], dump: DumpFile) -> Group:
        name, description = entry["process_group"]
        if name in groups and groups[name].ranks:
            return groups[name]
        if description == "default_pg":
            return self._shared("", tuple(range(self.size)), "")
        raise _NotTold(
            f"{dump.name} has calls on group {name} but does not list the group's members. The "
            "recorder of Gloo in torch 2.13 gives all groups one name, so its dumps are enough "
            "only if the job calls collectives on the default group alone. Use `simlib run` for "
            "this job: it records all groups"
        )

    def _op(self, rank: int, seq: int, entry: dict, end: dict, group: Group) -> Op:
        name = _name_of(entry["profiling_name"])
        self.backend = self.backend or name.backend
        kind, is_p2p = name.kind, name.kind in P2P_KINDS
        peer = None if name.place is None else group.ranks[name.place]
        is_any = is_p2p and peer is None
        shapes, elements = _shapes_of(entry, kind) if name.has_shapes else ((), 0)
        dtype, item_bytes = _dtype_of(entry, kind)
        done = is_over(end)
        post_s = self._seconds(entry.get("time_created_ns")) or 0.0
        end_s = self._seconds(end.get("time_discovered_completed_ns"))
        if not done:
            self._note_state(rank, seq, end)
        call = _call_of(kind, peer, None, None, any_source=is_any)
        site = self._site(entry.get("frames") or (), call, done)
        return Op(
            rank=rank,
            seq=seq,
            kind=kind,
            group=group,
            peer=peer,
            tag=None,
            nbytes=elements * item_bytes,
            shapes=shapes,
            dtype=dtype if shapes else "",
            reduce_op=None,
            splits=None,
            async_op=False,
            any_source=is_any,
            site=site,
            post_s=post_s,
            wait_s=None,
            end_s=max(post_s, end_s or 0.0) if done else None,
            number=None if is_p2p else int(entry["collective_seq_id"]),
        )

    def _note_state(self, rank: int, seq: int, entry: dict) -> None:
        if entry.get("retired"):
            self.timed_out.add((rank, seq))
        elif entry.get("state") == "scheduled":
            self.unstarted.add((rank, seq))

    def _seconds(self, moment_ns: Any) -> float | None:
        return (int(moment_ns) - self.origin_ns) / 1e9 if moment_ns else None

    def _site(self, frames: Any, call: str, done: bool) -> Site:
        """The learner's line."""
        places = own_places(frames, 1 if done else 3)  # a verdict says what led to an open call
        if (call, places) not in self._sites:
            self._sites[call, places] = _site_at(call, places)
        return self._sites[call, places]


_call_of = functools.lru_cache(maxsize=4096)(describe_call)


def own_places(frames: Iterable[dict], most: int = 1) -> tuple[tuple[str, int, str], ...]:
    """The learner's lines: the innermost frames outside all libraries, or else outside torch.

    Returns file, line and function of at most ``most`` frames.
    """
    own = _outside(LIBRARY, frames, most) or _outside(TORCH, frames, most)
    return tuple((str(f["filename"]), int(f["line"]), str(f["name"])) for f in own)


def _outside(library: re.Pattern[str], frames: Iterable[dict], most: int) -> list[dict]:
    """The innermost frames outside a library, at most ``most`` frames."""
    found = []
    for frame in frames:
        if not _is_in(library, frame["filename"]):
            found.append(frame)
            if len(found) == most:
                break
    return found


@functools.lru_cache(maxsize=4096)
def _is_in(library: re.Pattern[str], file: str) -> bool:
    return library.search(file) is not None


class _Name(NamedTuple):
    """The parts of an entry's name. The place belongs to the other rank of a send or recv."""

    backend: str
    kind: str
    place: int | None
    has_shapes: bool
    is_no_call: bool


@functools.lru_cache(maxsize=4096)
def _name_of(text: str) -> _Name:
    backend, _, words = text.partition(":")
    word, _, pair = words.partition(" ")
    kind = kind_of(word) or word
    place = re.split("->|<-", pair)[1] if kind in P2P_KINDS else "?"
    has_shapes = kind not in OWN_SIZES and "_v" not in word
    is_no_call = word in (ENDS_A_GROUP, "split")
    return _Name(backend, kind, None if place == "?" else int(place), has_shapes, is_no_call)


class _NotTold(ValueError):
    """A dump lacks data that simlib needs to judge it."""


def _site_at(call: str, places: tuple[tuple[str, int, str], ...]) -> Site:
    if not places:
        return Site(call, "", 0)
    (file, lineno, function), *others = places
    text = source_line(file, lineno) if file.endswith(".py") and os.path.isfile(file) else ""
    callers = tuple(Site("", *other).place for other in others)
    return Site(call, file, lineno, function, None, text, callers)


def _joined(entry: dict[str, Any]) -> tuple:
    """A key that is the same for all calls which NCCL runs as one."""
    return entry.get("pg_id"), entry.get("p2p_seq_id"), entry.get("collective_seq_id")


def _ends_of_groups(entries: Iterable[dict[str, Any]]) -> dict[tuple, dict[str, Any]]:
    return {
        _joined(entry): entry
        for entry in entries
        if str(entry.get("profiling_name")).endswith(f":{ENDS_A_GROUP}")
    }


def is_over(entry: dict[str, Any]) -> bool:
    """Whether a call has completed. Gloo's recorder notes only this, and not when it began or
    ended."""
    if entry["state"] == "completed":
        return True
    is_gloo = str(entry["profiling_name"]).startswith("gloo:")
    return is_gloo and bool(entry.get("retired"))


def _shapes_of(entry: dict[str, Any], kind: str) -> tuple[tuple, int]:
    """The shapes that members of a group must agree on, and how many elements they have."""
    sizes = entry["output_sizes" if kind in RECEIVES else "input_sizes"]
    return _checked(tuple(map(tuple, sizes)))


@functools.lru_cache(maxsize=4096)
def _checked(sizes: tuple[tuple, ...]) -> tuple[tuple, int]:
    shapes = tuple(tuple(map(int, shape)) for shape in sizes)
    elements = sum(map(prod, shapes))
    if any(size < 0 for shape in shapes for size in shape):
        raise ValueError("a negative size")
    if elements > MOST_ELEMENTS:
        raise ValueError("more elements than any memory holds")
    return shapes, elements


def _dtype_of(entry: dict[str, Any], kind: str) -> tuple[str, int]:
    """A dtype's name, and the bytes of an element (1 if simlib does not know the dtype)."""
    names = entry.get("output_dtypes" if kind in RECEIVES else "input_dtypes") or ""
    name = str(names if isinstance(names, str) else names[0])
    return dtype_of(name) or (name.lower(), 1)


def _last_called(dump: DumpFile, groups: dict[str, Group], entries: list) -> dict[Group, int]:
    """The last collective of each group that a rank called, for groups missing in its ring."""
    found: dict[Group, int] = {}
    status = dump.content.get("pg_status") or {}
    numbers = {
        str(entry.get("pg_id")): groups.get(str(entry["process_group"][0])) for entry in entries
    }
    for number, about in status.items():
        group = numbers.get(str(number)) or groups.get(str(number))
        if group is not None:
            found[group] = int(about["last_enqueued_collective"])
    return found


def add_from_log(recorded: Recorded, log: NcclLog) -> None:
    """Add roots and reduce ops from NCCL's logs to calls, if log and dump show the same call.

    **Cost** O(number of calls).
    """
    for op in recorded.trace:
        if op.number is not None and op.kind != "barrier":
            call = log.call(op.rank, op.group.ranks, op.number + 1)
            if call is not None and call.kind == op.kind:
                op.peer, op.reduce_op = call.root, call.reduce_op


def _number(by_rank: dict[int, list[Op]], lost: dict[int, dict[Group, int]]) -> dict:
    """Number the collectives of each group by the recorders' own numbers, which all members share.

    The recorders' numbers begin with 1. Calls that NCCL runs as one have one number there, so the
    calls after them get higher numbers here. Returns `Recorded.first`.
    """
    more: dict[Group, dict[int, int]] = defaultdict(dict)  # number -> calls beyond the first
    counted = {rank: list(_counted(ops)) for rank, ops in by_rank.items()}
    for op, within in itertools.chain(*counted.values()):
        if within and within > more[op.group].get(op.number, 0):
            more[op.group][op.number] = within
    begins = {group: _Begins(beyond) for group, beyond in more.items()}
    first: dict[tuple[Group, int], int] = {}
    for rank, ops in counted.items():
        for op, within in ops:
            begun = begins.get(op.group, PLAIN) if begins else PLAIN
            op.number = begun.of(op.number) + within
            if rank in lost:
                first.setdefault((op.group, rank), op.number)
        for group, last in lost.get(rank, {}).items():
            first.setdefault((group, rank), begins.get(group, PLAIN).of(last + 1))
    return first


def _counted(ops: list[Op]) -> Iterable[tuple[Op, int]]:
    """The collectives of a rank, each with how many of the same number came right before it."""
    last: dict[int, tuple[int | None, int]] = {}  # by the group's id: hashes of groups cost time
    for op in ops:
        if op.number is not None:
            number, within = last.get(id(op.group), (None, 0))
            within = within + 1 if number == op.number else 0
            last[id(op.group)] = op.number, within
            yield op, within


class _Begins:
    """How many calls of a group came before each of the recorders' numbers."""

    def __init__(self, beyond: dict[int, int]) -> None:
        self.numbers = sorted(beyond)
        self.more = [0, *itertools.accumulate(beyond[number] for number in self.numbers)]

    def of(self, number: int) -> int:
        """Calls before this number."""
        return number - 1 + self.more[bisect.bisect_left(self.numbers, number)]


PLAIN = _Begins({})
"""For a group without calls that were made as one."""
