"""Programs that every backend carries out alike, and calls that are tried on what carries them."""

import os

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from simlib.core.record.transports.backends import OPS

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.float8_e4m3fn,
)  # fmt: skip
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


# Programs that are right: each gives what the rank has got.


def sums(rank, size):
    x = torch.arange(4.0) + rank
    dist.all_reduce(x)
    half = torch.full((3,), 1.0 + rank, dtype=torch.bfloat16)
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    return x.tolist(), half.tolist()


def roots(rank, size):
    x = torch.full((2,), float(rank))
    dist.broadcast(x, src=1)
    y = torch.tensor([rank + 1, 7])
    dist.reduce(y, dst=0, op=dist.ReduceOp.MAX)
    parts = [torch.zeros(2) for _ in range(size)] if rank == 1 else None
    dist.gather(x + rank, parts, dst=1)
    mine = torch.zeros(3)
    dist.scatter(mine, [torch.full((3,), float(r)) for r in range(size)] if rank == 0 else None)
    gathered = [part.tolist() for part in parts or ()]
    return x.tolist(), y.tolist() if rank == 0 else None, gathered, mine.tolist()


def everybodys(rank, size):
    parts = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(parts, torch.tensor([rank, 10 * rank]))
    whole = torch.zeros(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    own = torch.zeros(2)
    dist.reduce_scatter_tensor(own, torch.arange(2.0 * size))
    other = torch.zeros(2)
    dist.reduce_scatter(other, [torch.full((2,), float(r)) for r in range(size)])
    return [part.tolist() for part in parts], whole.tolist(), own.tolist(), other.tolist()


def exchanges(rank, size):
    got = torch.zeros(size)
    dist.all_to_all_single(got, torch.arange(float(size)) + 10 * rank)
    rows = [rank + 1] * size
    uneven = torch.zeros(sum(range(1, size + 1)))
    dist.all_to_all_single(
        uneven, torch.full((sum(rows),), float(rank)), list(range(1, size + 1)), rows
    )
    outputs = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + r) for r in range(size)])
    return got.tolist(), uneven.tolist(), [output.tolist() for output in outputs]


def messages(rank, size):
    x = torch.zeros(3)
    if rank == 0:
        dist.send(torch.ones(3), dst=1, tag=7)
        dist.recv(x, src=1, tag=8)
    if rank == 1:
        dist.recv(x, src=0, tag=7)
        dist.send(2 * x, dst=0, tag=8)
    return x.tolist()


def from_anybody(rank, size):
    x = torch.zeros(1)
    if rank == 1:
        dist.send(torch.tensor([5.0]), dst=0)
    return (dist.recv(x), x.item()) if rank == 0 else None


def requests(rank, size):
    x, y = torch.full((4,), float(rank)), torch.zeros(4)
    ring = [dist.isend(x, (rank + 1) % size), dist.irecv(y, (rank - 1) % size)]
    z = torch.ones(2)
    reduction = dist.all_reduce(z, async_op=True)
    for request in (*ring, reduction):
        request.wait()
    batch = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    return y.tolist(), z.tolist()


def asynchronous(rank, size):
    """What is copied into tensors at the end is no write of the program's own."""
    x, half = torch.full((2,), 1.0 + rank), torch.full((2,), 1.0 + rank, dtype=torch.float16)
    parts, whole = [torch.zeros(2) for _ in range(size)], torch.zeros(size, 2)
    own, other = torch.zeros(1), torch.zeros(1)
    requests = [
        dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True),
        dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True),
        dist.all_reduce(half, op=dist.ReduceOp.AVG, async_op=True),
        dist.all_gather_into_tensor(whole, torch.ones(1, 2), async_op=True),
        dist.reduce_scatter_tensor(own, torch.ones(size), op=dist.ReduceOp.AVG, async_op=True),
        dist.reduce_scatter(other, list(torch.ones(size, 1)), async_op=True),
    ]
    for request in requests:
        request.wait()
    return [t.tolist() for t in (*parts, x, half, whole, own, other)]


def subgroups(rank, size):
    both, own = dist.new_group([0, 1]), None
    for one in range(size):
        group = dist.new_group([one])
        own = group if one == rank else own
    x, y = torch.ones(1), torch.tensor([float(rank)])
    dist.all_reduce(x, group=both)
    dist.all_reduce(y, group=own)
    return x.item(), y.item()


def objects(rank, size):
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    dist.barrier()
    return found


def training(rank, size):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.full((4, 3), 1.0 + rank)).sum().backward()
    return model.module.weight.grad.tolist()


RIGHT = (
    sums, roots, everybodys, exchanges, messages, from_anybody, requests, asynchronous, subgroups,
    objects, training,
)  # fmt: skip


def all_right(rank, size):
    """What each of them gives, by its name."""
    return {program.__name__: program(rank, size) for program in RIGHT}


def careless(rank, size):
    """A buffer is written too early, and a message is never received."""
    x = torch.ones(4)
    request = dist.all_reduce(x, async_op=True)
    x.add_(1)
    request.wait()
    dist.isend(torch.ones(3), 1 - rank, tag=9)


# Programs that are wrong


def deadlock(rank, size):
    dist.recv(torch.zeros(1), src=1 - rank)


def left_out(rank, size):
    if rank == 0:
        dist.all_reduce(torch.ones(2))


def other_root(rank, size):
    dist.broadcast(torch.zeros(1), src=rank)


def other_size(rank, size):
    dist.all_reduce(torch.zeros(2 + rank))


def raises(rank, size):
    if rank == 1:
        raise KeyError("no data")
    dist.recv(torch.zeros(1), src=1)


def dies(rank, size):
    if rank == 1:
        os._exit(3)
    dist.barrier()


WRONG = (deadlock, left_out, other_root, other_size, raises, dies)


# Calls as they reach what carries them: nothing of simlib's is asked before.


def calls(rank, size, dtype=torch.float32, op="SUM"):
    """``{method: what calls it}``: on a `dist.ProcessGroup`, for tensors of a dtype."""

    def x(count=2):
        return torch.zeros(count).to(dtype)

    def some():
        return [x() for _ in range(size)]

    def opts(kind, **fields):
        made = kind()
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    is_scaled = op == "PREMUL_SUM"
    reduce_op = dist._make_nccl_premul_sum(2.0) if is_scaled else getattr(dist.ReduceOp, op)
    reduced = {"reduceOp": reduce_op}
    cpu = opts(dist.BarrierOptions, device=torch.device("cpu"))
    scattered = opts(dist.ReduceScatterOptions, **reduced)
    return {
        "send": lambda g: g.send([x()], 1, 0) if rank == 0 else g.recv([x()], 0, 0),
        "recv": lambda g: g.send([x()], 1, 0) if rank == 0 else g.recv([x()], 0, 0),
        "recv_anysource": lambda g: (
            g.send([x()], 1, 0) if rank == 0 else g.recv_anysource([x()], 0)
        ),
        "broadcast": lambda g: g.broadcast([x()], opts(dist.BroadcastOptions)),
        "allreduce": lambda g: g.allreduce([x()], opts(dist.AllreduceOptions, **reduced)),
        "allreduce_coalesced": lambda g: g.allreduce_coalesced(
            [x(), x()], opts(dist.AllreduceCoalescedOptions, **reduced)
        ),
        "reduce": lambda g: g.reduce([x()], opts(dist.ReduceOptions, **reduced)),
        "gather": lambda g: g.gather(
            [some()] if rank == 0 else [], [x()], opts(dist.GatherOptions)
        ),
        "scatter": lambda g: g.scatter(
            [x()], [some()] if rank == 0 else [], opts(dist.ScatterOptions)
        ),
        "allgather": lambda g: g.allgather([some()], [x()]),
        "allgather_coalesced": lambda g: g.allgather_coalesced([[x()] for _ in range(size)], [x()]),
        "all_gather_single": lambda g: g.all_gather_single(
            x(2 * size), x(), opts(c10d.AllgatherOptions)
        ),
        "all_gather_single_coalesced": lambda g: g.all_gather_single_coalesced(
            [x(2 * size)], [x()], opts(c10d.AllgatherOptions)
        ),
        "reduce_scatter": lambda g: g.reduce_scatter([x()], [some()], scattered),
        "reduce_scatter_single": lambda g: g.reduce_scatter_single(x(), x(2 * size), scattered),
        "reduce_scatter_single_coalesced": lambda g: g.reduce_scatter_single_coalesced(
            [x()], [x(2 * size)], scattered
        ),
        "alltoall": lambda g: g.alltoall(some(), some(), opts(dist.AllToAllOptions)),
        "all_to_all_single": lambda g: g.all_to_all_single(
            x(size), x(size), [], [], opts(dist.AllToAllOptions)
        ),
        "barrier": lambda g: g.barrier(cpu),
        "monitored_barrier": lambda g: g.monitored_barrier(),
    }


def can(method, *args):
    """Whether a call goes through, on the ranks that are here."""
    try:
        request = calls(*args)[method](dist.group.WORLD.transport.group)
        if request is not None:
            request.wait()
    except Exception:
        return False
    return True


def tried(rank, size):
    """What the backend can do: its methods, the dtypes of three of them, and reductions."""
    found = {
        "methods": {method for method in OPS if can(method, rank, size)},
        **{
            method: {str(dtype) for dtype in DTYPES if can(method, rank, size, dtype)}
            for method in ("send", "broadcast", "allreduce")
        },
        "ops": {
            op for op in REDUCE_OPS
            if can("allreduce", rank, size, torch.float32 if op == "AVG" else torch.int32, op)
        },
    }  # fmt: skip
    try:
        dist.monitored_barrier()
        found["refused"] = None
    except Exception as error:
        found["refused"] = str(error)
    return found
