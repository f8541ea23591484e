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
