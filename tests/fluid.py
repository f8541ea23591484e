"""A second network, in fractions: water rises in all transfers at once until a link is full.

Slow and exact, written from docs/design/simulation.md; shares no code with `simlib.core.clockwork`,
`simlib.collectives.sharing` or `Topology`. And drivers that put messages and a schedule through
`simlib.core.clockwork.network`, message by message.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from simlib.core.clockwork.network import Network


@dataclass(eq=False)
class Flow:
    """One transfer: when its latency is over, its bytes, the names of its links.

    It draws when the one before it, between the same ranks, has ended.
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
    on_link = {link: [flow for flow in flows if link in flow.links] for link in capacity}
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
        So many bytes, times its number, each message has beside its own.
    """

    def __init__(self, cluster, node_of, more=Fraction(0)):
        self._more = more
        self._started = 0
        self._cluster = cluster
        self._node_of = node_of
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
        left = nbytes + self._cluster.envelope_bytes + self._more * (self._started % 64)
        flow = Flow(now + latency_s, left, links, before, start_s=now)
        self._last[src, dst] = flow
        self._flows.append(flow)
        return flow

    def _way(self, src, dst):
        """Latency, and the links with a limit that a message crosses."""
        cluster, here, there = self._cluster, self._node_of[src], self._node_of[dst]
        by, to = self._rail_of(src), self._rail_of(dst)
        crossed = [(cluster.intra, "rank up", src), (cluster.intra, "rank down", dst)]
        latencies = [cluster.intra]
        if here != there:
            crossed += [
                (cluster.inter, "node up", here, by),
                (cluster.inter, "node down", there, to),
            ]
            crossed += [(cluster.backbone, "backbone", 0)]
            latencies += [cluster.inter, cluster.backbone]
        for link, *name in crossed:
            if link is not None and link.bandwidth_Bps < inf:
                self._capacity[tuple(name)] = Fraction(link.bandwidth_Bps)
        links = tuple(tuple(name) for _, *name in crossed if tuple(name) in self._capacity)
        return sum(Fraction(link.latency_s) for link in latencies if link is not None), links

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


def through_network(schedule, topology, members, starts, reduce_Bps=inf, eager_limit_bytes=-1):
    """Ends per member, and ``(start_s, end_s)`` per message: a schedule, message by message."""
    network = Network(topology)
    rounds = [
        [(number, *message) for message in zip(r.src, r.dst, r.nbytes, r.adds, strict=True)]
        for number, r in enumerate(schedule.rounds)
    ]
    keys = [(k, i) for k, messages in enumerate(rounds) for i in range(len(messages))]
    mine = [[key for key in keys if p in rounds[key[0]][key[1]][1:3]] for p in range(schedule.n)]
    ready = list(map(float, starts))  # when a member entered the round it is in
    times, open_ = {}, {}
    waiting = [(float(start), p) for p, start in enumerate(starts)]  # members that enter a round

    def current(p):
        return mine[p][0][0] if mine[p] else None

    def is_eager(key):
        return rounds[key[0]][key[1]][3] <= eager_limit_bytes

    def done(p, key, moment):
        """A member has no more to do with a message: if it was the last of its round, it adds."""
        mine[p].remove(key)
        if current(p) != key[0]:
            added = sum(
                int(nbytes) for _, _, to, nbytes, adds in rounds[key[0]] if to == p and adds
            )
            ready[p] = moment + added / reduce_Bps
            waiting.append((ready[p], p))

    entered, came = {}, set()
    while waiting or open_:
        moment = min([time for time, _ in waiting] + [network.next_event_s])
        for transfer in network.advance(moment):
            key = open_.pop(transfer)
            times[key] = (transfer.start_s, transfer.end_s)
            _, src, dst, _, _ = rounds[key[0]][key[1]]
            if not is_eager(key):
                done(src, key, moment)
            elif entered.get(dst) != key[0]:
                came.add(key)
                continue
            done(dst, key, moment)
        for entry in [entry for entry in waiting if entry[0] <= moment]:
            waiting.remove(entry)
            _, p = entry
            entered[p] = current(p)
            for key in [key for key in mine[p] if key[0] == current(p)]:
                _, src, dst, nbytes, _ = rounds[key[0]][key[1]]
                is_sender = p == src
                if is_eager(key) and not is_sender:
                    if key in came:
                        done(p, key, moment)
                    continue
                if is_eager(key) or entered.get(src) == entered.get(dst) == key[0]:
                    transfer = network.start(moment, members[src], members[dst], int(nbytes))
                    open_[transfer] = key
                if is_eager(key):
                    done(p, key, moment)
    return ready, [times[key] for key in keys]
