"""How far the clocks of ranks were apart, told from collectives in which all end together."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from ..model.trace import Trace

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "all_to_all", "barrier"})
"""Nobody can end one of these before all have begun it, and then they end at once."""
FEWEST = 3
"""Of fewer collectives together nothing is told."""


def clock_offsets(trace: Trace) -> tuple[dict[int, float], float]:
    """By how much clocks were ahead of the first rank's, and how well that is known.

    An offset is the median difference of the ends of the collectives that a rank shared with one
    whose offset is known; the error is the median distance from it, of the rank where that is
    largest. An offset below its error is taken to be none: on one host clocks are the same.

    Parameters
    ----------
    trace : Trace
        With times of the ranks' own clocks.

    Returns
    -------
    offsets_s : dict of int to float
        Rank -> seconds. A rank that shares too few collectives is not in there.
    error_s : float

    **Cost** O(number of ops + ranks x groups).
    """
    ends: defaultdict[tuple, list[dict[int, float]]] = defaultdict(list)
    for one in trace.collectives:
        if one.kind in ENDS_TOGETHER and len(one.ops) > 1:
            known = {rank: op.end_s for rank, op in one.ops.items() if op.end_s is not None}
            ends[one.group.name, one.group.ranks].append(known)
    offsets_s: dict[int, float] = {}
    error_s, groups = 0.0, sorted(ends.values(), key=len, reverse=True)
    first = min((rank for group in groups for known in group for rank in known), default=None)
    if first is not None:
        offsets_s[first] = 0.0
    is_new = True
    while is_new:
        is_new = False
        for group in groups:
            for rank, (offset_s, spread_s) in _within(group, offsets_s).items():
                offsets_s[rank] = offset_s
                error_s, is_new = max(error_s, spread_s), True
    return offsets_s, error_s


def _within(group: list[dict[int, float]], offsets_s: dict[int, float]) -> dict:
    """Offset and error of each rank of a group that has none yet, against one that has."""
    members = {rank for known in group for rank in known}
    reference = min(members & offsets_s.keys(), default=None)
    if reference is None:
        return {}
    found = {}
    for rank in members - offsets_s.keys():
        apart = [
            known[rank] - known[reference] for known in group if {rank, reference} <= known.keys()
        ]
        if len(apart) >= FEWEST:
            middle = median(apart)
            spread_s = median(abs(one - middle) for one in apart)
            ahead_s = middle if abs(middle) > spread_s else 0.0
            found[rank] = offsets_s[reference] + ahead_s, spread_s
    return found
