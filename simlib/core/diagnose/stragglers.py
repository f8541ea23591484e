"""Which ranks came late to the collectives of their groups, and how long others waited for them.

Ranks that wait for each other all take equally long for a step. So the durations do not show which
rank is late. The moments at which ranks arrive show the late rank.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ..model.profile import Part, total, union
from ..model.trace import Trace
from ..model.words import aligned, ranks_in_words, seconds_text

MAX_ROWS = 20
NOTABLE = 0.05
"""If a rank is late for a smaller share of the time, the result does not name it."""


@dataclass(frozen=True, eq=False, repr=False)
class Stragglers:
    """How late each rank came to collectives. NaN if a rank shared no collective with others.

    A rank is late from the moment at which half of its group have arrived at a collective until the
    rank itself arrives. A rank arrives when it makes the call. If a profiler recorded the kernels
    of a GPU, the rank arrives when its kernel begins. Delays that are not longer than the error of
    the clocks do not count.

    Attributes
    ----------
    late_s : ndarray of float, shape (world_size,)
        For how many seconds each rank was late, in all collectives together.
    longest_s : ndarray of float, shape (world_size,)
        The longest delay of each rank at one collective, in seconds.
    time_s : float
        Seconds from the first arrival to the last.
    """

    late_s: np.ndarray
    longest_s: np.ndarray
    time_s: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """The late ranks, the latest first. A rank is listed if it was late for at least 5 % of the
        time, and for at least half as long as the latest rank."""
        known_s = np.nan_to_num(self.late_s)
        least_s = max(NOTABLE * self.time_s, known_s.max(initial=0.0) / 2)
        return tuple(rank for rank in self._latest() if known_s[rank] >= least_s > 0)

    def in_words(self) -> str:
        """A sentence that names the late ranks."""
        if np.isnan(self.late_s).all():
            return "the trace contains no collective that several ranks completed"
        if not self.ranks:
            return f"no rank was late to collectives for {NOTABLE:.0%} of the time or more"
        up_to, whom = ("", "it") if len(self.ranks) == 1 else ("up to ", "them")
        return (
            f"{ranks_in_words(sorted(self.ranks))} came late to collectives. At least half of the "
            f"ranks waited for {whom} for {up_to}{seconds_text(self.late_s[self.ranks[0]])} of "
            f"{seconds_text(self.time_s)}. The longest of these waits took "
            f"{seconds_text(self.longest_s[list(self.ranks)].max())}"
        )

    def table(self) -> str:
        """The sentence, and a table with a row for each late rank, at most 20 rows."""
        rows: list[tuple[str, ...]] = [("rank", "late", "of the time", "longest")]
        known = [rank for rank in self._latest() if not np.isnan(self.late_s[rank])]
        for rank in known[:MAX_ROWS]:
            late_s = self.late_s[rank]
            share = late_s / self.time_s if self.time_s else 0.0
            seconds = seconds_text(late_s), f"{share:.1%}", seconds_text(self.longest_s[rank])
            rows.append((str(rank), *seconds))
        more = len(known) - MAX_ROWS
        note = [f"... and {more:,} more ranks"] if more > 0 else []
        return "\n".join([self.in_words(), *aligned(rows), *note])

    def __repr__(self) -> str:
        return self.table()

    def _latest(self) -> list[int]:
        return np.argsort(-np.nan_to_num(self.late_s), kind="stable").tolist()


def stragglers_of(trace: Trace) -> Stragglers:
    """The `Stragglers` of a trace, from collectives that completed on all ranks with a record.

    **Cost** O(n log n) for n ops.
    """
    by_kernel = any(op.began_s is not None for op in trace)
    late: defaultdict[int, list[Part]] = defaultdict(list)
    missing = set(trace.missing)
    moments: list[float] = []
    for one in trace.collectives:
        came = [
            (op.began_s if by_kernel else op.post_s, rank)
            for rank, op in one.ops.items()
            if op.done and not (by_kernel and op.began_s is None)
        ]
        members = len(one.group) - (len(missing.intersection(one.group.ranks)) if missing else 0)
        if 1 < len(came) == members:
            came.sort()
            half_s = came[(len(came) - 1) // 2][0]
            moments += came[0][0], came[-1][0]
            for moment_s, rank in came:
                own = late[rank]  # a rank that was never late has 0 s, and not NaN
                if moment_s - half_s > trace.clock_error_s:
                    own.append((half_s, moment_s))
    late_s, longest_s = np.full((2, trace.world_size), np.nan)
    for rank, parts in late.items():
        late_s[rank] = total(union(parts))
        longest_s[rank] = max((end_s - start_s for start_s, end_s in parts), default=0.0)
    return Stragglers(late_s, longest_s, max(moments, default=0.0) - min(moments, default=0.0))
