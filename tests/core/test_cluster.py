"""Links, clusters and placements: values, paths, and every refusal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fluid import network_ends

from simlib.core.model.cluster import Cluster, Device, Link, Topology
from simlib.core.model.errors import InvalidCallError

ETHERNET = Link(30e-6, 1.25e9)
BUS = Link(1e-6, 10e9)


def cluster(nodes=2, ranks_per_node=2, inter=ETHERNET, **more):
    return Cluster(nodes, ranks_per_node, inter, **more)


def names(topology, src, dst):
    return [topology.link_name(link) for link in topology.links(src, dst)]


def test_a_path_crosses_the_links_of_ranks_nodes_and_backbone_in_order():
    topology = Topology(cluster(intra=BUS, backbone=Link(2e-6, 3e9)), 4)
    path = ["rank 0 up", "node 0 up", "backbone", "node 1 down", "rank 3 down"]
    assert names(topology, 0, 3) == path
    assert topology.latency_s(0, 3) == 1e-6 + 30e-6 + 2e-6
    assert topology.bandwidth_Bps(0, 3) == 1.25e9
    assert names(topology, 2, 3) == ["rank 2 up", "rank 3 down"]
    assert (topology.latency_s(2, 3), topology.bandwidth_Bps(2, 3)) == (1e-6, 10e9)


def test_without_intra_a_node_costs_nothing_and_every_link_has_a_name_of_its_own():
    topology = Topology(cluster(), 4)
    assert names(topology, 0, 1) == []
    assert (topology.latency_s(0, 1), topology.bandwidth_Bps(0, 1)) == (0, math.inf)
    assert names(topology, 0, 2) == ["node 0 up", "node 1 down"]
    found = [topology.link_name(link) for link in range(len(topology.link_bandwidth_Bps) - 1)]
    assert len(set(found)) == len(found) == 2 * 4 + 2 * 2 + 1


def test_links_are_full_duplex_and_the_backbone_is_one():
    topology = Topology(cluster(intra=BUS, backbone=BUS), 4)
    there, back = set(topology.links(0, 2)), set(topology.links(2, 0))
    assert [topology.link_name(link) for link in there & back] == ["backbone"]


def test_ranks_of_a_node_take_its_cards_in_turn():
    topology = Topology(cluster(ranks_per_node=3, rails=2), 6)
    assert topology.rail_of.tolist() == [0, 1, 0, 0, 1, 0]
    assert names(topology, 0, 4) == ["node 0 rail 0 up", "node 1 rail 1 down"]
    assert names(topology, 4, 2) == ["node 1 rail 1 up", "node 0 rail 0 down"]
    assert (
        topology.rail_of.tolist() != Topology(topology.cluster, 6, "round_robin").rail_of.tolist()
    )
    assert not topology.cards_are_private()
    assert Topology(cluster(ranks_per_node=3, rails=3), 6).cards_are_private()


def test_rails_carry_as_many_messages_at_once():
    # Two pairs of ranks between two nodes: 100 B each at 100 B/s, by one card or by two.
    nodes = dict(ranks_per_node=2, inter=Link(0.0, 100.0))
    for rails, taken_s in ((1, 2.0), (2, 1.0)):
        topology = Topology(cluster(rails=rails, **nodes), 4)
        assert network_ends(topology, [(0, 0, 2, 100), (0, 1, 3, 100)]) == [taken_s] * 2


def test_arrays_say_what_single_pairs_say():
    topology = Topology(cluster(nodes=3, ranks_per_node=4, intra=BUS, backbone=BUS), 11)
    src, dst = (a.ravel() for a in np.meshgrid(np.arange(11), np.arange(11)))
    src, dst = src[src != dst], dst[src != dst]
    pairs = list(zip(src, dst, strict=True))
    free = len(topology.link_bandwidth_Bps) - 1
    rows = [tuple(int(link) for link in row if link != free) for row in topology.paths(src, dst)]
    assert rows == [topology.links(a, b) for a, b in pairs]
    assert topology.latencies_s(src, dst).tolist() == [topology.latency_s(a, b) for a, b in pairs]
    assert topology.bandwidths_Bps(src, dst).tolist() == [
        min(topology.link_bandwidth_Bps[list(row)]) for row in rows
    ]


def test_placements():
    for placement, nodes in (
        ("block", [0, 0, 1, 1, 2]),
        ("round_robin", [0, 1, 2, 0, 1]),
        ([2, 0, 2, 1, 1], [2, 0, 2, 1, 1]),
    ):
        assert Topology(cluster(nodes=3), 5, placement).node_of.tolist() == nodes


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Link(-1, 1), "latency_s is -1"),
        (lambda: Link(math.nan, 1), "latency_s is nan"),
        (lambda: Link(math.inf, 1), "latency_s is infinite"),
        (lambda: Link(0, 0), "bandwidth_Bps is 0"),
        (lambda: Link(0, "fast"), "bandwidth_Bps is 'fast'"),
        (lambda: Device(flops_per_s=0), "flops_per_s is 0"),
        (lambda: cluster(nodes=0), "nodes is 0"),
        (lambda: cluster(ranks_per_node=1.5), "ranks_per_node is 1.5"),
        (lambda: cluster(envelope_bytes=-1), "envelope_bytes is -1"),
        (lambda: cluster(rails=0), "rails is 0"),
        (lambda: cluster(inter=1e9), "give a Link"),
        (lambda: cluster(intra=1e9), "intra is 1000000000.0: give a Link"),
        (lambda: cluster(backbone=1e9), "backbone is 1000000000.0: give a Link"),
        (lambda: cluster(nodes_per_leaf=0, uplink=BUS), "nodes_per_leaf is 0"),
        (lambda: cluster(nodes_per_leaf=2, uplink=1e9), "uplink is 1000000000.0: give a Link"),
        (lambda: cluster(nodes_per_leaf=2), "nodes_per_leaf is 2 and uplink is None: give both"),
        (lambda: cluster(uplink=BUS), "nodes_per_leaf is None and uplink is .*: give both"),
        (lambda: cluster(device=1e9), "device is 1000000000.0: give a Device"),
        (lambda: Topology(cluster(), 0), "world_size is 0"),
        (lambda: Topology(cluster(), 5), "5 ranks do not fit: 2 nodes with 2 ranks each"),
        (lambda: Topology(cluster(), 4, "random"), "placement is 'random'"),
        (lambda: Topology(cluster(), 4, [0, 1]), "one whole number for each of the 4 ranks"),
        (lambda: Topology(cluster(), 4, 1), "one whole number for each of the 4 ranks"),
        (lambda: Topology(cluster(), 2, [0.5, 1.0]), "one whole number for each of the 2 ranks"),
        (lambda: Topology(cluster(), 2, [0, 2]), "node 2: the nodes are 0 to 1"),
        (lambda: Topology(cluster(), 2, [0, -1]), "node -1: the nodes are 0 to 1"),
        (lambda: Topology(cluster(), 3, [1, 1, 1]), "3 ranks on node 1: a node has room for 2"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidCallError, match=words.replace("(", r"\(")):
        make()
