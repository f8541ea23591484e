"""Programs that use what torch builds on top of its collectives, unchanged.

Each function is a rank function for four ranks and returns numbers. A line ending in
``# traced: <kinds>`` must appear in the trace of every rank that executes it, with ops of these
kinds ("nothing": no op at all). Every rank executes every marked line.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _batch(rank, step=0, size=4):
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def _numbers(tensors):
    return [tensor.detach().double().flatten().tolist() for tensor in tensors]


def ddp(rank, world_size):
    """Unmodified DistributedDataParallel: its all-reduces are issued from C++."""
    model = nn.parallel.DistributedDataParallel(_model())  # traced: all_gather broadcast
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(_batch(rank, step)).square().mean()
        loss.backward()  # traced: all_reduce
        optimizer.step()
    return _numbers(model.parameters())


def ddp_no_sync(rank, world_size):
    """Gradients accumulated over two batches; only the second one is reduced."""
    model = nn.parallel.DistributedDataParallel(_model())
    with model.no_sync():
        model(_batch(rank, 0)).square().mean().backward()  # traced: nothing
    model(_batch(rank, 1)).square().mean().backward()  # traced: all_reduce
    return _numbers(p.grad for p in model.parameters())


def ddp_join(rank, world_size):
    """Rank r has r + 1 batches; ranks that are done shadow the collectives of the others."""
    model = nn.parallel.DistributedDataParallel(_model())
    with model.join():
        for step in range(rank + 1):
            loss = model(_batch(rank, step)).square().mean()
            loss.backward()  # traced: all_reduce
    return _numbers(p.grad for p in model.parameters())


def zero_optimizer(rank, world_size):
    """ZeroRedundancyOptimizer: each rank updates its share and broadcasts it."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    for step in range(2):
        optimizer.zero_grad()
        model(_batch(rank, step)).square().mean().backward()
        optimizer.step()  # traced: broadcast
    return _numbers(model.parameters())


def fsdp2(rank, world_size):
    """fully_shard: parameters gathered for each use, gradients scattered."""
    from torch.distributed.fsdp import fully_shard

    model = _model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=_cpu_mesh(world_size))
    fully_shard(model, mesh=_cpu_mesh(world_size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        output = model(_batch(rank, step))  # traced: all_gather
        output.square().mean().backward()  # traced: all_gather reduce_scatter
        optimizer.step()
    return _numbers(p.full_tensor() for p in model.parameters())  # traced: all_gather


def _cpu_mesh(world_size):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (world_size,))


def device_mesh(rank, world_size):
    """A two-dimensional mesh; an all-reduce along each of its dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    x = torch.tensor([float(rank)])
    y = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mesh.get_group("dp"))  # traced: all_reduce
    dist.all_reduce(y, group=mesh["tp"].get_group())  # traced: all_reduce
    return x.item(), y.item(), mesh.get_coordinate()


def dtensor(rank, world_size):
    """A matrix sharded, replicated, sharded the other way, and a partial sum resolved."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = _cpu_mesh(world_size)
    whole = torch.arange(64.0).reshape(8, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])  # traced: scatter
    replicated = rows.redistribute(mesh, [Replicate()])  # traced: all_gather
    # An all_to_all on a GPU; on the CPU, torch gathers and takes a slice.
    columns = rows.redistribute(mesh, [Shard(1)])  # traced: all_gather
    partial = rows.T @ rows
    assert partial.placements == (Partial(),)
    product = partial.full_tensor()  # traced: all_reduce
    return _numbers([replicated.to_local(), columns.to_local(), product])


def tensor_parallel(rank, world_size):
    """One layer split by columns, the next by rows."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(), _cpu_mesh(world_size), plan)
    output = model(_batch(0))  # traced: all_reduce
    output.square().mean().backward()
    return _numbers([output, model[0].weight.grad.full_tensor()])


def functional_collectives(rank, world_size):
    """Collectives that return new tensors, which are waited for at their first use."""
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    x = torch.arange(8.0) + rank
    summed = funcol.all_reduce(x, "sum", group)  # traced: all_reduce
    gathered = funcol.all_gather_tensor(x, 0, group)  # traced: all_gather
    scattered = funcol.reduce_scatter_tensor(x, "sum", 0, group)  # traced: reduce_scatter
    turned = funcol.all_to_all_single(x, None, None, group)  # traced: all_to_all
    several = funcol.all_reduce_coalesced([x, 2 * x], "sum", group)  # traced: all_reduce
    return _numbers([summed, gathered, scattered, turned, *several])


def object_collectives(rank, world_size):
    """Any picklable object through gather, broadcast and scatter."""
    mine = {"rank": rank, "square": rank**2}
    gathered = [None] * world_size
    dist.all_gather_object(gathered, mine)  # traced: all_gather
    told = [mine]
    dist.broadcast_object_list(told, src=1)  # traced: broadcast
    part = [None]
    everyones = [f"for {r}" for r in range(world_size)] if rank == 0 else None
    dist.scatter_object_list(part, everyones, src=0)  # traced: broadcast scatter
    return gathered, told, part


def batch_isend_irecv(rank, world_size):
    """A ring in which everybody sends and receives at once."""
    mine = torch.full((3,), float(rank))
    theirs = torch.empty(3)
    ring = [
        dist.P2POp(dist.isend, mine, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, theirs, (rank - 1) % world_size),
    ]
    for request in dist.batch_isend_irecv(ring):  # traced: send recv
        request.wait()
    return theirs.tolist()


def new_group(rank, world_size):
    """Groups of neighbours, and a send within one of them."""
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world_size, 2)]
    pair = pairs[rank // 2]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=pair)  # traced: all_reduce
    subgroup, _ = dist.new_subgroups(2)
    parts = [torch.empty(1) for _ in range(2)]
    dist.all_gather(parts, x, group=subgroup)  # traced: all_gather
    return x.item(), _numbers(parts)


def pipeline(rank, world_size):
    """GPipe, one stage a rank, two microbatches: activations forward, gradients back."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    layer = [nn.Linear(8, 8) for _ in range(world_size)][rank]
    stage = PipelineStage(layer, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    inputs = [_batch(0)] if rank == 0 else []
    target = torch.zeros(4, 8) if rank == world_size - 1 else None
    schedule.step(*inputs, target=target)  # traced: send recv
    return _numbers(p.grad for p in layer.parameters())


FEATURES = {
    function.__name__: function
    for function in (
        ddp, ddp_no_sync, ddp_join, zero_optimizer, fsdp2, device_mesh, dtensor, tensor_parallel,
        functional_collectives, object_collectives, batch_isend_irecv, new_group, pipeline,
    )
}  # fmt: skip
