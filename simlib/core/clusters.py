"""Clusters to simulate, each with the source of its figures.

Every function takes ``nodes``, ``ranks_per_node`` and other fields of `Cluster`, which replace the
values set here: ``ethernet_10g(nodes=8, ranks_per_node=4, backbone=Link(0, 5e9))``.

Bandwidths are nominal line rates in one direction. A latency is the time that one message needs
from rank to rank, including software. Latencies are rounded numbers of the right order of
magnitude. They are not measurements of one machine.
"""

from __future__ import annotations

from typing import Any

from .devices import h100
from .model.cluster import Cluster, Link

__all__ = [
    "ethernet_1g",
    "ethernet_10g",
    "ethernet_100g",
    "infiniband_hdr",
    "nvlink_nodes",
    "h100_nodes",
    "loopback",
]


def ethernet_1g(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on 1 Gbit/s Ethernet, with TCP.

    **Source** line rate: IEEE 802.3ab; latency: 50 us, about the time of a small TCP message
    through an operating system and one store-and-forward switch.
    """
    return _cluster(nodes, ranks_per_node, Link(50e-6, 1e9 / 8), **more)


def ethernet_10g(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on 10 Gbit/s Ethernet, with TCP.

    **Source** line rate: IEEE 802.3ae; latency: 30 us, about the time of a small TCP message.
    """
    return _cluster(nodes, ranks_per_node, Link(30e-6, 10e9 / 8), **more)


def ethernet_100g(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on 100 Gbit/s Ethernet, with TCP.

    **Source** line rate: IEEE 802.3ba; latency: 20 us, about the time of a small TCP message.
    """
    return _cluster(nodes, ranks_per_node, Link(20e-6, 100e9 / 8), **more)


def infiniband_hdr(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on InfiniBand HDR, 200 Gbit/s.

    **Source** line rate: InfiniBand Trade Association, roadmap (HDR 4x: 200 Gbit/s); latency: 2 us,
    about the time of a small MPI message.
    """
    return _cluster(nodes, ranks_per_node, Link(2e-6, 200e9 / 8), **more)


def nvlink_nodes(nodes: int, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Nodes of 8 GPUs, linked by NVLink within a node and by InfiniBand HDR between nodes.

    Each GPU sends 150 GB/s within its node. Each node has 8 adapters of 200 Gbit/s.

    **Source** The link in the node is that of the V100s of a DGX-2H. Shoeybi et al. 2019 (arXiv
    1909.08053) give 300 GB/s between them, which is the sum of both directions: a V100 has six
    NVLinks of 25 GB/s each way (Nvidia, NVLink page, nvidia.com/en-us/data-center/nvlink). The
    latency is 5 us, about the time of a launch on a GPU. The link between nodes is that of
    `infiniband_hdr`, with one adapter for each of 8 GPUs. The adapters of a node are modelled as
    one link, as if every message used all of them. ``inter=Link(2e-6, 25e9), rails=8`` models them
    one by one.
    """
    more.setdefault("intra", Link(5e-6, 150e9))
    return _cluster(nodes, ranks_per_node, Link(2e-6, 8 * 200e9 / 8), **more)


def h100_nodes(nodes: int, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Return a cluster of nodes of 8 H100 GPUs, with measured times of operations.

    Each GPU sends 450 GB/s within its node and 400 Gbit/s to other nodes. The device is
    `simlib.devices.h100`, which times each operation by a table of measurements. The links are from
    the data sheet. You choose the collectives: ``algorithms="nccl"`` is for GPUs.

    **Source** NVIDIA DGX H100 data sheet: NVLink 900 GB/s for each GPU, the sum of both directions;
    eight single-port ConnectX-7 of 400 Gbit/s InfiniBand, one next to each GPU, so ``rails=8``. The
    adapters are on PCI Express, so messages between nodes do not cross NVLink:
    ``direct_cards=True``. Latencies are as in `nvlink_nodes`: 5 us in the node, about the time of
    a launch on a GPU, and 2 us more between nodes, about the time of a small MPI message.
    """
    fields = {"device": h100(), "intra": Link(5e-6, 900e9 / 2), "rails": 8, "direct_cards": True}
    return _cluster(nodes, ranks_per_node, Link(2e-6, 400e9 / 8), **(fields | more))


def loopback(nodes: int = 1, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Processes of one machine over its loopback interface, as Gloo uses it.

    **Source** `python -m benchmarks loopback`, the ping-pong of two processes with plain Gloo on a
    machine with 2 cores: a message took 57 us and the bandwidth was 4.2 GB/s on an idle machine.
    While other programs ran, it took 85 us, and the bandwidth was 2.6 GB/s. Your machine differs.
    The command prints the numbers of your machine.
    """
    more.setdefault("intra", Link(57e-6, 4.2e9))
    return _cluster(nodes, ranks_per_node, Link(0.0, float("inf")), **more)


def _cluster(nodes: int, ranks_per_node: int, default: Link, **more: Any) -> Cluster:
    return Cluster(nodes, ranks_per_node, **({"inter": default} | more))
