"""The canary's programs. Some make single calls. Others train, and compare with one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from . import brought, canary, check_world, summed

EXAMPLES, STEPS, LEARNING_RATE = 8, 2, 0.1


def _everybodys(n):
    return torch.stack([brought(rank) for rank in range(n)])


@canary(lambda rank, n: summed(n))
def all_reduce(rank, n):
    check_world(rank, n)
    x = brought(rank)
    dist.all_reduce(x)
    return x


@canary(lambda rank, n: brought(1))
def broadcast(rank, n):
    check_world(rank, n)
    x = brought(rank)
    dist.broadcast(x, src=1)
    return x


@canary(lambda rank, n: summed(n) if rank == 2 else None)
def reduce(rank, n):
    check_world(rank, n)
    x = brought(rank)
    dist.reduce(x, dst=2)
    return x if rank == 2 else None


@canary(lambda rank, n: brought(rank) + n)
def gather_and_scatter(rank, n):
    check_world(rank, n)
    parts = [torch.empty(4) for _ in range(n)] if rank == 0 else None
    dist.gather(brought(rank), parts, dst=0)
    back = [part + len(parts) for part in parts] if rank == 0 else None
    mine = torch.empty(4)
    dist.scatter(mine, back, src=0)
    return mine


@canary(lambda rank, n: _everybodys(n))
def all_gather(rank, n):
    check_world(rank, n)
    parts = [torch.empty(4) for _ in range(n)]
    dist.all_gather(parts, brought(rank))
    return torch.stack(parts)


@canary(lambda rank, n: summed(n))
def reduce_scatter_and_all_gather(rank, n):
    check_world(rank, n)
    mine, whole = torch.empty(1), torch.empty(4)
    dist.reduce_scatter_tensor(mine, brought(rank))
    dist.all_gather_into_tensor(whole, mine)
    return whole


@canary(lambda rank, n: torch.cat([torch.full((rank + 1,), float(other)) for other in range(n)]))
def all_to_all(rank, n):
    check_world(rank, n)
    takes = torch.empty((rank + 1) * n)
    sizes = [other + 1 for other in range(n)]
    brings = torch.full((sum(sizes),), float(rank))
    dist.all_to_all_single(takes, brings, [rank + 1] * n, sizes)
    return takes


@canary(lambda rank, n: [["from", other] for other in range(n)] + ["all"])
def objects(rank, n):
    check_world(rank, n)
    found = [None] * n
    dist.all_gather_object(found, ["from", rank])
    said = ["all" if rank == 0 else None]
    dist.broadcast_object_list(said, src=0)
    return found + said


@canary(lambda rank, n: summed(n))
def ring(rank, n):
    check_world(rank, n)
    total = moving = brought(rank)
    for _ in range(n - 1):
        request = dist.isend(moving, (rank + 1) % n)
        arrived = torch.empty(4)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        total, moving = total + arrived, arrived
    return total


@canary(lambda rank, n: brought((rank - 1) % n))
def batched(rank, n):
    check_world(rank, n)
    arrived = torch.empty(4)
    to = dist.P2POp(dist.isend, brought(rank), (rank + 1) % n)
    by = dist.P2POp(dist.irecv, arrived, (rank - 1) % n)
    for request in dist.batch_isend_irecv([to, by]):
        request.wait()
    return arrived


@canary(lambda rank, n: [0, 1, 2, 3] if rank == 0 else None)
def any_source(rank, n):
    check_world(rank, n)
    if rank > 0:
        dist.send(brought(rank), 0)
        return None
    arrived = torch.empty(4)
    senders = [dist.recv(arrived) for _ in range(n - 1)]
    return [0, *sorted(senders)]


@canary(lambda rank, n: [summed(n) * factor for factor in (1, 2, 3)])
def requests(rank, n):
    check_world(rank, n)
    tensors = [brought(rank) * factor for factor in (1, 2, 3)]
    for request in reversed([dist.all_reduce(x, async_op=True) for x in tensors]):
        request.wait()
    return tensors


def _of_rows_and_columns(rank, n):
    row, column = rank // 2 * 2, rank % 2
    return [brought(row) + brought(row + 1), brought(column) + brought(column + 2), 2, 2]


@canary(_of_rows_and_columns)
def groups(rank, n):
    check_world(rank, n)
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = rows[rank // 2], columns[rank % 2]
    x, y = brought(rank), brought(rank)
    dist.all_reduce(x, group=mine[0])
    dist.all_reduce(y, group=mine[1])
    return [x, y, *(dist.get_world_size(group) for group in mine)]


@canary(lambda rank, n: [summed(n), brought(1)])
def functional_collectives(rank, n):
    check_world(rank, n)
    x = functional.all_reduce(brought(rank), "sum", dist.group.WORLD)
    y = functional.broadcast(brought(rank), 1, dist.group.WORLD)
    return [x + 0, y + 0]


# Programs that train


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def _batch():
    return torch.arange(4.0 * EXAMPLES).reshape(EXAMPLES, 4) / 10


def _train(model, batch):
    """Do some steps of SGD. Returns all parameters, gathered if they are sharded."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [_whole(parameter) for parameter in model.parameters()]


def _whole(tensor):
    found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone()


def _alone(rank, n):
    return _train(_model(), _batch())


@canary(_alone)
def ddp(rank, n):
    check_world(rank, n)
    return _train(DistributedDataParallel(_model()), _batch().chunk(n)[rank])


@canary(_alone)
def fsdp2(rank, n):
    check_world(rank, n)
    model = _model()
    for part in (model[0], model[2], model):
        fully_shard(part)
    assert model[0].weight.device_mesh.size() == n, "FSDP2 trains in another world"
    assert len(model[0].weight.to_local()) == 8 // n, "FSDP2 has not cut the weights"
    return _train(model, _batch().chunk(n)[rank])


@canary(_alone)
def fsdp2_on_a_mesh(rank, n):
    check_world(rank, n)
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicas", "shards"))
    assert [mesh.get_group(d).size() for d in (0, 1)] == [2, n // 2], "groups of another size"
    model = _model()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    assert len(model[0].weight.to_local()) == 8 // (n // 2), "FSDP2 has not cut the weights"
    return _train(model, _batch().chunk(n)[rank])


@canary(lambda rank, n: [_batch().T @ _batch(), _batch().sum()])
def dtensor(rank, n):
    check_world(rank, n)
    mesh = init_device_mesh("cpu", (n,))
    x = distribute_tensor(_batch(), mesh, [Shard(0)])
    assert len(x.to_local()) == EXAMPLES // n, "the tensor has not been cut"
    product = (x.T @ x).redistribute(mesh, [Replicate()]).to_local()
    return [product, x.sum().full_tensor()]


@canary(_alone)
def tensor_parallel(rank, n):
    check_world(rank, n)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(), init_device_mesh("cpu", (n,)), plan)
    assert len(model[0].weight.to_local()) == 8 // n, "the layer has not been cut"
    return _train(model, _batch())


@canary(_alone)
def fsdp2_and_tensor_parallel(rank, n):
    check_world(rank, n)
    mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(), mesh["tensor"], plan)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh["data"])
    assert model[0].weight.to_local().numel() == 32 // n, "the layer has not been cut twice"
    return _train(model, _batch().chunk(n // 2)[mesh.get_local_rank("data")])


def _loss(output, target):
    return output.square().mean()


def _gradients_of_stage(rank, n):
    model = _model()
    model(_batch()).square().mean().backward()
    return [p.grad for p in (model[0] if rank == 0 else model[2]).parameters()]


@canary(_gradients_of_stage, ranks=2)
def pipeline(rank, n):
    check_world(rank, n)
    model = _model()
    part = model[:2] if rank == 0 else model[2:]
    stage = PipelineStage(part, rank, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=_loss)
    schedule.step(*[_batch()][: 1 - rank], target=_batch() if rank == n - 1 else None)
    dist.barrier()
    return [p.grad for p in part.parameters()]
