"""The presets: what they promise, and that their fields can be replaced."""

from __future__ import annotations

import inspect

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
