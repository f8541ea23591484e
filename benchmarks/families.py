"""Collectives by name, in `simlib.scale` and in SimGrid's SMPI: when the last rank is done.

The same algorithms under both sets of names (docs/design/families.md), on one and several ranks for
each node, block and round-robin, with all messages waiting for their receivers, with the small ones
eager, and with all of them eager.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from simlib import scale

from . import smpi
from .table import heading, line

NAMES = {
    ("broadcast", "spread"): "bcast:flattree",
    ("broadcast", "binomial"): "bcast:binomial_tree",
    ("broadcast", "scatter_all_gather"): "bcast:scatter_LR_allgather",
    ("broadcast", "scatter_doubling"): "bcast:scatter_rdb_allgather",
    ("scatter", "flat"): "scatter:ompi_basic_linear",
    ("scatter", "spread"): "scatter:ompi_linear_nb",
    ("gather", "flat"): "gather:ompi_basic_linear",
    ("gather", "binomial"): "gather:ompi_binomial",
    ("reduce", "flat"): "reduce:flat_tree",
    ("reduce", "binomial"): "reduce:binomial",
    ("reduce", "rabenseifner"): "reduce:scatter_gather",
    ("all_reduce", "ring"): "allreduce:lr",
    ("all_reduce", "recursive_doubling"): "allreduce:rdb",
    ("all_reduce", "rabenseifner"): "allreduce:rab_rdb",
    ("all_reduce", "binomial"): "allreduce:redbcast",
    ("all_gather", "ring"): "allgather:NTSLR",
    ("all_gather", "recursive_doubling"): "allgather:rdb",
    ("all_gather", "bruck"): "allgather:bruck",
    ("reduce_scatter", "ring"): "reduce_scatter:ompi_ring",
    ("reduce_scatter", "recursive_halving"): "reduce_scatter:ompi_basic_recursivehalving",
    ("reduce_scatter", "pairwise"): "reduce_scatter:mpich_pair",
    ("all_to_all", "pairwise"): "alltoall:ring",
    ("all_to_all", "spread"): "alltoall:basic_linear",
    ("all_to_all", "bruck"): "alltoall:bruck",
    ("barrier", "dissemination"): "barrier:ompi_bruck",
    ("barrier", "binomial"): "barrier:ompi_tree",
}
"""Ours -> SMPI's table and name."""

CONTROL = {("scatter", "binomial"): "scatter:ompi_binomial"}
"""Not the same: theirs sends to the nearest rank first, the largest part last."""

POWERS_OF_TWO = {("broadcast", "scatter_doubling"), ("all_gather", "recursive_doubling")}
"""Alike on a power of two: elsewhere ours fold, and theirs do not."""

REDBCAST = {"smpi/reduce": "binomial", "smpi/bcast": "binomial_tree"}
LAYOUTS = [(8, 1, "block"), (4, 4, "block"), (4, 4, "round_robin"),
           (6, 1, "block"), (3, 4, "block"), (3, 2, "round_robin")]  # fmt: skip
NBYTES_OF_A_RANK = 128, 40_960  # the vector of 6 or 12 ranks divides by 4 or 8 ranks, too
EAGER_LIMITS_BYTES = None, 1000, 1_000_000


def families():
    """Print a line for each algorithm: rows, and the largest relative difference."""
    heading("Collectives by name beside SMPI: when the last rank is done")
    refuse = smpi.why_not()
    if refuse:
        line(f"left out: {refuse}", "")
        return
    with smpi.Program("collective.c") as program:
        for family, theirs in NAMES.items():
            off = _differences(program, family, theirs)
            line(
                _words(family, theirs),
                f"{len(off)} rows, {max(off):.1e}",
                "<= 1e-9",
                max(off) <= 1e-9,
            )
        for family, theirs in CONTROL.items():
            off = _differences(program, family, theirs)
            line(_words(family, theirs), f"{len(off)} rows, {max(off):.1e}", "control: > 1e-9",
                 max(off) > 1e-9)  # fmt: skip


def _words(family, theirs):
    return f"{' '.join(family)}, {theirs.replace(':', ' ')}"


def _differences(program, family, theirs):
    return [
        _difference(program, family, theirs, *row)
        for row in product(LAYOUTS, NBYTES_OF_A_RANK, EAGER_LIMITS_BYTES)
        if family not in POWERS_OF_TWO or row[0][0] * row[0][1] in (8, 16)
    ]


def _difference(program, family, theirs, layout, nbytes_of_a_rank, eager_limit_bytes):
    """Relative, of the last end."""
    (kind, name), (nodes, ranks_per_node, placement) = family, layout
    n = nodes * ranks_per_node
    nbytes = 0 if kind == "barrier" else n * nbytes_of_a_rank
    ours_s = scale.time_of(
        kind,
        n,
        nbytes,
        smpi.cluster(nodes, ranks_per_node),
        name,
        placement=placement,
        eager_limit_bytes=eager_limit_bytes,
    )
    below = 0 if eager_limit_bytes is None else eager_limit_bytes + 1
    table, their_name = theirs.split(":")
    settings = REDBCAST | {
        f"smpi/{table}": their_name,
        "smpi/send-is-detached-thresh": below,
        "smpi/async-small-thresh": below,
    }
    ranks = np.arange(n)
    hosts = ranks // ranks_per_node if placement == "block" else ranks % nodes
    _, printed = program.run(hosts.tolist(), [kind, nbytes, 0], settings)
    theirs_s = max(float(taken) for taken in re.findall(r"taken_s (\S+)", printed))
    return abs(ours_s / theirs_s - 1)
