"""A parameter server without RPC: rank 0 keeps the weights, workers ask for them as they come.

torchrun --nproc-per-node 3 parameter_server.py --steps 4
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

SERVER = 0
GRADIENTS, WEIGHTS = 1, 2


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def put_back(model, values):
    with torch.no_grad():
        nn.utils.vector_to_parameters(values, model.parameters())


def serve(args, model, workers):
    """Take gradients from whoever comes first, and answer with new weights."""
    weights = flat(model.parameters())
    gradient = torch.empty_like(weights)
    for _ in range(args.steps * workers):
        worker = dist.recv(gradient, tag=GRADIENTS)
        weights -= args.lr * gradient
        dist.send(weights, dst=worker, tag=WEIGHTS)
    return weights


def work(args, model, rank):
    """Compute gradients of one's own data, and go on from what the server says."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(32, 4, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 3.0, 0.5])
    weights = flat(model.parameters())
    for step in range(args.steps):
        model.zero_grad()
        loss = ((model(x).squeeze(1) - y) ** 2).mean()
        loss.backward()
        gradient = flat(parameter.grad for parameter in model.parameters())
        dist.send(gradient, dst=SERVER, tag=GRADIENTS)
        dist.recv(weights, src=SERVER, tag=WEIGHTS)
        put_back(model, weights)
        if step == args.steps - 1:
            print(f"worker {rank}: loss {loss.item():.3f}")
    return weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    weights = serve(args, model, workers) if rank == SERVER else work(args, model, rank)
    dist.broadcast(weights, src=SERVER)
    put_back(model, weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
