"""all_reduce in nodes and between them: `leader` and `hierarchical`."""

from __future__ import annotations

import numpy as np

from ..collectives.schedules import split
from ..collectives.steps import by_node, powers_below
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
    """all_reduce: rings in the nodes, rings across nodes, rings in the nodes.

    Each of as many lanes as the largest node has ranks is a ring across the nodes. Where its owners
    begin together they stay in step, for their messages share each node's link alike. The ranks of
    a smaller node own several lanes; they are in step with the others if they come before them,
    and if no two of them meet, who would begin earlier.
    """
    members = by_node(case.n, case.topology.node_of)
    sizes = np.array([len(ranks) for ranks in members])
    lanes, nodes = int(sizes.max()), len(members)
    chunks = case.parts(lanes * nodes)
    if not case.start_together or chunks[0] != chunks[-1]:
        return None
    is_small = sizes < lanes
    if is_small.any() and case.nbytes / case.reduce_Bps > 0:
        return None  # who owns more lanes adds longer
    if (is_small & np.roll(is_small, -1)).any():
        return None
    width = {size: split(lanes, size) for size in set(sizes.tolist())}
    in_node = _InNodes(case, members, {size: width[size] * nodes * chunks[0] for size in width})
    reduced_s = in_node.ends("reduce_scatter")
    begin_s = reduced_s[lanes].max()
    if max(ends.max() for ends in reduced_s.values()) > begin_s:
        return None
    owners = np.array([np.repeat(ranks, width[len(ranks)]) for ranks in members])
    across_s = _across_s(case, owners, int(chunks[0]))
    if across_s is None:
        return None
    gathered_s = in_node.ends("all_gather")
    ends = case.starts + (begin_s + across_s)
    for ranks in members:
        ends[ranks] += gathered_s[len(ranks)]
    return ends


class _InNodes:
    """Rings in nodes: those of one size take the same time."""

    def __init__(self, case, members, blocks):
        self._case, self._blocks = case, blocks
        self._node = {len(ranks): ranks for ranks in members}

    def ends(self, kind):
        """For each size of a node, when each of its ranks is done, after a common start at 0."""
        return {
            size: ring_of_ranks(self._case, kind, ranks, self._blocks[size], np.zeros(size))
            for size, ranks in self._node.items()
        }


def _across_s(case, owners, nbytes):
    """Seconds of the rings across nodes, all in step; None where they are not.

    Parameters
    ----------
    owners : ndarray of int, shape (nodes, lanes)
    nbytes : int
        Of a chunk.
    """
    rounds = len(owners) - 1
    if not rounds:
        return 0.0
    nexts = np.roll(owners, -1, axis=0)
    step_s = common_step_s(case, owners.ravel(), nexts.ravel(), nbytes)
    return None if step_s is None else rounds * (2 * step_s + nbytes / case.reduce_Bps)
