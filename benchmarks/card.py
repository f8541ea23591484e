"""Whether a measured card foretells steps of training that it was not made from.

The card is measured on this machine first, by one thread where it has no GPU. Each step is then run
here and simulated, with the table and by its rates alone.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import simlib
from simlib.core.devices.measuring import measure

from .table import heading, line

STEPS = (  # layers, width, heads, batch, length, vocabulary
    *((4, 256, 4, 4, 256, 1000), (2, 512, 8, 2, 256, 2000), (6, 384, 6, 1, 512, 4000)),
    *((2, 128, 4, 8, 128, 500), (3, 768, 12, 1, 256, 1000)),
)
PARTS = "forward", "backward", "optimizer"


def card(rounds):
    """Print the misses of each step's parts."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heading(f"A measured card ({device}): how far steps of training are missed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "card.json"
        path.write_text(measure(device, 100.0, str).text())
        measured = simlib.Device.measured(path)
    wait = torch.cuda.synchronize if device == "cuda" else int
    clock = time.perf_counter if device == "cuda" else time.process_time
    ways = {"table": measured, "rates alone": dataclasses.replace(measured, table=None)}
    misses = {name: [] for name in ways}
    for sizes in STEPS:
        here = _step(sizes, rounds, device, clock, wait)
        for name, way in ways.items():
            times = _simulated(sizes, way)
            of_parts = [f"{t / h - 1:+.0%}" for t, h in zip(times, here, strict=True)]
            misses[name].append(sum(times) / sum(here) - 1)
            what = f"{sizes}, {sum(here) * 1e3:.0f} ms, {name}"
            line(what, f"{misses[name][-1]:+.1%} ({', '.join(of_parts)})", ", ".join(PARTS))
    for name, found in misses.items():
        middle = statistics.median(map(abs, found))
        line(f"steps, {name}: median", f"{middle:.1%}", "8 %", middle <= 0.08)
        worst = max(found, key=abs)
        line(f"steps, {name}: worst", f"{worst:+.1%}", "20 %", abs(worst) <= 0.2)


def _simulated(sizes, device):
    def main(rank, world_size):
        return _step(sizes, 2, "cpu", time.perf_counter, torch.cpu.synchronize)

    cluster = simlib.Cluster(1, 1, simlib.Link(0.0, 1e9), device=device)
    return simlib.simulate(main, 1, cluster=cluster, data=False).results[0]


def _step(sizes, repeats, device, clock, wait):
    """Seconds of forward, backward and optimizer: of each part the least."""
    layers, width, heads, batch, length, words = sizes
    net = _GPT(layers, width, heads, length, words).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
    found = []
    for _ in range(max(repeats, 2)):
        wait()
        marks = [clock()]
        loss = F.cross_entropy(net(tokens).view(-1, words), tokens.view(-1))
        wait()
        marks.append(clock())
        loss.backward()
        wait()
        marks.append(clock())
        optimizer.step()
        optimizer.zero_grad()
        wait()
        marks.append(clock())
        found.append([end - begin for begin, end in zip(marks, marks[1:], strict=False)])
    return [min(part) for part in zip(*found, strict=True)]


class _Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, -1)
        parts = self.to_qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.to_out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class _GPT(nn.Module):
    def __init__(self, layers, width, heads, length, words):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))
