"""What simulating the network costs: collectives message by message, and single messages."""

from __future__ import annotations

import statistics
import time
from math import inf

import numpy as np

from simlib import scale
from simlib.core.clockwork.network import Network
from simlib.core.clusters import ethernet_10g
from simlib.core.collectives import schedule
from simlib.core.collectives.timing import time_of
from simlib.core.model.cluster import Link, Topology

from .table import heading, line, spread

RANKS, ELEMENTS = 1024, 1000  # elements of 4 bytes in each of the ring's chunks


def ring_s(topology, elements=RANKS * ELEMENTS):
    """Seconds to make a ring all_reduce, seconds to time it, and its simulated time."""
    begin = time.perf_counter()
    ring = schedule("all_reduce", RANKS, 4 * elements, "ring", itemsize=4)
    made = time.perf_counter()
    ends = time_of(ring, topology, range(RANKS), np.zeros(RANKS))
    return made - begin, time.perf_counter() - made, ends.max()


def closed_form_s(link, sharers):
    """The ring where in each step so many messages share a link."""
    return 2 * (RANKS - 1) * (link.latency_s + sharers * 4 * ELEMENTS / link.bandwidth_Bps)


def message_s(sharers, messages=20_000):
    """Seconds `Network` takes for a message, where so many at a time go into one rank."""
    network = Network(Topology(ethernet_10g(nodes=RANKS), RANKS))
    begin = time.perf_counter()
    for number in range(messages // sharers):
        now_s, dst = float(number), number % 512
        for src in range(sharers):
            network.start(now_s, 512 + src, dst, 1000 * (src + 1))
        while (moment_s := network.next_event_s) < inf:
            network.advance(moment_s)
    return (time.perf_counter() - begin) / messages


def collectives(rounds):
    """Print the table of the simulated network."""
    heading(f"Ring all_reduce of {RANKS:,} ranks, message by message")
    clusters = (
        ("one rank a node", ethernet_10g(RANKS), "block", 1, 0.05),
        ("8 ranks a node, in turn: links shared", ethernet_10g(128, 8), "round_robin", 8, 5),
    )
    for what, cluster, placement, sharers, goal_s in clusters:
        topology = Topology(cluster, RANKS, placement)
        found = [ring_s(topology) for _ in range(rounds)]
        made, timed, (simulated_s, *_) = zip(*found, strict=True)
        held = statistics.median(timed) <= goal_s
        line(f"{what}, s", spread(timed), f"<= {goal_s}", held)
        line("  its schedule before, s", spread(made))
        wanted_s = closed_form_s(cluster.inter, sharers)
        error = abs(simulated_s / wanted_s - 1)
        line("  simulated, ms", f"{simulated_s * 1e3:.6f}")
        line("  off the closed form by", f"{error:.1e}", "<= 1e-9", error <= 1e-9)
    odd = [ring_s(topology, RANKS * ELEMENTS + 500)[1] for _ in range(rounds)]
    line("the same, chunks of two sizes: ranks out of step, s", spread(odd))
    topology = Topology(ethernet_10g(128, 8, intra=Link(1e-6, 10e9)), RANKS, "round_robin")
    limited = [ring_s(topology)[1] for _ in range(rounds)]
    line("the same in step, links in the node limited too, s", spread(limited))

    _directions()

    heading("A message through Network")
    alone = [message_s(1) for _ in range(rounds)]
    line("alone on its path, us", spread(alone, 1e6, 1), "<= 10", statistics.median(alone) <= 1e-5)
    line("of 16 into one rank, us", spread([message_s(16) for _ in range(rounds)], 1e6, 1))


def _directions():
    """Rabenseifner's all_reduce by which partner is met first; no wall time in it."""
    heading("Simulated: 64 ranks, 1.28 MB, the nearest or the farthest partner first")
    clusters = (
        ("one rank a node (the control)", ethernet_10g(64)),
        ("8 ranks a node", ethernet_10g(8, 8)),
    )
    for what, cluster in clusters:
        near_s, far_s = (
            scale.time_of("all_reduce", 64, 1_280_000, cluster, name)
            for name in ("rabenseifner", "rabenseifner_far")
        )
        line(f"{what}, ms", f"{near_s * 1e3:.3f}, {far_s * 1e3:.3f}")
        is_control = cluster.ranks_per_node == 1
        held = far_s == near_s if is_control else None
        line("  farthest / nearest", f"{far_s / near_s:.2f}", "1" if is_control else "", held)
