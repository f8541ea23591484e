"""What `simlib.clusters.loopback` holds: the link that plain Gloo finds on this machine."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from simlib import clusters

from .table import heading, line

SMALL, LARGE = 4, 10_000_000
REPEATS = {SMALL: 500, LARGE: 30}
WARM = 5


def loopback(rounds):
    """Print latency and bandwidth of a ping-pong between two processes, and those held."""
    heading("Loopback: a ping-pong of two processes of this machine, plain Gloo")
    with tempfile.TemporaryDirectory() as folder:
        answer = mp.get_context("spawn").SimpleQueue()
        mp.spawn(_ping_pong, (os.path.join(folder, "store"), answer), nprocs=2)
        one_way_s = answer.get()
    latency_s = one_way_s[SMALL]
    bandwidth_Bps = LARGE / (one_way_s[LARGE] - latency_s)
    held = clusters.loopback().intra
    line("latency, us", f"{latency_s * 1e6:.0f}", f"held: {held.latency_s * 1e6:.0f}")
    line("bandwidth, GB/s", f"{bandwidth_Bps / 1e9:.1f}", f"held: {held.bandwidth_Bps / 1e9:g}")


def _ping_pong(rank, path, answer):
    """Rank 0 puts the median of half a round trip in seconds, by size, into ``answer``."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    one_way_s = {}
    for nbytes, repeats in REPEATS.items():
        x = torch.ones(nbytes // 4)
        seconds = []
        for _ in range(WARM + repeats):
            begin_s = time.perf_counter()
            if rank == 0:
                dist.send(x, dst=1)
                dist.recv(x, src=1)
            else:
                dist.recv(x, src=0)
                dist.send(x, dst=0)
            seconds.append((time.perf_counter() - begin_s) / 2)
        one_way_s[nbytes] = statistics.median(seconds[WARM:])
    if rank == 0:
        answer.put(one_way_s)
    dist.destroy_process_group()
