"""One rank on a node of the practice network: plain torch.distributed over Gloo, timed.

``rank_on_network.py FOLDER ROUNDS``: writes ``[op, nbytes, round, begin_s, end_s]`` of each call to
``FOLDER/RANK.json``. All nodes are on one machine, so their clocks are one clock.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

SMALL, REPEATS = 4, 20  # the ping-pong that shows the latency
SIZES = (64_000, 1_000_000, 10_000_000)  # as nccl-tests counts: for all_gather, of all parts
AHEAD_S = 0.005


def start_together():
    """Come back on all ranks at one moment."""
    moment = torch.tensor([time.monotonic() + AHEAD_S], dtype=torch.float64)
    dist.broadcast(moment, src=0)
    time.sleep(max(0.0, moment.item() - time.monotonic()))


def ping_pong(rank, x):
    """There and back, between ranks 0 and 1."""
    if rank == 0:
        dist.send(x, dst=1)
        dist.recv(x, src=1)
    elif rank == 1:
        dist.recv(x, src=0)
        dist.send(x, dst=0)


def calls(rank, world_size, nbytes):
    """``{op: function}`` with tensors made before."""
    x = torch.ones(nbytes // 4)
    part, *parts = torch.ones(world_size + 1, nbytes // 4 // world_size).unbind()
    return {
        "ping-pong": lambda: ping_pong(rank, x),
        "all_reduce": lambda: dist.all_reduce(x.fill_(1)),
        "broadcast": lambda: dist.broadcast(x, src=0),
        "all_gather": lambda: dist.all_gather(parts, part),
    }


def main(folder, rounds):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    ways = [("ping-pong", SMALL, calls(rank, world_size, SMALL)["ping-pong"])] * REPEATS
    for nbytes in SIZES:
        ways += [(op, nbytes, call) for op, call in calls(rank, world_size, nbytes).items()]
    times = []
    for round_ in range(rounds + 1):  # the first, which opens everything up, is not counted
        for op, nbytes, call in ways:
            start_together()
            begin_s = time.monotonic()
            call()
            if round_:
                times.append((op, nbytes, round_, begin_s, time.monotonic()))
    dist.barrier()
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(times, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
