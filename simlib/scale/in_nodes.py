"""all_reduce in nodes and between them: `leader` and `hierarchical`."""

from __future__ import annotations

import numpy as np

from ..collectives.steps import powers_below
from .case import common_step_s
from .rings import ring_of_ranks


class Nodes:
    """Ranks by node; nodes in order of their first rank."""

    def __init__(self, node_of):
        n = len(node_of)
        order = np.argsort(node_of, kind="stable")
        is_first = np.diff(node_of[order], prepend=-1) > 0
        begin = np.flatnonzero(is_first)
        self._order = order
        self.sizes = np.diff(begin, append=n)
        self._local = np.arange(n) - np.repeat(begin, self.sizes)
        self._size = np.repeat(self.sizes, self.sizes)
        self.first_ranks = np.sort(order[begin])
        self.largest = int(self.sizes.max())

    def pairs(self, d):
        """In a binomial tree of each node: who is d above whom, as arrays of ranks."""
        low = np.flatnonzero((self._local % (2 * d) == 0) & (self._local + d < self._size))
        return self._order[low + d], self._order[low]

    def table(self):
        """Ranks as an array of shape (nodes, ranks of each); None where nodes differ in size."""
        if (self.sizes != self.largest).any():
            return None
        return self._order.reshape(-1, self.largest)


def leader(case):
    """all_reduce: down trees in the nodes, round a ring of the nodes' first ranks, up the trees."""
    nodes = Nodes(case.topology.node_of)
    ready = case.starts.copy()
    leaders = nodes.first_ranks
    for d in powers_below(nodes.largest):
        high, low = nodes.pairs(d)
        _exchange(case, ready, high, low, adds=True)
    ends = ring_of_ranks(case, "all_reduce", leaders, case.parts(len(leaders)), ready[leaders])
    if ends is None:
        return None
    ready[leaders] = ends
    for d in reversed(powers_below(nodes.largest)):
        high, low = nodes.pairs(d)
        _exchange(case, ready, low, high)
    return ready


def _exchange(case, ready, src, dst, adds=False):
    """Whole vectors, from each src to its dst; ``ready`` is changed in place."""
    end = np.maximum(ready[src], ready[dst]) + case.step_s(src, dst, case.nbytes)
    ready[src] = end
    ready[dst] = end + (case.nbytes / case.reduce_Bps if adds else 0.0)


def hierarchical(case):
    """all_reduce: rings in the nodes, rings across nodes, rings in the nodes."""
    table = Nodes(case.topology.node_of).table()
    if table is None or not case.start_together:
        return None
    nodes, size = table.shape
    chunks = case.parts(nodes * size)
    if chunks[0] != chunks[-1]:
        return None
    chunk = int(chunks[0])
    seconds = 0.0
    for nexts, count, nbytes in (
        (np.roll(table, -1, axis=1), size - 1, chunk * nodes),
        (np.roll(table, -1, axis=0), nodes - 1, chunk),
    ):
        if count:
            step_s = common_step_s(case, table.ravel(), nexts.ravel(), nbytes)
            if step_s is None:
                return None
            seconds += count * (2 * step_s + nbytes / case.reduce_Bps)
    return case.starts + seconds
