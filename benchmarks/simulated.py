"""Rank functions to simulate. They travel by value, as functions of a notebook cell do."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def nothing(rank, world_size):
    """A rank function that only returns."""
    return rank


def wall_s():
    """Seconds of the machine's clock, where `time.perf_counter` tells a rank its virtual time."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def ring_steps(rank, world_size, steps):
    """Send to the right and receive from the left; returns when it began and ended."""
    x, y = torch.ones(4), torch.empty(4)
    dist.barrier()
    begin_s = wall_s()
    for _ in range(steps):
        request = dist.isend(x, (rank + 1) % world_size)
        dist.recv(y, (rank - 1) % world_size)
        request.wait()
    return begin_s, wall_s()


def ping_pong(rank, world_size, steps):
    """Neighbours send back and forth; returns when it began and ended."""
    x, other = torch.ones(4), rank ^ 1
    dist.barrier()
    begin_s = wall_s()
    for _ in range(steps):
        if rank < other:
            dist.send(x, other)
            dist.recv(x, other)
        else:
            dist.recv(x, other)
            dist.send(x, other)
    return begin_s, wall_s()


def peak_memory():
    """The most resident memory that this process ever had, in bytes (Linux)."""
    with open("/proc/self/status") as status:
        kilobytes = next(text.split()[1] for text in status if text.startswith("VmHWM"))
    return 1024 * int(kilobytes)


def ring_step(rank, world_size):
    """One step of a ring by hand; returns the memory of the process that simulates it."""
    ring_steps(rank, world_size, 1)
    return peak_memory()


def ddp_step(rank, world_size):
    """One training step of a small model; returns the memory of the process."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    images = torch.full((4, 32), float(rank))
    parallel(images).square().mean().backward()
    optimizer.step()
    return peak_memory()
