"""Each algorithm of many rounds, without going through its rounds.

A solver takes a `Case` and gives when each rank has done its part; None where it does not know.
`SOLVERS` names them, and says in words what each of them covers.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ..collectives.schedules import Schedule, split
from ..collectives.steps import binomial_scatter
from ..collectives.timing import time_of
from .case import shares_a_link
from .chains import ends_of_chain
from .in_nodes import hierarchical, leader
from .maxplus import in_turn
from .rings import ring_of_ranks
from .two_trees import double_tree


def ring(case):
    """all_reduce, reduce_scatter, all_gather: round a ring of all ranks."""
    return ring_of_ranks(
        case, case.kind, np.arange(case.n), case.parts(), case.starts, case.last_only
    )


def ring_segmented(case):
    """all_reduce: a reduce_scatter of each segment of all blocks, then an all_gather of blocks.

    Where the chunks of a segment are alike, all segments of one size are one long ring.
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
            ends = ring_of_ranks(case, "reduce_scatter", ranks, chunks, ends, False, long, share)
            if ends is None:
                return None
    return ring_of_ranks(case, "all_gather", ranks, blocks, ends, case.last_only)


def _runs(rows):
    """Rows that are alike and follow each other: how many, and one of them."""
    begins = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return zip(np.diff(begins, append=len(rows)).tolist(), rows[begins], strict=True)


def pairwise(case):
    """all_to_all, reduce_scatter: in n - 1 rounds with each other rank.

    After k rounds a rank has waited for all that are up to k (k + 1) / 2 away: for everybody. Where
    some parts are larger, a rank that gets one is given a larger one in every round: it is last.
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


def spread_to_all(case):
    """all_to_all: everything at once, on links that share out what they have."""
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


def flat_out(case):
    """broadcast, scatter: the root sends to one rank after the other."""
    ready = case.starts.copy()
    others = _others(case)
    nbytes = case.parts()[others] if case.kind == "scatter" else case.nbytes
    _root_sends(case, ready, others, nbytes)
    return ready


def flat_in(case):
    """gather, reduce: one rank after the other sends to the root."""
    ready = case.starts.copy()
    others = _others(case)
    nbytes = case.parts()[others] if case.kind == "gather" else case.nbytes
    _root_receives(case, ready, others, nbytes, adds=case.kind == "reduce")
    return ready


def flat_in_and_out(case):
    """all_reduce, barrier: one after the other to rank 0, and back."""
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


def scatter_all_gather(case):
    """broadcast: a binomial scatter, then all_gather round a ring."""
    if not case.links_are_private:
        return None
    sizes = case.parts()
    moves = binomial_scatter(case.n, case.root)
    scatter = Schedule.of("broadcast", "scatter", case.n, sizes, moves, case.root)
    ready = time_of(scatter, case.topology, np.arange(case.n), case.starts)
    return ring_of_ranks(case, "all_gather", np.arange(case.n), sizes, ready)


def chain(case):
    """broadcast, reduce: in chunks along a line of all ranks."""
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


RING = (
    "each rank has a node of its own; or no two messages of a round share a link (block placement) "
    "and the ranks start together or nbytes is a multiple of ranks * itemsize; or all messages of "
    "a round are alike (round-robin on full nodes, a common start and such an nbytes)"
)
CHAIN = "chunks * ranks is at most 200,000,000 and no two messages share a link (block placement)"
PAIRWISE = (
    "each rank has a node of its own, and the ranks start together (for the last end of all) or "
    "nbytes is a multiple of ranks * itemsize"
)
HIERARCHICAL = (
    "the ranks start together, nbytes is a multiple of nodes * lanes * itemsize (lanes: ranks of "
    "the largest node) and all nodes have as many ranks; or no two that have fewer are neighbours, "
    "these are done in their nodes before the others, and adding takes no time"
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
