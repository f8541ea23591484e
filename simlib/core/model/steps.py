"""Derive the steps of one rank, in order, from the times of its ops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Step:
    """One step of a rank. After ``gap_s`` of its own work, the rank posts an op, waits, or
    leaves."""

    gap_s: float
    what: str
    number: int


def steps_of(ops, span):
    """The steps of a rank, from the recorded moments of its posts, its waits and its end.

    If several things happened at one moment, a wait that took time was the last of these things,
    because the wait blocked the rank.
    """
    moments = []
    for number, op in enumerate(ops):
        moments.append((op.post_s, False, 2 * op.seq + 1, "post", number, op.post_s))
        if op.wait_s is not None and op.end_s is not None:
            lasted = op.end_s > op.wait_s
            posted = op.seq + 1 if op.waited_after is None else op.waited_after
            moments.append((op.wait_s, lasted, 2 * posted, "wait", number, op.end_s))
    entered_s, left_s = span
    moments.append((left_s, True, 2 * len(ops) + 2, "leave", -1, left_s))
    steps, free_s = [], entered_s
    for begin_s, _, _, what, number, end_s in sorted(moments):
        steps.append(Step(max(0.0, begin_s - free_s), what, number))
        free_s = max(free_s, end_s)
    return steps
