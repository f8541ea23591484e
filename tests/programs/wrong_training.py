"""Training loops: DistributedDataParallel, FSDP2 and their hand-written kin, gone wrong."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .registry import wrong
from .right_training import TwoHeads


class OneOrTwoLayers(nn.Module):
    """Leaves its second layer out when told to."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, both):
        return self.second(self.first(x)) if both else self.first(x)


@wrong("deadlock")
class Deadlocks:
    def ddp_uneven_inputs(rank, n=2):
        model = DistributedDataParallel(nn.Linear(4, 2))
        for _ in range(3 if rank == 0 else 2):
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()  # <- rank 0

    def ddp_one_rank_has_no_data(rank, n=3):
        model = DistributedDataParallel(nn.Linear(4, 2))
        for _ in range(rank):
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()  # <- ranks 1, 2

    def ddp_uneven_inputs_with_buffers(rank, n=2):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
        for _ in range(4 - rank):
            loss = model(torch.ones(3, 4)).sum()  # <- rank 0
            loss.backward()

    def ddp_on_rank_0_only(rank, n=3):
        model = nn.Linear(4, 2)
        if rank == 0:
            model = DistributedDataParallel(model)  # <- rank 0
        model(torch.ones(3, 4)).sum().backward()

    def ddp_no_sync_on_one_rank(rank, n=2):
        model = DistributedDataParallel(nn.Linear(4, 2))
        if rank == 1:
            with model.no_sync():
                model(torch.ones(3, 4)).sum().backward()
        else:
            model(torch.ones(3, 4)).sum().backward()  # <- rank 0

    def ddp_skips_a_bad_batch(rank, n=2):
        model = DistributedDataParallel(nn.Linear(4, 2))
        for step in range(3):
            loss = model(torch.ones(3, 4)).sum()
            if (rank, step) == (1, 2):
                continue
            loss.backward()  # <- rank 0

    def early_stopping_on_one_rank(rank, n=3):
        for step in range(5):
            loss = torch.tensor([float(10 - step - 3 * (rank == 1))])
            if loss.item() < 5:
                break
            dist.all_reduce(loss)  # <- ranks 0, 2

    def metric_reduced_by_the_evaluating_rank(rank, n=3):
        correct = torch.tensor([3.0])
        dist.barrier()
        if rank == 0:
            dist.reduce(correct, dst=0)  # <- rank 0

    def tensor_parallel_layer_forgets_a_sum(rank, n=2):
        part = nn.Linear(4, 2, bias=False)(torch.ones(3, 4)).detach()
        if rank == 0:
            dist.all_reduce(part)  # <- rank 0

    def pipeline_backward_in_forward_order(rank, n=3):
        x = torch.ones(4)
        if rank > 0:
            dist.recv(x, rank - 1)
        if rank < n - 1:
            dist.send(x, rank + 1)
        if rank > 0:
            dist.recv(x, rank - 1)  # <- ranks 1, 2
        if rank < n - 1:
            dist.recv(x, rank + 1)  # <- rank 0

    def fsdp2_forward_on_one_rank(rank, n=2):
        model = nn.Linear(8, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
        if rank == 0:
            model(torch.ones(2, 8))  # <- rank 0

    def zero_optimizer_consolidated_on_rank_0(rank, n=2):
        model = DistributedDataParallel(nn.Linear(4, 2))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        if rank == 0:
            optimizer.consolidate_state_dict(to=0)  # <- rank 0

    def parameter_server_waits_for_one_push_too_many(rank, n=3):
        gradient = torch.ones(2)
        if rank == 0:
            for _ in range(n - 1 + n - 1):
                dist.recv(gradient)  # <- rank 0
        else:
            for _ in range(1 + (rank == 1)):
                dist.send(gradient, 0)

    def sampler_gives_one_rank_more(rank, n=2):
        weight = torch.ones(1)
        for _ in range(rank, 5, n):
            gradient = weight.clone()
            dist.all_reduce(gradient)  # <- rank 0
            weight -= 0.1 * gradient / n


@wrong("rank_error")
class Errors:
    def ddp_unused_parameters(rank, n=2):
        model = DistributedDataParallel(TwoHeads())
        for _ in range(2):
            out = model(torch.ones(3, 4), 0)  # <- every rank
            out.sum().backward()

    def ddp_unused_parameters_on_one_rank(rank, n=2):
        model = DistributedDataParallel(OneOrTwoLayers())
        for _ in range(2):
            out = model(torch.ones(3, 4), both=rank == 0)  # <- rank 1
            out.sum().backward()

    def ddp_each_rank_uses_its_own_head(rank, n=2):
        model = DistributedDataParallel(TwoHeads())
        for _ in range(2):
            out = model(torch.ones(3, 4), rank)  # <- every rank
            out.sum().backward()

    def ddp_of_models_of_other_shapes(rank, n=2):
        model = nn.Linear(4, 2 + rank)
        DistributedDataParallel(model)  # <- rank 1

    def ddp_join_that_throws(rank, n=2):
        model = DistributedDataParallel(nn.Linear(4, 2))
        with model.join(throw_on_early_termination=True):  # <- every rank
            for _ in range(2 + rank):
                model(torch.ones(3, 4)).sum().backward()  # <- rank 1


@wrong("mismatch")
class Mismatches:
    def hand_reduced_gradients_of_an_unused_layer(rank, n=2):
        model = TwoHeads()
        model.heads[0].bias.requires_grad_(rank == 0)
        model(torch.ones(3, 4), 0).sum().backward()
        model(torch.ones(3, 4), 1).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)  # <- every rank

    def hand_reduced_gradients_in_another_order(rank, n=2):
        model = nn.Linear(4, 2)
        model(torch.ones(3, 4)).sum().backward()
        for parameter in list(model.parameters())[:: 1 - 2 * rank]:
            dist.all_reduce(parameter.grad)  # <- every rank

    def last_batch_averaged_by_its_own_size(rank, n=2):
        outputs = torch.ones(3 - rank, 4)
        dist.all_reduce(outputs)  # <- every rank

    def pipeline_sends_another_microbatch_size(rank, n=2):
        microbatches = torch.ones(10, 4).split(4)
        for microbatch in microbatches:
            if rank == 0:
                dist.send(microbatch.contiguous(), 1)  # <- rank 0
            else:
                dist.recv(torch.empty(4, 4), 0)  # <- rank 1
