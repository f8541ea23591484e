"""Time algorithms of many rounds, without going through all rounds.

A solver takes a `Case`. It returns when each rank has done its part, or None if it cannot compute
the times. `SOLVERS` lists them, and describes in words the cases that each solver covers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from ..collectives.schedules import Schedule, split
from ..collectives.steps import binomial_scatter, by_node, edges_of, levels, powers_below
from ..collectives.timing import time_of
from .case import Case, common_step_s, shares_a_link
from .rings import Members, in_turn, ring_of_ranks

# -- all_reduce in nodes and between them ----------------------------------------------------------


class Nodes:
    """Ranks by node, with nodes in order of their first rank."""

    def __init__(self, node_of: np.ndarray) -> None:
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

    def pairs(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs at distance d in a binomial tree of each node, as arrays of ranks."""
        low = np.flatnonzero((self._local % (2 * d) == 0) & (self._local + d < self._size))
        return self._order[low + d], self._order[low]


def leader(case: Case) -> np.ndarray | None:
    """all_reduce: down trees in the nodes, round a ring of the first ranks, and up the trees."""
    nodes = Nodes(case.topology.node_of)
    ready = case.starts.copy()
    leaders = nodes.first_ranks
    for d in powers_below(nodes.largest):
        high, low = nodes.pairs(d)
        _exchange(case, ready, high, low, adds=True)
    members = Members(leaders, case.parts(len(leaders)), ready[leaders])
    ends = ring_of_ranks(case, "all_reduce", members)
    if ends is None:
        return None
    ready[leaders] = ends
    for d in reversed(powers_below(nodes.largest)):
        high, low = nodes.pairs(d)
        _exchange(case, ready, low, high)
    return ready


def _exchange(case, ready, src, dst, adds=False):
    """Send a whole vector from each src to its dst; changes ``ready`` in place."""
    end = np.maximum(ready[src], ready[dst]) + case.step_s(src, dst, case.nbytes)
    ready[src] = end
    ready[dst] = end + (case.nbytes / case.reduce_Bps if adds else 0.0)


def hierarchical(case: Case) -> np.ndarray | None:
    """all_reduce: rings in the nodes, rings across nodes, rings in the nodes.

    The number of lanes is the number of ranks of the largest node. Each lane is a ring across the
    nodes. If the owners of a lane begin together, they stay in step, because their messages share
    each node's link equally. The ranks of a smaller node own several lanes. These ranks are in step
    with the others under two conditions. They are ready before the others, and no two smaller nodes
    are neighbours, because such nodes would begin earlier.
    """
    members = by_node(case.n, case.topology.node_of)
    sizes = np.array([len(ranks) for ranks in members])
    lanes, nodes = int(sizes.max()), len(members)
    chunks = case.parts(lanes * nodes)
    if not case.start_together or chunks[0] != chunks[-1]:
        return None
    is_small = sizes < lanes
    if is_small.any() and case.nbytes / case.reduce_Bps > 0:
        return None  # a rank with more lanes adds longer
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
    """Rings in nodes. Nodes of one size take the same time."""

    def __init__(self, case, members, blocks):
        self._case, self._blocks = case, blocks
        self._node = {len(ranks): ranks for ranks in members}

    def ends(self, kind):
        """For each size of a node, when each of its ranks is done, after a common start at 0."""
        return {
            size: ring_of_ranks(
                self._case, kind, Members(ranks, self._blocks[size], np.zeros(size))
            )
            for size, ranks in self._node.items()
        }


def _across_s(case, owners, nbytes):
    """Seconds of the rings across nodes, if all are in step, else None.

    Parameters
    ----------
    owners : ndarray of int, shape (nodes, lanes)
    nbytes : int
        Bytes of a chunk.
    """
    rounds = len(owners) - 1
    if not rounds:
        return 0.0
    nexts = np.roll(owners, -1, axis=0)
    step_s = common_step_s(case, owners.ravel(), nexts.ravel(), nbytes)
    return None if step_s is None else rounds * (2 * step_s + nbytes / case.reduce_Bps)


# -- a chain: chunk after chunk along a line of ranks ----------------------------------------------
#
# Chunk j moves from place v to place v + 1 when three things are done: chunk j has reached v, chunk
# j - 1 has moved from v to v + 1, and place v + 1 has passed chunk j - 2 on. So for each chunk the
# ends along the line are a running maximum over prefix sums.

MAX_CHAIN_STEPS = 200_000_000


def ends_of_chain(
    starts: np.ndarray,
    step_s: Callable[[int], np.ndarray],
    sizes: np.ndarray,
    reduce_Bps: float = inf,
) -> np.ndarray | None:
    """When each place of the chain has done its part. None if this takes too long to compute.

    Parameters
    ----------
    starts : ndarray of float, shape (n,)
        When each place begins.
    step_s : callable
        ``step_s(nbytes)`` returns the seconds of a message of this many bytes, from each place to
        the next place.
    sizes : ndarray of int
        Bytes of each chunk.
    reduce_Bps : float
        Bytes per second at which each place adds received data.

    **Cost** O(n) if all chunks, all links and all starts are equal; else O(n * chunks).
    """
    if reduce_Bps == inf and (starts == starts[0]).all():
        heavy_s, light_s = step_s(sizes.max()), step_s(sizes.min())
        if (heavy_s == heavy_s[0]).all() and (light_s == light_s[0]).all():
            larger = int((sizes > sizes.min()).sum())
            return starts + _even_links(len(starts), len(sizes), larger, heavy_s[0], light_s[0])
    if len(starts) * len(sizes) > MAX_CHAIN_STEPS:
        return None
    return _chunk_by_chunk(starts, step_s, sizes, reduce_Bps)


def _even_links(n, chunks, larger, heavy_s, light_s):
    """The ends if steps differ only in the size of the chunk, and the first chunks are larger.

    Place v has sent all chunks after v + chunks steps. The slowest sequence of steps is the
    sequence with the fewest small chunks. It skips every second small chunk, if it can come back
    from places ahead.
    """
    if not larger:
        larger = chunks
    place = np.minimum(np.arange(n), n - 2)  # the last place is done with the one before
    small = chunks - larger
    met = np.maximum((small + 1) // 2, small - (n - 2 - place))
    return (place + chunks) * heavy_s - met * (heavy_s - light_s)


def _chunk_by_chunk(starts, step_s, sizes, reduce_Bps):
    steps = len(starts) - 1
    place = np.arange(steps)
    before = np.full(steps, -inf)  # ends of the chunk before, and of the one before that
    two_before = np.full(steps, -inf)
    adding_before_s = 0.0
    allowed = np.maximum(starts[:-1], starts[1:])
    seconds = {nbytes: step_s(nbytes) for nbytes in set(sizes.tolist())}
    for nbytes in sizes.tolist():
        adding_s = nbytes / reduce_Bps
        message_s = seconds[nbytes]
        total_s = np.cumsum(message_s) + place * adding_s
        end = total_s + np.maximum.accumulate(allowed - (total_s - message_s))
        two_before, before, adding_before_s = before, end, adding_s
        # What place v and place v + 1 have to do before the next chunk crosses between them.
        allowed = before + adding_before_s
        allowed[:-1] = np.maximum(allowed[:-1], two_before[1:] + adding_before_s)
    return np.append(before, before[-1] + adding_before_s)


# -- two trees: one pair of rounds after the other, in large steps if nothing changes --------------
#
# Each rank sends one message and receives one message in a round. So if each rank has its own
# links, no message slows another down. In the middle of a pipeline every pair of rounds does the
# same: it computes the next ready times of the ranks from the last ones, by sums and maxima. If all
# ready times are later by some time, all next ready times are later by the same time. So when one
# pair of rounds delays all ranks alike, all later pairs of the same kind delay them by as much.

MAX_TREE_STEPS = 50_000_000
ALIKE = 1e-12


def double_tree(case: Case) -> np.ndarray | None:
    """all_reduce, broadcast, reduce: when each rank has done its part. None if unknown."""
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
    """All chunks on their way up or down.

    Parameters
    ----------
    begin : ndarray of int
        The pair of rounds in which each edge has its first chunk.
    sizes : ndarray of int
        Bytes of each chunk. Chunk 2 j + t is the j-th chunk of tree t.
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
        """When each rank is done, given its begin. None if this takes too long to compute."""
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
            if steps > MAX_TREE_STEPS:
                return None
        return ready

    def _pair(self, pair, ready):
        """Do one pair of rounds; changes ``ready`` in place."""
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
        """The first pair of rounds, from this one on, that differs.

        The chunks of that pair are smaller, or it has no chunks.
        """
        first = 2 * (pair - self._height + 1)  # of the chunks under way
        if first < 0 or pair >= self._chunks:
            return pair
        if self._sizes[first] == self._sizes[2 * pair + 1]:
            return self._chunks if self._sizes[first] == self._sizes[-1] else self._larger // 2
        return pair


# -- rings, and one rank after the other -----------------------------------------------------------


def ring(case: Case) -> np.ndarray | None:
    """all_reduce, reduce_scatter, all_gather: round a ring of all ranks."""
    members = Members(np.arange(case.n), case.parts(), case.starts)
    return ring_of_ranks(case, case.kind, members, case.last_only)


def ring_segmented(case: Case) -> np.ndarray | None:
    """all_reduce: a reduce_scatter of each segment of all blocks, then an all_gather of blocks.

    If the chunks of a segment are alike, all segments of one size are one long ring.
    """
    ranks, ends = np.arange(case.n), case.starts
    blocks = case.parts()
    of_block = [split(int(block), case.chunks, case.itemsize) for block in (blocks[0], blocks[-1])]
    larger = int((blocks > blocks[-1]).sum())
    for phases, sizes in _runs(np.column_stack(of_block)):
        chunks = np.where(ranks < larger, *sizes)
        long = phases if sizes[0] == sizes[1] else 1
        share = case.chunks // long
        for _ in range(phases // long):
            members = Members(ranks, chunks, ends)
            found = ring_of_ranks(case, "reduce_scatter", members, False, long, share)
            if found is None:
                return None
            ends = found
    return ring_of_ranks(case, "all_gather", Members(ranks, blocks, ends), case.last_only)


def _runs(rows):
    """Runs of consecutive equal rows: the number of rows, and one of them."""
    begins = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return zip(np.diff(begins, append=len(rows)).tolist(), rows[begins], strict=True)


def pairwise(case: Case) -> np.ndarray | None:
    """all_to_all, reduce_scatter: n - 1 rounds, each with a different other rank.

    After k rounds a rank has waited for all ranks up to k (k + 1) / 2 away, and so for every rank.
    If some parts are larger, a rank that gets a larger part gets one in every round, and is last.
    """
    sizes = case.parts()
    if not (case.is_even and case.links_are_private):
        return None
    if sizes[0] != sizes[-1] and not (case.last_only and case.start_together):
        return None
    step_s = case.step_s(np.array([0]), np.array([1]), sizes[0])[0]
    if case.kind == "reduce_scatter":
        step_s += sizes[0] / case.reduce_Bps
    return np.full(case.n, case.starts.max() + (case.n - 1) * step_s)


def spread_to_all(case: Case) -> np.ndarray | None:
    """all_to_all: all messages at once. They share the bandwidth of the links."""
    sizes, cluster, n = case.parts(), case.topology.cluster, case.n
    if not (case.is_even and case.start_together) or sizes[0] != sizes[-1]:
        return None
    latency_s = case.topology.latency_s(0, 1)
    rates_Bps = [(cluster.intra.bandwidth_Bps if cluster.intra else inf) / (n - 1)]
    if not case.is_one_node:
        rates_Bps.append(cluster.inter.bandwidth_Bps / (n - 1))
        if cluster.backbone:
            rates_Bps.append(cluster.backbone.bandwidth_Bps / (n * (n - 1)))
    return case.starts + latency_s + (sizes[0] + case.envelope_bytes) / min(rates_Bps)


def flat_out(case: Case) -> np.ndarray:
    """broadcast, scatter: the root sends to one rank after the other."""
    ready = case.starts.copy()
    others = _others(case)
    nbytes = case.parts()[others] if case.kind == "scatter" else case.nbytes
    _root_sends(case, ready, others, nbytes)
    return ready


def flat_in(case: Case) -> np.ndarray:
    """gather, reduce: one rank after the other sends to the root."""
    ready = case.starts.copy()
    others = _others(case)
    nbytes = case.parts()[others] if case.kind == "gather" else case.nbytes
    _root_receives(case, ready, others, nbytes, adds=case.kind == "reduce")
    return ready


def flat_in_and_out(case: Case) -> np.ndarray:
    """all_reduce, barrier: one rank after the other sends to rank 0, which sends back in the same
    way."""
    ready = case.starts.copy()
    others = _others(case)
    _root_receives(case, ready, others, case.nbytes, adds=True)
    _root_sends(case, ready, others, case.nbytes)
    return ready


def _others(case):
    return (case.root + np.arange(1, case.n)) % case.n


def _root_sends(case, ready, others, nbytes):
    steps_s = case.step_s(np.full(len(others), case.root), others, nbytes)
    ready[others] = in_turn(ready[case.root], ready[others], steps_s)
    ready[case.root] = ready[others[-1]]


def _root_receives(case, ready, others, nbytes, adds):
    steps_s = case.step_s(others, np.full(len(others), case.root), nbytes)
    adding_s = nbytes / case.reduce_Bps if adds else 0.0
    done_s = in_turn(ready[case.root], ready[others], steps_s + adding_s)
    root_is_free_s = np.concatenate((ready[[case.root]], done_s[:-1]))
    ready[others] = np.maximum(root_is_free_s, ready[others]) + steps_s
    ready[case.root] = done_s[-1]


def scatter_all_gather(case: Case) -> np.ndarray | None:
    """broadcast: a binomial scatter, then all_gather round a ring."""
    if not case.links_are_private:
        return None
    sizes = case.parts()
    moves = binomial_scatter(case.n, case.root)
    scatter = Schedule.of("broadcast", "scatter", case.n, sizes, moves, case.root)
    ready = time_of(scatter, case.topology, np.arange(case.n), case.starts)
    return ring_of_ranks(case, "all_gather", Members(np.arange(case.n), sizes, ready))


def chain(case: Case) -> np.ndarray | None:
    """broadcast, reduce: chunks travel along a chain of all ranks."""
    from_root = (case.root + np.arange(case.n)) % case.n
    line = from_root if case.kind == "broadcast" else from_root[::-1]
    if shares_a_link(case.topology, line[:-1], line[1:]):
        return None
    sizes = split(case.nbytes, case.chunks, case.itemsize)
    latency_s = case.topology.latencies_s(line[:-1], line[1:])
    bandwidth_Bps = case.topology.bandwidths_Bps(line[:-1], line[1:])

    def step_s(nbytes):
        return latency_s + (nbytes + case.envelope_bytes) / bandwidth_Bps

    reduce_Bps = case.reduce_Bps if case.kind == "reduce" else inf
    found = ends_of_chain(case.starts[line], step_s, sizes, reduce_Bps)
    if found is None:
        return None
    ends = np.empty(case.n)
    ends[line] = found
    return ends


# -- what is covered -------------------------------------------------------------------------------

RING = (
    "one of three cases is true: (1) each rank has a node of its own; (2) no two messages of a "
    "round share a link, as with block placement, and in addition either the ranks start together "
    "or nbytes is a multiple of ranks * itemsize; (3) the placement is round_robin on full nodes, "
    "the ranks start together and nbytes is a multiple of ranks * itemsize"
)
CHAIN = "chunks * ranks is at most 200,000,000 and no two messages share a link (block placement)"
PAIRWISE = (
    "each rank has a node of its own and nbytes is a multiple of ranks * itemsize. If each rank "
    "has a node of its own and the ranks start together, the last end is exact for any nbytes"
)
HIERARCHICAL = (
    "the ranks start together and nbytes is a multiple of nodes * lanes * itemsize, where lanes is "
    "the number of ranks on the largest node. Also either (1) all nodes have equally many ranks; "
    "or (2) no two nodes with fewer ranks are neighbours, these nodes end their own part before "
    "the other nodes, and adding takes no time"
)
TREES = "no two ranks share a link: each has a node or a card of its own, or all are in one node"
IN_TURN = "any case"
SOLVERS = {
    ("all_reduce", "ring"): (ring, RING),
    ("reduce_scatter", "ring"): (ring, RING),
    ("all_gather", "ring"): (ring, RING),
    ("all_reduce", "ring_segmented"): (ring_segmented, RING),
    ("all_reduce", "leader"): (leader, f"on the ring of leaders {RING}"),
    ("all_reduce", "hierarchical"): (hierarchical, HIERARCHICAL),
    ("reduce_scatter", "pairwise"): (pairwise, PAIRWISE),
    ("all_to_all", "pairwise"): (pairwise, PAIRWISE),
    ("all_to_all", "spread"): (
        spread_to_all,
        "each rank has a node of its own, the ranks start together and nbytes is a multiple of "
        "ranks * itemsize",
    ),
    ("broadcast", "scatter_all_gather"): (scatter_all_gather, TREES),
    ("broadcast", "chain"): (chain, CHAIN),
    ("reduce", "chain"): (chain, CHAIN),
    ("broadcast", "double_tree"): (double_tree, TREES),
    ("reduce", "double_tree"): (double_tree, TREES),
    ("all_reduce", "double_tree"): (double_tree, TREES),
    ("broadcast", "flat"): (flat_out, IN_TURN),
    ("scatter", "flat"): (flat_out, IN_TURN),
    ("gather", "flat"): (flat_in, IN_TURN),
    ("reduce", "flat"): (flat_in, IN_TURN),
    ("all_reduce", "naive"): (flat_in_and_out, IN_TURN),
    ("barrier", "flat"): (flat_in_and_out, IN_TURN),
}
