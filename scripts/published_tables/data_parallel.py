"""Published scaling of data-parallel training."""

from simlib import Cluster, Link, scale

from .networks import gradients, resnet, vgg16
from .rows import Row, Table
from .servers import INCEPTION_V3

FORWARD_S, BACKWARD_S = 0.06, 0.12
SERVERS = Cluster(44, 8, Link(30e-6, 50e9 / 8), Link(5e-6, 20e9))
SHARES = 4 * 352
"""Bytes of one element for each GPU: `hierarchical` has its closed form for multiples of it."""


def goyal():
    """Time of an iteration on 352 GPUs over that on 8; a row for each piece of the model."""
    rows = [
        Row(what, 1.12, ratio)
        for what, ratio in {
            "full overlap, buckets of 25 MiB ready in proportion to bytes, `leader`": _ratio(),
            "the same without overlap": _ratio(overlap=False),
            "full overlap, `hierarchical` instead of `leader`": _ratio(algorithm="hierarchical"),
            "and buckets ready in proportion to operations": _ratio(
                algorithm="hierarchical", bucket_bytes=25 * 2**20
            ),
            "and each layer sent by itself": _ratio(algorithm="hierarchical", bucket_bytes=0),
            "and halving and doubling between servers": _by_halving(),
            "and the times of GPUs vary by 3 %": _by_halving(spread=0.03),
            "they vary by 8 % instead of 3 %": _by_halving(spread=0.08),
            "they do not vary, but links are 1.7 times as slow": _by_halving(slower=1.7),
        }.items()
    ]
    return Table("the model", "iteration on 352 over 8 GPUs", ".3f", rows)


def _ratio(overlap=True, algorithm="leader", bucket_bytes=None):
    """With all 352 GPUs as ranks; ``bucket_bytes``: of buckets that are ready as layers say."""
    more = {"forward_s": FORWARD_S, "backward_s": BACKWARD_S, "overlap": overlap}
    nbytes = [18_625 * SHARES, 18_625 * SHARES, 18_625 * SHARES, 15_147 * SHARES]
    if bucket_bytes is not None:
        nbytes, more["ready_s"] = gradients(
            resnet([3, 4, 6, 3]), FORWARD_S, BACKWARD_S, bucket_bytes, multiple=SHARES
        )
    few, many = (
        scale.step_time(nbytes, ranks, SERVERS, algorithm=algorithm, **more).time_s
        for ranks in (8, 352)
    )
    return many / few


def _by_halving(spread=0.0, slower=1):
    """A rank is a server here, as slow as the slowest of its 8 GPUs."""

    def slowest_of_8(random, shape):
        return (1 + spread * random.standard_normal((*shape, 8))).max(axis=-1).clip(min=0)

    nbytes, ready_s = gradients(resnet([3, 4, 6, 3]), FORWARD_S, BACKWARD_S)
    cluster = Cluster(44, 1, Link(30e-6 * slower, 50e9 / 8 / slower))
    few, many = (
        scale.jittered_time(
            nbytes, servers, cluster, forward_s=FORWARD_S, backward_s=BACKWARD_S,
            ready_s=ready_s, jitter=slowest_of_8, seed=1, steps=40, algorithm="rabenseifner",
        ).step_s
        for servers in (1, 44)
    )  # fmt: skip
    return many / few


P100_S = {"Inception V3": 64 / 142, "ResNet-101": 64 * 7.73e-3, "VGG-16": 64 / 154}
"""Seconds of 64 images on one P100; ResNet-101 between 50 and 152, by its operations."""


def horovod():
    """Efficiency on 512 GPUs relative to one; three pieces of the model for each network."""
    buckets = {
        "Inception V3": None,
        "ResNet-101": resnet([3, 4, 23, 3]),
        "VGG-16": vgg16(),
    }
    rows = []
    for name, efficiency in (("Inception V3", 0.90), ("ResNet-101", 0.90), ("VGG-16", 0.68)):
        seconds = P100_S[name]
        for what, overlap, spread in (
            ("all overlapped", True, 0.0),
            ("and GPUs vary by 3 %", True, 0.03),
            ("nothing overlapped", False, 0.0),
        ):
            step_s = _horovod_s(seconds, buckets[name], overlap, spread)
            rows.append(Row(f"{name}, {what}", efficiency, seconds / step_s))
    return Table("network, the model", "efficiency", ".1%", rows)


def _horovod_s(seconds, layers, overlap, spread):
    """Of a step on 128 servers of 4 GPUs, with buffers of 64 MiB in one ring."""
    forward_s, backward_s = seconds / 3, seconds * 2 / 3
    nbytes, ready_s = [-(-INCEPTION_V3 // 2048) * 1024] * 2, None
    if layers:
        nbytes, ready_s = gradients(layers, forward_s, backward_s, 64 * 2**20, multiple=2048)
    return scale.jittered_time(
        nbytes, 512, Cluster(128, 4, Link(10e-6, 25e9 / 8), Link(5e-6, 10e9)),
        forward_s=forward_s, backward_s=backward_s, ready_s=ready_s, overlap=overlap,
        spread=spread, seed=1, steps=20 if spread else 1, algorithm="ring",
    ).step_s  # fmt: skip


def ddp():
    """Share of a step that overlap saves; the model's is the most that it can."""
    published = {
        "ResNet, NCCL": 0.380,
        "BERT, NCCL": 0.352,
        "ResNet, Gloo": 0.268,
        "BERT, Gloo": 0.215,
    }
    most = max(_saved(ratio) for ratio in (0.5, 0.8, 1.0, 1.25, 2.0))
    return Table(
        "network, library", "time saved", ".1%",
        [Row(f"{name}: at most", figure, most) for name, figure in published.items()]
        + [Row(f"{name}: communication of {ratio} backwards", published[name], _saved(ratio))
           for name, ratio in (("ResNet, Gloo", 2.2), ("BERT, Gloo", 3.1))],
    )  # fmt: skip


def _saved(ratio, forward_s=0.05, backward_s=0.1, buckets=100):
    """With communication that takes ``ratio`` times as long as backward."""
    nbytes = 4_000_000
    cluster = Cluster(2, 1, Link(0.0, nbytes * buckets / (ratio * backward_s)))
    on, off = (
        scale.step_time(
            [nbytes] * buckets, 2, cluster, forward_s=forward_s, backward_s=backward_s,
            overlap=overlap,
        ).time_s
        for overlap in (True, False)
    )  # fmt: skip
    return 1 - on / off
