"""How much of its time a pipeline stands still: the part in which a rank computes no piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..draw.lanes import span_of, states_of
from ..model.errors import InvalidCallError
from ..model.words import aligned, seconds_text

if TYPE_CHECKING:
    from .run import Run

MAX_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class Bubble:
    """What ranks did between the start of the first piece and the end of the last, of any rank.

    Attributes
    ----------
    time_s : float
        How long that was.
    busy_s : ndarray of float, shape (world_size,)
        Seconds that each rank computed one of its pieces: was in it, and blocked in no call.
    """

    time_s: float
    busy_s: np.ndarray

    @property
    def idle_s(self) -> np.ndarray:
        """Seconds of that time in which each rank computed no piece: shape (world_size,)."""
        return self.time_s - self.busy_s

    @property
    def by_rank(self) -> np.ndarray:
        """The share of the time that each rank was idle: shape (world_size,)."""
        return self.idle_s / self.time_s if self.time_s else np.zeros_like(self.busy_s)

    @property
    def share(self) -> float:
        """The share of the time of all ranks that they were idle."""
        return float(self.by_rank.mean())

    def __repr__(self) -> str:
        rows = [("rank", "busy", "idle", "share")]
        columns = list(zip(self.busy_s, self.idle_s, self.by_rank, strict=True))
        rows += [_row(str(rank), *columns[rank]) for rank in range(len(columns))][:MAX_ROWS]
        rows.append(_row("mean", self.busy_s.mean(), self.idle_s.mean(), self.share))
        left_out = len(columns) - MAX_ROWS
        more = [f"... and {left_out:,} more ranks, counted in the mean"] if left_out > 0 else []
        return "\n".join([*aligned(rows), *more])


def _row(name, busy_s, idle_s, share):
    return name, seconds_text(busy_s), seconds_text(idle_s), f"{share:.1%}"


def bubble_in(run: Run) -> Bubble:
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
            "run.bubble() counts pieces that the program has named, and this run has none: put "
            '`with simlib.span("F", micro=3):` around each piece of computing'
        )
    pieces, ops = ([[] for _ in range(run.world_size)] for _ in range(2))
    for piece in trace.pieces:
        end_s = piece.ends_by(span_of(trace, piece.rank)[1])
        pieces[piece.rank].append((piece.start_s, end_s))
    for op in trace:
        ops[op.rank].append(op)
    first_s = min(start_s for own in pieces for start_s, _ in own)
    last_s = max(end_s for own in pieces for _, end_s in own)
    busy_s = np.zeros(run.world_size)
    for rank, own in enumerate(pieces):
        if own:
            states = states_of(run, rank, ops[rank], last_s)
            blocked = states["waiting"] + states["transferring"]
            together = _covered(own + blocked)
            busy_s[rank] = together - _covered(blocked)
    return Bubble(last_s - first_s, busy_s)


def _covered(parts):
    """Seconds that lie in any of the parts, ``(start_s, end_s)``, which may overlap."""
    covered_s, until_s = 0.0, -np.inf
    for start_s, end_s in sorted(parts):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
