"""all_reduce over mpi4py and over Gloo on the hosts of a practice cluster, and `simulate` beside.

The cluster that is simulated has the link which Gloo's own ping-pong shows between two hosts alone
(as in `network`): latency is half a round trip of 4 bytes, bandwidth is what 10 MB take beyond it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist

import simlib
from simlib.cluster.launch import ucx
from simlib.cluster.practice import PracticeCluster
from simlib.cluster.practice.practice_cluster import why_not_cluster
from simlib.core.collectives import gloo

from .network import fit
from .rank_over_mpi import SIZES, WAYS
from .table import heading, line

RATES = (100_000_000, 1_000_000_000)
WORLDS = (2, 4)
SETTINGS = {"as simlib has it": {}, "UCX as it is": {ucx.SCHEME: "auto"}}
"""Variables of the jobs that are compared; `simlib.cluster.launch.ucx` sets the first one's."""
POLICY = {"Gloo": "gloo", "mpi4py": "mpich"}


def mpi(rounds):
    """Print the tables of measured and predicted times."""
    refuse = why_not_cluster()
    if refuse:
        heading("all_reduce over MPI")
        line(f"left out: {refuse}", "")
        return
    for rate_bps in RATES:
        link = None
        with PracticeCluster(max(WORLDS), rate_bps) as cluster:
            for nodes in WORLDS:
                found = {name: _measure(cluster, nodes, rounds, name) for name in SETTINGS}
                link = link or fit(_ping_pongs(found))
                _print_table(rate_bps, nodes, found, link)


def _measure(cluster, nodes, rounds, setting):
    """``{(way, op, nbytes): [seconds]}``, from the last rank's entry to the last rank's exit."""
    mpiexec = [*cluster.launcher("login"), Path(sys.executable).with_name("mpiexec")]
    to = simlib.Mpiexec(hosts=cluster.hosts[:nodes], launcher=mpiexec)
    program = Path(__file__).with_name("rank_over_mpi.py")
    with tempfile.TemporaryDirectory() as folder:
        command = to.command(nodes, [sys.executable, str(program), folder, str(rounds)])
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environ |= {"TORCH_CPP_LOG_LEVEL": "ERROR", **to.environ(), **SETTINGS[setting]}
        subprocess.run(command, check=True, env=environ)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(nodes)]
    seconds = defaultdict(list)
    for calls in zip(*ranks, strict=True):
        way, op, nbytes, *_ = calls[0]
        *_, begins_s, ends_s = zip(*(calls[:2] if op == "ping-pong" else calls), strict=True)
        seconds[way, op, nbytes].append(max(ends_s) - max(begins_s))
    return dict(seconds)


def _ping_pongs(found):
    """The ping-pongs of all jobs, as `fit` wants them."""
    seconds = defaultdict(list)
    for job in found.values():
        for (_, op, nbytes), taken in job.items():
            if op == "ping-pong":
                seconds[op, nbytes] += taken
    return seconds


def predict(nodes, nbytes, link, policy):
    """Seconds of one all_reduce on simulated ranks."""

    def main(rank, world_size):
        dist.all_reduce(torch.zeros(nbytes // 4))

    envelope = gloo.ENVELOPE_BYTES if policy == "gloo" else 0
    cluster = simlib.Cluster(nodes, 1, inter=link, envelope_bytes=envelope)
    run = simlib.simulate(main, nodes, cluster=cluster, algorithms=policy)
    return run.time_s


def _print_table(rate_bps, nodes, found, link):
    heading(f"all_reduce, {rate_bps // 10**6} Mbit/s, {nodes} nodes: measured and predicted, ms")
    if nodes == min(WORLDS):
        line("latency of the link, us", f"{link.latency_s * 1e6:.0f}")
        line("bandwidth of the link, of the rate", f"{link.bandwidth_Bps * 8 / rate_bps:.1%}")
    for nbytes in SIZES:
        for way in WAYS:
            for setting, seconds in found.items():
                taken = seconds[way, "all_reduce", nbytes]
                middle_s = statistics.median(taken)
                guess_s = predict(nodes, nbytes, link, POLICY[way.removesuffix(" again")])
                line(
                    f"{nbytes:,} bytes, {way}, {setting}",
                    f"{middle_s * 1e3:9.2f} ({min(taken) * 1e3:.2f} to {max(taken) * 1e3:.2f})",
                    f"{guess_s * 1e3:9.2f}  {guess_s / middle_s - 1:+6.1%}",
                )
