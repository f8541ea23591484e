"""The offsets of the hosts' clocks, from collectives that end at once on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from ..model.trace import Trace
from ..model.words import seconds_text

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "all_to_all", "barrier"})
"""No rank can end such a collective before all ranks have begun it. Then all ranks end together."""
FEWEST = 3
"""simlib computes an offset only from at least this many common collectives."""
ROUNDING_S = 0.1
"""Ranks on one host belong to one job if their clocks differ by less than this reading error."""
LIKELY_S, LIKELY = 1.0, 10
"""The largest difference of hosts' clocks, in seconds, or as a multiple of a trace's length."""


def clock_offsets(trace: Trace, hosts: Mapping[int, int]) -> tuple[dict[int, float], float]:
    """By how much clocks were ahead of the first rank's clock, and the error of these offsets.

    Each host has shared collectives with a host whose offset is known. Its offset is the median
    difference of the ends of these collectives. The error of a host is the median distance from
    this offset. ``error_s`` is the largest error of any host. An offset below its error counts as
    0. Ranks of one host have the same clock. On a host, a collective ends when its first rank has
    ended it.

    Parameters
    ----------
    trace : Trace
        With times of the ranks' own clocks.
    hosts : dict of int to int
        By rank, the lowest rank on the same host.

    Returns
    -------
    offsets_s : dict of int to float
        Rank -> seconds. The dict leaves out ranks that share too few collectives. If all ranks are
        on one host, it is empty.
    error_s : float

    **Cost** O(number of ops + ranks x groups).
    """
    ends: defaultdict[tuple, list[dict[int, float]]] = defaultdict(list)
    for one in trace.collectives:
        if one.kind in ENDS_TOGETHER and len(one.ops) > 1:
            known: dict[int, float] = {}
            for rank, op in one.ops.items():
                if op.end_s is not None:
                    known[hosts[rank]] = min(op.end_s, known.get(hosts[rank], op.end_s))
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
    if len(offsets_s) < 2:
        return {}, 0.0
    return {rank: offsets_s[host] for rank, host in hosts.items() if host in offsets_s}, error_s


def _within(group: list[dict[int, float]], offsets_s: dict[int, float]) -> dict:
    """Offset and error of each host in a group whose offset is unknown, from a host with a known
    one."""
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


def check_one_clock(trace: Trace, hosts: Mapping[int, int], files: Mapping[int, str]) -> None:
    """Raise ValueError if ranks of one host ended collectives before others called them."""
    found: defaultdict[int, list] = defaultdict(list)
    for number, one in enumerate(trace.collectives):
        by_host: defaultdict[int, list] = defaultdict(list)
        for rank, op in one.ops.items():
            if one.kind in ENDS_TOGETHER and op.end_s is not None:
                by_host[hosts[rank]].append(op)
        for host, ops in by_host.items():
            first, last = min(ops, key=lambda op: op.end_s), max(ops, key=lambda op: op.post_s)
            found[host].append((last.post_s - first.end_s, first.rank, last.rank, number))
    for times in found.values():
        early_s, first, last, number = sorted(times)[len(times) // 2]
        if early_s > ROUNDING_S:
            raise ValueError(
                f"{files[first]} and {files[last]} are from one host. By the clock of this host, "
                f"the rank of {files[first]} ended collective {number} {seconds_text(early_s)} "
                f"before the rank of {files[last]} called it: give the files of one job, which "
                "begin at the same step"
            )


def check_offsets(
    offsets_s: Mapping[int, float], length_s: float, files: Mapping[int, str]
) -> None:
    """Raise ValueError if clocks differ too much for the clocks of hosts in one job."""
    for rank, ahead_s in offsets_s.items():
        if abs(ahead_s) > max(LIKELY_S, LIKELY * length_s):
            raise ValueError(
                f"collectives in {files[rank]} ended {seconds_text(abs(ahead_s))} "
                f"{'after' if ahead_s > 0 else 'before'} those in {files[min(offsets_s)]}. The "
                "clocks of hosts do not differ so much: give the files of one job, which begin at "
                "the same step"
            )
