"""Two small models as their users write them, a batch of tokens, and a loop that trains."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS = 128, 64, 2, 8, 4
LENGTH, BATCH = 16, 2


class GPTBlock(nn.Module):
    """Attention and two layers, each behind a LayerNorm."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, WIDTH)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Learned positions, tied to nothing."""

    def __init__(self, block=GPTBlock):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def rotations(length, width):
    """Complex factors of rotary embedding: (length, width / 2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2)[: width // 2].float() / width)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x, factors):
    """Queries or keys (batch, length, heads, width), each pair turned by its place."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * factors[:, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped queries with rotary embedding; a part of the heads where its layers are split."""

    def __init__(self):
        super().__init__()
        width = WIDTH // HEADS * KEY_HEADS
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, width, bias=False), nn.Linear(WIDTH, width, bias=False)

    def forward(self, x, factors):
        batch, length, _ = x.shape
        parts = [layer(x).view(batch, length, -1, WIDTH // HEADS) for layer in (self.q, self.k)]
        q, k = (rotated(part, factors) for part in parts)
        v = self.v(x).view(batch, length, -1, WIDTH // HEADS)
        k, v = (part.repeat_interleave(HEADS // KEY_HEADS, dim=2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """Attention and a feed-forward layer, each behind an RMSNorm."""

    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x, factors):
        x = x + self.attention(self.norm1(x), factors)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """Without learned positions."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        factors = rotations(tokens.shape[1], WIDTH // HEADS)
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, factors)
        return self.head(self.norm(x))


def batch():
    """Tokens and the tokens to be told, of one rank."""
    return torch.randint(VOCABULARY, (2, BATCH, LENGTH)).unbind()


def loss_of(output, target):
    """Cross entropy over all places, in float32."""
    return functional.cross_entropy(output.float().flatten(0, 1), target.flatten())


def train(model, optimizer, steps=2, clip=None, loss_of=loss_of):
    """Some steps; the last loss."""
    for _ in range(steps):
        tokens, target = batch()
        loss = loss_of(model(tokens), target)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
