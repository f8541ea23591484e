"""Dumps of torch's flight recorder as a trace: what each rank of a real job has called last.

A recorder holds the last calls of its process, some 2,000. It does not write down roots, reduce
ops, tags, splits and who waits: these are None in the ops, and nobody guesses them. Versions 2.0 to
2.10 of the format differ in keys that are not needed here.

Source: ``FlightRecorder.hpp`` of torch 2.13, which names what a dump holds.
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
from typing import Any

import torch

from ..model.trace import Group, Op, Site, Trace, describe_call, source_line
from .dump_files import BROKEN, DumpFile, world_of
from .nccl_log import NcclLog
from .recorder_dumps import DTYPES

KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "_all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "ALLGATHER_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
}
"""What the recorder calls a collective, and its name; others are called alike."""
ENDS_A_GROUP = "coalesced"
"""The entry that closes several calls which NCCL does as one: it has their state."""
OWN_SIZES = frozenset({"all_to_all", "barrier"})
"""Collectives to which ranks may bring as many elements as they like."""
NAMES = {theirs: ours for ours, theirs in DTYPES.items()}
"""Names of dtypes, by the recorder's names."""
RECEIVES = frozenset({"recv", "scatter"})
"""Calls whose output is what members agree on."""
MOST_ELEMENTS = 1 << 60
LIBRARY = re.compile(r"(/(site|dist)-packages/|/lib/python\d|^<)")
TORCH = re.compile(r"(/torch/|^<|/lib/python\d\.\d+/[a-z_]+(/[a-z_]+)*\.py$)")


@dataclass(slots=True)
class Recorded:
    """The calls of a job, as its recorders hold them.

    Attributes
    ----------
    trace : Trace
        What ranks called, in the order of the times that they wrote down. A call that is not over
        has no ``end_s``.
    by_rank : dict of int to list of Op
        The same by rank, in each rank's order; a rank without a dump is not in it.
    first : dict of (Group, int) to int
        By group and rank whose ring has lost calls: the first collective of the group that it still
        holds. For all others that is the first.
    timed_out : set of (int, int)
        Rank and ``seq`` of calls that the rank gave up after its timeout.
    unstarted : set of (int, int)
        The same of calls whose kernel the rank has not seen begin, where recorders note that.
    together : dict of (int, int) to list of Op
        By rank and ``seq``: calls that the rank made as one, where it made several.
    backend : str
        ``"nccl"``, ``"gloo"``...; empty where nothing was called.
    origin_ns : int
        When the first call was, in nanoseconds since 1970: times of the trace count from there.
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
        By rank.

    Raises
    ------
    ValueError
        A dump holds what no recorder writes, or what cannot be judged: calls on groups of which it
        does not say the members.

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
            "none of these dumps holds a call. Was TORCH_FR_BUFFER_SIZE 0? Gloo's recorder does "
            "not record send and recv: take `simlib run` for a job that calls only these"
        )
    ops.sort(key=lambda op: (op.post_s, op.rank, op.seq))
    trace = Trace(size, ops, [(0.0, None)] * size)
    trace.missing = tuple(rank for rank in range(size) if rank not in dumps)
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
        raise ValueError(f"{dump.name} is no dump of a flight recorder: its entries are no list")
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
        """Take in the dump of a rank."""
        entries = _entries_of(dump)
        groups = self._groups_of(dump)
        ends = _ends_of_groups(entries)
        ops: list[Op] = []
        joined: dict[tuple, list[Op]] = defaultdict(list)
        for place, entry in enumerate(entries):
            try:
                word = entry["profiling_name"].partition(":")[2].partition(" ")[0]
                if word != ENDS_A_GROUP and word != "split":
                    end = ends.get(_joined(entry), entry)
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
                    f"entry {place} of {dump.name} is none that a flight recorder writes "
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
            f"{dump.name} has calls on group {name} and does not say its members. The recorder of "
            "Gloo in torch 2.13 files all groups under one name, so only a job that calls "
            "collectives on the default group can be told from its dumps. Take `simlib run` for "
            "this one, which records all groups"
        )

    def _op(self, rank: int, seq: int, entry: dict, end: dict, group: Group) -> Op:
        backend, _, words = entry["profiling_name"].partition(":")
        self.backend = self.backend or backend
        word, _, pair = words.partition(" ")
        kind = KINDS.get(word, word)
        is_p2p = kind in ("send", "recv")
        place = re.split("->|<-", pair)[1] if is_p2p else "?"
        peer = None if place == "?" else group.ranks[int(place)]
        is_any = is_p2p and peer is None
        shapes = _shapes_of(entry, kind, word)
        dtype, item_bytes = _dtype_of(entry, kind)
        done = _is_done(end)
        post_s = self._seconds(entry.get("time_created_ns")) or 0.0
        end_s = self._seconds(end.get("time_discovered_completed_ns"))
        if not done:
            self._note_state(rank, seq, end)
        call = describe_call(kind, peer, None, None, any_source=is_any)
        site = self._site(entry.get("frames") or (), call, done)
        return Op(
            rank=rank,
            seq=seq,
            kind=kind,
            group=group,
            peer=peer,
            tag=None,
            nbytes=sum(map(prod, shapes)) * item_bytes,
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
        """The learner's line: the innermost frame outside torch and Python's own library."""
        own = [frame for frame in frames if not LIBRARY.search(frame["filename"])]
        own = own or [frame for frame in frames if not TORCH.search(frame["filename"])]
        own = own[: 1 if done else 3]  # a verdict says what led to an open call
        places = tuple((str(f["filename"]), int(f["line"]), str(f["name"])) for f in own)
        if (call, places) not in self._sites:
            self._sites[call, places] = _site_at(call, places)
        return self._sites[call, places]


class _NotTold(ValueError):
    """What a dump does not say, and nobody can judge without."""


def _site_at(call: str, places: tuple[tuple[str, int, str], ...]) -> Site:
    if not places:
        return Site(call, "", 0)
    (file, lineno, function), *others = places
    text = source_line(file, lineno) if file.endswith(".py") and os.path.isfile(file) else ""
    callers = tuple(Site("", *other).place for other in others)
    return Site(call, file, lineno, function, None, text, callers)


def _joined(entry: dict[str, Any]) -> tuple:
    """What calls have in common that NCCL does as one."""
    return entry.get("pg_id"), entry.get("p2p_seq_id"), entry.get("collective_seq_id")


def _ends_of_groups(entries: Iterable[dict[str, Any]]) -> dict[tuple, dict[str, Any]]:
    return {
        _joined(entry): entry
        for entry in entries
        if str(entry.get("profiling_name")).endswith(f":{ENDS_A_GROUP}")
    }


def _is_done(entry: dict[str, Any]) -> bool:
    """Gloo's recorder never notes that a call has begun or ended, only that it is over."""
    if entry["state"] == "completed":
        return True
    is_gloo = str(entry["profiling_name"]).startswith("gloo:")
    return is_gloo and bool(entry.get("retired"))


def _shapes_of(entry: dict[str, Any], kind: str, word: str) -> tuple:
    """The shapes that members of a group must agree on; none where they need not."""
    if kind in OWN_SIZES or "_v" in word:
        return ()
    sizes = entry["output_sizes" if kind in RECEIVES else "input_sizes"]
    shapes = tuple(tuple(map(int, shape)) for shape in sizes)
    if any(size < 0 for shape in shapes for size in shape):
        raise ValueError("a negative size")
    if sum(map(prod, shapes)) > MOST_ELEMENTS:
        raise ValueError("more elements than any memory holds")
    return shapes


def _dtype_of(entry: dict[str, Any], kind: str) -> tuple[str, int]:
    names = entry.get("output_dtypes" if kind in RECEIVES else "input_dtypes") or ""
    name = str(names if isinstance(names, str) else names[0])
    return _known_dtype(name)


@functools.lru_cache(maxsize=256)
def _known_dtype(theirs: str) -> tuple[str, int]:
    """A dtype's name, and the bytes of an element: 1 where nobody knows it."""
    name = NAMES.get(theirs, theirs.lower())
    dtype = getattr(torch, name, None)
    return name, dtype.itemsize if isinstance(dtype, torch.dtype) else 1


def _last_called(dump: DumpFile, groups: dict[str, Group], entries: list) -> dict[Group, int]:
    """The last collective of each group that a rank called, where its ring holds none of them."""
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
    """Put the roots and reduce ops that NCCL has logged into the calls, where both agree on these.

    **Cost** O(number of calls).
    """
    for op in recorded.trace:
        if op.number is not None and op.kind != "barrier":
            call = log.call(op.rank, op.group.ranks, op.number + 1)
            if call is not None and call.kind == op.kind:
                op.peer, op.reduce_op = call.root, call.reduce_op


def _number(by_rank: dict[int, list[Op]], lost: dict[int, dict[Group, int]]) -> dict:
    """Number the collectives of each group by the recorders' own numbers, which all members share.

    These begin with 1. Calls that NCCL does as one have one number there, so those after them move
    on. Returns `Recorded.first`.
    """
    more: dict[Group, dict[int, int]] = defaultdict(dict)  # number -> calls beyond the first
    for ops in by_rank.values():
        for op, within in _counted(ops):
            if within > more[op.group].get(op.number, 0):
                more[op.group][op.number] = within
    begins = {group: _Begins(beyond) for group, beyond in more.items()}
    first: dict[tuple[Group, int], int] = {}
    for rank, ops in by_rank.items():
        for op, within in list(_counted(ops)):
            op.number = begins[op.group].of(op.number) + within
            if rank in lost:
                first.setdefault((op.group, rank), op.number)
        for group, last in lost.get(rank, {}).items():
            if group in begins:
                first.setdefault((group, rank), begins[group].of(last + 1))
    return first


def _counted(ops: list[Op]) -> Iterable[tuple[Op, int]]:
    """The collectives of a rank, each with how many of its number came right before it."""
    last: dict[Group, tuple[int | None, int]] = {}
    for op in ops:
        if op.number is not None:
            number, within = last.get(op.group, (None, 0))
            within = within + 1 if number == op.number else 0
            last[op.group] = op.number, within
            yield op, within


class _Begins:
    """How many calls of a group came before each of the recorders' numbers."""

    def __init__(self, beyond: dict[int, int]) -> None:
        self.numbers = sorted(beyond)
        self.more = [0, *itertools.accumulate(beyond[number] for number in self.numbers)]

    def of(self, number: int) -> int:
        """Calls before this number."""
        return number - 1 + self.more[bisect.bisect_left(self.numbers, number)]
