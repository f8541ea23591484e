"""Collectives and training steps on any number of ranks: the cost model, in closed form.

`simulate` runs a rank function on up to 4,096 ranks. This module computes times for 100,000 ranks
and more, without running a program. If both can compute a time, both give the same time::

    cluster = simlib.clusters.nvlink_nodes(nodes=12_500)
    simlib.scale.time_of("all_reduce", 100_000, 100_000_000, cluster, "ring")
    simlib.scale.step_time(100_000_000, 100_000, cluster, forward_s=0.06, backward_s=0.12)
    simlib.scale.weak_scaling([8, 64, 512], 100_000_000, cluster, forward_s=0.06, backward_s=0.12)

Besides `step_time`, the module models steps whose compute varies (`jittered_time`), pipelines,
ZeRO, split tensors, and parameter servers. `expected_max` computes the expected time of the slowest
of many ranks. `checkpoint_interval`, `goodput` and `time_with_failures` model ranks that fail.
`Failures` draws the times at which ranks fail, for ``simulate(kill=...)``, and `Jitter` draws
noise.

The times are exact. If an exact time would take too long to compute, simlib raises an error that
names the cases that are quick.
"""

from ..model.chance import Failures, Jitter
from .checkpoints import checkpoint_interval, goodput, time_with_failures
from .collective import algbw, busbw, ends_of, sync_time, time_of
from .data_parallel import (
    Scaling,
    Step,
    bucket_sizes,
    measured_buckets,
    step_time,
    strong_scaling,
    weak_scaling,
)
from .pipeline_parallel import (
    PipelineStep,
    even_pipeline_time,
    pipeline_time,
    uneven_pipeline_ends,
)
from .programs import ServerSteps, parameter_server_time
from .sharded import ShardedStep, tensor_parallel_time, zero_time
from .stragglers import JitteredSteps, expected_max, jitter_factors, jittered_time

__all__ = [
    "Failures",
    "Jitter",
    "JitteredSteps",
    "PipelineStep",
    "Scaling",
    "ServerSteps",
    "ShardedStep",
    "Step",
    "algbw",
    "bucket_sizes",
    "busbw",
    "checkpoint_interval",
    "ends_of",
    "even_pipeline_time",
    "expected_max",
    "goodput",
    "jitter_factors",
    "jittered_time",
    "measured_buckets",
    "parameter_server_time",
    "pipeline_time",
    "step_time",
    "strong_scaling",
    "sync_time",
    "tensor_parallel_time",
    "time_of",
    "time_with_failures",
    "uneven_pipeline_ends",
    "weak_scaling",
    "zero_time",
]
