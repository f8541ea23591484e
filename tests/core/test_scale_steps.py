"""Step models: against simulations of real code, closed forms, and by hand."""

from __future__ import annotations

import sys
from itertools import product
from math import inf

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from closed_forms import CLUSTERS
from sampled import SEED, sampled

import simlib
from simlib import Cluster, Link, scale
from simlib.core.model.errors import InvalidCallError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# -- pipelines -------------------------------------------------------------------------------------


def pipeline(rank, world_size, orders, seconds, elements, num_microbatches):
    """A hand-written pipeline: ``orders[rank]`` says what it computes, as letter, stage, number."""
    stages = len(seconds["F"])

    def tag(kind, stage, number):
        return (stage * 2 + (kind == "B")) * num_microbatches + number

    arriving, sent = {}, []
    for kind, stage, number in orders[rank]:
        is_end = stage == (0 if kind == "F" else stages - 1)
        if not is_end:
            src = (rank + (-1 if kind == "F" else 1)) % world_size
            x = torch.empty(elements)
            arriving[kind, stage, number] = dist.irecv(x, src, tag=tag(kind, stage, number))
    for kind, stage, number in orders[rank]:
        if (kind, stage, number) in arriving:
            arriving[kind, stage, number].wait()
        simlib.compute(seconds=seconds[kind][stage])
        following = stage + (1 if kind == "F" else -1)
        if 0 <= following < stages:
            dst = following % world_size
            y = torch.zeros(elements)
            sent.append(dist.isend(y, dst, tag=tag(kind, following, number)))
    for request in sent:
        request.wait()


def gpipe_order(rank, ranks, count):
    return [("F", rank, m) for m in range(count)] + [("B", rank, m) for m in range(count)][::-1]


def one_f_one_b_order(rank, ranks, count):
    order, forward, backward = [], 0, 0
    while backward < count:
        if forward < count and forward - backward < ranks - rank:
            order.append(("F", rank, forward))
            forward += 1
        else:
            order.append(("B", rank, backward))
            backward += 1
    return order


INTERLEAVED = [
    "F00 F01 F20 F21 F02 B20 F03 B21 F22 B00 F23 B01 B22 B23 B02 B03",
    "F10 F11 F30 B30 F31 B31 F12 B10 F13 B11 F32 B32 F33 B33 B12 B13",
]
"""2 ranks with 2 stages each, 4 micro-batches."""


def interleaved_order(rank, ranks, count):
    return [(unit[0], int(unit[1]), int(unit[2])) for unit in INTERLEAVED[rank].split()]


ORDERS = {"gpipe": gpipe_order, "1f1b": one_f_one_b_order, "interleaved": interleaved_order}


@pytest.mark.parametrize(
    "name, schedule, numbers", sampled(CLUSTERS, ORDERS, ((2, 3), (4, 8), (6, 4)), times=3)
)
def test_a_pipeline_takes_as_long_as_simulated(name, schedule, numbers):
    cluster, order, (ranks, count) = CLUSTERS[name], ORDERS[schedule], numbers
    parts = 2 if schedule == "interleaved" else 1
    if parts == 2:
        ranks, count = 2, 4
    random = np.random.default_rng(SEED)
    times = [random.uniform(1e-4, 1e-3, ranks * parts).tolist() for _ in range(2)]
    orders = [order(rank, ranks, count) for rank in range(ranks)]
    args = orders, dict(zip("FB", times, strict=True)), 20_000, count
    run = simlib.simulate(pipeline, ranks, args, cluster=cluster)
    step = scale.pipeline_time(
        ranks, count, cluster, forward_s=times[0], backward_s=times[1], message_bytes=80_000,
        schedule=schedule, stages_per_rank=parts,
    )  # fmt: skip
    assert step.time_s == pytest.approx(run.time_s, rel=1e-9)


FREE = Cluster(64, 1, Link(0.0, inf))
BYTES = {"message_bytes": 100}


@pytest.mark.parametrize("ranks, count", [(1, 4), (2, 2), (4, 8), (8, 32)])
def test_bubbles_have_their_closed_forms_and_what_is_held_has_the_peak(ranks, count):
    for schedule, parts in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)):
        for link in (Link(0.0, inf), Link(0.1, inf)):
            step = scale.pipeline_time(
                ranks, count, Cluster(8, 1, link), forward_s=1.0, backward_s=2.0, message_bytes=4,
                schedule=schedule, stages_per_rank=parts,
            )  # fmt: skip
            for rank in range(ranks):
                times_s, counts = step.held(rank)
                assert counts.max() == step.peak_microbatches[rank] and counts[-1] == 0
                assert (np.diff(times_s) >= 0).all() and (counts >= 0).all()
            if link.latency_s:
                continue
            even = (ranks - 1) / (parts * count + ranks - 1)
            assert step.bubble == pytest.approx(even, abs=1e-12)
            assert step.even_bubble == pytest.approx(step.bubble, abs=1e-12)
            if parts == 1:
                held = [min(count, ranks - rank) for rank in range(ranks)]
                wanted = [count] * ranks if schedule == "gpipe" else held
                assert step.peak_microbatches.tolist() == wanted


def test_pipelines_by_hand():
    # 2 stages of 1 s and 2 s, messages of 1 s + 100 B / (100 B/s) = 2 s, one micro-batch:
    # 1 + 2 + 1 + 2 + 2 + 2.
    times, cluster = {"forward_s": 1.0, "backward_s": 2.0}, Cluster(2, 1, Link(1.0, 100.0))
    step = scale.pipeline_time(2, 1, cluster, message_bytes=100, activation_bytes=7, **times)
    assert step.time_s == 10 and step.compute_s.tolist() == [3, 3]
    assert step.peak_activation_bytes.tolist() == [7, 7]
    assert step._repr_png_().startswith(b"\x89PNG")
    # Rank 0 of 2, forward 1 s, backward 2 s: F0 F1 wait B0 F2 B1 wait B2.
    times_s, counts = scale.pipeline_time(2, 3, FREE, message_bytes=4, **times).held(0)
    assert times_s.tolist() == [0, 1, 6, 6, 9, 12]
    assert counts.tolist() == [1, 2, 1, 2, 1, 0]


@pytest.mark.parametrize("message_s", [0, 0.1, 0.77, 1])
@pytest.mark.parametrize("backward_s", [1.0, 2.0, 3.3])
def test_even_pipelines_in_closed_form(message_s, backward_s):
    times = {"forward_s": 1.0, "backward_s": backward_s}
    for link in (Link(message_s, inf), Link(0, 100 / message_s if message_s else inf)):
        for ranks, count in product((1, 2, 3, 4, 5, 8), (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)):
            step = scale.pipeline_time(ranks, count, Cluster(ranks, 1, link), **BYTES, **times)
            found_s = scale.even_pipeline_time(ranks, count, message_s=message_s, **times)
            assert found_s == pytest.approx(step.time_s, rel=1e-9), (ranks, count)


def test_longer_messages_than_forwards_have_no_closed_form():
    times = {"forward_s": 1.0, "backward_s": 2.0}
    with pytest.raises(InvalidCallError, match="a message takes 1.5 s, but a forward 1 s"):
        scale.even_pipeline_time(3, 4, message_s=1.5, **times)
    followed = scale.pipeline_time(3, 4, Cluster(3, 1, Link(0, 100 / 1.5)), **BYTES, **times)
    rounds = 5 - 5 // 3
    assert followed.time_s > 6 * 3 + 2 * rounds * 1.5  # what the closed form would have said
    assert scale.even_pipeline_time(1, 4, message_s=1.5, **times) == 12


@pytest.mark.parametrize("message_s", [0, 0.31, 0.5])
def test_ends_of_unequal_stages_are_those_of_the_pipeline_followed(message_s):
    generator = np.random.default_rng(SEED)
    link = Link(message_s, inf)  # nothing shares a card
    for ranks, count in product((1, 2, 3, 5, 8), (1, 2, 4, 7, 16)):
        drawn = generator.uniform(0.5, 3, (2, ranks))
        times = {"forward_s": drawn[0], "backward_s": drawn[1]}
        step = scale.pipeline_time(ranks, count, Cluster(ranks, 1, link), **BYTES, **times)
        wanted = [max(unit[5] for unit in step.units if unit[0] == rank) for rank in range(ranks)]
        found = scale.uneven_pipeline_ends(count, message_s=message_s, **times)
        assert found == pytest.approx(wanted, rel=1e-9), (ranks, count)


def test_messages_longer_than_a_forward_take_turns():
    times = {"forward_s": [0.2, 0.3], "backward_s": [2, 2.5]}
    for message_s, count in ((0.5, 8), (0.9, 5)):
        link = Link(0, 100 / message_s)
        step = scale.pipeline_time(2, count, Cluster(2, 1, link), **BYTES, **times)
        found_s = max(scale.uneven_pipeline_ends(count, message_s=message_s, **times))
        assert found_s == pytest.approx(step.time_s, rel=1e-9)
    times = {"forward_s": [0.2, 1, 1.2], "backward_s": [0.5, 2, 1.5]}  # two share stage 1's card
    step = scale.pipeline_time(3, 8, Cluster(3, 1, Link(0, 200)), **BYTES, **times)
    found_s = max(scale.uneven_pipeline_ends(8, message_s=0.5, **times))
    assert 0.95 * step.time_s < found_s < step.time_s


def test_ends_of_stages_are_refused_where_messages_set_the_pace():
    times = {"forward_s": [1.0, 0.2, 1.0], "backward_s": [2.0, 1.0, 2.0]}
    with pytest.raises(InvalidCallError, match="stage 1 needs 1.2 s .* and 1.4 s to send"):
        scale.uneven_pipeline_ends(4, message_s=0.7, **times)
    assert max(scale.uneven_pipeline_ends(4, message_s=0.6, **times)) > 12
    with pytest.raises(InvalidCallError, match="backward_s has shape"):
        scale.uneven_pipeline_ends(4, forward_s=[1.0, 1.0], backward_s=[1.0])


# -- ZeRO and tensor parallelism -------------------------------------------------------------------


def zero(rank, world_size, stage, sizes, times):
    """A hand-written step of ZeRO: buckets of ``sizes`` bytes, the first to be full first."""
    forward_s, backward_s, update_s = (each[rank] for each in times)
    shares = [size / sum(sizes) for size in sizes]
    padded = [-(-size // (4 * world_size)) * world_size for size in sizes]

    def gather(bucket):
        whole = torch.zeros(padded[bucket])
        part = torch.zeros(padded[bucket] // world_size)
        return dist.all_gather_into_tensor(whole, part, async_op=True)

    def scatter(bucket):
        part = torch.zeros(padded[bucket] // world_size)
        return dist.reduce_scatter_tensor(part, torch.zeros(padded[bucket]), async_op=True)

    scattered = []
    if stage < 3:
        simlib.compute(seconds=forward_s)
        for bucket, share in enumerate(shares):
            simlib.compute(seconds=backward_s * share)
            scattered.append(scatter(bucket))
    else:
        buckets = range(len(sizes))
        coming = gather(buckets[-1])
        for order, seconds in ((buckets[::-1], forward_s), (buckets, backward_s)):
            for bucket, following in zip(order, [*order[1:], None], strict=True):
                if coming:
                    coming.wait()
                coming = None if following is None else gather(following)
                simlib.compute(seconds=seconds * shares[bucket])
                if seconds is backward_s:
                    scattered.append(scatter(bucket))
    for request in scattered:
        request.wait()
    simlib.compute(seconds=update_s)
    if stage < 3:
        for bucket in range(len(sizes)):
            gather(bucket).wait()


def tensor_parallel(rank, world_size, blocks, nbytes, forward_s, backward_s):
    """A hand-written step: each block's output, then each block's gradient, is summed."""
    for seconds in (forward_s[rank], backward_s[rank]):
        for _ in range(blocks):
            simlib.compute(seconds=seconds / blocks)
            dist.all_reduce(torch.zeros(nbytes // 4))


RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}


@pytest.mark.parametrize(
    "stage, backward_s, name", sampled((1, 2, 3), (1e-4, 5e-3), CLUSTERS, times=2)
)
def test_zero_takes_as_long_as_simulated(stage, backward_s, name):
    cluster = CLUSTERS[name]
    random = np.random.default_rng(SEED)
    n, sizes = 8, [400_000, 100_004, 80_000, 800]
    times = [(most * random.uniform(0.5, 1.0, n)).tolist() for most in (1e-3, backward_s, 2e-4)]
    run = simlib.simulate(zero, n, (stage, sizes, times), cluster=cluster, **RINGS)
    forward, backward, update = times
    step = scale.zero_time(
        stage, sizes, n, cluster, forward_s=forward, backward_s=backward, update_s=update
    )
    assert step.time_s == pytest.approx(run.time_s, rel=1e-9)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_tensor_parallelism_takes_as_long_as_simulated(cluster):
    random = np.random.default_rng(SEED)
    forward, backward = (random.uniform(1e-3, 2e-3, 8).tolist() for _ in range(2))
    args = 3, 80_004, forward, backward
    run = simlib.simulate(tensor_parallel, 8, args, cluster=cluster, **RINGS)
    step = scale.tensor_parallel_time(3, 80_004, 8, cluster, forward_s=forward, backward_s=backward)
    assert step.time_s == pytest.approx(run.time_s, rel=1e-9)


def test_bytes_of_parts():
    cluster, more = Cluster(4, 1, Link(1.0, 100.0)), {"forward_s": 1, "backward_s": 2}
    kept = {1: (400, 400, 200), 2: (400, 100, 200), 3: (100, 100, 200)}
    for stage, wanted in kept.items():
        step = scale.zero_time(stage, 400, 4, cluster, **more)
        found = step.parameter_bytes, step.gradient_bytes, step.optimizer_bytes
        assert found == wanted and step.bytes_per_rank == sum(wanted)
    # One bucket, 3 rounds of 2 s for each collective. 1: 3 s, then two of them. 3: they cost three,
    # of which backward needs no all_gather: the bucket is still there.
    assert scale.zero_time(1, 400, 4, cluster, **more).time_s == 3 + 2 * 6
    assert scale.zero_time(3, 400, 4, cluster, **more).time_s == 6 + 3 + 6
    step = scale.tensor_parallel_time(2, 400, 4, cluster, model_bytes=400, **more)
    assert step.time_s == 3 + 4 * 12 and step.exposed_s == 48
    assert "each rank keeps" in repr(step) and step.bytes_per_rank == 400


# -- published numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks, published", [(2, 1.8), (4, 3.4), (8, 6.3)])
def test_gpipe_gains_what_its_paper_says(ranks, published):
    """Transformer, M = 32: Huang et al. 2019, arXiv 1811.06965; relative to M = 1 and K = 2.

    The model has equal stages and free messages: K M / (M + K - 1), at most 8 % above.
    """

    def seconds(ranks, count):
        work = {"forward_s": 1 / ranks / count, "backward_s": 2 / ranks / count}
        more = {"schedule": "gpipe", "message_bytes": 4}
        return scale.pipeline_time(ranks, count, FREE, **work, **more).time_s

    gain = seconds(2, 1) / seconds(ranks, 32)
    assert gain == pytest.approx(ranks * 32 / (32 + ranks - 1), rel=1e-9)
    assert 1 < gain / published < 1.09


def test_zero_keeps_what_its_paper_says():
    """7.5 billion parameters, 64 ranks; whole 120 GB: Rajbhandari et al. 2019 (1910.02054)."""
    times = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_bytes": 90e9, "bucket_bytes": 3e9}
    for stage, published_GB in ((1, 31.4), (2, 16.6), (3, 1.9)):
        step = scale.zero_time(stage, 15e9, 64, FREE, itemsize=2, **times)
        assert round(step.bytes_per_rank / 1e9, 1) == published_GB


# -- refusals, examples ----------------------------------------------------------------------------

TIMES = {"forward_s": 1, "backward_s": 1, "message_bytes": 4}


@pytest.mark.parametrize(
    "asked, more, words",
    [
        ((2, 4), {"schedule": "2f"}, "schedule is '2f'"),
        ((2, 4), {"stages_per_rank": 2}, "one stage on each"),
        ((2, 3), {"schedule": "interleaved"}, "Give a multiple of 2 micro-batches"),
        ((64, 10_000), {}, "1,280,000 units of work"),
        ((2, 4), {"forward_s": [1]}, "give one number of seconds, or 2"),
        ((2, 4), {"forward_s": [1, -1]}, "forward_s is -1: give a number of at least 0"),
    ],
)
def test_refusals(asked, more, words):
    with pytest.raises(InvalidCallError, match=words):
        scale.pipeline_time(*asked, FREE, **TIMES | more)


def test_a_stage_of_zero_that_is_none_is_refused():
    with pytest.raises(InvalidCallError, match="stage is 4: ZeRO has stages 1, 2 and 3"):
        scale.zero_time(4, 400, 4, FREE, forward_s=1, backward_s=1)
