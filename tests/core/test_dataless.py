"""Programs of each kind of parallelism call what they call on real ranks."""

import functools

import pytest

import simlib
from tests.dataless_programs import PROGRAMS

CLUSTER = simlib.Cluster(
    2, 2, simlib.Link(5e-6, 1e10), simlib.Link(1e-6, 1e11), simlib.Device(1e12, 1e12)
)
QUICK = ("ddp_autocast", "fsdp2_bfloat16", "expert_parallel")
"""Tried by every `make test`; the rest by `make test-all`."""
EACH = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)


@functools.cache
def simulated(name):
    return simlib.simulate(PROGRAMS[name], 4, cluster=CLUSTER, memory=True, algorithms="nccl")


def _calls(run, rank):
    return [
        (op.kind, op.group.ranks, op.peer, op.shapes, op.dtype, op.nbytes, op.splits, str(op.site))
        for op in run.trace.of_rank(rank)
    ]


@EACH
def test_simulated_ranks_call_what_real_ones_call(name):
    real = simlib.run(PROGRAMS[name], 4)
    for rank in range(4):
        assert _calls(simulated(name), rank) == _calls(real, rank)
