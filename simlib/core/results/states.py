"""How each rank spent its time: computing, waiting for others, transferring data, or idle.

A rank that is blocked in an op first waits for other ranks, and then for its own data. For messages
between two ranks the trace is enough: data move from the moment at which both have called. For a
collective, a rank needs certain other ranks, and the trace says when the last of these ranks
called. A simulation also knows each message of every collective. simlib finds these messages by
replaying the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeAlias

import numpy as np

from ..draw.lanes import span_of, states_of
from ..model.errors import InvalidCallError
from ..model.profile import Profile
from ..model.trace import Op, Piece, Trace, Work
from ..model.words import aligned, seconds_text

MAX_ROWS = 20
ROUNDING = 1e-12
"""A share of a rank's time. If a state takes a smaller share, it is only a rounding error."""
Transfers: TypeAlias = dict[tuple[int, int], list[tuple[float, float]]]
"""By rank and number of an op: the times at which its data moved, in order, without overlap."""


class Recorded(Protocol):
    """The part of a `Run` that this module reads."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def engine(self) -> str:
        """The kind of engine that made the run."""

    @property
    def ran(self) -> Sequence[int]:
        """The ranks whose ops are in the trace."""

    @property
    def trace(self) -> Trace:
        """Every op of every rank."""

    @property
    def transfers(self) -> Transfers:
        """The times at which the data of each op moved."""

    @property
    def profile(self) -> list[Profile | None] | None:
        """The work of each rank's GPU."""

    @property
    def work(self) -> list[Work | None] | None:
        """The arithmetic of each rank's device."""


def by_arrival(trace: Trace) -> Transfers:
    """The transfers of each op that needed other ranks, as far as the trace shows them.

    The data of an op move from the moment at which the last rank that the op needs has called it,
    until the op has ended. A send or recv needs the rank at the other end. A broadcast or scatter
    needs the root. The root of a gather or reduce needs all ranks, and its other ranks need no
    rank. Every other collective needs all ranks. The result leaves out an op if a rank that the op
    needs never called it.

    **Cost** O(number of ops).
    """
    found: Transfers = {}
    last_s = trace.end_s
    for message in trace.messages:
        if message.recv is not None:
            start_s = max(message.send.post_s, message.recv.post_s)
            for op in (message.send, message.recv):
                found[op.rank, op.seq] = _until_the_end(start_s, op, last_s)
    for collective in trace.collectives:
        posts_s = {rank: op.post_s for rank, op in collective.ops.items()}
        everybody_s = max(posts_s.values()) if len(posts_s) == len(collective.group) else inf
        for op in collective.ops.values():
            if op.kind in ("broadcast", "scatter"):
                start_s = max(posts_s.get(op.peer, inf), op.post_s)
            elif op.kind in ("gather", "reduce") and op.rank != op.peer:
                start_s = op.post_s
            else:
                start_s = everybody_s
            if start_s < inf:
                found[op.rank, op.seq] = _until_the_end(start_s, op, last_s)
    return found


def has_collectives(trace: Trace) -> bool:
    """Whether the trace has collectives. For messages alone, the trace is exact."""
    return any(not op.is_p2p for op in trace)


def _until_the_end(start_s: float, op: Op, last_s: float) -> list[tuple[float, float]]:
    end_s = last_s if op.end_s is None else op.end_s
    return [(start_s, end_s)] if start_s < end_s else []


@dataclass(frozen=True, eq=False, repr=False)
class States:
    """Seconds that each rank spent in each state, while it was in its function.

    The seconds are NaN for ranks that did not run: see ``simulate(alike=...)``.

    Attributes
    ----------
    computing_s : ndarray of float, shape (world_size,)
        Seconds that the rank spent in none of the other states.
    waiting_s : ndarray of float, shape (world_size,)
        Seconds in which a call blocked the rank, because other ranks had not made their calls yet.
    transferring_s : ndarray of float, shape (world_size,)
        Seconds in which a call blocked the rank, while the call's data moved or were added up.
    bubble_s : ndarray of float, shape (world_size,), or None
        Seconds that the rank spent outside of all pieces, between the start of the first piece and
        the end of the last piece: see `Bubble`. These seconds are also in one of the other three
        arrays. None if the program named no pieces.
    on_device : Device or None
        How each rank's GPU spent its time, for a run with a profile.
    """

    computing_s: np.ndarray
    waiting_s: np.ndarray
    transferring_s: np.ndarray
    bubble_s: np.ndarray | None = None
    on_device: Device | None = None

    def table(self) -> str:
        """A text with a row for each rank, at most 20, and a row for their mean."""
        parts = [self.computing_s, self.waiting_s, self.transferring_s]
        names = ["computed", "waited", "transferred"]
        if self.bubble_s is not None:
            parts, names = [*parts, self.bubble_s], [*names, "of that bubble"]
        if self.on_device is not None:
            more = self.on_device.columns
            parts, names = [*parts, *more.values()], [*names, *more]
        columns = np.column_stack(parts)
        rows = [("rank", *names)]
        rows += [(str(rank), *_cells(columns[rank])) for rank in range(len(columns))][:MAX_ROWS]
        rows.append(("mean", *_cells([column[~np.isnan(column)].mean() for column in parts])))
        left_out = len(columns) - MAX_ROWS
        note = [f"... and {left_out:,} more ranks, counted in the mean"] if left_out > 0 else []
        return "\n".join([*aligned(rows), *note])

    def __repr__(self) -> str:
        return self.table()


def _cells(seconds: Iterable[float]) -> tuple[str, ...]:
    return tuple("-" if np.isnan(one) else seconds_text(one) for one in seconds)


@dataclass(frozen=True, eq=False)
class Device:
    """How the GPU of each rank spent its time: see `Profile`. NaN if a rank has no profile.

    Attributes
    ----------
    on : {"gpu", "cpu"}
        ``"cpu"`` means that no rank used a GPU. Then ``computing_s`` is the time of operators.
    computing_s, communicating_s, exposed_s, idle_s : ndarray of float, shape (world_size,)
    """

    on: str
    computing_s: np.ndarray
    communicating_s: np.ndarray
    exposed_s: np.ndarray
    idle_s: np.ndarray

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns that a table shows, by their headings."""
        if self.on == "cpu":
            return {"in operators": self.computing_s}
        return {
            "kernels": self.computing_s,
            "communication": self.communicating_s,
            "exposed": self.exposed_s,
            "GPU idle": self.idle_s,
        }


def device_of(profiles: Sequence[Profile | None] | None) -> Device | None:
    """The `Device` of these profiles; None if no rank has a profile."""
    told = {rank: one for rank, one in enumerate(profiles or ()) if one and not one.why_none}
    if not told:
        return None
    on = "gpu" if any(one.on == "gpu" for one in told.values()) else "cpu"
    sums = np.full((4, len(profiles or ())), np.nan)
    for rank, one in told.items():
        if one.on == on:
            sums[:, rank] = one.computing_s, one.communicating_s, one.exposed_s, one.idle_s
    return Device(on, *sums)


def states_in(run: Recorded) -> States:
    """The `States` of a run.

    **Cost** O(n log n) for n ops.
    """
    totals = np.zeros((3, run.world_size))
    ops: list[list[Op]] = [[] for _ in range(run.world_size)]
    for op in run.trace:
        ops[op.rank].append(op)
    for rank, own in enumerate(ops):
        span = span_of(run.trace, rank)
        if span is None:
            continue
        states = states_of(run, rank, own, span[1])
        waiting_s, transferring_s = (
            sum(end_s - start_s for start_s, end_s in states[name])
            for name in ("waiting", "transferring")
        )
        rest_s = span[1] - span[0] - waiting_s - transferring_s
        told = np.array([rest_s, waiting_s, transferring_s])
        totals[:, rank] = np.where(told > ROUNDING * (span[1] - span[0]), told, 0.0)
    totals[:, [rank for rank in range(run.world_size) if rank not in run.ran]] = np.nan
    is_whole = not run.trace.last_seen_s  # else its pieces are all that its profiler named
    bubble_s = bubble_in(run).idle_s if run.trace.pieces and is_whole else None
    return States(totals[0], totals[1], totals[2], bubble_s, device_of(run.profile))


def chosen_pieces(
    run: Recorded, name: str | None, numbers: Mapping[str, int]
) -> list[list[Piece]] | None:
    """By rank, the pieces of this name with at least these numbers; None without name and numbers.

    Raises
    ------
    InvalidCallError
        The run has no such piece.
    """
    if name is None and not numbers:
        return None
    found: list[list[Piece]] = [[] for _ in range(run.world_size)]
    for piece in run.trace.pieces:
        if piece.name == name and numbers.items() <= piece.numbers.items():
            found[piece.rank].append(piece)
    if not any(found):
        asked = "".join(f", {word}={number}" for word, number in numbers.items())
        names = sorted({piece.name for piece in run.trace.pieces})
        raise InvalidCallError(
            f"this run has no span {name!r}{asked}. Its spans: "
            f"{', '.join(map(repr, names)) or 'none'}. Name a span by `with simlib.span(...):`"
        )
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Bubble:
    """Busy and idle time, from the start of the first piece to the end of the last piece.

    Attributes
    ----------
    time_s : float
        Seconds from the start of the first piece on any rank to the end of the last piece on any
        rank.
    busy_s : ndarray of float, shape (world_size,)
        Seconds in which each rank computed one of its pieces: the rank was in the piece, and no
        call blocked it. For an asynchronous device, these are the seconds in which the device
        computed for a piece.
    """

    time_s: float
    busy_s: np.ndarray

    @property
    def idle_s(self) -> np.ndarray:
        """Seconds of ``time_s`` in which each rank computed no piece: shape (world_size,)."""
        return self.time_s - self.busy_s

    @property
    def by_rank(self) -> np.ndarray:
        """The share of ``time_s`` in which each rank was idle: shape (world_size,)."""
        return self.idle_s / self.time_s if self.time_s else np.zeros_like(self.busy_s)

    @property
    def share(self) -> float:
        """The share of ``time_s`` in which ranks were idle: the mean over all ranks."""
        return float(self.by_rank.mean())

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("rank", "busy", "idle", "share")]
        columns = list(zip(self.busy_s, self.idle_s, self.by_rank, strict=True))
        rows += [_shares_row(str(rank), *columns[rank]) for rank in range(len(columns))][:MAX_ROWS]
        rows.append(_shares_row("mean", self.busy_s.mean(), self.idle_s.mean(), self.share))
        left_out = len(columns) - MAX_ROWS
        more = [f"... and {left_out:,} more ranks, counted in the mean"] if left_out > 0 else []
        return "\n".join([*aligned(rows), *more])


def _shares_row(name: str, busy_s: float, idle_s: float, share: float) -> tuple[str, ...]:
    return name, seconds_text(busy_s), seconds_text(idle_s), f"{share:.1%}"


def bubble_in(run: Recorded) -> Bubble:
    """The `Bubble` of a run.

    Raises
    ------
    InvalidCallError
        The run has no pieces.

    **Cost** O(n log n) for n ops and pieces.
    """
    trace = run.trace
    if not trace.pieces:
        raise InvalidCallError(
            "run.bubble() needs named pieces, but the program named no piece: put "
            '`with simlib.span("F", micro=3):` around each piece of computing'
        )
    pieces: list[list[tuple[float, float]]] = [[] for _ in range(run.world_size)]
    ops: list[list[Op]] = [[] for _ in range(run.world_size)]
    for piece in trace.pieces:
        span = span_of(trace, piece.rank)
        assert span is not None, "a rank that has named a piece has entered the function"
        pieces[piece.rank].append(piece.span(span[1]))
    for op in trace:
        ops[op.rank].append(op)
    first_s = min(start_s for own in pieces for start_s, _ in own)
    last_s = max(end_s for own in pieces for _, end_s in own)
    busy_s = np.zeros(run.world_size)
    for rank, own in enumerate(pieces):
        if own:
            profile = run.profile[rank] if run.profile else None
            if profile is not None and run.engine == "simulated":
                blocked = profile.exposed
            else:
                states = states_of(run, rank, ops[rank], last_s)
                blocked = states["waiting"] + states["transferring"]
            together = _covered(own + blocked)
            busy_s[rank] = together - _covered(blocked)
    return Bubble(last_s - first_s, busy_s)


def _covered(parts: Iterable[tuple[float, float]]) -> float:
    """Seconds that are within at least one part. Parts are ``(start_s, end_s)`` and may overlap."""
    covered_s, until_s = 0.0, -np.inf
    for start_s, end_s in sorted(parts):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
