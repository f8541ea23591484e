"""Ranks share a batch: tensor, sequence, context and expert parallelism."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from .data_parallel import BFLOAT16
from .models import LENGTH, VOCABULARY, WIDTH, Llama, batch, loss_of, train


def split_layers(model, mesh):
    """Heads and the width of feed-forward layers over the ranks of a mesh."""
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
    plan |= {"attention.out": RowwiseParallel(), "feed_forward.down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def split_sequence(model, mesh, **head):
    """As torchtitan does it: between the split layers each rank has a part of the sequence."""
    gathered = {
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        "feed_forward": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
    }
    rows = RowwiseParallel(output_layouts=Shard(1))
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
    plan |= {"attention.out": rows, "feed_forward.down": rows}
    plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), **gathered}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    tokens = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    whole = {"tokens": tokens, "norm": SequenceParallel()}
    whole["head"] = ColwiseParallel(input_layouts=Shard(1), **head)
    return parallelize_module(model, mesh, whole)


def tensor_parallel(rank, world_size):
    torch.manual_seed(0)
    model = split_layers(Llama(), init_device_mesh("cpu", (world_size,)))
    return train(model, torch.optim.AdamW(model.parameters(), foreach=False))


def sequence_parallel(rank, world_size):
    torch.manual_seed(0)
    model = split_sequence(
        Llama(), init_device_mesh("cpu", (world_size,)), output_layouts=Replicate()
    )
    return train(model, torch.optim.AdamW(model.parameters()), clip=1.0)


def fsdp2_and_tensor_parallel(rank, world_size):
    """A mesh of two dimensions, bfloat16, and a loss of split logits."""
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(mesh.get_local_rank("dp"))
    split = split_sequence(Llama(), mesh["tp"], output_layouts=Shard(-1), use_local_output=False)
    for layer in split.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=BFLOAT16)
    model = fully_shard(split, mesh=mesh["dp"], mp_policy=BFLOAT16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        tokens, target = batch()
        with loss_parallel():
            loss = loss_of(model(tokens), target)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.full_tensor().item()


def _passed_on(tensors):
    """Send to the next rank, receive from the last one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = [torch.empty_like(one) for one in tensors]
    to, by = (rank + 1) % size, (rank - 1) % size
    ops = [dist.P2POp(dist.isend, one.contiguous(), to) for one in tensors]
    ops += [dist.P2POp(dist.irecv, one, by) for one in arrived]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return arrived


class RingAttention(torch.autograd.Function):
    """Each rank has a part of the sequence; keys and values go round. Every place sees all."""

    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        keys, values, total, weighted = k, v, 0.0, 0.0
        for _ in range(dist.get_world_size()):
            weights = (q @ keys.transpose(-2, -1) * scale).exp()
            total, weighted = total + weights.sum(-1, keepdim=True), weighted + weights @ values
            keys, values = _passed_on([keys, values])
        out = weighted / total
        ctx.save_for_backward(q, k, v, out, total)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, total = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        of_all = (grad * out).sum(-1, keepdim=True)
        going = [k, v, torch.zeros_like(k), torch.zeros_like(v)]
        grad_q = torch.zeros_like(q)
        for _ in range(dist.get_world_size()):
            keys, values, grad_k, grad_v = going
            weights = (q @ keys.transpose(-2, -1) * scale).exp() / total
            of_scores = weights * (grad @ values.transpose(-2, -1) - of_all) * scale
            grad_q += of_scores @ keys
            grad_k = grad_k + of_scores.transpose(-2, -1) @ q
            grad_v = grad_v + weights.transpose(-2, -1) @ grad
            going = _passed_on([keys, values, grad_k, grad_v])
        return grad_q, *going[2:]


def context_parallel(rank, world_size):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)
    torch.manual_seed(rank)
    for _ in range(2):
        x = torch.randn(2, LENGTH // world_size, WIDTH)
        q, k, v = (layer(x) for layer in layers[:3])
        layers[3](RingAttention.apply(q, k, v)).square().mean().backward()
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


class Experts(nn.Module):
    """One expert on each rank; each rank sends so many tokens to each, the likeliest first."""

    def __init__(self, world_size):
        super().__init__()
        self.router = nn.Linear(WIDTH, world_size, bias=False)
        self.expert = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        capacity = 2 * len(x) // weights.shape[1]
        gates, chosen = weights.t().topk(capacity)
        sent = x[chosen.flatten()]
        taken = differentiable.all_to_all_single(torch.empty_like(sent), sent)
        done = self.expert(taken)
        back = differentiable.all_to_all_single(torch.empty_like(done), done)
        return x.index_add(0, chosen.flatten(), back * gates.reshape(-1, 1))


def expert_parallel(rank, world_size):
    torch.manual_seed(0)
    tokens, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    torch.manual_seed(rank)
    experts = Experts(world_size)
    model = nn.Sequential(tokens, nn.Flatten(0, 1), experts, head)
    optimizer = torch.optim.AdamW(model.parameters())
    shared = [one for name, one in model.named_parameters() if "expert" not in name]
    for _ in range(2):
        inputs, target = batch()
        loss = functional.cross_entropy(model(inputs), target.flatten())
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


PROGRAMS = [
    tensor_parallel,
    sequence_parallel,
    fsdp2_and_tensor_parallel,
    context_parallel,
    expert_parallel,
]
