"""The cost model of all_reduces in chunks and in nodes: against their messages, and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sampled import SEED, sampled

import simlib
from simlib import Cluster, Device, Link, scale
from simlib.core.collectives import schedule
from simlib.core.collectives.timing import time_of as time_of_messages
from simlib.core.model.cluster import Topology
from simlib.core.model.errors import InvalidCallError
from simlib.core.scale import solvers
from simlib.core.scale.case import Case

MANY = 100_000
SECOND = Link(1.0, 100.0)  # 1 s and 100 B/s: easy to reckon with
NODES_OF_8 = simlib.clusters.nvlink_nodes(nodes=64)


def message_by_message(kind, name, n, nbytes, cluster, starts=None, placement="block", **more):
    """Ends of all ranks, through the messages of the schedule."""
    topology = Topology(cluster, n, placement)
    found = schedule(kind, n, nbytes, name, itemsize=4, nodes=topology.node_of, **more)
    starts = np.zeros(n) if starts is None else starts
    return time_of_messages(found, topology, np.arange(n), starts)


# -- a ring in segments ----------------------------------------------------------------------------


def test_a_ring_in_segments_by_hand():
    # 4 ranks, 1 s and 100 B/s: blocks of 400 B. In one: 6 rounds of 5 s. In 4 segments: 3 rounds of
    # 2 s for each, then 3 of 5 s. Adding takes what it takes: 3 times a block, however it is cut.
    for chunks, wanted_s in ((1, 30), (4, 4 * 6 + 15)):
        for reduce_Bps, adding_s in ((np.inf, 0), (400.0, 3)):
            cluster = Cluster(4, 1, SECOND, device=Device(reduce_Bps=reduce_Bps))
            asked = "all_reduce", 4, 1600, cluster, "ring_segmented"
            assert scale.time_of(*asked, chunks=chunks) == pytest.approx(wanted_s + adding_s)


@pytest.mark.parametrize(
    "nbytes, reduce_Bps",
    sampled((4 * 48 * 35, 4 * 48 * 33, 4 * (48 * 35 + 5), 4 * 17), (np.inf, 3e9)),
)
def test_a_ring_in_segments_on_nodes(nbytes, reduce_Bps):
    cluster = Cluster(6, 8, NODES_OF_8.inter, NODES_OF_8.intra, Device(reduce_Bps=reduce_Bps))
    apart = np.random.default_rng(SEED).random(48) * 1e-4
    for starts, chunks in product((None, apart), (1, 3, 7)):
        asked, more = (48, nbytes, cluster), {"starts": starts, "chunks": chunks}
        wanted = message_by_message("all_reduce", "ring_segmented", *asked, **more)
        found = scale.ends_of("all_reduce", *asked, "ring_segmented", **more)
        assert found == pytest.approx(wanted, rel=1e-11)


def test_a_ring_in_segments_on_100_000_ranks():
    cluster = simlib.clusters.infiniband_hdr(nodes=MANY)
    latency_s, each_s = cluster.inter.latency_s, 4 / cluster.inter.bandwidth_Bps
    asked = "all_reduce", MANY, 4 * MANY * 35
    for chunks in (1, 7, 10):
        found = scale.time_of(*asked, cluster, "ring_segmented", chunks=chunks)
        steps_s = (chunks + 1) * latency_s + 2 * 35 * each_s
        assert found == pytest.approx((MANY - 1) * steps_s, rel=1e-9)
    more = {"chunks": 7, "placement": "round_robin", "starts": np.arange(MANY) * 1e-9}
    nodes = simlib.clusters.nvlink_nodes(nodes=MANY // 8)
    with pytest.raises(InvalidCallError, match="'ring_segmented' on 100,000 ranks"):
        scale.time_of(*asked, nodes, "ring_segmented", **more)


# -- two trees -------------------------------------------------------------------------------------


def test_two_trees_by_hand():
    # 2 ranks, 1 s and 100 B/s, 3 chunks of 100 B for each tree: 6 messages of 2 s, there and back.
    asked = 2, 600, Cluster(2, 1, SECOND), "double_tree"
    assert scale.time_of("broadcast", *asked, chunks=3) == 12
    assert scale.time_of("all_reduce", *asked, chunks=3) == 24


@pytest.mark.parametrize(
    "kind, reduce_Bps", sampled(("broadcast", "reduce", "all_reduce"), (np.inf, 70.0))
)
def test_two_trees_in_leaps(kind, reduce_Bps):
    """Long pipelines of small trees, starts apart: what follows is worked out in leaps."""
    random = np.random.default_rng(SEED)
    for n in (2, 3, 4, 7, 12):
        cluster = Cluster(n, 1, SECOND, device=Device(reduce_Bps=reduce_Bps))
        for chunks in (1, 2, 5, 40, 41):
            for elements in (0, 2 * chunks, 7 * chunks + 3):
                starts = random.random(n) * random.choice([0.0, 10.0]) + 1e4
                root = int(random.integers(n)) if kind != "all_reduce" else 0
                asked, more = (n, 4 * elements, cluster), {"root": root, "chunks": chunks}
                wanted = message_by_message(kind, "double_tree", *asked, starts, **more)
                found = scale.ends_of(kind, *asked, "double_tree", starts=starts, **more)
                assert found == pytest.approx(wanted, rel=1e-13), (n, chunks, elements)


def test_two_trees_on_100_000_ranks():
    """Rounds times the time of one: the longest way goes through all of them."""
    cluster = simlib.clusters.infiniband_hdr(nodes=MANY)
    link = cluster.inter
    for kind, halves in (("broadcast", 2), ("all_reduce", 4)):
        for chunks in (10, 10_000):
            nbytes = 2 * chunks * 40_000
            found = scale.time_of(kind, MANY, nbytes, cluster, "double_tree", chunks=chunks)
            rounds = halves * (17 + chunks - 1)
            assert found == pytest.approx(
                rounds * (link.latency_s + 40_000 / link.bandwidth_Bps), rel=1e-9
            )
    best = scale.time_of("all_reduce", MANY, 400_000_000, cluster, "double_tree")
    ring = scale.time_of("all_reduce", MANY, 400_000_000, cluster, "ring")
    assert 2 * 4e8 / link.bandwidth_Bps < best < 1.2 * 2 * 4e8 / link.bandwidth_Bps < ring
    cluster = simlib.clusters.nvlink_nodes(nodes=MANY // 8)
    with pytest.raises(InvalidCallError, match="many ranks only if no two ranks share a link"):
        scale.time_of("all_reduce", MANY, 4 * 10**6, cluster, "double_tree", chunks=50)


# -- nodes of several sizes ------------------------------------------------------------------------


@pytest.mark.parametrize("ranks, elements", sampled(range(1, 9), (0, 1, 1000)))
def test_hierarchical_where_the_last_node_has_fewer_ranks(ranks, elements):
    """In closed form or by messages: also where it is done in the node later than the others."""
    for nodes in (2, 3, 6):
        n = 8 * (nodes - 1) + ranks
        asked = n, 4 * elements * 8 * nodes, simlib.clusters.nvlink_nodes(nodes=nodes)
        wanted = message_by_message("all_reduce", "hierarchical", *asked)
        found = scale.ends_of("all_reduce", *asked, "hierarchical")
        assert found == pytest.approx(wanted, rel=1e-11), n


def test_hierarchical_has_a_closed_form_where_the_smaller_nodes_come_first():
    nodes_of = [0] * 4 + [1] * 2 + [2] * 4 + [3] * 3 + [4] * 4 + [5] * 1
    case = {"placement": nodes_of}
    cluster = Cluster(6, 4, Link(2.0, 100.0), Link(1.0, 1000.0), envelope_bytes=10)
    wanted = message_by_message("all_reduce", "hierarchical", 18, 4 * 24 * 5, cluster, **case)
    found = solvers.hierarchical(case_of(18, 4 * 24 * 5, cluster, **case))
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "placement, reduce_Bps, starts, nbytes, is_known",
    [
        ([0, 0, 1, 1, 0, 0], np.inf, None, 4 * 8 * 3, True),
        ([0, 0, 1, 2, 0, 0], np.inf, None, 4 * 12 * 3, False),  # two small ones meet
        ([0, 0, 1, 1, 0, 0], np.inf, np.arange(6.0), 4 * 8 * 3, False),
        ([0, 0, 1, 1, 0, 0], np.inf, None, 4 * 8 * 3 + 4, False),  # chunks differ
        ([0, 0, 1, 1, 0, 0], 1e9, None, 4 * 8 * 3, False),  # who owns four lanes adds longer
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_hierarchical_in_step_or_not(placement, reduce_Bps, starts, nbytes, is_known, in_order):
    cluster = Cluster(
        3, 4, SECOND, Link(0.5, 500.0), Device(reduce_Bps=reduce_Bps), in_order=in_order
    )
    case = case_of(6, nbytes, cluster, placement, starts)
    found = solvers.hierarchical(case)
    assert (found is not None) == is_known
    if is_known:
        wanted = message_by_message(
            "all_reduce", "hierarchical", 6, nbytes, cluster, starts, placement
        )
        assert found == pytest.approx(wanted, rel=1e-12)


def case_of(n, nbytes, cluster, placement="block", starts=None):
    starts = np.zeros(n) if starts is None else starts
    topology = Topology(cluster, n, placement)
    return Case("all_reduce", "hierarchical", topology, nbytes, starts)


def test_hierarchical_on_almost_100_000_ranks():
    """Two ranks in the last node: as if it were full, for the others and for each lane."""
    cluster = simlib.clusters.nvlink_nodes(nodes=MANY // 8)
    fast, slow = cluster.intra, cluster.inter
    lanes_s = 2 * 7 * (fast.latency_s + 5_000_000 / fast.bandwidth_Bps)
    round_s = fast.latency_s + slow.latency_s + 8 * 400 / slow.bandwidth_Bps
    found = scale.time_of("all_reduce", MANY - 6, 40_000_000, cluster, "hierarchical")
    assert found == pytest.approx(lanes_s + 2 * (MANY // 8 - 1) * round_s, rel=1e-9)


def test_hierarchical_by_its_messages_on_a_thousand_ranks():
    """Seven ranks in the last node are done in it later than the others: nothing is in step."""
    cluster = simlib.clusters.nvlink_nodes(nodes=125)
    late = scale.time_of("all_reduce", 999, 400_000_000, cluster, "hierarchical")
    full = scale.time_of("all_reduce", 1000, 400_000_000, cluster, "hierarchical")
    assert full < late < 1.25 * full
    many = simlib.clusters.nvlink_nodes(nodes=MANY // 8)
    with pytest.raises(InvalidCallError, match="no two nodes with fewer ranks are neighbours"):
        scale.time_of("all_reduce", MANY - 1, 400_000_000, many, "hierarchical")
