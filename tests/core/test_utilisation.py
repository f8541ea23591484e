"""Model and hardware flops utilisation, of runs and of spans, against closed forms."""

import json
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import simlib
from simlib import Cluster, Device, Link

# As from a cell: the ranks need not import this module, and pytest, in every simulation.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
RATES = {"float32": 1000.0, "bfloat16": 4000.0}


def simulate(main, n=1, *args, device=None, **options):
    cluster = Cluster(n, 1, Link(0.25, 800.0), device=device or Device(rates=RATES))
    return simlib.simulate(main, n, args, cluster=cluster, all_reduce="ring", **options)


def products(rank, n):
    x = torch.ones(10, 10)
    with simlib.span("single"):
        y = x @ x  # 2,000 flops: 2 s
        simlib.compute(2)
    with simlib.span("mixed", part=0):
        y @ x
        x.bfloat16() @ x.bfloat16()  # 0.5 s
        simlib.compute(1.5)
    with simlib.span("mixed", part=1):
        simlib.compute(1 + 3 * rank)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_the_rate_is_that_of_the_dtype_and_time_that_of_the_span(is_asynchronous):
    run = simulate(products, 2, device=Device(rates=RATES, asynchronous=is_asynchronous))
    assert run.mfu().mfu.tolist() == pytest.approx([4.5 / 9, 4.5 / 12])
    assert run.mfu().flops.tolist() == run.flops == [6000, 6000]
    assert run.mfu("single").mfu.tolist() == pytest.approx([2 / 4] * 2)
    assert run.mfu("mixed").time_s.tolist() == pytest.approx([5, 8])
    assert run.mfu("mixed", part=0).mfu.tolist() == pytest.approx([2.5 / 4] * 2)
    assert run.mfu("mixed", part=1).hfu.tolist() == [0, 0]
    assert run.mfu("single").table().splitlines()[-1].split()[:3] == ["mean", "50.0%", "50.0%"]


def layers(rank, n, how):
    blocks = [nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(3))) for _ in range(2)]
    x = torch.ones(10, 10, requires_grad=True)
    for block in blocks:
        is_plain = how == "plain"
        x = block(x) if is_plain else checkpoint(block, x, use_reentrant=how == "reentrant")
    x.sum().backward()


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("how, again", [("plain", 0), ("reentrant", 6), ("without", 4)])
def test_mfu_leaves_out_what_checkpoints_compute_anew(how, again, data):
    # The newer checkpoint stops when it has what backward needs: without its last product.
    run = simulate(layers, 1, how, data=data)
    found = run.mfu()
    assert (found.flops - found.recomputed_flops).tolist() == [18 * 2000]
    assert found.recomputed_flops.tolist() == [again * 2000]
    assert found.hfu.tolist() == pytest.approx([1])
    assert found.mfu.tolist() == pytest.approx([18 / (18 + again)])


def steps(rank, n):
    x = torch.ones(10, 10)
    for number in range(2):
        with simlib.span("step", number=number):
            x @ x
            with simlib.span("reduce"):
                work = dist.all_reduce(torch.ones(100), async_op=True)  # a ring: 1 s
                x @ x  # hides it
                work.wait()
            dist.all_reduce(torch.ones(100))


def test_spans_of_an_asynchronous_device_last_as_long_as_what_they_launched(tmp_path):
    run = simulate(steps, 2, device=Device(rates=RATES, asynchronous=True))
    pieces = [piece for piece in run.trace.pieces if piece.rank == 1]
    assert [piece.end_s for piece in pieces] == [0] * 4  # the rank itself only launches
    times = {piece.label: (piece.work.start_s, piece.work.end_s) for piece in pieces}
    assert times == {"step0": (0, 5), "step1": (5, 10), "reduce": (7, 9)}
    assert [piece.span(0) for piece in pieces][-1] == (7, 9)
    assert run.bubble().busy_s.tolist() == pytest.approx([8, 8])
    slices = json.loads(run.save(tmp_path / "run.json").read_text())["traceEvents"]
    assert ("reduce", 7e6, 2e6) in [(one["name"], one.get("ts"), one.get("dur")) for one in slices]
    assert run.mfu("step", number=1).mfu.tolist() == pytest.approx([4 / 5] * 2)
    found = run.exposed("step", number=1)
    assert found.exposed_s.tolist() == pytest.approx([1, 1])
    assert found.communicating_s.tolist() == pytest.approx([2, 2])
    assert found.computing_s.tolist() == pytest.approx([4, 4])
    assert run.exposed("reduce").exposed_s.tolist() == pytest.approx([0, 0])
    again = simlib.load(run.save(tmp_path / "run.json"))
    assert again.mfu("step").table() == run.mfu("step").table()
    assert again.exposed("step").table() == run.exposed("step").table()


def test_what_nobody_can_say_is_refused():
    run = simulate(products)
    with pytest.raises(simlib.InvalidCallError, match="'mixed', part=2. Its spans: 'mixed'"):
        run.mfu("mixed", part=2)
    for device in (
        Device(memory_Bps=1e3),
        Device(rates={"float32": 1.0}),
        Device(memory_bytes=1e9),
    ):
        with pytest.raises(simlib.InvalidCallError, match=r"Device\(rates="):
            simulate(products, device=device).mfu()
