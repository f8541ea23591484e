"""How long the practice cluster takes to come up and to go down, and a program on it to start."""

from __future__ import annotations

import time

from simlib.cluster.practice import PracticeCluster
from simlib.cluster.practice.practice_cluster import why_not_cluster

from .table import heading, line, spread

CASES = ((2, False), (4, False), (4, True))


def practice(rounds):
    """Print the table."""
    heading("Practice cluster, s")
    for nodes, slurm in CASES:
        refuse = why_not_cluster(slurm)
        if refuse:
            line(f"left out: {refuse}", "")
            continue
        seconds = [_round(nodes, slurm) for _ in range(rounds)]
        what = f"{nodes} nodes{' with Slurm' if slurm else ''}"
        parts = ("up", "down", "a program on node1")
        for part, taken in zip(parts, zip(*seconds, strict=True), strict=True):
            line(f"{what}: {part}", spread(taken, digits=2))


def _round(nodes, slurm):
    """Seconds until the cluster is up, until it is gone, and of a program that does nothing."""
    begin_s = time.perf_counter()
    with PracticeCluster(nodes, slurm=slurm) as cluster:
        up_s = time.perf_counter()
        cluster.run("node1", ["true"], check=True)
        ran_s = time.perf_counter()
    return up_s - begin_s, time.perf_counter() - ran_s, ran_s - up_s
