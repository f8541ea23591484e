"""Ten things to test on four ranks. With HANG=1 in the environment one of them never ends."""

import os

import torch
import torch.distributed as dist


def all_reduce(rank, n):
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    assert x[0].item() == sum(range(n))


def broadcast(rank, n):
    x = torch.full((10,), float(rank))
    dist.broadcast(x, src=n - 1)
    assert x.tolist() == [n - 1.0] * 10


def all_gather(rank, n):
    parts = [torch.empty(2) for _ in range(n)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == list(range(n))


def reduce(rank, n):
    x = torch.ones(3)
    dist.reduce(x, dst=0)
    assert rank != 0 or x.tolist() == [n] * 3


def gather(rank, n):
    parts = [torch.empty(1) for _ in range(n)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), parts, dst=0)
    assert rank != 0 or [part.item() for part in parts] == list(range(n))


def scatter(rank, n):
    parts = [torch.tensor([float(r)]) for r in range(n)] if rank == 0 else None
    mine = torch.empty(1)
    dist.scatter(mine, parts, src=0)
    assert mine.item() == rank


def ring(rank, n):
    x = torch.tensor([float(rank)])
    if os.environ.get("HANG"):
        dist.recv(x, src=(rank - 1) % n)
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % n)
    dist.recv(x, src=(rank - 1) % n)
    sent.wait()
    assert x.item() == (rank - 1) % n


def pairs(rank, n):
    x = torch.tensor([float(rank)])
    if rank % 2 == 0:
        dist.send(x, dst=rank + 1)
    else:
        dist.recv(x, src=rank - 1)
        assert x.item() == rank - 1


def subgroup(rank, n):
    even = dist.new_group(list(range(0, n, 2)))
    x = torch.ones(1)
    if rank % 2 == 0:
        dist.all_reduce(x, group=even)
    assert x.item() == (n // 2 if rank % 2 == 0 else 1)


def step_of_ddp(rank, n):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.full((3, 4), float(rank))).sum().backward()
    assert model.module.bias.grad.tolist() == [3.0, 3.0]


TEN = (
    all_reduce,
    broadcast,
    all_gather,
    reduce,
    gather,
    scatter,
    ring,
    pairs,
    subgroup,
    step_of_ddp,
)
