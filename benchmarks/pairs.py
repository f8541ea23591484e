"""Messages of one pair: when they come on a practice network, and what the model says.

The link is fitted to the ping-pong of two nodes, as in `network`; the programs of `pair_programs`
then run on real ranks and in `simulate`, in order and, as the control, by the fluid model.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from pathlib import Path

import simlib
from simlib.cluster.practice import PracticeNetwork
from simlib.cluster.practice.run_on_nodes import run_on_nodes
from simlib.cluster.practice.system import why_not
from simlib.core.collectives import gloo

from . import pair_programs
from .table import heading, line

RATE_BPS = 100_000_000


def measure(rounds):
    """``{program: [median seconds of each arrival]}``, of all ranks one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        with PracticeNetwork(pair_programs.RANKS, RATE_BPS) as network:
            argv = [sys.executable, "-m", "benchmarks.pair_programs", folder, str(rounds)]
            failed = run_on_nodes(network, argv)
        if failed:
            raise RuntimeError(f"a rank of the measured program failed: {failed}")
        ranks = [
            json.loads(Path(folder, f"{rank}.json").read_text())
            for rank in range(pair_programs.RANKS)
        ]
    return {
        name: [statistics.median(times) for rank in ranks for times in zip(*rank[name])]  # noqa: B905
        for name in pair_programs.PROGRAMS
    }


def fit(measured):
    """The link that the ping-pongs show."""
    (small_s,), (large_s,) = measured["ping, small"], measured["ping, large"]
    latency_s = small_s / 2
    nbytes = pair_programs.LARGE + gloo.ENVELOPE_BYTES
    return simlib.Link(latency_s, nbytes / (large_s / 2 - latency_s))


def predict(program, cluster):
    """Seconds of each arrival in `simulate`."""
    ranks = cluster.max_ranks
    results = simlib.simulate(program, ranks, cluster=cluster).results
    return [seconds for came_s in results for seconds in came_s]


def pairs(rounds):
    """Print the table of measured and predicted arrivals."""
    heading(f"Several messages of one pair, {RATE_BPS // 10**6} Mbit/s: arrivals")
    if refuse := why_not():
        line(f"left out: {refuse}", "")
        return
    measured = measure(rounds)
    make = functools.partial(
        simlib.Cluster, pair_programs.RANKS, 1, fit(measured), envelope_bytes=gloo.ENVELOPE_BYTES
    )
    for name in ("ten messages", "chunked chain", "server of 4 workers"):
        program, found = pair_programs.PROGRAMS[name], measured[name]
        errors = {}
        for in_order in (True, False):
            wanted = predict(program, make(in_order=in_order))
            errors[in_order] = statistics.median(
                abs(guess / real - 1) for guess, real in zip(wanted, found, strict=True)
            )
        line(f"{name}: first, last arrival, ms", f"{min(found) * 1e3:.1f}, {max(found) * 1e3:.1f}")
        line("  median error, in order", f"{errors[True]:.1%}", "<= 10 %", errors[True] <= 0.10)
        line("  median error, fluid (the control)", f"{errors[False]:.1%}")
