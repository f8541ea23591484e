"""The messages of one collective as they travelled, and when each rank's data moved."""

from __future__ import annotations

from dataclasses import fields
from math import inf

import numpy as np

from ..collectives.timing import Wire
from ..model.trace import WireMessage

COLUMNS = [field.name for field in fields(Wire)]


class WireLog:
    """Where a collective in flight writes its messages down: one by one, or all at once.

    Parameters
    ----------
    kind : str
    group : Group
    """

    def __init__(self, kind, group):
        self.kind, self.group = kind, group
        self._rows = []
        self._solved = None

    def add(self, *row):
        """One message: round, src, dst, nbytes, start_s, end_s, adds."""
        self._rows.append(row)

    def add_all(self, wire):
        """All messages of the collective, timed in one go."""
        self._solved = wire

    @property
    def wire(self):
        """The `Wire` of all messages."""
        if self._solved is not None:
            return self._solved
        rows = zip(*self._rows, strict=True) if self._rows else [[] for _ in COLUMNS]
        return Wire(*map(np.array, rows))

    def messages(self):
        """The same as a list of `WireMessage`."""
        wire = self.wire
        columns = [getattr(wire, name).tolist() for name in COLUMNS if name != "adds"]
        return [WireMessage(self.kind, self.group, *row) for row in zip(*columns, strict=True)]

    def transfers(self, reduce_Bps=inf):
        """When data moved to or from each rank, or were added up by it.

        Parameters
        ----------
        reduce_Bps : float
            Bytes per second at which a rank adds up what it has received.

        Returns
        -------
        dict
            ``{rank: [(start_s, end_s), ...]}``, parts in order that do not overlap.

        **Cost** O(m log m) for m messages.
        """
        wire = self.wire
        ranks = np.concatenate([wire.src, wire.dst])
        starts, ends = np.tile(wire.start_s, 2), np.tile(wire.end_s, 2)
        if reduce_Bps < inf and len(ranks):
            ranks, starts, ends = (
                np.concatenate(pair)
                for pair in zip((ranks, starts, ends), _additions(wire, reduce_Bps), strict=True)
            )
        order = np.argsort(starts, kind="stable")
        order = order[np.argsort(ranks[order].astype(np.int16), kind="stable")]  # in linear time
        ranks, starts, ends = ranks[order], starts[order], ends[order]
        edges = np.flatnonzero(np.diff(ranks)) + 1
        own = zip(*(np.split(column, edges) for column in (ranks, starts, ends)), strict=True)
        return {int(rank[0]): _joined(start, end) for rank, start, end in own if len(rank)}


def _additions(wire, reduce_Bps):
    """Ranks, starts and ends: in each round a rank adds when the last message has arrived."""
    last = int(wire.round.max()) + 1
    place, group = np.unique(wire.dst * last + wire.round, return_inverse=True)
    added = np.bincount(group, wire.nbytes * wire.adds)
    arrived = np.full(len(place), -inf)
    np.maximum.at(arrived, group, wire.end_s)
    adds = added > 0
    ends = arrived + added / reduce_Bps
    return (place // last)[adds], arrived[adds], ends[adds]


def _joined(starts, ends):
    """Parts sorted by start, those that touch put together: list of (float, float)."""
    reach = np.maximum.accumulate(ends)
    is_new = np.r_[True, starts[1:] > reach[:-1] * (1 + 1e-12)]
    firsts = np.flatnonzero(is_new)
    lasts = np.r_[firsts[1:], len(starts)] - 1
    return list(zip(starts[firsts].tolist(), reach[lasts].tolist(), strict=True))
