"""Predicted against measured: Gloo between the nodes of a practice network.

Latency and bandwidth come from the ping-pong of two nodes alone: latency is half a round trip of
4 bytes, bandwidth is what 10 MB take beyond it. Everything else is predicted by the model.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from simlib.cluster.practice import PracticeNetwork
from simlib.cluster.practice.practice_network import run_on_nodes, why_not
from simlib.core.collectives import gloo
from simlib.core.collectives.timing import time_of
from simlib.core.model.cluster import Cluster, Link, Topology

from .rank_on_network import SIZES, SMALL
from .table import heading, line

RATES = (100_000_000, 1_000_000_000)
WORLDS = (2, 3, 4)
OPS = ("ping-pong", "all_reduce", "broadcast", "all_gather")
LARGEST = max(SIZES)
EXPLANATION = """
Short messages are no test of the model here. A shaped link lets 0.5 ms of its rate through at once,
which a real one does not: up to 6 KB at 100 Mbit/s and 62 KB at 1 Gbit/s cost no time, and what is
predicted is too long. Where more ranks than cores wake each other, waiting for a core comes on top,
and what is predicted is too short; so do copies: all_gather makes two of its whole result."""


def measure(nodes, rate_bps, rounds):
    """``{(op, nbytes): [seconds]}``, from the last rank's entry to the last rank's exit."""
    program = Path(__file__).with_name("rank_on_network.py")
    with tempfile.TemporaryDirectory() as folder:
        with PracticeNetwork(nodes, rate_bps) as network:
            failed = run_on_nodes(network, [sys.executable, program, folder, rounds])
        if failed:
            raise RuntimeError(f"a rank of the measured program failed: {failed}")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(nodes)]
    seconds = defaultdict(list)
    for calls in zip(*ranks, strict=True):
        op, nbytes, *_ = calls[0]
        taking_part = calls[:2] if op == "ping-pong" else calls
        *_, begins_s, ends_s = zip(*taking_part, strict=True)
        seconds[op, nbytes].append(max(ends_s) - max(begins_s))
    return dict(seconds)


def fit(seconds):
    """The link that the ping-pong shows."""
    latency_s = statistics.median(seconds["ping-pong", SMALL]) / 2
    beyond_s = statistics.median(seconds["ping-pong", LARGEST]) / 2 - latency_s
    return Link(latency_s, (LARGEST + gloo.ENVELOPE_BYTES) / beyond_s)


def predict(op, nodes, nbytes, link):
    """Seconds of one call on a network of this link, by the messages that Gloo sends."""
    if op == "ping-pong":
        return 2 * (link.latency_s + (nbytes + gloo.ENVELOPE_BYTES) / link.bandwidth_Bps)
    cluster = Cluster(nodes, 1, inter=link, envelope_bytes=gloo.ENVELOPE_BYTES)
    (build,) = gloo.ALGORITHMS[op].values()
    whole = nbytes // (4 * nodes) * 4 * nodes if op == "all_gather" else nbytes
    ends = time_of(
        build(nodes, whole, itemsize=4),
        Topology(cluster, nodes),
        members=np.arange(nodes),
        starts=np.zeros(nodes),
    )
    return float(ends.max())


def is_bandwidth_bound(rate_bps, nbytes):
    """Whether the goal holds for it: 10 MB at both rates, 1 MB at 100 Mbit/s."""
    return nbytes == LARGEST or (nbytes == 1_000_000 and rate_bps == min(RATES))


def network(rounds):
    """Print the tables of predicted and measured times."""
    refuse = why_not()
    if refuse:
        heading("Against a real network")
        line(f"left out: {refuse}", "")
        return
    bound, link = [], None
    for rate_bps in RATES:
        for nodes in WORLDS:
            seconds = measure(nodes, rate_bps, rounds)
            link = fit(seconds) if nodes == min(WORLDS) else link
            bound += _print_table(rate_bps, nodes, seconds, link)
    heading("Against a real network, bandwidth-bound cases")
    middle, worst = statistics.median(bound), max(bound)
    line("median error", f"{middle:.1%}", "<= 10 %", middle <= 0.10)
    line("largest error", f"{worst:.1%}", "<= 20 %", worst <= 0.20)
    print(EXPLANATION)


def _print_table(rate_bps, nodes, seconds, link):
    """Print one network's table; returns the errors of its bandwidth-bound cases."""
    heading(f"{rate_bps // 10**6} Mbit/s, {nodes} nodes: measured and predicted, ms")
    if nodes == min(WORLDS):
        share = link.bandwidth_Bps * 8 / rate_bps
        line("latency of the fit, us", f"{link.latency_s * 1e6:.0f}")
        line("bandwidth of the fit, of the rate", f"{share:.1%}", "headers leave 95.6%")
    bound = []
    for op in OPS:
        for nbytes in SIZES:
            measured = seconds[op, nbytes]
            middle, guess = statistics.median(measured), predict(op, nodes, nbytes, link)
            error = guess / middle - 1
            goal = is_bandwidth_bound(rate_bps, nbytes)
            bound += [abs(error)] if goal else []
            low, high = min(measured) * 1e3, max(measured) * 1e3
            line(
                f"{op}, {nbytes:,} bytes",
                f"{middle * 1e3:9.2f} ({low:.2f} to {high:.2f})",
                f"{guess * 1e3:9.2f}  {error:+6.1%}",
                abs(error) <= 0.20 if goal else None,
            )
    return bound
