"""A small encoder and decoder, sharded by `fully_shard`, that learns to reverse a row of tokens.

torchrun --nproc-per-node 2 t5_fsdp.py --steps 3
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Seq2Seq(nn.Module):
    def __init__(self, tokens=16, width=16):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.encoder = nn.ModuleList(self.layer(nn.TransformerEncoderLayer, width) for _ in "12")
        self.decoder = nn.ModuleList(self.layer(nn.TransformerDecoderLayer, width) for _ in "12")
        self.head = nn.Linear(width, tokens)

    @staticmethod
    def layer(make, width):
        return make(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, source, target):
        memory = self.tokens(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.tokens(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(x)


def shard(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    for layer in [*model.encoder, *model.decoder]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train_step(model, optimizer, generator):
    source = torch.randint(1, 16, (4, 6), generator=generator)
    target = source.flip(1)
    started = F.pad(target[:, :-1], (1, 0))
    loss = F.cross_entropy(model(source, started).flatten(0, 1), target.flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), norm


def save(model, path, rank):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if rank == 0:
        torch.save(state, path)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--save", default="t5.pt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(3)
    model = shard(Seq2Seq(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        loss, norm = train_step(model, optimizer, generator)
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient {norm.item():.2f}")
    save(model, args.save, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
