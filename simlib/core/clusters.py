"""Clusters to simulate, each with where its figures come from.

Every function takes ``nodes``, ``ranks_per_node`` and further fields of `Cluster`, which replace
what is set here: ``ethernet_10g(nodes=8, ranks_per_node=4, backbone=Link(0, 5e9))``.

Bandwidths are nominal line rates, of one direction. Latencies are what one message pays from rank
to rank, software included; they are round figures of the right order, not of one machine.
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

    **Source** line rate: IEEE 802.3ab; latency: 50 us, the order of a small TCP message through an
    operating system and one store-and-forward switch.
    """
    return _cluster(nodes, ranks_per_node, Link(50e-6, 1e9 / 8), **more)


def ethernet_10g(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on 10 Gbit/s Ethernet, with TCP.

    **Source** line rate: IEEE 802.3ae; latency: 30 us, the order of a small TCP message.
    """
    return _cluster(nodes, ranks_per_node, Link(30e-6, 10e9 / 8), **more)


def ethernet_100g(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on 100 Gbit/s Ethernet, with TCP.

    **Source** line rate: IEEE 802.3ba; latency: 20 us, the order of a small TCP message.
    """
    return _cluster(nodes, ranks_per_node, Link(20e-6, 100e9 / 8), **more)


def infiniband_hdr(nodes: int, ranks_per_node: int = 1, **more: Any) -> Cluster:
    """Nodes on InfiniBand HDR, 200 Gbit/s.

    **Source** line rate: InfiniBand Trade Association, roadmap (HDR 4x: 200 Gbit/s); latency: 2 us,
    the order of a small MPI message.
    """
    return _cluster(nodes, ranks_per_node, Link(2e-6, 200e9 / 8), **more)


def nvlink_nodes(nodes: int, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Nodes of 8 GPUs: 150 GB/s each way between GPUs of a node, 8 InfiniBand HDR links to others.

    **Source** in the node: the V100s of a DGX-2H. Shoeybi et al. 2019 (arXiv 1909.08053) name 300
    GB/s between them, which is both directions together: a V100 has six NVLinks of 25 GB/s each way
    (Nvidia, NVLink page, nvidia.com/en-us/data-center/nvlink). Latency 5 us, the order of a
    launch on a GPU. Between nodes: as `infiniband_hdr`, one adapter for each of 8 GPUs, taken as
    one link of a node, as where every message is spread over all of them;
    ``inter=Link(2e-6, 25e9), rails=8`` has them one by one.
    """
    more.setdefault("intra", Link(5e-6, 150e9))
    return _cluster(nodes, ranks_per_node, Link(2e-6, 8 * 200e9 / 8), **more)


def h100_nodes(nodes: int, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Nodes of 8 measured H100: 450 GB/s each way in the node, 400 Gbit/s for each GPU to others.

    The device is `simlib.devices.h100`, each operation by a table of measurements; the links are
    by data sheet. Collectives are what you choose: ``algorithms="nccl"`` for those of GPUs.

    **Source** NVIDIA DGX H100 data sheet: NVLink 900 GB/s for each GPU, both directions together;
    eight single-port ConnectX-7 of 400 Gbit/s InfiniBand, one beside each GPU, so ``rails=8``. They
    are on PCI Express, so messages between nodes do not cross NVLink: ``direct_cards=True``.
    Latencies are as in `nvlink_nodes`: 5 us in the node, the order of a launch on a GPU, and 2 us
    more between nodes, the order of a small MPI message.
    """
    fields = {"device": h100(), "intra": Link(5e-6, 900e9 / 2), "rails": 8, "direct_cards": True}
    return _cluster(nodes, ranks_per_node, Link(2e-6, 400e9 / 8), **(fields | more))


def loopback(nodes: int = 1, ranks_per_node: int = 8, **more: Any) -> Cluster:
    """Processes of one machine over its loopback interface, as Gloo uses it.

    **Source** `python -m benchmarks loopback`, the ping-pong of two processes by plain Gloo on a
    machine of 2 cores: 57 us and 4.2 GB/s at rest (85 us and 2.6 GB/s when other programs ran).
    Yours differs; the command prints what it finds.
    """
    more.setdefault("intra", Link(57e-6, 4.2e9))
    return _cluster(nodes, ranks_per_node, Link(0.0, float("inf")), **more)


def _cluster(nodes: int, ranks_per_node: int, default: Link, **more: Any) -> Cluster:
    return Cluster(nodes, ranks_per_node, **({"inter": default} | more))
