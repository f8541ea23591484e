"""An all_reduce carried out on sets of contributions, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ...core.collectives import schedule


@dataclass(frozen=True, eq=False)
class Steps:
    """An all_reduce as its schedule has it, carried out on sets of contributions.

    Attributes
    ----------
    held : tuple of ndarray of bool, shape (n, chunks, n)
        ``held[k][r, c, s]``: after k rounds the sum that rank r has of chunk c holds what rank s
        brought.
    sent : tuple of ndarray of float, shape (n,)
        After k rounds: what each rank has sent, in whole vectors.
    rounds : tuple of Round
    """

    held: tuple
    sent: tuple
    rounds: tuple

    @property
    def n(self):
        """Number of ranks."""
        return len(self.sent[0])

    @property
    def chunks(self):
        """Number of chunks of the vector."""
        return self.held[0].shape[1]


@cache
def steps_of(algorithm, n):
    """The `Steps` of an all_reduce of a vector that divides evenly."""
    plan = schedule("all_reduce", n, n << n.bit_length(), algorithm)
    chunks = len(plan.chunk_nbytes)
    held = [np.repeat(np.eye(n, dtype=bool)[:, None, :], chunks, axis=1)]
    sent = [np.zeros(n)]
    for round_ in plan.rounds:
        before, after, more = held[-1], held[-1].copy(), sent[-1].copy()
        for src, dst, run, adds in messages_of(round_, chunks):
            coming = before[src, run]
            after[dst, run] = before[dst, run] | coming if adds else coming
        np.add.at(more, round_.src, round_.nbytes / plan.nbytes)
        held.append(after)
        sent.append(more)
    return Steps(tuple(held), tuple(sent), plan.rounds)


def messages_of(round_, chunks):
    """The messages of a round: sender, receiver, its chunks, whether they are added."""
    columns = (round_.src, round_.dst, round_.first, round_.count, round_.adds)
    for src, dst, first, count, adds in zip(*columns, strict=True):
        yield int(src), int(dst), (first + np.arange(count)) % chunks, bool(adds)
