"""Two trees of any size: pair of rounds after pair of rounds, and in leaps where nothing changes.

Each rank sends one message and receives one in a round, so no message slows another down where
each rank has links of its own. In the middle of a pipeline every pair of rounds does the same: from
when each rank is ready it makes when each is ready next, by sums and maxima. Moments that are all
later by some time therefore give moments that are all later by as much. So as soon as one pair of
rounds delays all ranks alike, all further ones that do the same do, too.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ..collectives.two_trees import edges_of, levels

MAX_STEPS = 50_000_000
ALIKE = 1e-12


def double_tree(case):
    """all_reduce, broadcast, reduce: when each rank has done its part; None where unknown."""
    if not case.links_are_private:
        return None
    edges, height = edges_of(case.n), levels(case.n)
    sizes = case.parts(2 * case.chunks)
    ready = case.starts - case.starts.min()
    if case.kind != "broadcast":
        ready = _Pipeline(case, edges, height - 1 - edges.level, sizes, up=True).through(ready)
    if case.kind != "reduce" and ready is not None:
        ready = _Pipeline(case, edges, edges.level, sizes, up=False).through(ready)
    return None if ready is None else ready + case.starts.min()


class _Pipeline:
    """All chunks on their way up, or down.

    Parameters
    ----------
    begin : ndarray of int
        In which pair of rounds each edge has its first chunk.
    sizes : ndarray of int
        Bytes of each chunk; chunk 2 j + t is the j-th one of tree t.
    """

    def __init__(self, case, edges, begin, sizes, up):
        parent, child = ((place + case.root) % case.n for place in (edges.parent, edges.child))
        src, dst = (child, parent) if up else (parent, child)
        self._sizes, self._chunks = sizes, case.chunks
        self._larger = int((sizes > sizes[-1]).sum())  # they come first
        self._height = int(begin.max()) + 1
        self._envelope_bytes = case.envelope_bytes
        self._reduce_Bps = case.reduce_Bps if up else inf
        self._rounds = []
        for colour in (0, 1):
            here = np.flatnonzero(edges.colour == colour)
            ends = src[here], dst[here]
            links = case.topology.latencies_s(*ends), case.topology.bandwidths_Bps(*ends)
            self._rounds.append((begin[here], edges.tree[here], *ends, *links))

    def through(self, ready):
        """When each rank is through, from when it begins; None where that takes too long."""
        pair, pairs, steps = 0, self._height + self._chunks - 1, 0
        while pair < pairs:
            before = ready
            ready = self._pair(pair, before.copy())
            pair += 1
            more = self._alike_until(pair - 1) - pair
            later_s = ready - before
            if more > 0 and np.ptp(later_s) <= ALIKE * later_s.max():
                ready = ready + more * later_s
                pair += more
            steps += len(ready)
            if steps > MAX_STEPS:
                return None
        return ready

    def _pair(self, pair, ready):
        """One pair of rounds; ``ready`` is changed in place."""
        for begin, tree, src, dst, latency_s, bandwidth_Bps in self._rounds:
            chunk = pair - begin
            if pair < self._height or pair >= self._chunks:
                busy = np.flatnonzero((chunk >= 0) & (chunk < self._chunks))
                chunk, tree, src, dst, latency_s, bandwidth_Bps = (
                    of[busy] for of in (chunk, tree, src, dst, latency_s, bandwidth_Bps)
                )
            nbytes = self._sizes[2 * chunk + tree]
            step_s = latency_s + (nbytes + self._envelope_bytes) / bandwidth_Bps
            end = np.maximum(ready[src], ready[dst]) + step_s
            ready[src] = end
            ready[dst] = np.maximum(ready[dst], end)
            if self._reduce_Bps < inf:
                ready[dst] += nbytes / self._reduce_Bps
        return ready

    def _alike_until(self, pair):
        """The first pair of rounds from this one on that does something else.

        In it come chunks that are smaller, or none.
        """
        first = 2 * (pair - self._height + 1)  # of the chunks under way
        if first < 0 or pair >= self._chunks:
            return pair
        if self._sizes[first] == self._sizes[2 * pair + 1]:
            return self._chunks if self._sizes[first] == self._sizes[-1] else self._larger // 2
        return pair
