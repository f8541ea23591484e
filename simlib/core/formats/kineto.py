"""Join the traces that torch's profiler wrote: one file for each rank of a job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from ..diagnose.matching import disagreement
from ..model.profile import Profile
from ..model.trace import Group, Op, Piece, Trace, Work
from ..model.words import ranks_in_words
from ..record.kineto import CALLS, COLLECTIVE, ODD, KinetoTrace, trace_of
from ..record.oplog_reader import name_groups
from .clocks import check_offsets, check_one_clock, clock_offsets
from .kineto_calls import calls_of, group_of

MOST_RANKS = 100_000
IN_A_NAME = re.compile(r"rank[-_ ]?(\d{1,6})(?!\d)", re.IGNORECASE)
STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
MOST_APART_S = 3600.0
"""Traces whose times are further apart belong to two jobs, even if the hosts' clocks differ."""


@dataclass
class RankTrace:
    """The contents of the file of one rank, with times in seconds since its first event."""

    file: str
    rank: int
    world_size: int | None
    began_ns: int
    span: tuple[float, float]
    profile: Profile
    host: str
    groups: dict[str, Group] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass
class Traces:
    """The traces of a job.

    Attributes
    ----------
    trace : Trace
        All times are on one clock, as exactly as simlib knows the clocks.
    profiles : list of Profile or None
        The profile of each rank.
    notes : list of str
        Sentences that say what is missing in the files.
    """

    trace: Trace
    profiles: list[Profile | None]
    notes: list[str]


def read_rank(path: Path, content: Any, is_alone: bool) -> RankTrace:
    """Read the JSON of one rank's file.

    Parameters
    ----------
    path : Path
        The name of the file may contain the rank.
    content : object
    is_alone : bool
        Whether it is the only file. If the only file names no rank and has no calls, it belongs to
        the only rank.

    Raises
    ------
    ValueError
        The file is not a trace, does not name its rank, or contains data that torch does not write.
    """
    found = trace_of(content) if isinstance(content, dict) else None
    if found is None:
        raise ValueError(
            f"{path.name} is neither a run that run.save() wrote nor a trace that torch's "
            'profiler wrote: leave it out, for example with simlib.load("traces/rank*.json.gz")'
        )
    rank, size, world = _place_of(path, found, is_alone)
    try:
        groups = _groups_of(found, rank, world)
    except ODD:
        raise ValueError(
            f"{path.name} names ranks outside its world of {len(world)} ranks: the file mixes "
            "several jobs"
        ) from None
    is_counted = size is not None or any(one["name"] == COLLECTIVE for one in found.calls)
    if found.calls and not is_counted:
        raise ValueError(f"{path.name} does not say how many ranks its job had: profile again")
    try:
        calls = calls_of(found, rank, world, groups)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    busy = [part for parts in found.busy.values() for part in parts]
    busy += [part for parts in found.marks.values() for part in parts]
    busy += [(span.start_s, span.end_s) for span in found.device_spans]
    span = (
        min((part[0] for part in busy), default=0.0),
        max((part[1] for part in busy), default=0.0),
    )
    profile = _profile_of(found, span)
    told = RankTrace(path.name, rank, size, found.began_ns, span, profile, found.host, groups)
    told.ops, told.notes = calls.ops, calls.notes
    told.pieces = list(_pieces_of(found, rank))
    return told


def _place_of(path: Path, found: KinetoTrace, is_alone: bool) -> tuple[int, int | None, Group]:
    """The rank, the world size if the file contains it, and the world as far as simlib knows it."""
    rank, size = found.world.get("rank"), found.world.get("world_size")
    in_name = IN_A_NAME.search(path.name)
    if rank is None and in_name:
        rank = int(in_name[1])
    if rank is None and is_alone and not found.calls:
        rank = 0
    if rank is None:
        raise ValueError(
            f"{path.name} does not say which rank wrote it: put the rank into its name, as in "
            "rank3.json"
        )
    limit = MOST_RANKS if size is None else size
    if not isinstance(limit, int) or not 1 <= limit <= MOST_RANKS:
        raise ValueError(f"{path.name} is damaged: it names a world of {str(size)[:20]} ranks")
    if not isinstance(rank, int) or not 0 <= rank < limit:
        raise ValueError(
            f"{path.name} is damaged: it names rank {str(rank)[:20]} in a world of {limit} ranks"
        )
    return rank, size, Group("", tuple(range(limit)))


def _groups_of(found: KinetoTrace, rank: int, world: Group) -> dict[str, Group]:
    """The groups that the file lists, by torch's names, with the world if the file lists it."""
    told = found.world.get("pg_config") or []
    return {
        str(one["pg_name"]): group_of(
            str(one["pg_name"]), one["ranks"], one.get("pg_desc", ""), world
        )
        for one in told
        if one.get("ranks")
    }


def _profile_of(found: KinetoTrace, span: tuple[float, float]) -> Profile:
    """The profile of the rank's GPU, or, without a GPU, of the thread that took the steps."""
    if found.device_spans:
        return Profile.of("gpu", found.device_spans, *span)
    by_thread: dict[int, float] = {}
    for one in found.operators:
        by_thread[one.stream] = by_thread.get(one.stream, 0.0) + one.end_s - one.start_s
    steps = [thread for name, thread in found.mark_threads.items() if STEP.match(name)]
    main = steps[0] if steps else max(by_thread, key=by_thread.__getitem__, default=None)
    return Profile.of("cpu", [one for one in found.operators if one.stream == main], *span)


def _pieces_of(found: KinetoTrace, rank: int) -> Iterable[Piece]:
    for name, times in found.marks.items():
        if name.startswith(CALLS):
            continue
        step = STEP.match(name)
        word, numbers = ("step", {"number": int(step[1])}) if step else (name, {})
        for part, worked in zip(times, found.mark_works[name], strict=True):
            work = Work(0, 0, None, None, *worked) if worked else None
            yield Piece(rank, word, numbers, *part, work)


def join(ranks: Sequence[RankTrace]) -> Traces:
    """The traces of several ranks as one.

    Raises
    ------
    ValueError
        The traces do not belong to one job.

    **Cost** O(n log n) for n ops and pieces.
    """
    ranks = sorted(ranks, key=lambda one: one.rank)
    size = _check_one_job(ranks)
    _check_numbers([op for one in ranks for op in one.ops])
    origin_ns = min(one.began_ns for one in ranks)
    own_s = {one.rank: (one.began_ns - origin_ns) / 1e9 for one in ranks}
    own, hosts = _moved(ranks, own_s, size), _hosts_of(ranks)
    files = {one.rank: one.file for one in ranks}
    check_one_clock(own, hosts, files)
    offsets_s, error_s = clock_offsets(own, hosts)
    check_offsets(offsets_s, max(one.span[1] - one.span[0] for one in ranks), files)
    back_s = {one.rank: -offsets_s.get(one.rank, 0.0) for one in ranks}
    first_s = min(one.span[0] + back_s[one.rank] for one in ranks)
    back_s = {rank: by_s - first_s for rank, by_s in back_s.items()}
    trace = _moved(ranks, back_s, size)
    trace.clock_offsets_s, trace.clock_error_s = offsets_s, error_s
    name_groups(trace.ops)
    _tell_dtypes(trace)
    _check_alike(trace, files)
    profiles: list[Profile | None] = [None] * size
    for one in ranks:
        profiles[one.rank] = one.profile.since(-own_s[one.rank] - back_s[one.rank])
    return Traces(trace, profiles, _folded(ranks, trace.missing))


def _hosts_of(ranks: Sequence[RankTrace]) -> dict[int, int]:
    """For each rank, the lowest rank that is known to be on the same host."""
    first: dict[str, int] = {}
    return {
        one.rank: first.setdefault(one.host, one.rank) if one.host else one.rank for one in ranks
    }


def _check_one_job(ranks: Sequence[RankTrace]) -> int:
    """The size of the world; raises ValueError if the files contradict each other."""
    files: dict[int, RankTrace] = {}
    for one in ranks:
        other = files.setdefault(one.rank, one)
        if other is not one:
            raise ValueError(
                f"{other.file} and {one.file} are both from rank {one.rank}: give the files of one "
                "job, one for each rank"
            )
    sizes = {one.world_size: one.file for one in ranks if one.world_size is not None}
    if len(sizes) > 1:
        told = " and ".join(f"{file} of {size} ranks" for size, file in list(sizes.items())[:2])
        raise ValueError(f"{told} are not from one job: give the files of one job")
    for one in ranks:
        for name, group in one.groups.items():
            for rank in group.ranks:
                other = files.get(rank, one)
                its = other.groups.get(name, group)
                if its.ranks != group.ranks and one.rank in its.ranks:
                    raise ValueError(
                        f"{one.file} and {other.file} list different ranks for the group {name!r}: "
                        "give the files of one job"
                    )
    began_ns = {one.began_ns: one.file for one in ranks}
    if max(began_ns) - min(began_ns) > MOST_APART_S * 1e9:
        first, last = began_ns[min(began_ns)], began_ns[max(began_ns)]
        raise ValueError(
            f"{first} was written more than an hour before {last}: give the files of one job"
        )
    known = {rank for one in ranks for group in one.groups.values() for rank in group.ranks}
    return next(iter(sizes), max(known | files.keys()) + 1)


def _check_numbers(ops: Iterable[Op]) -> None:
    """Remove the numbers of collectives within their group, if several have the same number."""
    ops = [op for op in ops if not op.is_p2p]
    seen: set[tuple] = set()
    odd: set[tuple] = set()
    for op in ops:
        group = op.group.name, op.group.ranks
        if op.number is None or (group, op.rank, op.number) in seen:
            odd.add(group)
        seen.add((group, op.rank, op.number))
    for op in ops:
        if (op.group.name, op.group.ranks) in odd:
            op.number = None


def _tell_dtypes(trace: Trace) -> None:
    """Give all ops of a scatter the root's dtype, because Gloo does not write it for receivers."""
    for one in trace.collectives:
        for op in one.ops.values():
            root = one.ops.get(op.peer, op)
            if op.kind == "scatter" and not op.dtype and root.shapes:
                each = sum(map(prod, root.shapes))
                op.dtype = root.dtype
                op.nbytes = root.nbytes // each * sum(map(prod, op.shapes)) if each else 0


def _check_alike(trace: Trace, files: Mapping[int, str]) -> None:
    """Raise ValueError if ranks made different calls in one collective, which is impossible."""
    for number, one in enumerate(trace.collectives):
        first, *others = one.ops.values()
        for other in others:
            if disagreement(first, other) is not None:
                raise ValueError(
                    f"{files[first.rank]} and {files[other.rank]} do not fit together. Collective "
                    f"{number} is {_call(first)} in the first and {_call(other)} in the second. "
                    "The files are from two jobs, or they do not begin at the same step"
                )


def _call(op: Op) -> str:
    return f"{op.kind} of {op.nbytes:,} bytes on {op.group.name}"


def _folded(ranks: Sequence[RankTrace], missing: Sequence[int]) -> list[str]:
    """The notes on data that are missing in the files, without repetitions."""
    files: dict[str, list[str]] = {}
    for one in ranks:
        for note, number in one.notes.items():
            files.setdefault(note.replace("{}", str(number)), []).append(one.file)
    found = [
        f"{names[0]} {note}" + f"; this file is one of {len(names)} such files" * (len(names) > 1)
        for note, names in files.items()
    ]
    if missing:
        found.append(f"there is no trace of {ranks_in_words(missing)}")
    return found


def _moved(ranks: Sequence[RankTrace], shifts_s: Mapping[int, float], size: int) -> Trace:
    """A trace of all ranks, each shifted in time; the `RankTrace` objects are shifted, too."""
    spans: list[tuple[float | None, float | None]] = [(None, None)] * size
    for one in ranks:
        by_s = shifts_s[one.rank]
        for op in one.ops:
            op.post_s += by_s
            op.wait_s = None if op.wait_s is None else op.wait_s + by_s
            op.end_s = None if op.end_s is None else op.end_s + by_s
            op.began_s = None if op.began_s is None else op.began_s + by_s
        one.pieces = [_piece_moved(piece, by_s) for piece in one.pieces]
        one.span = one.span[0] + by_s, one.span[1] + by_s
        spans[one.rank] = one.span
    ops = sorted((op for one in ranks for op in one.ops), key=lambda op: (op.post_s, op.rank))
    pieces = sorted(
        (piece for one in ranks for piece in one.pieces), key=lambda one: (one.start_s, one.rank)
    )
    trace = Trace(size, ops, spans, pieces=pieces)
    trace.missing = tuple(rank for rank, span in enumerate(spans) if span[0] is None)
    trace.last_seen_s = {one.rank: one.span[1] for one in ranks}
    return trace


def _piece_moved(piece: Piece, by_s: float) -> Piece:
    work, end_s = piece.work, piece.end_s
    if work is not None and work.start_s is not None and work.end_s is not None:
        work = replace(work, start_s=work.start_s + by_s, end_s=work.end_s + by_s)
    end_s = None if end_s is None else end_s + by_s
    return replace(piece, start_s=piece.start_s + by_s, end_s=end_s, work=work)
