"""NCCL, and Gloo with tensors on a GPU: needs a GPU. One card does, except where it is said."""

import os
import re
import signal
from pathlib import Path

import framework_programs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import simlib

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that torch can use"
)
DEVICE, NCCL, GLOO = "cuda", {"backend": "nccl"}, {"gpus": True}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "using-simlib.md"
TWO_CARDS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
OF_TWO = {"send", "recv", "recv from any source", "tags"}


def test_ranks_see_a_gpu_where_they_are_asked_to():
    def main(rank, world_size):
        return torch.cuda.is_available(), torch._C._get_accelerator().type

    assert simlib.run(main, 2).results == simlib.simulate(main, 2).results == [(False, "cpu")] * 2
    assert simlib.run(main, 4, gpus=True).results == [(True, "cuda")] * 4
    assert simlib.run(main, 1, backend="nccl").results == [(True, "cuda")]
    assert not torch.cuda.is_initialized()


def calls(rank, n, device):
    """``{line of the table in the docs: what calls it}``; each gives the tensors that it fills."""
    x, part = torch.arange(4.0, device=device) + rank, torch.zeros(4, device=device)
    whole, long = torch.zeros(4 * n, device=device), x.repeat(n)
    bits, given = torch.tensor([rank + 1, 6], device=device), list(long.chunk(n))
    some, at_first = [torch.zeros_like(x) for _ in range(n)], rank == 0

    def fills(out, call, *args, **options):
        return lambda: (call(*args, **options), out)[1]

    def message(tag=0, src=0):
        receive = fills(part, dist.recv, part, src, tag=tag)
        return fills(None, dist.send, x, 1, tag=tag) if at_first else receive

    def in_one(call, *pair):
        with dist._coalescing_manager():
            call(*pair)
            call(*(one.clone() for one in pair))

    def in_a_sub_group():
        group = dist.new_group([0])
        if at_first:
            dist.all_reduce(x, group=group, async_op=True).wait()

    return {
        "send": message(), "recv": message(), "tags": message(tag=7),
        "recv from any source": message(src=None),
        "broadcast": fills(x, dist.broadcast, x, 0),
        "all_reduce": fills(x, dist.all_reduce, x),
        "all_reduce_coalesced": fills(x, dist.all_reduce_coalesced, [x, part]),
        "reduce": fills(x if at_first else None, dist.reduce, x, 0),
        "gather": fills(some, dist.gather, x, some if at_first else None),
        "scatter": fills(part, dist.scatter, part, given if at_first else None),
        "all_gather": fills(some, dist.all_gather, some, x),
        "all_gather_coalesced": fills(some, dist.all_gather_coalesced, [[y] for y in some], [x]),
        "all_gather_into_tensor": fills(whole, dist.all_gather_into_tensor, whole, x),
        "several all_gather_into_tensor in one":
            fills(whole, in_one, dist.all_gather_into_tensor, whole, x),
        "reduce_scatter": fills(part, dist.reduce_scatter, part, given),
        "reduce_scatter_tensor": fills(part, dist.reduce_scatter_tensor, part, long),
        "several reduce_scatter_tensor in one":
            fills(part, in_one, dist.reduce_scatter_tensor, part, long),
        "all_to_all": fills(some, dist.all_to_all, some, given),
        "all_to_all_single": fills(whole, dist.all_to_all_single, whole, long),
        "barrier": fills(None, dist.barrier),
        "monitored_barrier": fills(None, dist.monitored_barrier),
        "bitwise reductions": fills(bits, dist.all_reduce, bits, op=dist.ReduceOp.BOR),
        "sub-groups, async ops": fills(x, in_a_sub_group),
    }  # fmt: skip


def every_line(rank, n, device):
    """What each line gives on new tensors, as text; or why it is refused."""
    found = {}
    for line in calls(rank, n, device):
        if n > 1 or line not in OF_TWO:
            try:
                out = calls(rank, n, device)[line]()
                found[line] = str(out if out is None else torch.stack([*out]).cpu())
            except simlib.InvalidCallError as error:
                found[line] = str(error)
    return found


def lines(column):
    """``{line: whether it is there}`` of a column of the table."""
    rows = re.findall(r"^\| (\w.*?) \| (\w+) \| (\w+) \| (\w+) \| \w+ \|$", PAGE.read_text(), re.M)
    return {line: cells[column] == "yes" for line, *cells in rows}


@pytest.mark.parametrize(
    ("n", "options", "column"),
    [(2, GLOO, 1), (1, NCCL, 2), pytest.param(2, NCCL, 2, marks=TWO_CARDS)],
)
def test_every_line_of_the_table(n, options, column):
    run = simlib.run(every_line, n, (DEVICE,), **options)
    right = simlib.simulate(every_line, n, ("cpu",)).results
    assert set(calls(0, 2, "cpu")) == set(lines(column))
    for rank, found in enumerate(run.results):
        for line, got in found.items():
            # Gloo's monitored_barrier is one of the CPU; an older torch's has no all_to_all.
            if line != "monitored_barrier" and "does not support alltoall" not in got:
                assert (got == right[rank][line]) == lines(column)[line], (line, got)
    assert all(op.end_s is None or op.post_s <= op.end_s for op in run.trace.ops)


def steps(rank, n, wrap, amp=False):
    """Train a small model on this rank's half, or quarter, of the data; the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).chunk(n)[rank]
    wrapped = wrap(net, n)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, amp):
            loss = wrapped(inputs.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
    whole = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in wrapped.parameters()]
    return torch.cat([w.detach().flatten() for w in whole]).cpu()


def ddp(net, n):
    return DistributedDataParallel(net)


def fsdp2(net, n):
    mesh = init_device_mesh(DEVICE, (n,))
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    return net


@pytest.mark.parametrize(("wrap", "amp"), [(ddp, False), (ddp, True), (fsdp2, False)])
@pytest.mark.parametrize(("n", "options"), [(1, NCCL), (4, GLOO)], ids=["nccl", "gloo"])
def test_training_gives_the_weights_of_one_process(wrap, amp, n, options):
    run = simlib.run(steps, n, (wrap, amp), **options)
    right = simlib.run(steps, 1, (lambda net, n: net, amp), **GLOO).results[0]
    for found in run.results:
        torch.testing.assert_close(found, right, rtol=0, atol=1e-2 if amp else 1e-5)
    assert all(one.peak_bytes for one in run.memory)


@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_libraries_train_as_on_the_cpu(name):
    pytest.importorskip(name)
    program = getattr(framework_programs, name)
    found, right = (simlib.run(program, 1, **options).results[0][0] for options in (NCCL, {}))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-5)


def goes_wrong(rank, n, how):
    if how == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "race":
        x = torch.ones(4, device=DEVICE)
        for work in (dist.all_reduce(x, async_op=True), dist.broadcast(x, 0, async_op=True)):
            work.wait()
    if how == "range":
        torch.ones(2, device=DEVICE)[torch.tensor([9], device=DEVICE)]
        torch.cuda.synchronize()
    size = {"room": 1 << 50, "shape": 2 + rank}.get(how, 2)
    if how != "deadlock" or rank == 0:
        dist.all_reduce(torch.ones(size, device=DEVICE))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("deadlock", simlib.DeadlockError, "^rank 0 waits"),
        ("shape", simlib.MismatchError, "brings 3 elements, but"),
        ("race", simlib.RaceError, "still open"),
        ("room", simlib.RankError, "OutOfMemoryError: CUDA out of memory"),
        ("range", simlib.RankError, "CUDA error: device-side assert.*CUDA_LAUNCH_BLOCKING=1"),
        ("killed", simlib.RankDiedError, "^the process of rank 1 .*SIGKILL"),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_run_works(how, error, words):
    with pytest.raises(error, match=re.compile(words, re.S)):
        simlib.run(goes_wrong, 2, (how,), strict=True, **GLOO)
    assert simlib.run(lambda rank, n: rank, 2, **GLOO).results == [0, 1]
