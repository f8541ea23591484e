"""Devices that work beside their ranks: overlap in closed form, and in DDP and FSDP2."""

import itertools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard

import simlib
from simlib import Cluster, Device, Link

# As from a cell: the ranks need not import this module, and pytest, in every simulation.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
RING = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
FLOATS = 100
"""So many floats take two ranks a second to all_reduce: a ring of two rounds of 0.5 s."""


def simulate(main, n=2, *args, asynchronous=True, launch_s=0.0, **options):
    device = Device(flops_per_s=1000.0, launch_s=launch_s, asynchronous=asynchronous)
    cluster = Cluster(n, 1, Link(0.25, 800.0), device=device)
    return simlib.simulate(main, n, args, cluster=cluster, **RING, **options)


def overlapping(rank, n, floats, async_op):
    simlib.compute(2)
    work = dist.all_reduce(torch.ones(floats), async_op=async_op)
    simlib.compute(2)
    if async_op:
        work.wait()
    simlib.compute(2)


@pytest.mark.parametrize(
    "floats, async_op, time_s, exposed_s",
    [(100, True, 6, 0), (100, False, 7, 1), (900, True, 9, 3), (900, False, 11, 5)],
)
def test_a_collective_runs_beside_what_does_not_wait_for_it(floats, async_op, time_s, exposed_s):
    run = simulate(overlapping, 2, floats, async_op)
    assert run.time_s == pytest.approx(time_s)
    found = run.exposed()
    assert found.exposed_s.tolist() == pytest.approx([exposed_s] * 2, abs=1e-9)
    assert found.communicating_s.tolist() == pytest.approx([0.5 + floats / 200] * 2)
    assert found.computing_s.tolist() == pytest.approx([6, 6])
    (collective,) = run.trace.collectives
    assert [(op.post_s, op.end_s) for op in collective.ops.values()] == [
        (0, pytest.approx(2.5 + floats / 200))
    ] * 2


def test_a_synchronous_device_waits_for_all():
    run = simulate(overlapping, 2, 100, False, asynchronous=False)
    assert run.time_s == pytest.approx(7)
    with pytest.raises(simlib.InvalidCallError, match=r"Device\(asynchronous=True\)"):
        run.exposed()


def test_a_rank_goes_on_while_its_stream_waits_for_a_slower_rank():
    def main(rank, n):
        simlib.compute(1 + 3 * rank)
        total = torch.ones(FLOATS)
        dist.all_reduce(total)
        return simlib_clock(), total[0].item(), simlib_clock()

    run = simulate(main)
    assert run.results == [(0, 2, 5), (0, 2, 5)]
    assert run.exposed().exposed_s.tolist() == [4, 1]


def simlib_clock():
    import time

    return round(time.perf_counter(), 9)


def test_a_program_of_small_kernels_is_bound_by_their_launches():
    def main(rank, n):
        for _ in range(50):
            simlib.compute(0.001)
        torch.cpu.synchronize()
        return simlib_clock()

    assert simulate(main, 1, launch_s=0.01).results == [0.501]
    assert simulate(main, 1, launch_s=0.0001).results == [0.0501]
    assert simulate(main, 1, launch_s=0.01, slow={0: 3}).results == [1.503]


def test_streams_and_events_order_kernels():
    def main(rank, n):
        side, begin, end = torch.cpu.Stream(), torch.cpu.Event(), torch.cpu.Event()
        simlib.compute(1)
        begin.record()
        side.wait_event(begin)
        with torch.cpu.stream(side):
            simlib.compute(5)
            end.record()
        simlib.compute(2)
        begun = end.query()
        torch.cpu.current_stream().synchronize()
        times = [simlib_clock()]
        torch.cpu.current_stream().wait_stream(side)
        simlib.compute(1)
        end.synchronize()
        times += [simlib_clock(), begin.elapsed_time(end)]
        torch.cpu.synchronize()
        return begun, *times, simlib_clock(), end.query()

    run = simulate(main, 1)
    assert run.results == [(False, 3, 6, 5000, 7, True)]
    assert [len(one.streams) for one in run.profile] == [2]


def test_what_reads_a_value_waits_and_what_does_not_goes_on():
    def main(rank, n):
        x = torch.ones(10, 10)
        y = x @ x  # 2,000 flops: 2 s
        times = [simlib_clock()]
        value = y[0, 0].item()
        times.append(simlib_clock())
        dist.barrier()
        return value, *times, simlib_clock() > times[-1]

    assert simulate(main).results == [(10, 0, 2, True)] * 2


READS = {
    "tolist": lambda x, mask: x.tolist(),
    "cpu": lambda x, mask: x.cpu(),
    "numpy": lambda x, mask: x.numpy(),
    "mask": lambda x, mask: x[mask],
    "write by mask": lambda x, mask: x.__setitem__(mask, torch.ones(9)),
    "bincount": lambda x, mask: torch.arange(3).bincount(),
    "repeat": lambda x, mask: x.repeat_interleave(torch.arange(10), 0),
    "unique": lambda x, mask: x.unique_consecutive(),
}
LAUNCHES = {
    "to": lambda x, mask: x.to("cpu"),
    "fill by mask": lambda x, mask: x.__setitem__(mask, 1.0),
    "index": lambda x, mask: x[torch.arange(2)],
    "known repeat": lambda x, mask: x.repeat_interleave(torch.arange(10), 0, output_size=45),
    "samples": lambda x, mask: list(torch.utils.data.RandomSampler(range(3))),
}


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("parts, time_s", [(READS, 2), (LAUNCHES, 0)])
def test_a_rank_waits_where_a_gpu_gives_it_values_or_their_number(parts, time_s, data):
    if not data:
        parts = {name: parts[name] for name in ("bincount", "index", "samples") if name in parts}

    def main(rank, n):
        x, mask = torch.ones(10, 10), torch.zeros(10, 10, dtype=torch.bool)
        mask.view(-1)[:9] = True
        waited_s = {}
        for name, part in parts.items():
            torch.cpu.synchronize()
            begin_s = simlib_clock()
            x @ x  # 2 s
            part(x, mask)
            waited_s[name] = simlib_clock() - begin_s
        return waited_s

    assert simulate(main, 1, data=data).results == [dict.fromkeys(parts, time_s)]


def test_a_scaler_of_gradients_takes_the_same_time_without_data():
    def main(rank, n):
        model, scaler = nn.Linear(10, 1), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters())
        scaler.scale(model(torch.ones(10, 10)).sum()).backward()
        scaler.step(optimizer)
        times = [simlib_clock()]
        scaler.update()
        return *times, simlib_clock()

    real, dataless = (
        simulate(main, 1, launch_s=0.001, data=data).results[0] for data in (True, False)
    )
    assert dataless == real and real[1] > real[0] > 0.4


def test_an_optimizer_reads_its_steps_beside_the_device():
    def main(rank, n):
        model, closure = nn.Linear(10, 10), lambda: model(torch.ones(10, 10)).sum()
        closure().backward()  # 2 s forward, 2 s backward
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        optimizer.step()
        times = [simlib_clock()]
        optimizer.step(lambda: closure().item())
        return *times, simlib_clock()

    assert simulate(main, 1).results == [(0, 6)]


def test_collectives_of_a_group_go_one_after_the_other_and_of_two_groups_together():
    def main(rank, n, other):
        group = dist.new_group([0, 1]) if other else None
        streams = torch.cpu.Stream(), torch.cpu.Stream()
        for stream, of in zip(streams, (None, group), strict=True):
            with torch.cpu.stream(stream):
                dist.all_reduce(torch.ones(FLOATS), group=of)

    apart, together = simulate(main, 2, False), simulate(main, 2, True)
    assert apart.time_s == pytest.approx(2)
    assert together.time_s == pytest.approx(1.25)  # only their bytes share the link


def test_messages_overlap_and_a_blocking_one_holds_the_stream():
    def main(rank, n):
        x = torch.full((200,), float(rank))  # 0.25 + 800 / 800 s
        if rank == 0:
            simlib.compute(1)
            work = dist.isend(x, 1)
            simlib.compute(3)
            work.wait()
        else:
            dist.recv(x, 0)
            simlib.compute(1)
        return x[0].item()

    run = simulate(main)
    assert run.results == [0, 0]
    assert [end_s for _, end_s in run.trace.spans] == pytest.approx([4, 3.25])


def test_eager_messages_leave_their_sender_at_once():
    def main(rank, n):
        x = torch.ones(200)
        if rank == 0:
            dist.send(x, 1)
            simlib.compute(1)
        else:
            simlib.compute(3)
            dist.recv(x, 0)

    run = simulate(main, sends="eager")
    assert [end_s for _, end_s in run.trace.spans] == pytest.approx([1, 3])


def test_functional_collectives_wait_where_their_tensor_is_used():
    def main(rank, n):
        simlib.compute(1)
        total = functional.all_reduce(torch.ones(FLOATS), "sum", dist.group.WORLD)
        simlib.compute(3)
        return (total + 1)[0].item()

    run = simulate(main)
    assert run.results == [3, 3]
    assert run.time_s == pytest.approx(4)
    assert run.exposed().share == 0


# -- training --------------------------------------------------------------------------------------


class Layers(nn.Sequential):
    """Linear layers of 400 bytes each; a batch of 10 takes one 2 s forward and 4 s backward."""

    def __init__(self, number):
        torch.manual_seed(0)
        super().__init__(*(nn.Linear(10, 10, bias=False) for _ in range(number)))


@pytest.mark.parametrize("bucket_bytes, exposed_s", [(300, 1), (3000, 2)])
def test_ddp_reduces_buckets_beside_backward(bucket_bytes, exposed_s):
    def main(rank, n):
        model = nn.parallel.DistributedDataParallel(Layers(3), bucket_cap_mb=bucket_bytes / 2**20)
        for _ in range(2):  # finds its buckets
            model(torch.ones(10, 10, requires_grad=True)).sum().backward()
        torch.cpu.synchronize()
        with simlib.span("step"):
            model(torch.ones(10, 10, requires_grad=True)).sum().backward()

    # Forward 3 * 2 s, backward 3 * 4 s, and the last bucket is seen: a second, or all three layers.
    run = simulate(main)
    assert run.exposed("step").exposed_s.tolist() == pytest.approx([exposed_s] * 2)
    assert run.mfu("step").time_s.tolist() == pytest.approx([18 + exposed_s] * 2)


def reading(layer, inputs, output):
    output.sum().item()


def sharded(rank, n, number, ahead, reads=False):
    model = Layers(number)
    for layer in model:
        fully_shard(layer, reshard_after_forward=True)
        if reads:
            layer.register_forward_hook(reading)
    fully_shard(model)
    for one, following in itertools.pairwise(model) if ahead else ():
        one.set_modules_to_forward_prefetch([following])
    loss = model(torch.ones(10, 10, requires_grad=True)).sum()
    loss.backward()
    return loss.item()


def test_two_layers_of_fsdp2_by_hand():
    part = 0.5  # seconds of an all_gather or reduce_scatter: 0.25 + 200 bytes / 800
    run = simulate(sharded, 2, 2, False)
    second = part + 2  # the first layer has been gathered, and has computed
    loss = second + 2
    backward = loss + 4, loss + 8  # gathered again beside the layer before
    assert run.time_s == pytest.approx(backward[1] + part)
    kinds = [(op.kind, op.end_s) for op in run.trace.of_rank(0)]
    assert kinds == [
        ("all_gather", pytest.approx(part)),
        ("all_gather", pytest.approx(2 * part)),
        ("all_gather", pytest.approx(second + part)),
        ("all_gather", pytest.approx(loss + part)),
        ("reduce_scatter", pytest.approx(backward[0] + part)),
        ("reduce_scatter", pytest.approx(backward[1] + part)),
    ]
    found = run.exposed()
    assert found.exposed_s[0] == pytest.approx(2 * part)
    assert found.communicating_s[0] == pytest.approx(6 * part)
    assert found.share == pytest.approx(1 / 3)
    waiting = simulate(sharded, 2, 2, False, asynchronous=False)
    assert waiting.time_s == pytest.approx(12 + 6 * part)
    assert waiting.results == run.results


def gathered(rank, n, way):
    """FSDP2 of three layers: when is each gathered?"""
    model = Layers(3)
    for layer in model:
        fully_shard(layer, reshard_after_forward=way != "kept")
        if way == "never before":  # who prefetches only what is there prefetches nothing
            layer.set_modules_to_backward_prefetch([layer])
    fully_shard(model)
    model(torch.ones(10, 10, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    "way, number, exposed_s",
    # Nothing computes beside the first all_gather and the last reduce_scatter, of half a second
    # each. Without prefetching, the two other layers are gathered anew behind a reduce_scatter.
    [("before", 9, 1), ("kept", 6, 1), ("never before", 9, 1 + 2 * (0.5 + 0.5))],
)
def test_fsdp2_prefetches_in_backward(way, number, exposed_s):
    run = simulate(gathered, 2, way)
    assert len(run.trace.of_rank(0)) == number
    assert run.exposed().exposed_s.tolist() == pytest.approx([exposed_s] * 2)
    assert run.time_s == pytest.approx(18 + exposed_s)


@pytest.mark.parametrize("ahead, exposed_s", [(False, 2 + 0.5), (True, 1 + 0.5)])
def test_a_rank_that_reads_values_needs_explicit_prefetching(ahead, exposed_s):
    run = simulate(sharded, 2, 3, ahead, True)
    assert run.exposed().exposed_s.tolist() == pytest.approx([exposed_s] * 2)


def chunked(rank, n, chunks):
    """A product of gathered rows, 8 s: a part of it begins when its rows have come."""
    rows, weight = torch.ones(20, 10), torch.ones(10, 10)
    works = []
    for part in rows.chunk(chunks):
        whole = torch.empty(2 * len(part), 10)
        works.append((whole, dist.all_gather_into_tensor(whole, part, async_op=True)))
    for whole, work in works:
        work.wait()
        whole @ weight


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_product_in_chunks_hides_all_gathers_but_the_first(chunks):
    run = simulate(chunked, 2, chunks)
    first = 0.25 + 1 / chunks
    assert run.time_s == pytest.approx(8 + first)
    assert run.exposed().exposed_s.tolist() == pytest.approx([first] * 2)


# -- what goes wrong -------------------------------------------------------------------------------


def held_by_fsdp2(rank, n, layers):
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(layers)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)(torch.ones(1, 64))
    return simlib.held()["activations and temporaries"]


def test_gathered_weights_are_freed_though_the_device_is_far_behind():
    held = [simulate(held_by_fsdp2, 2, layers).results[0] for layers in (4, 8)]
    assert (held[1] - held[0]) / 4 < 64 * 64 * 4 / 4  # what autograd keeps of a layer, no weights


def kept_result(rank, n):
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return [part.tolist() for part in work.result()]


def test_a_request_that_was_waited_for_has_its_tensors():
    assert simulate(kept_result).results == [[[2.0] * 4]] * 2


def test_whoever_never_comes_is_named():
    def main(rank, n):
        if rank == 0:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(simlib.DeadlockError, match="rank 0"):
        simulate(main)


def test_a_mismatch_is_found():
    def main(rank, n):
        dist.all_reduce(torch.ones(1 + rank))

    with pytest.raises(simlib.MismatchError):
        simulate(main)


def test_streams_that_wait_for_each_other_are_a_deadlock():
    def main(rank, n):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        works = [dist.all_reduce(torch.ones(1), group=g) for g in groups[:: 1 - 2 * rank]]
        return len(works)

    with pytest.raises(simlib.DeadlockError, match="different orders"):
        simulate(main)


def test_a_killed_rank_brings_nothing_that_its_streams_had_yet_to_do():
    def main(rank, n):
        simlib.compute(2)
        dist.all_reduce(torch.ones(FLOATS))

    with pytest.raises(simlib.RankDiedError):
        simulate(main, kill={1: 1})


@pytest.mark.parametrize(
    "options, words", [({"on_death": "continue"}, "on_death"), ({"compute": "measured"}, "compute")]
)
def test_what_is_not_simulated_is_refused(options, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        simulate(overlapping, 2, 1, True, **options)


def test_a_run_with_streams_is_not_replayed():
    run = simulate(overlapping, 2, 1, True)
    cluster = Cluster(2, 1, Link(0, 1))
    with pytest.raises(simlib.InvalidCallError, match="asynchronous device"):
        run.replay(cluster)
    with pytest.raises(simlib.InvalidCallError, match="asynchronous device"):
        simulate(overlapping, 2, 1, True, asynchronous=False).replay(
            Cluster(2, 1, Link(0, 1), device=Device(asynchronous=True))
        )


def test_wait_for_a_limited_time_is_refused():
    def main(rank, n):
        from datetime import timedelta

        dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=1))

    with pytest.raises(simlib.SimlibError, match="asynchronous device"):
        simulate(main)
