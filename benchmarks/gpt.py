"""GPT as Megatron-LM had it in 2021, and its training steps, for ranks without data.

Weights, activations and gradients are float16, AdamW keeps float32. The columns of a block's first
products and the rows of its second are split over the ranks of a tensor group; each layer is
checkpointed. Attention writes its scores. Where Megatron's kernels add a bias and apply a mask on
the way, so do the ones called here. With stages, embedding and output have weights of their own.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import simlib

from .training import parts_of, staged

HALF = torch.float16
LOSS_SCALE = 1024.0


@dataclass(frozen=True)
class Sizes:
    """Of a GPT."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 51_200
    length: int = 2048

    def flops(self, sequences):
        """Of a step, as the paper counts them: with every layer's forward twice."""
        ahead = self.length / (6 * self.width)
        last = self.vocabulary / (16 * self.layers * self.width)
        return 96 * sequences * self.length * self.layers * self.width**2 * (1 + ahead + last)


class _Copied(torch.autograd.Function):
    """The same on all ranks of a group, each of which takes a part of it: gradients add up."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """The sum of what the ranks of a group have; each has its gradient."""

    @staticmethod
    def forward(context, x, group):
        dist.all_reduce(x, group=group)
        context.mark_dirty(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


@dataclass(frozen=True)
class Split:
    """A tensor group, or none."""

    ranks: int = 1
    group: dist.ProcessGroup | None = None

    def copied(self, x):
        return x if self.group is None else _Copied.apply(x, self.group)

    def summed(self, x):
        return x if self.group is None else _Summed.apply(x, self.group)


class Attention(nn.Module):
    def __init__(self, sizes, split):
        super().__init__()
        self.split, self.heads = split, sizes.heads // split.ranks
        part = sizes.width // split.ranks
        self.qkv = nn.Linear(sizes.width, 3 * part)
        self.out = nn.Linear(part, sizes.width, bias=False)
        self.bias = nn.Parameter(torch.empty(sizes.width))

    def forward(self, x, mask):
        batch, length, _ = x.shape
        parts = self.qkv(self.split.copied(x)).unflatten(-1, (self.heads, -1)).chunk(3, -1)
        q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in parts)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        weights = F.dropout(scores.softmax(-1), 0.1)
        out = torch.bmm(weights, v).unflatten(0, (batch, self.heads)).transpose(1, 2)
        return self.split.summed(self.out(out.flatten(2)))


class Hidden(nn.Module):
    def __init__(self, sizes, split):
        super().__init__()
        self.split = split
        self.first = nn.Linear(sizes.width, 4 * sizes.width // split.ranks)
        self.second = nn.Linear(4 * sizes.width // split.ranks, sizes.width, bias=False)
        self.bias = nn.Parameter(torch.empty(sizes.width))

    def forward(self, x):
        return self.split.summed(self.second(F.gelu(self.first(self.split.copied(x)))))


class Block(nn.Module):
    def __init__(self, sizes, split):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention, self.hidden = Attention(sizes, split), Hidden(sizes, split)

    def forward(self, x, mask):
        x = x + F.dropout(self.attention(self.norm1(x), mask) + self.attention.bias, 0.1)
        return x + F.dropout(self.hidden(self.norm2(x)) + self.hidden.bias, 0.1)


class Embedding(nn.Module):
    """Of tokens, of which each rank of a tensor group has some, and of positions."""

    def __init__(self, sizes, split):
        super().__init__()
        self.split, self.own = split, sizes.vocabulary // split.ranks
        self.tokens = nn.Parameter(torch.empty(self.own, sizes.width))
        self.positions = nn.Parameter(torch.empty(sizes.length, sizes.width))

    def forward(self, x):
        if self.split.group is None:
            found = F.embedding(x, self.tokens)
        else:
            own = x - self.own * dist.get_rank(self.split.group)
            others = (own < 0) | (own >= self.own)
            found = F.embedding(own.masked_fill(others, 0), self.tokens)
            found = self.split.summed(found.masked_fill(others.unsqueeze(-1), 0.0))
        return F.dropout(found + self.positions[: x.shape[1]], 0.1)


class GPT(nn.Module):
    """The blocks ``part`` of a model: -1 is the embedding, ``sizes.layers`` the output."""

    def __init__(self, sizes, split, part):
        super().__init__()
        is_first, is_last = -1 in part, sizes.layers in part
        self.split = split
        self.embedding = Embedding(sizes, split) if is_first else None
        self.blocks = nn.ModuleList(Block(sizes, split) for one in part if 0 <= one < sizes.layers)
        self.norm = nn.LayerNorm(sizes.width) if is_last else None
        self.output = None
        if is_last:
            tied = self.embedding.tokens if is_first else None
            own = torch.empty(sizes.vocabulary // split.ranks, sizes.width)
            self.output = nn.Parameter(own) if tied is None else tied
        self.register_buffer("mask", torch.empty(1, sizes.length, sizes.length))

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, self.mask, use_reentrant=False)
        if self.output is None:
            return x
        return F.linear(self.split.copied(self.norm(x)), self.output)


def loss_over(split):
    """Cross entropy of float32 logits, of which each rank of a tensor group has a part."""

    def loss(logits, target):
        logits = logits.flatten(0, 1).float()
        target = target.flatten()
        if split.group is None:
            return LOSS_SCALE * F.cross_entropy(logits, target)
        most = logits.detach().amax(-1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=split.group)
        logits = logits - most.unsqueeze(-1)
        total = split.summed(logits.exp().sum(-1))
        own = target - logits.shape[-1] * dist.get_rank(split.group)
        others = (own < 0) | (own >= logits.shape[-1])
        found = logits.gather(-1, own.masked_fill(others, 0).unsqueeze(-1)).squeeze(-1)
        found = split.summed(found.masked_fill(others, 0.0))
        return LOSS_SCALE * (total.log() - found).mean()

    return loss


def train(rank, world_size, sizes, plan, batch, micro_batch=1, steps=2):
    """Training steps; a replica takes ``batch`` sequences in a step, ``micro_batch`` at a time."""
    mesh = plan.mesh()
    split = Split(plan.tensor, mesh.get_group("tp")) if plan.tensor > 1 else Split()
    models = [model_of(sizes, split, part) for part in parts_of(sizes, plan, mesh)]
    optimizer = Masters([one for model in models for one in model.parameters()])
    loss_of = loss_over(split)
    many = batch // micro_batch
    data = mesh.get_group("dp")
    if plan.stages == 1:
        computed = whole(models[0], many, loss_of, data)
    else:
        computed = in_stages(models, plan, mesh, many, loss_of, data)
    for step in range(steps):
        with simlib.span("step", number=step):
            computed(*torch.randint(sizes.vocabulary, (2, batch, sizes.length)))
            optimizer.step([mesh.get_group(name) for name in mesh.mesh_dim_names if name != "dp"])
            torch.cpu.synchronize()


def model_of(sizes, split, part):
    with torch.device("meta"):
        model = GPT(sizes, split, part).to(HALF)
    return model.to_empty(device="cpu")


def whole(model, many, loss_of, data):
    """Forward and backward; torch's DDP averages the gradients of the last micro-batch."""
    replica = DistributedDataParallel(model, process_group=data, gradient_as_bucket_view=True)

    def computed(tokens, target):
        for own in replica.parameters():
            own.grad = None
        pieces = list(zip(tokens.chunk(many), target.chunk(many), strict=True))
        for number, (tokens, target) in enumerate(pieces):
            is_last = number == many - 1
            with contextlib.nullcontext() if is_last else replica.no_sync():
                (loss_of(replica(tokens), target) / many).backward()

    return computed


def in_stages(models, plan, mesh, many, loss_of, data):
    """A pipeline; then the gradients of all layers are averaged, in one buffer."""
    parameters = [one for model in models for one in model.parameters()]
    buffer = torch.empty(sum(one.numel() for one in parameters), dtype=HALF)
    parts = buffer.split([one.numel() for one in parameters])
    scheduled = staged(models, plan, mesh, many, loss_of)

    def computed(tokens, target):
        buffer.zero_()
        for one, part in zip(parameters, parts, strict=True):
            one.grad = part.view_as(one)
        scheduled(tokens, target)
        dist.all_reduce(buffer, dist.ReduceOp.AVG, group=data)

    return computed


class Masters:
    """AdamW on float32 copies of parameters in half precision."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.copies = [nn.Parameter(one.detach().float()) for one in parameters]
        self.adam = torch.optim.AdamW(self.copies, lr=1e-4, weight_decay=0.01, foreach=True)

    def step(self, groups):
        """A step with gradients scaled back, their norm over the ranks of ``groups`` at most 1."""
        for one, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad = one.grad.float().div_(LOSS_SCALE)
        norm = torch.nn.utils.get_total_norm([one.grad for one in self.copies], foreach=True) ** 2
        for group in groups:
            dist.all_reduce(norm, group=group)
        torch.nn.utils.clip_grads_with_norm_(self.copies, 1.0, norm**0.5, foreach=True)
        self.adam.step()
        with torch.no_grad():
            for one, copy in zip(self.parameters, self.copies, strict=True):
                one.copy_(copy)
