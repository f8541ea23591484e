"""A tiny GPT on letters, by DDP: gradients accumulated, a snapshot from which all ranks go on.

torchrun --nproc-per-node 2 gpt_ddp.py --steps 6 --accumulate 2
"""

import argparse
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEXT = "to send or to receive, that is the question: whether a rank waits for another one. " * 20


@dataclass
class Config:
    letters: int
    block: int = 16
    width: int = 16
    heads: int = 2
    layers: int = 2


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.letters = nn.Embedding(config.letters, config.width)
        self.places = nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.letters)

    def forward(self, tokens, targets):
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, args, model, tokens):
        self.args, self.tokens = args, tokens
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.generator = torch.Generator().manual_seed(self.rank)
        self.step = 0
        self.load_snapshot()

    def load_snapshot(self):
        found = torch.tensor([os.path.exists(self.args.snapshot)], dtype=torch.int32)
        dist.broadcast(found, src=0)
        if found:
            snapshot = torch.load(self.args.snapshot)
            self.model.module.load_state_dict(snapshot["model"])
            self.step = snapshot["step"]

    def save_snapshot(self):
        if self.rank == 0:
            state = {"model": self.model.module.state_dict(), "step": self.step}
            torch.save(state, self.args.snapshot)
        dist.barrier()

    def batch(self, block):
        starts = torch.randint(len(self.tokens) - block - 1, (4,), generator=self.generator)
        rows = torch.stack([self.tokens[start : start + block + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def run_step(self, config):
        for micro in range(self.args.accumulate):
            is_last = micro == self.args.accumulate - 1
            self.model.require_backward_grad_sync = is_last
            loss = self.model(*self.batch(config.block)) / self.args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        share = self.step / max(1, self.args.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * 0.5 * (1 + math.cos(math.pi * share))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach() * self.args.accumulate

    def train(self, config):
        while self.step < self.args.steps:
            loss = self.run_step(config)
            self.step += 1
            if self.step % self.args.log_every == 0:
                dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)
                if self.rank == 0:
                    print(f"step {self.step}: loss {loss.item() / self.world_size:.3f}")
                self.save_snapshot()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--log-every", type=int, default=3)
    parser.add_argument("--snapshot", default="gpt.pt")
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    torch.manual_seed(7)
    alphabet = sorted(set(TEXT))
    tokens = torch.tensor([alphabet.index(letter) for letter in TEXT])
    config = Config(letters=len(alphabet))
    Trainer(args, GPT(config), tokens).train(config)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
