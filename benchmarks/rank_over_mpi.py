"""One rank on a host of the practice cluster: all_reduce over MPI and over Gloo, timed in turn.

``rank_over_mpi.py FOLDER ROUNDS``, by mpiexec: writes ``[way, op, nbytes, begin_s, end_s]`` of each
call to ``FOLDER/RANK.json``. All hosts are on one machine, so their clocks are one clock.
"""

import json
import os
import sys
import time

import simlib.mpi  # noqa: F401
import torch
import torch.distributed as dist

WAYS = ("Gloo", "mpi4py", "Gloo again")  # the last is the control
SIZES = (4, 1_000_000, 10_000_000)
SMALL, SMALL_REPEATS = 4, 10
AHEAD_S = 0.005


def start_together(group):
    """Come back on all ranks at one moment."""
    moment = torch.tensor([time.monotonic() + AHEAD_S], dtype=torch.float64)
    dist.broadcast(moment, 0, group)
    time.sleep(max(0.0, moment.item() - time.monotonic()))


def calls(rank, gloo, nbytes):
    """``[(way, op, function)]``: each way's all_reduce, and the ping-pong that shows the link."""
    x = torch.zeros(nbytes // 4)

    def ping_pong():
        if rank == 0:
            dist.send(x, 1, gloo)
            dist.recv(x, 1, gloo)
        elif rank == 1:
            dist.recv(x, 0, gloo)
            dist.send(x, 0, gloo)

    def all_reduce(way):
        group = None if way == "mpi4py" else gloo
        return lambda: dist.all_reduce(x, group=group)

    found = [(way, "all_reduce", all_reduce(way)) for way in WAYS]
    return [("Gloo", "ping-pong", ping_pong), *found] * (SMALL_REPEATS if nbytes == SMALL else 1)


def main(folder, rounds):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("mpi4py")
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    plan = [(nbytes, *call) for nbytes in SIZES for call in calls(rank, gloo, nbytes)]
    times = []
    for round_ in range(rounds + 1):  # the first, which opens everything up, is not counted
        for nbytes, way, op, call in plan:
            start_together(gloo)
            begin_s = time.monotonic()
            call()
            if round_:
                times.append((way, op, nbytes, begin_s, time.monotonic()))
    dist.barrier(gloo)
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(times, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
