"""Published speeds and bytes of models that are split over ranks."""

from math import inf

from simlib import Cluster, Link, clusters, scale

from .networks import transformer
from .rows import Row, Table

FREE = Cluster(128, 1, Link(0.0, inf))


def gpipe():
    """Throughput of a Transformer relative to 2 partitions and 1 micro-batch."""
    published = {(2, 1): 1, (4, 1): 1.07, (8, 1): 1.3, (2, 32): 1.8, (4, 32): 3.4, (8, 32): 6.3}
    base_s = _pipeline_s([1] * 2, 1)
    rows = [
        Row(f"{parts} partitions, {_micro_batches(count)}", figure,
            base_s / _pipeline_s([1] * parts, count))
        for (parts, count), figure in published.items()
        if (parts, count) != (2, 1)
    ]  # fmt: skip
    return Table("Transformer", "gain", ".2f", rows)


def torchgpipe_resnet():
    """Speed of ResNet-101 relative to one GPU without a pipeline."""
    published = {1: (0.853, 2), 2: (1.414, 1667), 4: (2.774, 256), 8: (4.294, 150)}
    rows = [
        Row(f"{parts} GPU{'s' * (parts > 1)}, {_micro_batches(count)}", gain,
            3 / _pipeline_s([1] * parts, count, computed_again=(count - 1) / count))
        for parts, (gain, count) in published.items()
    ]  # fmt: skip
    return Table("ResNet-101", "gain", ".3f", rows)


def torchgpipe_amoebanet():
    """Speed of AmoebaNet-D relative to 2 GPUs and 1 micro-batch; stages have so many layers."""
    published = {
        1: {4: ([3, 4, 5, 12], 1.006), 8: ([2, 2, 2, 2, 2, 3, 4, 7], 0.932)},
        4: {2: ([9, 15], 1.546), 4: ([3, 6, 7, 8], 1.680), 8: ([2, 2, 2, 3, 3, 4, 4, 4], 2.625)},
        32: {2: ([9, 15], 1.780), 4: ([3, 6, 7, 8], 2.711), 8: ([2, 2, 2, 3, 3, 4, 4, 4], 4.966)},
    }
    base_s = _pipeline_s([7, 17], 1, computed_again=1)
    rows = []
    for count, balances in published.items():
        again = 1 if count == 1 else (count - 1) / count
        for parts, (layers, gain) in balances.items():
            seconds = _pipeline_s(layers, count, computed_again=again)
            rows.append(Row(f"{parts} GPUs, {_micro_batches(count)}", gain, base_s / seconds))
    return Table("AmoebaNet-D", "gain", ".3f", rows)


def _micro_batches(count):
    return f"{count:,} micro-batch{'es' * (count > 1)}"


def _pipeline_s(shares, count, computed_again=0.0):
    """GPipe with free messages: forward takes 1 s and backward 2 s, of which stages have shares.

    ``computed_again``: the share of micro-batches whose forward is computed again in backward.
    """
    forward = [share / sum(shares) / count for share in shares]
    backward = [(2 + computed_again) * seconds for seconds in forward]
    return scale.pipeline_time(
        len(shares), count, FREE, forward_s=forward, backward_s=backward, message_bytes=4,
        schedule="gpipe",
    ).time_s  # fmt: skip


def megatron():
    """Weak scaling of tensor parallelism on GPUs of a DGX-2H, from 39 Tflop/s on one."""
    published = {2: (54, 1920, 0.96), 4: (64, 2304, 0.82), 8: (72, 3072, 0.77)}
    rows = [
        Row(f"{gpus} GPUs, hidden size {hidden}", efficiency,
            _tensor_parallel_efficiency(layers, hidden, gpus, 39e12))
        for gpus, (layers, hidden, efficiency) in published.items()
    ]  # fmt: skip
    return Table("model", "efficiency", ".1%", rows)


def megatron_later():
    """The same a release later, from 62.4 Tflop/s; layers give the published parameters."""
    published = {2: (2.0, 1920, 0.907), 4: (4.2, 2304, 0.865), 8: (8.7, 3072, 0.796)}
    rows = []
    for gpus, (billions, hidden, efficiency) in published.items():
        per_layer = transformer(1, hidden)[0] - transformer(0, hidden)[0]
        layers = round((billions * 1e9 - transformer(0, hidden)[0]) / per_layer)
        found = _tensor_parallel_efficiency(layers, hidden, gpus, 62.4e12)
        rows.append(Row(f"{gpus} GPUs, {billions} billion parameters", efficiency, found))
    return Table("model", "efficiency", ".1%", rows)


def _tensor_parallel_efficiency(layers, hidden, gpus, flops_per_s):
    """Of 8 sequences of 1,024, with forward computed again in backward.

    Operations are forward's, the same again, and backward's as two; of each layer two all_reduces
    in forward, in forward again, and in backward.
    """
    flops = 2 * 4 * 8 * 1024 * transformer(layers, hidden)[1]
    compute_s = flops / gpus / flops_per_s
    step = scale.tensor_parallel_time(
        3 * layers, 2 * 8 * 1024 * hidden, gpus, clusters.nvlink_nodes(1, gpus),
        forward_s=compute_s / 2, backward_s=compute_s / 2, itemsize=2,
    )  # fmt: skip
    return step.compute_s / step.time_s


def distbelief():
    """Gain of splitting a layer over machines that all wait for the slowest of them."""
    rows = []
    for what, machines, gain in (
        ("42 million parameters, fully connected, 8 machines", 8, 2.2),
        ("1.7 billion, locally connected, 81 machines", 81, 12),
    ):
        found = scale.jittered_time(
            4, machines, FREE, forward_s=1 / machines, backward_s=2 / machines,
            jitter="exponential", spread=1, steps=1000, seed=1, algorithm="binomial",
        )  # fmt: skip
        rows.append(Row(what, gain, 3 / found.step_s))
    return Table("network", "gain", ".2f", rows)


def zero():
    """Gigabytes of 7.5 billion parameters on each of 64 ranks."""
    rows = []
    for stage, published in ((1, 31.4), (2, 16.6), (3, 1.9)):
        step = scale.zero_time(
            stage, 15e9, 64, FREE, forward_s=1.0, backward_s=2.0, optimizer_bytes=90e9,
            bucket_bytes=3e9, itemsize=2,
        )  # fmt: skip
        rows.append(Row(f"stage {stage}", published, step.bytes_per_rank / 1e9))
    return Table("ZeRO", "GB", ".1f", rows)
