"""Right training loops that a careless checker flags."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from .registry import right


class TwoHeads(nn.Module):
    """Uses one of its two layers at a time."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x, head):
        return self.heads[head](x)


def layers():
    """Two layers, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def train(model, parameters, steps=3):
    """A few steps of SGD."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()


@right
class Programs:
    def ddp(rank, n=3):
        model = DistributedDataParallel(layers())
        train(model, model.parameters())

    def ddp_with_a_straggler(rank, n=2):
        model = DistributedDataParallel(layers())
        model.register_forward_pre_hook(lambda *_: time.sleep(0.2 * rank))
        train(model, model.parameters())

    def ddp_of_many_buckets(rank, n=2):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        model = DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(3, 64)).sum().backward()

    def ddp_join(rank, n=3):
        model = DistributedDataParallel(layers())
        with model.join():
            train(model, model.parameters(), steps=1 + 2 * rank)

    def ddp_join_of_a_rank_without_data(rank, n=2):
        model = DistributedDataParallel(layers())
        with model.join():
            train(model, model.parameters(), steps=3 * rank)

    def ddp_no_sync(rank, n=2):
        model = DistributedDataParallel(layers())
        for _ in range(2):
            with model.no_sync():
                for _ in range(1 + rank):
                    model(torch.ones(3, 4)).sum().backward()
            model(torch.ones(3, 4)).sum().backward()

    def ddp_join_divides_by_those_who_have_data(rank, n=2):
        model = DistributedDataParallel(layers())
        with model.join(divide_by_initial_world_size=False):
            for _ in range(1 + rank):
                model(torch.ones(3, 4)).sum().backward()

    def ddp_finds_unused_parameters(rank, n=2):
        model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
        for step in range(3):
            model.zero_grad()
            model(torch.ones(3, 4), (rank + step) % 2).sum().backward()

    def ddp_static_graph(rank, n=2):
        model = DistributedDataParallel(layers(), static_graph=True)
        train(model, model.parameters(), steps=4)

    def ddp_with_buffers(rank, n=2):
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        model = DistributedDataParallel(model)
        train(model, model.parameters())

    def ddp_with_half_precision_messages(rank, n=2):
        model = DistributedDataParallel(layers())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        train(model, model.parameters())

    def two_ddp_models(rank, n=2):
        generator, critic = DistributedDataParallel(layers()), DistributedDataParallel(layers())
        for _ in range(3):
            critic(generator(torch.ones(3, 4)).detach()).sum().backward()
            critic(generator(torch.ones(3, 4))).sum().backward()

    def ddp_in_pairs(rank, n=4):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        model = DistributedDataParallel(layers(), process_group=pairs[rank // 2])
        train(model, model.parameters(), steps=1 + rank // 2)

    def ddp_with_metrics_in_between(rank, n=2):
        model = DistributedDataParallel(layers())
        for _ in range(3):
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            shown = loss.detach()
            dist.reduce(shown, dst=0)
            if rank == 0:
                print(f"loss {shown.item() / n:.3f}")

    def ddp_with_evaluation_on_rank_0(rank, n=2):
        model = DistributedDataParallel(layers())
        train(model, model.parameters())
        if rank == 0:
            with torch.no_grad():
                model.module(torch.ones(3, 4))
        dist.barrier()

    def zero_optimizer(rank, n=2):
        model = DistributedDataParallel(layers())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        optimizer.consolidate_state_dict(to=0)

    def fsdp2(rank, n=2):
        model = layers()
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=init_device_mesh("cpu", (n,)))
        train(model, model.parameters())

    def fsdp2_in_two_dimensions(rank, n=4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        model = layers()
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
        train(model, model.parameters())

    def tensor_parallel(rank, n=2):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(layers(), init_device_mesh("cpu", (n,)), plan)
        train(model, model.parameters())

    def redistributed_dtensor(rank, n=2):
        mesh = init_device_mesh("cpu", (n,))
        rows = distribute_tensor(torch.arange(15.0).reshape(5, 3), mesh, [Shard(0)])
        whole = rows.redistribute(mesh, [Replicate()]).to_local()
        assert whole.sum().item() == 105

    def pipeline_one_forward_one_backward(rank, n=3):
        stage = PipelineStage(nn.Linear(4, 4), rank, n, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=6, loss_fn=nn.functional.mse_loss)
        inputs = [torch.ones(6, 4)] if rank == 0 else []
        schedule.step(*inputs, target=torch.zeros(6, 4) if rank == n - 1 else None)

    def gradients_reduced_as_they_appear(rank, n=2):
        model, requests = layers(), []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: requests.append(dist.all_reduce(p.grad, async_op=True))
            )
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            while requests:
                requests.pop().wait()

    def gradients_in_one_flat_buffer(rank, n=2):
        model = layers()
        flat = torch.zeros(sum(p.numel() for p in model.parameters()))
        sizes = [p.numel() for p in model.parameters()]
        for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
            p.grad = part.view_as(p)
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            dist.all_reduce(flat, async_op=True).wait()
            flat.zero_()

    def local_steps_then_averaged_weights(rank, n=3):
        model = layers()
        for _ in range(3):
            train(model, model.parameters(), steps=1 + rank)
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= n

    def training_until_all_have_stopped(rank, n=3):
        running = torch.ones(1)
        for step in range(20):
            mine = torch.tensor([float(step < 5 + 3 * rank)])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            running = mine
            if running.item() == 0:
                break
        assert step == 11
