"""A modelled cluster: links, nodes, devices, and the node of each rank. It is plain data.

This is the whole network model. A message waits for its latency once. Then it uses bandwidth of
every link on its path. Transfers that cross a link at the same time share its bandwidth max-min
fairly. Messages from one rank to the same other rank travel one after the other, as on one
connection. Links are full duplex. Each rank has a link into its node. Each node has one link into
the network, or several links, which its ranks divide among themselves. Optionally, several
nodes share a leaf switch, and messages to other leaf switches share its uplink. Optionally, all
messages between nodes cross one shared backbone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .card import Card
from .errors import InvalidCallError, check_count, check_number, check_type


@dataclass(frozen=True, slots=True)
class Link:
    """Describes one kind of link. Both directions are equal.

    Parameters
    ----------
    latency_s : float
        Seconds that every message waits once, whatever its size.
    bandwidth_Bps : float
        Bytes per second in each direction. `math.inf` means no limit.
    """

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self) -> None:
        check_number("latency_s", self.latency_s)
        if math.isinf(self.latency_s):
            raise InvalidCallError("latency_s is infinite: give a number, or no message arrives")
        check_number("bandwidth_Bps", self.bandwidth_Bps, above=True)


DTYPES = (
    *("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"),
    *("complex128", "complex64", "int64", "int32", "int16", "int8", "uint8"),
)


@dataclass(frozen=True, slots=True)
class Device:
    """The device on which a rank computes.

    With ``flops_per_s`` alone, the time of an operation is its number of floating-point operations
    divided by that rate. With ``rates`` or ``memory_Bps``, simlib computes one time from the
    arithmetic and one from the bytes. The operation takes the longer of these two times.

    Parameters
    ----------
    flops_per_s : float
        Floating-point operations per second, for each dtype that ``rates`` does not name.
    memory_bytes : float
        Bytes of memory that one rank can use.
    reduce_Bps : float
        Bytes per second at which a rank adds received data to its own data. If it is `math.inf`,
        reductions take no time.
    rates : dict of str to float, optional
        Floating-point operations per second by dtype: ``{"bfloat16": 989e12, "float32": 67e12}``.
        simlib refuses products and attention of another dtype, unless ``flops_per_s`` has a limit.
    memory_Bps : float
        Bytes per second that an operation can read and write.
    launch_s : float
        Seconds that the rank needs to launch one operation.
    workspace_bytes : int
        Memory that matrix products need in addition to the tensors.
    asynchronous : bool
        True if the device works through queues, as a GPU does. The rank then launches an operation
        and continues. It waits for the device when it asks for a value.
    table : Card, optional
        A table by shape: how many times longer an operation takes than the other fields predict.
        `Device.measured` sets it.
    """

    flops_per_s: float = math.inf
    memory_bytes: float = math.inf
    reduce_Bps: float = math.inf
    rates: Mapping[str, float] | None = field(default=None, hash=False)
    memory_Bps: float = math.inf
    launch_s: float = 0.0
    workspace_bytes: int = 0
    asynchronous: bool = False
    table: Card | None = field(default=None, hash=False, repr=False)

    @classmethod
    def measured(cls, path: str | Path, **more: Any) -> Device:
        """Return the device that a file of measurements describes: a `Card`, saved as JSON.

        Parameters
        ----------
        path : str or Path
        **more
            Fields of the device that replace the values in the file.
        """
        try:
            card = Card.read(path)
        except (OSError, ValueError) as wrong:
            raise InvalidCallError(str(wrong)) from None
        return cls._of_card(card, **more)

    @classmethod
    def _of_card(cls, card: Card, **more: Any) -> Device:
        names = "rates memory_Bps memory_bytes launch_s workspace_bytes asynchronous".split()
        return cls(**({name: getattr(card, name) for name in names} | {"table": card} | more))

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "memory_bytes", "reduce_Bps", "memory_Bps"):
            check_number(name, getattr(self, name), above=True)
        for dtype, rate in (self.rates or {}).items():
            if dtype not in DTYPES:
                raise InvalidCallError(
                    f"rates names {dtype!r}, which is not a dtype: choose from {', '.join(DTYPES)}"
                )
            check_number(f"rates[{dtype!r}]", rate, above=True)
        check_number("launch_s", self.launch_s)
        check_count("workspace_bytes", self.workspace_bytes, low=0)
        check_type("asynchronous", self.asynchronous, bool)


FREE = Link(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with ranks in them, and the links between them.

    Parameters
    ----------
    nodes, ranks_per_node : int
    inter : Link
        The link from each node into the network, and back.
    intra : Link, optional
        The link from each rank into its node, and back. With None this link has no latency and no
        limit.
    device : Device, optional
        The device on which each rank computes. With None computing takes no time.
    backbone : Link, optional
        One link that all messages between nodes share, in both directions together. Each of these
        messages also waits once for the latency of the backbone.
    envelope_bytes : int
        Bytes that every message carries in addition to its data.
    in_order : bool
        If True, messages from one rank to another travel one after the other, in the order of their
        starts, as on one connection. If False, these messages share their links, as messages of
        different ranks do, and arrive together. Fluid models such as SimGrid's work in this way.
    rails : int
        Number of network cards of a node. Each card has its own link ``inter``. The ranks of a node
        share out the cards: rank k of the node always sends and receives by card k modulo
        ``rails``, for any rank at the other end.
    direct_cards : bool
        If True, messages between nodes go from a device to its card without crossing its link
        ``intra``. Set it for GPUs, because the cards and the links between GPUs are on different
        buses. The messages still wait for the latency of ``intra``. If the ranks of a ring or a
        chain send messages out of a node, these messages use the cards of all members of the ring
        in this node: see `Topology.of_ring`.
    nodes_per_leaf : int, optional
        Number of nodes that share leaf switches. These nodes form a group. Card k of each node is
        on the k-th leaf switch of its group, so with ``rails`` each rail has its own leaf switches.
        Give ``uplink``, too.
    uplink : Link, optional
        The link from each leaf switch to the spine switches, and back. A message crosses it if the
        two cards are on different leaf switches. It then also pays the latency of the uplink once.
        The spine switches themselves never delay a message.
    """

    nodes: int
    ranks_per_node: int
    inter: Link
    intra: Link | None = None
    device: Device | None = None
    backbone: Link | None = None
    envelope_bytes: int = 0
    in_order: bool = True
    rails: int = 1
    direct_cards: bool = False
    nodes_per_leaf: int | None = None
    uplink: Link | None = None

    def __post_init__(self) -> None:
        check_count("nodes", self.nodes)
        check_count("ranks_per_node", self.ranks_per_node)
        check_count("envelope_bytes", self.envelope_bytes, low=0)
        check_type("in_order", self.in_order, bool)
        check_count("rails", self.rails)
        check_type("direct_cards", self.direct_cards, bool)
        check_type("inter", self.inter, Link)
        sorts = {"intra": Link, "backbone": Link, "device": Device, "uplink": Link}
        for name, sort in sorts.items():
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), sort)
        if self.nodes_per_leaf is not None:
            check_count("nodes_per_leaf", self.nodes_per_leaf)
        if (self.nodes_per_leaf is None) != (self.uplink is None):
            raise InvalidCallError(
                f"nodes_per_leaf is {self.nodes_per_leaf} and uplink is {self.uplink}: give both "
                "or neither"
            )

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks on the cluster: ``nodes * ranks_per_node``."""
        return self.nodes * self.ranks_per_node


class Topology:
    """Ranks placed on a cluster. It knows the latency and the links between any two ranks.

    Parameters
    ----------
    cluster : Cluster
    world_size : int
    placement : {"block", "round_robin"} or list of int
        ``"block"`` fills one node after the other. ``"round_robin"`` puts the next rank on the next
        node. A list contains the node of each rank.

    Attributes
    ----------
    node_of : ndarray of int, shape (world_size,)
        Node of each rank.
    place_in_node : ndarray of int, shape (world_size,)
        Place of each rank among the ranks of its node, from 0.
    rail_of : ndarray of int, shape (world_size,)
        Network card of each rank, within its node.
    card_of : ndarray of int, shape (world_size,)
        Network card of each rank, among the cards of all nodes.
    leaf_of : ndarray of int, shape (world_size,)
        Leaf switch of each rank's network card. Without ``uplink`` all are 0.
    link_bandwidth_Bps : ndarray of float
        Bandwidth of each link, by its id. The array has one entry more than there are links. The
        last entry is infinite. The rows of `paths` use its id as padding.
    cards : int
        A message between nodes uses this many network cards of each node, and sends equal parts by
        them.
    """

    def __init__(
        self, cluster: Cluster, world_size: int, placement: str | list[int] = "block"
    ) -> None:
        check_count("world_size", world_size)
        if world_size > cluster.max_ranks:
            raise InvalidCallError(
                f"{world_size} ranks do not fit: {cluster.nodes} nodes with "
                f"{cluster.ranks_per_node} ranks each have room for {cluster.max_ranks} ranks"
            )
        self.cluster = cluster
        self.world_size = world_size
        self.node_of = _place(cluster, world_size, placement)
        self.place_in_node = _place_in_node(self.node_of)
        self.rail_of = self.place_in_node % cluster.rails
        self.card_of = self.node_of * cluster.rails + self.rail_of
        self.cards, self._cards_of = 1, self.card_of[:, None]
        self._leaf_of_card, leaves = _leaves(cluster)
        self.leaf_of = self._leaf_of_card[self.card_of]
        intra, inter, backbone = cluster.intra or FREE, cluster.inter, cluster.backbone or FREE
        uplink = cluster.uplink or FREE
        self._uplink_s = float(uplink.latency_s)
        self._latency_in_node_s = float(intra.latency_s)
        self._latency_between_s = float(intra.latency_s + inter.latency_s + backbone.latency_s)
        self._node_up = 2 * world_size
        cards = cluster.nodes * cluster.rails
        self._node_down = self._node_up + cards
        self._backbone = self._node_down + cards
        self._leaf_up = self._backbone + 1
        self._leaf_down = self._leaf_up + leaves
        kinds = (
            *((intra, 2 * world_size), (inter, 2 * cards)),
            *((backbone, 1), (uplink, 2 * leaves), (FREE, 1)),
        )
        self.link_bandwidth_Bps = np.repeat(
            [float(link.bandwidth_Bps) for link, _ in kinds], [count for _, count in kinds]
        )

    def of_ring(self, ranks: Sequence[int] | np.ndarray) -> Topology:
        """The same ranks and links, with the paths that messages of a ring of some ranks take.

        As in NCCL, such a ring consists of several rings that run side by side. Each ring leaves a
        node by the card of a different member and carries a part of every message. simlib counts
        the cards that the members use in each node. The lowest count is the number of rings.

        Returns
        -------
        Topology
            The result is this topology itself if there is only one ring, if cards are not direct,
            or if the ring leaves a node more than once.
        """
        ranks = np.asarray(ranks)
        here = self.node_of[ranks]
        cards = np.unique(self.card_of[ranks])
        nodes, first, counts = np.unique(
            cards // self.cluster.rails, return_index=True, return_counts=True
        )
        leaves_once = (here != np.roll(here, -1)).sum() == len(nodes)
        if not (self.cluster.direct_cards and leaves_once and counts.min() > 1):
            return self
        ring = copy.copy(self)
        ring.cards = int(counts.min())
        of_node = np.zeros((self.cluster.nodes, ring.cards), dtype=np.int64)
        of_node[nodes] = cards[first[:, None] + np.arange(ring.cards)]
        ring._cards_of = of_node[self.node_of]
        return ring

    def cards_between(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The number of cards that messages use; 1 within a node. ``src`` and ``dst`` are
        arrays."""
        return np.where(self.node_of[src] == self.node_of[dst], 1, self.cards)

    def latency_s(self, src: int, dst: int) -> float:
        """Seconds that a message from src to dst waits before its bytes begin to move."""
        return float(self.latencies_s(np.array([src]), np.array([dst]))[0])

    def crosses_spine(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Whether messages, or parts of them, go from one leaf switch to another."""
        here, there = (self._leaf_of_card[self._cards_of[ends]] for ends in (src, dst))
        return (here != there).any(axis=1) & (self.node_of[src] != self.node_of[dst])

    def links(self, src: int, dst: int) -> tuple[int, ...]:
        """Ids of the links that a message crosses, in order.

        The list leaves out links without a limit, because they never delay a message. If several
        parts of the message cross a link, its id appears once for each part.
        """
        path = self.paths(np.array([src]), np.array([dst]))[0]
        return tuple(int(link) for link in path if math.isfinite(self.link_bandwidth_Bps[link]))

    def bandwidth_Bps(self, src: int, dst: int) -> float:
        """Bytes per second of a message if no other message uses its path."""
        return float(self.bandwidths_Bps(np.array([src]), np.array([dst]))[0])

    def latencies_s(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """`latency_s` for arrays of ranks."""
        same = self.node_of[src] == self.node_of[dst]
        latencies_s = np.where(same, self._latency_in_node_s, self._latency_between_s)
        if self._uplink_s:
            latencies_s = latencies_s + self._uplink_s * self.crosses_spine(src, dst)
        return latencies_s

    def paths(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """`links` for arrays of ranks: ndarray of int, shape (messages, columns).

        The columns are rank up, node up, backbone, node down, rank down. The three columns in the
        middle are repeated for each part of a message. With ``uplink`` there are two more columns
        for each part: leaf up, before the backbone, and leaf down, after it. In place of each link
        without a limit there is padding: the id of the last entry of `link_bandwidth_Bps`.
        """
        free = len(self.link_bandwidth_Bps) - 1
        same = self.node_of[src] == self.node_of[dst]
        bypass = ~same & self.cluster.direct_cards
        by, to, inside = self._cards_of[src], self._cards_of[dst], same[:, None]
        leaf_up, leaf_down = (np.empty((len(by), 0), dtype=by.dtype),) * 2
        if self.cluster.uplink is not None:
            here, there = self._leaf_of_card[by], self._leaf_of_card[to]
            below = inside | (here == there)
            leaf_up = np.where(below, free, self._leaf_up + here)
            leaf_down = np.where(below, free, self._leaf_down + there)
        columns = [
            np.where(bypass, free, src),
            np.where(inside, free, self._node_up + by),
            leaf_up,
            np.where(inside, free, np.full_like(by, self._backbone)),
            leaf_down,
            np.where(inside, free, self._node_down + to),
            np.where(bypass, free, self.world_size + dst),
        ]
        paths = np.column_stack(columns)
        return np.where(np.isinf(self.link_bandwidth_Bps[paths]), free, paths)

    def cards_are_private(self) -> bool:
        """Whether no two ranks send and receive by the same network card."""
        return len(np.unique(self.card_of)) == self.world_size

    def links_are_private(self) -> bool:
        """Whether only one rank uses each link that has a limit and that messages cross."""
        inter_Bps, backbone_Bps = self.link_bandwidth_Bps[[self._node_up, self._backbone]]
        shared = math.isfinite(inter_Bps) and not self.cards_are_private()
        uplink_Bps = (self.cluster.uplink or FREE).bandwidth_Bps
        all_share = math.isfinite(backbone_Bps) or math.isfinite(uplink_Bps)
        return not (shared or all_share) or self.is_one_node()

    def is_one_node(self) -> bool:
        """Whether all ranks are in one node."""
        return bool((self.node_of == self.node_of[0]).all())

    def bandwidths_Bps(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """`bandwidth_Bps` for arrays of ranks."""
        paths = self.paths(src, dst)
        parts_Bps = self.link_bandwidth_Bps[paths].min(axis=1) * self.cards_between(src, dst)
        before = self.cards * (1 if self.cluster.uplink is None else 2)
        backbone_Bps = self.link_bandwidth_Bps[paths[:, 1 + before]]
        return np.minimum(parts_Bps, backbone_Bps)

    def link_name(self, link: int) -> str:
        """A link's id in words: ``"rank 3 up"``, ``"node 0 down"``, ``"backbone"``.

        If nodes have several cards: ``"node 0 rail 1 down"``. With leaf switches: ``"leaf 2 up"``.
        """
        if self._leaf_up <= link < len(self.link_bandwidth_Bps) - 1:
            up = link < self._leaf_down
            leaf = link - (self._leaf_up if up else self._leaf_down)
            return f"leaf {leaf} {'up' if up else 'down'}"
        if link >= self._backbone:
            return "backbone"
        if link >= self._node_down:
            return f"{self._card_name(link - self._node_down)} down"
        if link >= self._node_up:
            return f"{self._card_name(link - self._node_up)} up"
        up = link < self.world_size
        return f"rank {link} up" if up else f"rank {link - self.world_size} down"

    def _card_name(self, card: int) -> str:
        node, rail = divmod(card, self.cluster.rails)
        return f"node {node}" if self.cluster.rails == 1 else f"node {node} rail {rail}"


def _place(cluster: Cluster, world_size: int, placement: str | list[int]) -> np.ndarray:
    """The node of each rank."""
    if isinstance(placement, str):
        ranks = np.arange(world_size)
        ways = {"block": ranks // cluster.ranks_per_node, "round_robin": ranks % cluster.nodes}
        if placement not in ways:
            raise InvalidCallError(
                f"placement is {placement!r}: give 'block', 'round_robin' or the node of each rank"
            )
        return ways[placement]
    node_of = np.array(placement)
    if node_of.shape != (world_size,) or node_of.dtype.kind not in "iu":
        raise InvalidCallError(
            f"placement is {placement!r}: "
            f"give the node of each rank, one whole number for each of the {world_size} ranks"
        )
    if node_of.min() < 0 or node_of.max() >= cluster.nodes:
        raise InvalidCallError(
            f"placement names node {int(node_of.max() if node_of.min() >= 0 else node_of.min())}: "
            f"the nodes are 0 to {cluster.nodes - 1}"
        )
    counts = np.bincount(node_of)
    if counts.max() > cluster.ranks_per_node:
        raise InvalidCallError(
            f"placement puts {counts.max()} ranks on node {counts.argmax()}: a node has room for "
            f"{cluster.ranks_per_node} ranks"
        )
    return node_of.astype(np.int64)


def _leaves(cluster: Cluster) -> tuple[np.ndarray, int]:
    """The leaf switch of each network card, and the number of leaf switches that have an uplink."""
    node, rail = np.divmod(np.arange(cluster.nodes * cluster.rails), cluster.rails)
    if cluster.nodes_per_leaf is None:
        return np.zeros_like(node), 0
    leaf = node // cluster.nodes_per_leaf * cluster.rails + rail
    return leaf, int(leaf.max()) + 1


def _place_in_node(node_of: np.ndarray) -> np.ndarray:
    """Place of each rank among the ranks of its node, from 0."""
    order = np.argsort(node_of, kind="stable")
    sizes = np.bincount(node_of)
    place = np.empty(len(node_of), dtype=np.int64)
    place[order] = np.arange(len(node_of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place
