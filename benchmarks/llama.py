"""Llama as torchtitan had it in December 2024, for ranks without data.

Written from what torchtitan at 9dec370 does: its norm computes in float32, its rotary embedding
multiplies complex numbers, and keys and values are repeated for their queries. `spreading` spreads
it over ranks, `training` trains it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """Of a model of the Llama family.

    With ``fused_norm`` the norm is one kernel. In torchtitan of April 2024 that is Triton's; here
    `nn.LayerNorm` without bias stands for it, which moves the same bytes.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int = 128_256
    fused_norm: bool = False

    @property
    def head(self):
        return self.width // self.heads

    @property
    def parameters(self):
        of_attention = 2 * self.width * self.head * (self.heads + self.key_heads)
        of_block = of_attention + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * of_block + (2 * self.vocabulary + 1) * self.width


LLAMA_8B = Sizes(32, 4096, 32, 8, 14_336)
LLAMA_70B = Sizes(80, 8192, 64, 8, 28_672)
LLAMA_405B = Sizes(126, 16_384, 128, 8, 53_248)
LLAMA_2_13B = Sizes(40, 5120, 40, 40, 13_824, 32_000)
LLAMA_2_70B = Sizes(80, 8192, 64, 8, 28_672, 32_000)


def norm_of(sizes):
    if sizes.fused_norm:
        return nn.LayerNorm(sizes.width, eps=1e-5, bias=False)
    return Norm(sizes.width)


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
        self.norm1, self.norm2 = norm_of(sizes), norm_of(sizes)
        self.attention, self.hidden = Attention(sizes), Hidden(sizes)

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.hidden(self.norm2(x))


class Llama(nn.Module):
    """The blocks ``part`` of a model: -1 is the embedding, ``sizes.layers`` the output."""

    def __init__(self, sizes, length, part):
        super().__init__()
        is_first, is_last = -1 in part, sizes.layers in part
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width) if is_first else None
        self.blocks = nn.ModuleList(Block(sizes) for one in part if 0 <= one < sizes.layers)
        self.norm = norm_of(sizes) if is_last else None
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False) if is_last else None
        self.register_buffer("turns", torch.empty(length, sizes.head // 2, dtype=torch.complex64))

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.turns)
        return x if self.output is None else self.output(self.norm(x))
