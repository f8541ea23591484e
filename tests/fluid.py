"""A second fluid network, in fractions: water rises in all transfers at once until a link is full.

Slow and exact; shares no code with `simlib.clockwork.network`. And a driver that puts a schedule
through any network, message by message.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from simlib.clockwork.network import Network


@dataclass
class Flow:
    """One transfer: when its latency is over, its bytes, the names of its links.

    It draws when the one before it, between the same ranks, has ended.
    """

    draw_s: Fraction
    left: Fraction
    links: tuple
    before: Flow | None = None
    end_s: Fraction | None = None

    def may_draw(self, now):
        is_first = self.before is None or self.before.end_s is not None
        return self.end_s is None and self.draw_s <= now and is_first


def fair_rates(flows, capacity):
    """Max-min fair rates by their definition: all rise alike, a full link stops its own."""
    rates = [Fraction(0)] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        slack = {}
        for link in {link for index in rising for link in flows[index].links}:
            on_link = [index for index, flow in enumerate(flows) if link in flow.links]
            left = capacity[link] - sum(rates[index] for index in on_link)
            slack[link] = left / sum(index in rising for index in on_link)
        rise = min(slack.values())
        for index in rising:
            rates[index] += rise
        full = {link for link, left in slack.items() if left == rise}
        rising = {index for index in rising if not full & set(flows[index].links)}
    return rates


def run_flows(flows, capacity):
    """Fill in ``end_s`` of every flow."""
    now = Fraction(0)
    while any(flow.end_s is None for flow in flows):
        for flow in flows:  # in order of their starts
            if flow.may_draw(now) and (not flow.left or not flow.links):
                flow.end_s = now
        drawing = [flow for flow in flows if flow.may_draw(now)]
        rates = fair_rates(drawing, capacity)
        coming = [flow.draw_s for flow in flows if flow.end_s is None and flow.draw_s > now]
        ends = [now + flow.left / rate for flow, rate in zip(drawing, rates, strict=True)]
        if not coming and not ends:
            continue
        then = min(coming + ends)
        for flow, rate, end in zip(drawing, rates, ends, strict=True):
            flow.left -= rate * (then - now)
            flow.end_s = then if end == then else None
        now = then


def exact_ends(topology, messages):
    """Ends of ``(start_s, src, dst, nbytes)``, as floats, in their order."""
    bandwidths = topology.link_bandwidth_Bps
    capacity = {link: Fraction(b) for link, b in enumerate(bandwidths) if b < inf}
    flows, last = {}, {}
    for index, (start_s, src, dst, nbytes) in by_start(messages):
        flows[index] = Flow(
            Fraction(start_s) + Fraction(topology.latency_s(src, dst)),
            Fraction(nbytes + topology.cluster.envelope_bytes),
            topology.links(src, dst),
            last.get((src, dst)),
        )
        if topology.cluster.in_order and flows[index].links:
            last[src, dst] = flows[index]
    run_flows(list(flows.values()), capacity)
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
