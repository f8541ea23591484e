"""The states of a rank over time, from its ops, for pictures, player and Chrome trace.

A rank is inside its function during its span. An op has two phases. The op is *in flight* from the
call until the rank begins to wait for it. From that moment to the op's end, the rank is *blocked*.
While an asynchronous op is in flight, its rank continues to compute. A blocked rank is first
*waiting* for other ranks. It is *transferring* while the data of the op move.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..model.errors import InvalidCallError
from ..model.trace import Op, Trace

Span = tuple[float, float]
"""The first and the last second of a period."""
Ranks = Iterable[int] | None
"""The ranks to show, from top to bottom; None for all."""
Between = Span | None
"""The first and the last second to show; None for the whole run."""
WAITS_UNTIL = 1.15
"""In a picture of a part of a run, an endless wait ends at this share of the record."""
STATES = ("computing", "in a call", "async op in flight", "waiting", "transferring")
"""The states of a rank, in the order in which they are drawn."""


def span_of(trace: Trace, rank: int) -> tuple[float, float, bool] | None:
    """When the rank was in its function, as ``(start_s, end_s, returned)``.

    A rank that never returned counts as inside until it died, or until the last known moment. The
    result is None if the rank never began. In a part of a longer run, the end is the moment at
    which the rank was last seen.
    """
    start, end = trace.spans[rank] if rank < len(trace.spans) else (None, None)
    if start is None:
        return None
    if rank in trace.last_seen_s:
        return start, trace.last_seen_s[rank], True
    if rank in trace.deaths:
        return start, max(start, trace.deaths[rank]), False
    return (start, end, True) if end is not None else (start, max(start, trace.end_s), False)


def blocked(op: Op, until_s: float) -> Span | None:
    """When the rank waited for the op: ``(start_s, end_s)`` or None. Open waits end at
    ``until_s``."""
    start = op.wait_s
    if start is None:
        if op.async_op or op.done:
            return None
        start = op.post_s
    end = max(op.ends_by(until_s), start)
    return (start, end) if end > start or not op.done else None


def in_flight(op: Op, until_s: float) -> Span | None:
    """When the op ran and the rank did not wait for it: ``(start_s, end_s)`` or None."""
    ends = [t for t in (op.wait_s, op.end_s, op.failed_s) if t is not None]
    if not ends and not op.async_op:
        return None
    end = min(ends) if ends else max(until_s, op.post_s)
    return (op.post_s, end) if end > op.post_s else None


def chosen(
    run: Any, ranks: Ranks = None, between: Between = None
) -> tuple[list[int], float, float]:
    """The part of a run to show: ``(ranks, begin_s, end_s)``. The default is the whole run.

    An infinite moment means the run's first or last moment.

    Raises
    ------
    InvalidCallError
        The run does not have one of the ranks, or there is no time between the two moments.
    """
    return _chosen_ranks(run, ranks), *_chosen_time(run, between)


def last_moment(run: Any) -> float:
    """The last moment of a run. It may be on a GPU, after the GPU's rank has returned."""
    spans = (profile.spans for profile in run.profile or () if profile)
    last_s = max(run.trace.end_s, *(span.end_s for own in spans for span in own), 0.0) or 1e-6
    return last_s * WAITS_UNTIL if run.trace.last_seen_s and any(map(_waits, run.trace)) else last_s


def drawn_until(trace: Trace, rank: int, ops: Iterable[Op], end_s: float) -> float:
    """When a rank's lane ends. In a part of a run, the lane of a waiting rank reaches the end."""
    span = span_of(trace, rank)
    goes_on = rank in trace.last_seen_s and any(map(_waits, ops))
    return end_s if span is None or goes_on else span[1]


def _waits(op: Op) -> bool:
    return not op.done and not op.async_op


def _chosen_ranks(run, ranks):
    if ranks is None:
        return list(range(run.world_size))
    try:
        shown = [operator.index(rank) for rank in ranks]
    except TypeError:
        raise InvalidCallError(f"ranks is {ranks!r}: give a list of ranks, like [0, 2]") from None
    if bad := [rank for rank in shown if rank not in range(run.world_size)]:
        raise InvalidCallError(f"rank {bad[0]} is not in this run of {run.world_size} ranks")
    if not shown:
        raise InvalidCallError("ranks is empty: give at least one rank to show")
    if len(set(shown)) < len(shown):
        raise InvalidCallError("ranks contains a rank twice: give each rank once")
    return shown


def _chosen_time(run, between):
    last_s = last_moment(run)
    try:
        begin_s, end_s = (0.0, last_s) if between is None else map(float, between)
    except (TypeError, ValueError):
        begin_s = end_s = 0.0
    begin_s = 0.0 if begin_s == -math.inf else begin_s
    end_s = last_s if end_s == math.inf else end_s
    if not begin_s < end_s:
        raise InvalidCallError(
            "between must be two times in seconds, the first smaller than the second. This run "
            f"ends at {last_s:.6g} s"
        )
    return begin_s, end_s


def in_sight(op: Op, begin_s: float, end_s: float) -> bool:
    """Whether at least a part of an op is between two moments. An open op never ends."""
    return op.post_s <= end_s and (op.ends_by(math.inf) >= begin_s)


def never_finished(trace: Trace, rank: int, ops: Iterable[Op]) -> bool:
    """Whether a rank never returned, or returned with one of these ops unfinished."""
    span = span_of(trace, rank)
    return bool(span and not span[2]) or any(op.ends_by(math.inf) == math.inf for op in ops)


def states_of(run: Any, rank: int, ops: Iterable[Op], until_s: float) -> dict[str, list[Span]]:
    """``{state: [(start_s, end_s), ...]}`` of one rank, read from its ops.

    "computing" is the rank's whole span, and pictures draw the other states on top of it. The parts
    of "waiting" and "transferring" are in order, and never overlap.
    """
    span = span_of(run.trace, rank)
    # Who only puts ops into the streams of a device is in none of them.
    on_streams = run.engine == "simulated" and bool(run.profile)
    flights = [(op.async_op or on_streams, time) for op in ops if (time := in_flight(op, until_s))]
    parts = [part for op in ops for part in blocked_parts(op, until_s, run.transfers)]
    blocked_in: dict[str, list[Span]] = {"waiting": [], "transferring": []}
    for state, start_s, end_s in apart(parts):
        blocked_in[state].append((start_s, end_s))
    return {
        "computing": [span[:2]] if span and rank in run.ran else [],
        "in a call": [time for is_async, time in flights if not is_async],
        "async op in flight": [time for is_async, time in flights if is_async],
        **blocked_in,
    }


def blocked_parts(op: Op, until_s: float, transfers: Mapping) -> list[tuple[str, float, float]]:
    """The states of a rank while an op blocked it: ``(state, start_s, end_s)``, in order.

    Parameters
    ----------
    op : Op
    until_s : float
        An open wait ends here.
    transfers : dict
        `Run.transfers`.
    """
    time = blocked(op, until_s)
    if time is None:
        return []
    free_s, last_s = time
    found = []
    for start_s, end_s in transfers.get((op.rank, op.seq), ()):
        start_s, end_s = max(start_s, free_s), min(end_s, last_s)
        if start_s >= end_s:
            continue
        if free_s < start_s:
            found.append(("waiting", free_s, start_s))
        found.append(("transferring", start_s, end_s))
        free_s = end_s
    if free_s < last_s or not found:
        found.append(("waiting", free_s, last_s))
    return found


def apart(parts: Iterable[tuple[Any, float, float]]) -> Iterator[tuple[Any, float, float]]:
    """Parts of several ops of a rank, ``(what, start_s, end_s)``, in order and without overlap.

    Time that was counted for an earlier op is not counted again.
    """
    free_s = -math.inf
    for what, start_s, end_s in sorted(parts, key=operator.itemgetter(1, 2)):
        start_s = max(start_s, free_s)
        if start_s < end_s or start_s == end_s > free_s:
            yield what, start_s, end_s
            free_s = end_s


def mostly(parts: Iterable[Span], begin_s: float, end_s: float, columns: int) -> list[Span]:
    """The columns of which the parts fill more than half, as periods of time.

    Parameters
    ----------
    parts : list of (float, float)
        Start and end of each part, in seconds; they may overlap.
    begin_s, end_s : float
        The span that is divided into columns.
    columns : int

    Returns
    -------
    list of (float, float)
        In order, without overlap.

    **Cost** O(n log n + columns).
    """
    if not parts:
        return []
    parts = np.array(sorted(parts))
    starts = np.maximum(parts[:, 0], np.r_[-np.inf, np.maximum.accumulate(parts[:, 1])[:-1]])
    ends = np.maximum(parts[:, 1], starts)
    total = np.cumsum(ends - starts)
    knots = np.column_stack([starts, ends]).ravel()
    filled = np.column_stack([total - (ends - starts), total]).ravel()
    edges = np.linspace(begin_s, end_s, columns + 1)
    full = np.diff(np.interp(edges, knots, filled, left=0.0)) > 0.5 * np.diff(edges)
    turns = np.flatnonzero(np.diff(np.r_[False, full, False].astype(int)))
    return [(float(edges[a]), float(edges[b])) for a, b in turns.reshape(-1, 2)]


def unit_of(span_s: float) -> tuple[str, float]:
    """The unit for a span (us, ms or s), and the number of these units in a second."""
    if span_s < 1e-3:
        return "us", 1e6
    return ("ms", 1e3) if span_s < 1 else ("s", 1.0)
