"""Module functions, as `torch.multiprocessing.spawn` needs them, and the ways by hand."""

from __future__ import annotations

import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def sum_of_ranks(rank, world_size):
    """The program that every way of starting ranks runs."""
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()


def join_and_run(rank, world_size, path):
    """A rank by hand: join over Gloo, run, leave."""
    torch.set_num_threads(1)
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    sum_of_ranks(rank, world_size)
    dist.destroy_process_group()


def spawn_s(world_size):
    """Seconds of one `torch.multiprocessing.spawn` of the program."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        mp.spawn(join_and_run, (world_size, os.path.join(folder, "store")), nprocs=world_size)
        return time.perf_counter() - start


def forkserver_by_hand_s(world_size):
    """Seconds of the program on processes of a forkserver that has torch preloaded."""
    context = mp.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        start = time.perf_counter()
        ranks = [
            context.Process(target=join_and_run, args=(rank, world_size, path))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return time.perf_counter() - start


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
    """Neighbours send to and fro; returns when it began and ended."""
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
