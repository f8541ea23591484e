"""The cost model at 100,000 ranks."""

from __future__ import annotations

import statistics
import time

import numpy as np

from simlib import scale as model
from simlib.core.clusters import ethernet_10g, nvlink_nodes

from .table import heading, line, spread

RANKS, MODEL_BYTES = 100_000, 102_400_000  # elements of 4 bytes: 256 for each rank
UNEVEN_BYTES = 25 * 2**20  # 65 or 66 for each
RANKS_PER_NODE = 8


def questions():
    """What is asked, by name: functions without arguments."""
    single = ethernet_10g(nodes=RANKS)
    nodes = nvlink_nodes(nodes=RANKS // RANKS_PER_NODE)
    apart = np.random.default_rng(0).random(RANKS) * 1e-3
    compute = {"forward_s": 0.06, "backward_s": 0.12}
    sweep = [8, 64, 512, 4096, 32_768, RANKS]

    def all_reduce(algorithm, cluster, nbytes=MODEL_BYTES, **more):
        return lambda: model.time_of("all_reduce", RANKS, nbytes, cluster, algorithm, **more)

    return {
        "ring, 1 rank a node": all_reduce("ring", single, UNEVEN_BYTES),
        "ring, 8 ranks a node": all_reduce("ring", nodes, UNEVEN_BYTES),
        "ring, 8 ranks a node, starts apart": all_reduce("ring", nodes, UNEVEN_BYTES, starts=apart),
        "ring, 8 ranks a node, round-robin": all_reduce("ring", nodes, placement="round_robin"),
        "hierarchical, 8 ranks a node": all_reduce("hierarchical", nodes),
        "leader, 8 ranks a node, starts apart": all_reduce("leader", nodes, starts=apart),
        "recursive doubling, 1 rank a node": all_reduce("recursive_doubling", single),
        "Rabenseifner, 1 rank a node, starts apart": all_reduce(
            "rabenseifner", single, starts=apart
        ),
        "a DDP step of 100 MB, 4 buckets, 8 ranks a node": lambda: model.step_time(
            MODEL_BYTES, RANKS, nodes, **compute
        ),
        "T_sync(R), 6 numbers of ranks up to 100,000": lambda: model.sync_time(
            sweep, MODEL_BYTES, nodes
        ),
        "weak scaling, the same 6": lambda: model.weak_scaling(
            sweep, MODEL_BYTES, nodes, **compute
        ),
    }


def seconds(question):
    """Seconds until the answer."""
    begin = time.perf_counter()
    question()
    return time.perf_counter() - begin


def scale(rounds):
    """Print the table of the cost model."""
    heading(f"The cost model at {RANKS:,} ranks, s")
    for what, question in questions().items():
        values = [seconds(question) for _ in range(rounds)]
        line(what, spread(values), "<= 1", statistics.median(values) <= 1)
