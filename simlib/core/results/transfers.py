"""When the data of an op were on their way: what tells waiting for others from transferring.

A rank that is blocked in an op first waits for other ranks, and then for its own data. Of messages
between two ranks the trace says it all: data move from the moment at which both have called. Of a
collective it says when the last of those came whom a rank needs. A simulation knows more, each
message of every collective: it is asked by replaying the run.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

from ..model.trace import Op, Trace

Transfers: TypeAlias = dict[tuple[int, int], list[tuple[float, float]]]
"""By rank and number of an op: when its data moved, parts in order that do not overlap."""


def by_arrival(trace: Trace) -> Transfers:
    """The transfers of each op that somebody had to come for, as far as the trace tells.

    Data move from the last arrival of those whom a rank needs until the op has ended. It needs the
    other end of a message; of a broadcast or scatter the root; where it is the root of a gather or
    reduce, and in all other collectives, everybody. An op for which somebody never came is not in
    the answer.

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
    """Whether a rank was blocked in a collective: of messages the trace says it all."""
    return any(not op.is_p2p for op in trace)


def _until_the_end(start_s: float, op: Op, last_s: float) -> list[tuple[float, float]]:
    end_s = last_s if op.end_s is None else op.end_s
    return [(start_s, end_s)] if start_s < end_s else []
