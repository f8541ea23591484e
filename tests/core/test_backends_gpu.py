"""NCCL, and Gloo with tensors on a GPU: needs a GPU."""

import pytest
import torch
import torch.distributed as dist

import simlib

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that torch can use"
)


def test_ranks_see_a_gpu_where_they_are_asked_to():
    def main(rank, world_size):
        return torch.cuda.is_available(), torch._C._get_accelerator().type

    assert simlib.run(main, 2).results == simlib.simulate(main, 2).results == [(False, "cpu")] * 2
    assert simlib.run(main, 4, gpus=True).results == [(True, "cuda")] * 4
    assert simlib.run(main, 1, backend="nccl").results == [(True, "cuda")]
    assert not torch.cuda.is_initialized()


def test_nccl_with_one_rank():
    def main(rank, world_size):
        dist.init_process_group("nccl")
        x = torch.full((1 << 20,), 3.0, device="cuda")
        dist.all_reduce(x)
        request = dist.all_reduce(x, async_op=True)
        request.wait()
        whole = torch.zeros(4, device="cuda")
        dist.all_gather_into_tensor(whole, torch.ones(4, device="cuda"))
        on_cpu = torch.ones(2)
        dist.all_reduce(on_cpu)  # by Gloo
        dist.barrier()
        return x[0].item(), whole.tolist(), on_cpu.tolist(), dist.get_backend()

    run = simlib.run(main, 1, backend="nccl", strict=True)
    assert run.results == [(3.0, [1.0] * 4, [1.0, 1.0], "nccl")]
    ops = run.trace.of_rank(0)
    kinds = ["all_reduce", "all_reduce", "all_gather", "all_reduce", "barrier"]
    assert [op.kind for op in ops] == kinds
    assert all(op.post_s <= op.end_s <= run.time_s for op in ops)


def test_what_nccl_lacks_is_refused_on_the_gpu():
    def main(rank, world_size):
        x = torch.ones(2, dtype=torch.int32, device="cuda")
        dist.all_reduce(x, op=dist.ReduceOp.BAND)

    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.run(main, 1, backend="nccl")
    assert "Cannot use ReduceOp.BAND with NCCL" in str(caught.value)


def test_gloo_with_tensors_on_a_gpu_on_two_ranks():
    def main(rank, world_size):
        x = torch.full((4,), 1.0 + rank, device="cuda")
        dist.all_reduce(x)
        y = torch.full((2,), float(rank), device="cuda")
        dist.broadcast(y, src=1)
        parts = [torch.zeros(2, device="cuda") for _ in range(world_size)]
        dist.all_gather(parts, y + rank)
        return x.tolist(), y.tolist(), [part.tolist() for part in parts]

    run = simlib.run(main, 2, strict=True, gpus=True)
    assert run.results == [([3.0] * 4, [1.0] * 2, [[1.0] * 2, [2.0] * 2])] * 2
    assert all(op.end_s is not None for op in run.trace.ops)


def test_a_message_of_gloos_is_refused_on_a_gpu():
    def main(rank, world_size):
        x = torch.ones(2, device="cuda")
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)

    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.run(main, 2, gpus=True)
    assert "Gloo has no send: move the tensors to the CPU first" in str(caught.value)
