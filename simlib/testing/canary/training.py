"""The canary's programs that train: each against one process that has the whole batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from . import canary, check_world

EXAMPLES, STEPS, LEARNING_RATE = 8, 2, 0.1


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def _batch():
    return torch.arange(4.0 * EXAMPLES).reshape(EXAMPLES, 4) / 10


def _train(model, batch):
    """Some steps of SGD; returns all parameters, whole."""
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
