"""Hints on a call without a line: which call of a backward it is."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from ..model.trace import Op
from .flight_recorder import Recorded

LONGEST_PERIOD = 400
"""simlib counts the calls of a backward only if they are at most this many."""


def name_by_size(recorded: Recorded, heads: Iterable[Op]) -> None:
    """Find out from sizes which calls of a backward the calls without a line are.

    A thread of C++ makes NCCL's calls of DDP and FSDP in backward, so they have no line. Their
    sizes repeat in each step. FSDP's gathers in forward have a line, and the same sizes.
    """
    for head in heads:
        if not head.site.lineno:
            own = recorded.by_rank[head.rank]
            words = [head.site.op, *_place_in_period(own, head), *_line_of_size(own, head)]
            head.site = replace(head.site, op=", ".join(words))


def _place_in_period(ops: list[Op], head: Op) -> Iterable[str]:
    """The number of this call among the repeating calls without a line."""
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
    yield f"call {(len(own) - 1 - first) % period + 1} of the {period} calls in each backward"


def _line_of_size(ops: list[Op], head: Op) -> Iterable[str]:
    """The line of the calls that moved as many elements, if it is one line."""
    size = _moved(head)
    lines = {op.site.place for op in ops if op.site.lineno and _moved(op) == size}
    if size and len(lines) == 1:
        yield f"with as many elements as the call at {lines.pop()}"


def _moved(op: Op) -> int:
    """Elements of the whole tensor of a collective."""
    size = sum(map(prod, op.shapes))
    return size * len(op.group) if op.kind == "all_gather" else size
