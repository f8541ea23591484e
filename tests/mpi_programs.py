"""Programs for `cluster/test_mpi.py`, each run by mpiexec: ``python -m mpi_programs NAME``."""

import inspect
import sys
import weakref
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

import simlib.mpi
from simlib.cluster import launchers

DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.complex64, torch.complex128, torch.bool),
)


def brought(rank, dtype, numel=5):
    """What a rank brings: small whole numbers, exact in every dtype."""
    values = (np.arange(numel) + 1 + rank) % 4
    return torch.from_numpy(values).to(dtype)


def every_dtype_is_moved_and_summed(rank, world_size):
    for dtype in DTYPES:
        everyones = [brought(r, dtype) for r in range(world_size)]
        got = [torch.zeros(5, dtype=dtype) for _ in range(world_size)]
        dist.all_gather(got, everyones[rank])
        assert all(map(torch.equal, got, everyones)), dtype
        x = everyones[rank].clone()
        dist.all_reduce(x)
        total = sum(each.to(torch.complex128) for each in everyones)
        assert torch.equal(x, total.to(dtype) if dtype.is_complex else total.real.to(dtype)), dtype


def every_op_reduces(rank, world_size):
    everyones = torch.stack([brought(r, torch.int64) for r in range(world_size)])
    for op, expected in (
        (dist.ReduceOp.SUM, everyones.sum(0)),
        (dist.ReduceOp.PRODUCT, everyones.prod(0)),
        (dist.ReduceOp.MIN, everyones.amin(0)),
        (dist.ReduceOp.MAX, everyones.amax(0)),
        (dist.ReduceOp.BAND, np.bitwise_and.reduce(everyones.numpy())),
        (dist.ReduceOp.BOR, np.bitwise_or.reduce(everyones.numpy())),
        (dist.ReduceOp.BXOR, np.bitwise_xor.reduce(everyones.numpy())),
    ):
        x = brought(rank, torch.int64)
        dist.all_reduce(x, op=op)
        assert torch.equal(x, torch.as_tensor(expected)), op
    x = brought(rank, torch.float32)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert torch.allclose(x, everyones.double().mean(0).float())


def ucx_was_told_before_mpi_began(rank, world_size):
    assert not launchers.ucx_settings(), "simlib.mpi sets what is to be set when it is imported"


def only_the_root_of_a_reduce_changes(rank, world_size):
    for dtype in (torch.float32, torch.bfloat16):
        x = brought(rank, dtype)
        dist.reduce(x, dst=1)
        total = sum(brought(r, torch.float32) for r in range(world_size)).to(dtype)
        assert torch.equal(x, total if rank == 1 else brought(rank, dtype))


def tensors_with_gaps_keep_their_gaps(rank, world_size):
    """Every second column of a matrix: what lies between stays as it is."""
    for move in (dist.all_reduce, lambda x: dist.broadcast(x, 0)):
        whole = torch.full((4, 6), -1.0)
        part = whole[:, ::2]
        part.copy_(torch.arange(12.0).reshape(4, 3) * (rank + 1))
        move(part)
        factor = sum(range(1, world_size + 1)) if move is dist.all_reduce else 1
        assert torch.equal(part, torch.arange(12.0).reshape(4, 3) * factor)
        assert (whole[:, 1::2] == -1).all()
    column = torch.zeros(3, 3)[:, 0]
    if rank == 0:
        dist.send(torch.arange(9.0).reshape(3, 3)[:, 1], dst=1)
    elif rank == 1:
        dist.recv(column, src=0)
        assert column.tolist() == [1, 4, 7]


def nothing_may_be_sent_too(rank, world_size):
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    parts = [torch.empty(0) for _ in range(world_size)]
    dist.all_gather(parts, empty)
    dist.all_to_all(parts, [torch.empty(0) for _ in range(world_size)])


def uneven_parts_go_all_to_all(rank, world_size):
    """Rank r sends s + 1 numbers to rank s, all of them r."""
    sent = [torch.full((s + 1,), float(rank)) for s in range(world_size)]
    got = [torch.empty(rank + 1) for _ in range(world_size)]
    dist.all_to_all(got, sent)
    assert [part.tolist() for part in got] == [[s] * (rank + 1) for s in range(world_size)]
    rows = [s + 1 for s in range(world_size)]
    flat = torch.empty((rank + 1) * world_size)
    dist.all_to_all_single(flat, torch.cat(sent), [rank + 1] * world_size, rows)
    assert torch.equal(flat, torch.cat(got))


def messages_of_any_source_say_who_sent_them(rank, world_size):
    if rank:
        dist.send(torch.tensor([float(rank)]), dst=0, tag=7)
        return
    seen = set()
    for _ in range(world_size - 1):
        x = torch.zeros(1)
        src = dist.recv(x, tag=7)
        assert src == x.item()
        seen.add(src)
    assert seen == set(range(1, world_size))


def a_request_that_is_dropped_still_arrives(rank, world_size):
    if rank == 0:
        for i in range(50):
            dist.isend(torch.full((10_000,), float(i)), dst=1)
    elif rank == 1:
        for i in range(50):
            x = torch.zeros(10_000)
            dist.recv(x, src=0)
            assert (x == i).all()
    dist.barrier()


def async_calls_end_in_any_order(rank, world_size):
    tensors = [brought(rank, torch.float32) * i for i in range(1, 5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    total = sum(brought(r, torch.float32) for r in range(world_size))
    assert all(torch.equal(t, total * i) for i, t in enumerate(tensors, start=1))
    future = dist.all_reduce(brought(rank, torch.float32), async_op=True).get_future()
    assert torch.equal(future.value()[0], total)


def subgroups_have_ranks_of_their_own(rank, world_size):
    evens = dist.new_group([r for r in range(world_size) if r % 2 == 0])
    swapped = dist.new_group([1, 0])
    x = torch.tensor([float(rank)])
    if rank % 2 == 0:
        dist.all_reduce(x, group=evens)
        assert x.item() == sum(range(0, world_size, 2))
    if rank < 2:
        dist.broadcast(x, src=1, group=swapped)
        assert x.item() == 1
    dist.barrier()


def a_wait_with_a_limit_ends(rank, world_size):
    if rank == 0:
        work = dist.irecv(torch.zeros(1), src=1)
        with pytest.raises(dist.DistBackendError, match="the timeout of 0.05 s has passed"):
            work.wait(timedelta(seconds=0.05))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), dst=0)


def what_cannot_be_reduced_is_told(rank, world_size):
    for dtype, op, sentence in (
        (torch.float8_e4m3fn, dist.ReduceOp.SUM, "MPI cannot reduce torch.float8_e4m3fn"),
        (torch.float32, dist.ReduceOp.BOR, "a bitwise reduction needs whole numbers"),
        (torch.float32, dist._make_nccl_premul_sum(2.0), "MPI has no"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dist.all_reduce(torch.zeros(2).to(dtype), op=op)


def sparse_tensors_are_added_up(rank, world_size):
    """Each rank has other places, of other numbers; the last one has none at all."""
    dense = torch.zeros(world_size, 3)
    dense[: world_size - 1 - rank, 1] = rank + 1.0
    sparse = dense.to_sparse()
    dist.all_reduce(sparse)
    dist.all_reduce(dense)
    assert torch.equal(sparse.to_dense(), dense) and dense[0, 1] > 0
    with pytest.raises(ValueError, match="only be summed"):
        dist.all_reduce(sparse, op=dist.ReduceOp.MAX)
    with pytest.raises(ValueError, match=r"call to_dense\(\) first"):
        dist.reduce(sparse, 0)


def no_copy_is_made_where_memory_lies_in_one_piece(rank, world_size):
    """What MPI gets is the tensor's own memory; a copy would be at another address."""
    import simlib.cluster.mpi_group as group
    from simlib.cluster.mpi_group import receive_buffer

    for dtype in set(DTYPES) - set(group.HALVES):
        x, after = brought(rank, dtype), []
        opts = dist.AllreduceOptions()
        op = dist.ReduceOp.SUM if dtype != torch.bool else dist.ReduceOp.PRODUCT
        opts.reduceOp = op
        (numbers, _), _ = dist.group.WORLD._reduced(x, opts, after)
        assert numbers.ctypes.data == x.data_ptr() and not after, dtype
        assert receive_buffer(x, after).ctypes.data == x.data_ptr() and not after, dtype
    half = brought(rank, torch.bfloat16)
    assert receive_buffer(half, []).ctypes.data == half.data_ptr()  # it moves as it is


def one_memory_may_hold_input_and_output(rank, world_size):
    """As FSDP2 does: a rank's own part lies in the middle of what it gathers, and scatters."""
    whole = torch.full((world_size * 4,), -1.0)
    own = whole[4 * rank : 4 * rank + 4]
    own.fill_(rank + 1)
    dist.all_gather_into_tensor(whole, own)
    assert whole.tolist() == [r + 1.0 for r in range(world_size) for _ in range(4)]
    whole = torch.arange(world_size * 4.0) + rank
    own = whole[4 * rank : 4 * rank + 4]
    total = sum(torch.arange(4.0) + 4 * rank + r for r in range(world_size))
    dist.reduce_scatter_tensor(own, whole)
    assert torch.equal(own, total)


def what_mpi_uses_is_kept_until_it_is_done(rank, world_size):
    """Freed memory would be summed: rank 0 cannot be done before the others have called."""
    from mpi4py import MPI

    group, comm = dist.group.WORLD, MPI.COMM_WORLD
    for name, arguments in {"Allreduce": (MPI.SUM,), "Reduce": (MPI.SUM, world_size - 1)}.items():
        if rank:
            comm.recv(source=rank - 1)
        sent, got = np.ones(4, np.float32), np.zeros(4, np.float32)
        kept = weakref.ref(sent)
        call = (name, [sent, MPI.FLOAT], [got, MPI.FLOAT], *arguments)
        work = group._perform([call], [], [])
        del sent, call
        assert rank or kept() is not None, name
        if rank < world_size - 1:
            comm.send(None, dest=rank + 1)
        work.wait()
        has_sum = name == "Allreduce" or rank == world_size - 1
        assert kept() is None and got.tolist() == [world_size * has_sum] * 4


def another_rank_than_mpis_is_told(rank, world_size):
    dist.destroy_process_group()
    with pytest.raises(simlib.InvalidCallError, match=f"with rank {rank}: leave rank out"):
        dist.init_process_group("mpi4py", rank=(rank + 1) % world_size, world_size=world_size)
    dist.init_process_group("mpi", rank=rank, world_size=world_size)  # the true one may be named
    assert dist.get_backend() == "mpi4py"


PROGRAMS = [
    one for one in dict(globals()).values()
    if inspect.isfunction(one) and [*inspect.signature(one).parameters] == ["rank", "world_size"]
]  # fmt: skip

if __name__ == "__main__":
    import traceback

    from mpi4py import MPI

    torch.set_num_threads(1)
    dist.init_process_group("mpi4py")
    for program in PROGRAMS:
        try:
            program(dist.get_rank(), dist.get_world_size())
        except BaseException:
            traceback.print_exc()
            print("FAILED", program.__name__, flush=True)
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        dist.barrier()
        if dist.get_rank() == 0:
            print("passed", program.__name__, flush=True)
