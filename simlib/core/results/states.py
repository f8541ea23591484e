"""How much of its time each rank computed, waited for others, and transferred data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..draw.lanes import span_of, states_of
from ..model.words import aligned, seconds_text
from .bubble import bubble_in

if TYPE_CHECKING:
    from .run import Run

MAX_ROWS = 20
ROUNDING = 1e-12
"""Share of a rank's time below which a state is nothing but rounding of the clock."""


@dataclass(frozen=True, eq=False, repr=False)
class States:
    """Seconds that each rank spent in each state, while it was in its function.

    Attributes
    ----------
    computing_s : ndarray of float, shape (world_size,)
        In none of the other states.
    waiting_s : ndarray of float, shape (world_size,)
        Blocked in a call, because others had not come yet.
    transferring_s : ndarray of float, shape (world_size,)
        Blocked in a call, while its data moved or were added up.
    bubble_s : ndarray of float, shape (world_size,), or None
        Of all three, the time of the `Bubble`: between the first piece's start and the last one's
        end, and in no piece. None where the program has named no pieces.
    """

    computing_s: np.ndarray
    waiting_s: np.ndarray
    transferring_s: np.ndarray
    bubble_s: np.ndarray | None = None

    def table(self) -> str:
        """A row for each rank, at most 20, and their mean."""
        parts = [self.computing_s, self.waiting_s, self.transferring_s]
        names = ["computed", "waited", "transferred"]
        if self.bubble_s is not None:
            parts, names = [*parts, self.bubble_s], [*names, "of that bubble"]
        columns = np.column_stack(parts)
        rows = [("rank", *names)]
        rows += [(str(rank), *_cells(columns[rank])) for rank in range(len(columns))][:MAX_ROWS]
        rows.append(("mean", *_cells(columns.mean(axis=0))))
        left_out = len(columns) - MAX_ROWS
        more = [f"... and {left_out:,} more ranks, counted in the mean"] if left_out > 0 else []
        return "\n".join([*aligned(rows), *more])

    def __repr__(self) -> str:
        return self.table()


def _cells(seconds):
    return tuple(map(seconds_text, seconds))


def states_in(run: Run) -> States:
    """The `States` of a run.

    **Cost** O(n log n) for n ops.
    """
    totals = np.zeros((3, run.world_size))
    ops = [[] for _ in range(run.world_size)]
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
    return States(*totals, bubble_in(run).idle_s if run.trace.pieces else None)
