"""Programs in which several messages of one pair are under way; each returns when they came.

``pair_programs.py FOLDER ROUNDS`` runs them as one rank of a practice network, with plain
torch.distributed over Gloo, and writes ``{name: [[seconds of each arrival] of each round]}`` to
``FOLDER/RANK.json``. `pairs` runs the same functions in `simulate`.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

SMALL, LARGE = 4, 4_000_000
CHUNK = 500_000
MESSAGES, CHUNKS, LAYERS, STEPS = 10, 12, 4, 2
RANKS = 5


def _chunks(count):
    return [torch.zeros(CHUNK // 4) for _ in range(count)]


def ping(rank, world_size, nbytes):
    """Rank 0 to 1 and back."""
    x, begin_s = torch.zeros(nbytes // 4), time.monotonic()
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        dist.send(x, 0)
    return [time.monotonic() - begin_s] * (rank == 0)


def messages(rank, world_size):
    """Rank 0 sends ten messages to rank 1, all posted at once."""
    parts, begin_s = _chunks(MESSAGES), time.monotonic()
    came_s = []
    if rank == 0:
        for work in [dist.isend(part, 1) for part in parts]:
            work.wait()
    elif rank == 1:
        for work in [dist.irecv(part, 0) for part in parts]:
            work.wait()
            came_s.append(time.monotonic() - begin_s)
    return came_s


def chain(rank, world_size):
    """Chunks from rank to rank, all receives posted first; each is passed on when it has come."""
    parts, begin_s = _chunks(CHUNKS), time.monotonic()
    came_s, sent = [], []
    receives = [dist.irecv(part, rank - 1) for part in parts] if rank else [None] * CHUNKS
    for part, work in zip(parts, receives, strict=True):
        if work is not None:
            work.wait()
            came_s.append(time.monotonic() - begin_s)
        if rank < world_size - 1:
            sent.append(dist.isend(part, rank + 1))
    for work in sent:
        work.wait()
    return came_s


def server(rank, world_size):
    """Workers send gradients, layer by layer; rank 0 answers with parameters, to all alike."""
    begin_s, came_s = time.monotonic(), []
    workers = range(1, world_size)
    buffers = {worker: _chunks(LAYERS) for worker in (workers if rank == 0 else [rank])}
    for _ in range(STEPS):
        if rank == 0:
            gradients = [dist.irecv(x, worker) for worker in workers for x in buffers[worker]]
            for work in gradients:
                work.wait()
            answers = [dist.isend(x, worker) for worker in workers for x in buffers[worker]]
            for work in answers:
                work.wait()
            continue
        for work in [dist.isend(x, 0) for x in buffers[rank]]:
            work.wait()
        for work in [dist.irecv(x, 0) for x in buffers[rank]]:
            work.wait()
            came_s.append(time.monotonic() - begin_s)
    return came_s


PROGRAMS = {
    "ping, small": lambda rank, world_size: ping(rank, world_size, SMALL),
    "ping, large": lambda rank, world_size: ping(rank, world_size, LARGE),
    "ten messages": messages,
    "chunked chain": chain,
    "server of 4 workers": server,
}


def main(folder, rounds):
    from .rank_on_network import start_together

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    came_s = {name: [] for name in PROGRAMS}
    for round_ in range(rounds + 1):  # the first, which opens everything up, is not counted
        for name, program in PROGRAMS.items():
            start_together()
            times_s = program(rank, world_size)
            if round_:
                came_s[name].append(times_s)
    dist.barrier()
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(came_s, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
