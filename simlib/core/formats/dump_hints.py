"""What dumps tell beside their calls: who came late, and what a call without a line belongs to."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import prod

from ..model.trace import Op
from ..model.words import seconds_text
from .flight_recorder import Recorded

LONGEST_PERIOD = 400
"""So many calls a backward makes at most, where its calls are counted."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late a rank came to the collectives of its groups, after the first who came.

    ``share`` is the share of these to which it came last, ``median_s`` by how much after the last
    of the others, ``most_s`` the longest after the first.
    """

    share: float
    median_s: float
    most_s: float

    def __str__(self) -> str:
        return (
            f"came last to {self.share:.0%} of its collectives, {seconds_text(self.median_s)} "
            "after the others in the median, if clocks of hosts agree"
        )


def lateness_of(recorded: Recorded, ranks: Collection[int]) -> dict[int, Lateness]:
    """By rank: how late it came to collectives of which all members' calls are recorded.

    Only groups that one of ``ranks`` is in are looked at.

    **Cost** O(n log n) for n calls.
    """
    met: dict[tuple, list[tuple[float, int]]] = defaultdict(list)
    groups = {op.group for rank in ranks for op in recorded.by_rank.get(rank, ())}
    for op in recorded.trace:
        if op.number is not None and op.done and op.group in groups:
            met[op.group, op.number].append((op.post_s, op.rank))
    last: dict[int, list[float]] = defaultdict(list)
    after_first: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    for (group, _), arrivals in met.items():
        if len(arrivals) == len(group) > 1:
            arrivals.sort()
            times.update(rank for _, rank in arrivals)
            last[arrivals[-1][1]].append(arrivals[-1][0] - arrivals[-2][0])
            for moment_s, rank in arrivals:
                after_first[rank] = max(after_first[rank], moment_s - arrivals[0][0])
    return {
        rank: Lateness(len(last[rank]) / count, statistics.median(last[rank] or [0.0]), most_s)
        for rank, most_s in after_first.items()
        if (count := times[rank])
    }


def name_by_size(recorded: Recorded, heads: Iterable[Op]) -> None:
    """Say of calls without a line which of those of a backward they are, as far as sizes tell.

    NCCL's calls of DDP and FSDP in backward are made by a thread of C++, which has no line. Their
    sizes come again in each step; and what FSDP gathers in forward has a line, and the same size.
    """
    for head in heads:
        if not head.site.lineno:
            own = recorded.by_rank[head.rank]
            words = [head.site.op, *_place_in_period(own, head), *_line_of_size(own, head)]
            head.site = replace(head.site, op=", ".join(words))


def _place_in_period(ops: list[Op], head: Op) -> Iterable[str]:
    """Which of the calls without a line that come again and again this is."""
    own = [op for op in ops if not op.site.lineno and op.seq <= head.seq]
    sizes = [(op.kind, op.group, op.shapes) for op in own]
    for period in range(1, min(LONGEST_PERIOD, (len(sizes) - 1) // 2) + 1):
        if sizes[-period - 1 :] == sizes[-2 * period - 1 : -period]:
            break
    else:
        return
    gaps: dict[int, list[float]] = defaultdict(list)
    for at in range(1, len(own)):
        gaps[at % period].append(own[at].post_s - own[at - 1].post_s)
    first = max(gaps, key=lambda place: statistics.median(gaps[place]))  # forward lies before it
    yield f"call {(len(own) - 1 - first) % period + 1} of {period} that each backward makes"


def _line_of_size(ops: list[Op], head: Op) -> Iterable[str]:
    """The line of the calls that moved as many elements, if it is one line."""
    size = _moved(head)
    lines = {op.site.place for op in ops if op.site.lineno and _moved(op) == size}
    if size and len(lines) == 1:
        yield f"of as many elements as the call at {lines.pop()}"


def _moved(op: Op) -> int:
    """Elements of the whole that a collective makes or takes."""
    size = sum(map(prod, op.shapes))
    return size * len(op.group) if op.kind == "all_gather" else size
