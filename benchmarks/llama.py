"""A training step of Llama 3 as torchtitan had it in December 2024, for ranks without data.

Written from what torchtitan at 9dec370 does: its norm computes in float32, its rotary embedding
multiplies complex numbers, keys and values are repeated for their queries, its selective
checkpointing saves every second product of matrices and the attention, and its loss takes float32
logits. Each block is sharded by FSDP2, parameters travel as bfloat16, gradients as float32.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import simlib


@dataclass(frozen=True)
class Sizes:
    """Of a model of the Llama 3 family."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int = 128_256

    @property
    def head(self):
        return self.width // self.heads


LLAMA_8B = Sizes(32, 4096, 32, 8, 14_336)
LLAMA_70B = Sizes(80, 8192, 64, 8, 28_672)


class Norm(nn.Module):
    """Root mean square norm, in float32."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        exact = x.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (exact * scale).type_as(x) * self.weight


def rotated(x, turns):
    """Pairs of neighbours of each head, as complex numbers, turned by their position."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal attention in which several queries share a key."""

    def __init__(self, sizes):
        super().__init__()
        of_keys = sizes.key_heads * sizes.head
        self.sizes = sizes
        self.wq = nn.Linear(sizes.width, sizes.width, bias=False)
        self.wk = nn.Linear(sizes.width, of_keys, bias=False)
        self.wv = nn.Linear(sizes.width, of_keys, bias=False)
        self.wo = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x, turns):
        sizes = self.sizes
        q, k, v = (w(x).unflatten(-1, (-1, sizes.head)) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = self._for_each_query(k), self._for_each_query(v)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().flatten(2))

    def _for_each_query(self, x):
        times = self.sizes.heads // self.sizes.key_heads
        return x.unsqueeze(3).expand(-1, -1, -1, times, -1).flatten(2, 3)


class Hidden(nn.Module):
    """The two layers of a block with a gate."""

    def __init__(self, sizes):
        super().__init__()
        self.w1 = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.w2 = nn.Linear(sizes.hidden, sizes.width, bias=False)
        self.w3 = nn.Linear(sizes.width, sizes.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.norm1, self.norm2 = Norm(sizes.width), Norm(sizes.width)
        self.attention, self.hidden = Attention(sizes), Hidden(sizes)

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.hidden(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, sizes, length):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.register_buffer("turns", torch.empty(length, sizes.head // 2, dtype=torch.complex64))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.output(self.norm(x))


aten = torch.ops.aten
SAVED = (
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def every_second_product():
    """Checkpointing that saves attention and the first, third ... product of a block."""
    products = Counter()

    def policy(context, func, *args, **kwargs):
        is_product = func is aten.mm.default
        products[context.is_recompute] += is_product
        is_saved = func in SAVED and not (is_product and products[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def sharded(sizes, length, mesh):
    """The model without memory, each block checkpointed and sharded, and then with memory."""
    with torch.device("meta"):
        model = Llama(sizes, length)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number, block in enumerate(model.blocks):
        wrapped = checkpoint_wrapper(
            block, context_fn=every_second_product, preserve_rng_state=False
        )
        is_last = number == sizes.layers - 1
        fully_shard(wrapped, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_last)
        model.blocks[number] = wrapped
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model.to_empty(device="cpu")


def train(rank, world_size, sizes=LLAMA_8B, batch=2, length=8192, steps=3):
    """Training steps of FSDP2 over all ranks.

    Returns
    -------
    int
        Parameters of the whole model.
    """
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    model = sharded(sizes, length, dist.init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True
    )
    for step in range(steps):
        with simlib.span("step", number=step):
            tokens, target = torch.randint(sizes.vocabulary, (2, batch, length))
            optimizer.zero_grad()
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
            del logits
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            torch.cpu.synchronize()
    return sum(parameter.numel() for parameter in model.parameters())
