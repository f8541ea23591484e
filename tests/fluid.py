"""A second network, in fractions: water rises in all transfers at once until a link is full.

Slow and exact, written from docs/design/simulation.md; shares no code with `simlib.core.clockwork`,
`simlib.collectives.sharing` or `Topology`. And drivers that put messages through
`simlib.core.clockwork.network`, and a schedule through the network here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from hypothesis import strategies as st
from rank_programs import programs_of_schedule, take

from simlib.core.clockwork.network import Network
from simlib.core.model.cluster import Cluster, Link


@st.composite
def clusters(draw, bandwidths, devices):
    """A small `Cluster` of any sort; few round numbers, so that much coincides."""
    links = st.builds(Link, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(bandwidths))
    uplink = draw(st.none() | links)
    return Cluster(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(links),
        draw(st.none() | links),
        device=draw(st.none() | devices),
        backbone=draw(st.none() | links),
        envelope_bytes=draw(st.sampled_from([0, 0, 10])),
        in_order=draw(st.booleans()),
        rails=draw(st.sampled_from([1, 1, 2, 3])),
        direct_cards=draw(st.booleans()),
        nodes_per_leaf=uplink and draw(st.integers(1, 3)),
        uplink=uplink,
    )


@dataclass(eq=False)
class Flow:
    """One transfer: when its latency is over, its bytes, the names of its links.

    It draws when the one before it, between the same ranks, has ended. Where it goes in parts side
    by side, ``left`` is of one part, and the links are those of all parts.
    """

    draw_s: Fraction
    left: Fraction
    links: tuple
    before: Flow | None = None
    end_s: Fraction | None = None
    start_s: Fraction | None = None

    def may_draw(self, now):
        is_first = self.before is None or self.before.end_s is not None
        return self.end_s is None and self.draw_s <= now and is_first


def fair_rates(flows, capacity):
    """Max-min fair rates by their definition: all rise alike, a full link stops its own."""
    on_link = {
        link: [f for f in flows for crossed in f.links if crossed == link] for link in capacity
    }
    rising = {link: len(on) for link, on in on_link.items() if on}
    left = {link: capacity[link] for link in rising}  # beside those that have stopped
    rates = {}
    while len(rates) < len(flows):
        full_at = {link: left[link] / count for link, count in rising.items() if count}
        level = min(full_at.values())
        for link in [link for link, at in full_at.items() if at == level]:
            for flow in on_link[link]:
                if flow not in rates:
                    rates[flow] = level
                    for crossed in flow.links:
                        rising[crossed] -= 1
                        left[crossed] -= level
    return [rates[flow] for flow in flows]


def placed(cluster, n, placement):
    """The node of each of n ranks."""
    if placement == "block":
        return [rank // cluster.ranks_per_node for rank in range(n)]
    return [rank % cluster.nodes for rank in range(n)]


class ExactNetwork:
    """Transfers between the ranks of a cluster.

    Parameters
    ----------
    cluster : Cluster
    node_of : sequence of int
        Node of each rank.
    more : Fraction
        So many bytes, times its number, each message has beside its own. Where it is below
        zero, the bytes are added and the numbers count down: a message without bytes moves too.
    ring : sequence of int
        Ranks whose ring leaves each node by the cards of all of them there.
    """

    def __init__(self, cluster, node_of, more=Fraction(0), ring=()):
        self._more = more
        self._started = 0
        self._cluster = cluster
        self._node_of = node_of
        self._rails_of_node = self._all_rails(ring)
        self._flows = []  # those under way, in the order of their starts
        self._drawing = []
        self._capacity = {}
        self._last = {}  # of each pair the one that started last
        self._now = Fraction(0)
        self._rates = {}

    def start(self, now, src, dst, nbytes):
        """A message starts: returns its `Flow`."""
        latency_s, links = self._way(src, dst)
        before = self._last.get((src, dst)) if self._cluster.in_order and links else None
        self._started += 1
        number = self._started % 64 if self._more >= 0 else 63 - self._started % 64
        left = nbytes + self._cluster.envelope_bytes + abs(self._more) * number
        left /= max(1, sum(name[0] == "node up" for name in self._names(src, dst)))
        flow = Flow(now + latency_s, left, links, before, start_s=now)
        self._last[src, dst] = flow
        self._flows.append(flow)
        return flow

    def _way(self, src, dst):
        """Latency, and the links with a limit that a message crosses."""
        cluster = self._cluster
        latencies = [cluster.intra]
        if self._node_of[src] != self._node_of[dst]:
            latencies += [cluster.inter, cluster.backbone]
        sorts = {"rank": cluster.intra, "node": cluster.inter, "back": cluster.backbone}
        sorts["leaf"] = cluster.uplink
        names = self._names(src, dst)
        if any(name[0] == "leaf up" for name in names):
            latencies.append(cluster.uplink)
        for name in names:
            link = sorts[name[0][:4]]
            if link is not None and link.bandwidth_Bps < inf:
                self._capacity[name] = Fraction(link.bandwidth_Bps)
        links = tuple(name for name in names if name in self._capacity)
        return sum(Fraction(link.latency_s) for link in latencies if link is not None), links

    def _names(self, src, dst):
        """The links that a message crosses, those between nodes once for each of its parts."""
        here, there = self._node_of[src], self._node_of[dst]
        if here == there:
            return [("rank up", src), ("rank down", dst)]
        by = self._rails_of_node.get(here, [self._rail_of(src)])
        to = self._rails_of_node.get(there, [self._rail_of(dst)])
        names = [("node up", here, rail) for rail in by]
        names += [("node down", there, rail) for rail in to]
        names += [("backbone", 0)] * len(by)
        if self._cluster.uplink is not None:
            names += self._uplinks(here, there, by, to)
        own = [("rank up", src), ("rank down", dst)]
        return names if self._cluster.direct_cards else names + own

    def _uplinks(self, here, there, by, to):
        """Of each part whose two cards are on different leaf switches: one up and one down."""
        groups = [node // self._cluster.nodes_per_leaf for node in (here, there)]
        for rail, other in zip(by, to, strict=True):
            leaf, other_leaf = (groups[0], rail), (groups[1], other)
            if leaf != other_leaf:
                yield "leaf up", *leaf
                yield "leaf down", *other_leaf

    def _all_rails(self, ring):
        """By node, the cards of a ring: as many as its members have where they have fewest."""
        nodes = [self._node_of[rank] for rank in ring]
        leaving = sum(
            here != there for here, there in zip(nodes, nodes[1:] + nodes[:1], strict=True)
        )
        if not (ring and self._cluster.direct_cards and leaving == len(set(nodes))):
            return {}
        rails = {node: set() for node in nodes}
        for rank, node in zip(ring, nodes, strict=True):
            rails[node].add(self._rail_of(rank))
        fewest = min(map(len, rails.values()))
        return {node: sorted(those)[:fewest] for node, those in rails.items() if fewest > 1}

    def _rail_of(self, rank):
        """The network card of a rank: those of a node take them in turn."""
        return self._node_of[:rank].count(self._node_of[rank]) % self._cluster.rails

    def next_s(self):
        """The next moment at which something happens; infinite where nothing is under way."""
        coming = [flow.draw_s for flow in self._flows if flow.draw_s > self._now]
        if any(self._is_through(flow, self._now) for flow in self._flows):
            return self._now
        self._share()
        return min(coming + [self._now + f.left / r for f, r in self._rates.items()], default=inf)

    @staticmethod
    def _is_through(flow, now):
        return flow.may_draw(now) and not (flow.left and flow.links)

    def _share(self):
        drawing = [flow for flow in self._flows if flow.may_draw(self._now) and flow.links]
        if drawing != self._drawing:
            self._drawing = drawing
            self._rates = dict(zip(drawing, fair_rates(drawing, self._capacity), strict=True))

    def advance(self, then):
        """Go on to the next moment, or one before it; returns the transfers that have ended."""
        self._share()
        for flow, rate in self._rates.items():
            flow.left -= rate * (then - self._now)
        self._now = then
        ended = []
        while through := [flow for flow in self._flows if self._is_through(flow, then)]:
            for flow in through:
                flow.end_s = then
            ended += through
            self._flows = [flow for flow in self._flows if flow.end_s is None]
        return ended


def exact_ends(topology, messages):
    """Ends of ``(start_s, src, dst, nbytes)``, as floats, in their order."""
    network = ExactNetwork(topology.cluster, topology.node_of.tolist())
    flows, waiting = {}, by_start(messages)
    while waiting or network.next_s() < inf:
        now = min([Fraction(start_s) for _, (start_s, *_) in waiting[:1]] + [network.next_s()])
        network.advance(now)
        while waiting and waiting[0][1][0] == now:
            index, (_, src, dst, nbytes) = waiting.pop(0)
            flows[index] = network.start(now, src, dst, nbytes)
    return [float(flows[index].end_s) for index in range(len(messages))]


def by_start(messages):
    """Messages with their numbers, in order of their starts."""
    return sorted(enumerate(messages), key=lambda item: item[1][0])


def network_ends(topology, messages):
    """The same from `Network`: each message is started at its time."""
    network = Network(topology)
    transfers = {}
    for index, (start_s, src, dst, nbytes) in by_start(messages):
        transfers[index] = network.start(start_s, src, dst, nbytes)
    network.advance(1e30)
    return [transfers[index].end_s for index in range(len(messages))]


def through_network(schedule, topology, members, starts, eager_limit_bytes=-1):
    """Ends of the members, and times of each pair's messages, from programs of the ranks."""
    programs, begins = [[] for _ in range(topology.world_size)], [0.0] * topology.world_size
    for member, start, program in zip(members, starts, programs_of_schedule(schedule), strict=True):
        begins[member] = start
        programs[member] = [
            [post._replace(peer=members[post.peer]) for post in step] for step in program
        ]
    device = topology.cluster.device
    ring = members if schedule.algorithm in ("ring", "chain") else ()
    network = ExactNetwork(topology.cluster, topology.node_of.tolist(), ring=ring)
    reduce_Bps = device.reduce_Bps if device else inf
    ends, times = take(programs, network, begins, reduce_Bps, eager_limit_bytes)
    return [ends[member] for member in members], times
