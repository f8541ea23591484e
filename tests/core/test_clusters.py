"""The presets: what they promise, and that their fields can be replaced."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib import clusters, devices
from simlib.core.model.cluster import Cluster, Link, Topology

PRESETS = [
    value
    for name, value in vars(clusters).items()
    if inspect.isfunction(value) and name in clusters.__all__
]


def test_presets_have_the_size_asked_for_a_source_and_fields_that_can_be_replaced():
    slow = Link(1.0, 1.0)
    assert len(PRESETS) == 7
    for preset in PRESETS:
        found = preset(nodes=3, ranks_per_node=4)
        assert isinstance(found, Cluster) and (found.nodes, found.ranks_per_node) == (3, 4)
        assert "**Source**" in preset.__doc__
        found = preset(nodes=2, ranks_per_node=1, inter=slow, intra=slow, envelope_bytes=40)
        assert (found.inter, found.intra, found.envelope_bytes) == (slow, slow, 40)


def test_line_rates():
    for preset, bits_per_s in (
        (clusters.ethernet_1g, 1e9),
        (clusters.ethernet_10g, 10e9),
        (clusters.ethernet_100g, 100e9),
        (clusters.infiniband_hdr, 200e9),
    ):
        assert Topology(preset(nodes=2), 2).bandwidth_Bps(0, 1) * 8 == bits_per_s


def test_gpus_of_a_node_exchange_150_GB_per_second_each_way():
    topology = Topology(clusters.nvlink_nodes(nodes=2), 16)
    assert topology.bandwidth_Bps(0, 1) == 6 * 25e9  # a V100: six NVLinks, 25 GB/s each way
    assert topology.bandwidth_Bps(0, 8) == 6 * 25e9  # its own link is the slowest on the way
    assert clusters.nvlink_nodes(nodes=2).inter.bandwidth_Bps * 8 == 8 * 200e9


def test_an_h100_has_a_network_card_of_its_own():
    topology = Topology(clusters.h100_nodes(nodes=2), 16)
    assert topology.bandwidth_Bps(0, 1) == 18 * 25e9  # 18 NVLinks, 25 GB/s each way
    assert topology.bandwidth_Bps(0, 8) * 8 == 400e9
    assert topology.cards_are_private()
    assert topology.cluster.device == devices.h100()
    inside, outside = topology.links(0, 1), topology.links(0, 9)
    names = [topology.link_name(link) for link in (*inside, *outside)]
    assert names == ["rank 0 up", "rank 1 down", "node 0 rail 0 up", "node 1 rail 1 down"]


def test_direct_cards_leave_the_links_in_the_node_to_others():
    def main(rank, n):
        requests = [dist.isend(torch.zeros(250), to) for to in (1, 2)] if rank == 0 else []
        if rank in (1, 2):
            requests = [dist.irecv(torch.zeros(250), 0)]
        for request in requests:
            request.wait()

    link = simlib.Link(0.0, 1000.0)
    for direct, wanted_s in ((False, 2.0), (True, 1.0)):
        cluster = simlib.Cluster(2, 2, link, link, direct_cards=direct)
        assert simlib.simulate(main, 4, cluster=cluster).time_s == wanted_s


def summed(rank, n, size, own_groups):
    groups = dist.init_device_mesh("cpu", (n // 8, 8), mesh_dim_names=("over", "in"))
    group = groups.get_group("over") if own_groups else None
    dist.all_reduce(torch.ones(size), group=group)


def test_a_ring_leaves_a_node_by_the_cards_of_all_its_members():
    size = 64
    card, bus = Link(1.0, 100.0), Link(0.5, 1000.0)
    for own_groups, cards in ((False, 8), (True, 1)):
        n = 2 if own_groups else 16
        cluster = Cluster(2, 8, card, bus, rails=8, direct_cards=True)
        run = simlib.simulate(summed, 16, (size, own_groups), cluster=cluster, all_reduce="ring")
        step_s = 1.5 + 4 * size / n / (cards * 100.0)  # in a node it takes less
        assert run.time_s == pytest.approx(2 * (n - 1) * step_s, rel=1e-12)
        asked = ("all_reduce", n, 4 * size, cluster, "ring")
        placement = [rank * 2 // n for rank in range(n)]
        assert simlib.scale.time_of(*asked, placement=placement) == pytest.approx(run.time_s)


@pytest.mark.parametrize("uplink_Bps", [30.0, 100.0, 400.0])
def test_a_ring_shares_the_uplinks_of_its_leaf_switches(uplink_Bps):
    """Three engines against a closed form: the messages on the busiest uplink divide it."""
    n, nbytes, card = 8, 3200, Link(1.0, 100.0)
    cluster = Cluster(n, 1, card, nodes_per_leaf=4, uplink=Link(0.5, uplink_Bps))
    for placement, crossing in (("block", 1), ([0, 4, 1, 5, 2, 6, 3, 7], 4)):
        step_s = 1.5 + nbytes / n / min(100.0, uplink_Bps / crossing)
        in_leaf_s = 1.0 + nbytes / n / 100.0
        # Slow steps follow each other; at the other links a rank waits for its neighbour.
        wanted_s = 2 * (n - 1) * max(step_s, in_leaf_s)
        asked = dict(cluster=cluster, placement=placement)
        run = simlib.simulate(
            lambda rank, n: dist.all_reduce(torch.ones(nbytes // 4)), n, all_reduce="ring", **asked
        )
        assert run.time_s == pytest.approx(wanted_s, rel=1e-12)
        modelled_s = simlib.scale.time_of("all_reduce", n, nbytes, algorithm="ring", **asked)
        assert modelled_s == pytest.approx(wanted_s, rel=1e-12)


def test_each_rail_has_leaf_switches_of_its_own():
    cluster = Cluster(4, 2, Link(1.0, 100.0), rails=2, nodes_per_leaf=2, uplink=Link(0.5, 50.0))
    topology = Topology(cluster, 8)
    assert topology.leaf_of.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    for dst, crossed, latency_s in (
        (2, ["node 0 rail 0 up", "node 1 rail 0 down"], 1.0),
        (3, ["node 0 rail 0 up", "leaf 0 up", "leaf 1 down", "node 1 rail 1 down"], 1.5),
        (4, ["node 0 rail 0 up", "leaf 0 up", "leaf 2 down", "node 2 rail 0 down"], 1.5),
        (1, [], 0.0),
    ):
        assert [topology.link_name(link) for link in topology.links(0, dst)] == crossed
        assert topology.latency_s(0, dst) == latency_s
    assert not topology.links_are_private()
    ring = Topology(replace(cluster, direct_cards=True), 8).of_ring(range(8))
    assert ring.bandwidth_Bps(1, 2) == 200.0 and ring.bandwidth_Bps(3, 4) == 100.0


def test_a_ring_has_as_many_cards_as_its_members_have_where_they_have_fewest():
    cluster = Cluster(3, 4, Link(1.0, 100.0), rails=4, direct_cards=True)
    topology = Topology(cluster, 12)
    for ranks, cards in (
        (range(12), 4),
        ((2, 3, 4, 5, 6), 2),
        (range(5), 1),
        ((0, 4, 8), 1),
        ((0, 4, 1, 5), 1),  # it leaves each node twice
        (range(4), 1),
    ):
        ring = topology.of_ring(ranks)
        assert ring.cards == cards
        assert (ring is topology) == (cards == 1)
    ring = topology.of_ring((2, 3, 4, 5, 6))
    crossed = ring.links(3, 4)
    assert [ring.link_name(link) for link in crossed] == [
        *("node 0 rail 2 up", "node 0 rail 3 up", "node 1 rail 0 down", "node 1 rail 1 down"),
    ]
    assert Topology(replace(cluster, direct_cards=False), 12).of_ring(range(12)).cards == 1


def test_only_rings_and_chains_leave_by_all_cards():
    cluster = Cluster(2, 4, Link(1.0, 100.0), rails=4, direct_cards=True)
    one = replace(cluster, rails=1)
    for kind, name, faster in (
        ("all_reduce", "ring", True),
        ("broadcast", "chain", True),
        ("all_reduce", "gloo_ring", False),
        ("all_reduce", "ring_segmented", False),
    ):
        by_all, by_one = (simlib.scale.time_of(kind, 8, 800, c, name) for c in (cluster, one))
        assert (by_all < by_one) == faster
