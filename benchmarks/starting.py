"""How long it takes until ranks run: the first time, warm, after a failure; and their memory."""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import time

import psutil
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

import simlib

from .programs import forkserver_by_hand_s, spawn_s
from .table import heading, interleave, line, ratio, spread

FIRST_RUN = """
import time
import torch, torch.distributed as dist
begin = time.perf_counter()
import simlib
def main(rank, world_size):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()
before = time.perf_counter()
simlib.run(main, 4)
print(before - begin, time.perf_counter() - before)
"""


def first_run_s():
    """Seconds of the first `run`, with 4 ranks, in a Jupyter kernel that has just started."""
    manager, client = start_new_kernel()
    printed = []

    def keep(message):
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    try:
        client.execute_interactive(FIRST_RUN, output_hook=keep, timeout=120)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return float("".join(printed).split()[1])


def warm_run_s(world_size):
    """Seconds of a `run` of a function as in a cell: it travels by value, whole.

    (A function that imports a module of the learner's own gets new ranks each time.)
    """

    def main(rank, size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        return x.item()

    start = time.perf_counter()
    simlib.run(main, world_size)
    return time.perf_counter() - start


def raises(rank, world_size):
    """A rank raises while the others wait."""
    if rank == 1:
        raise ValueError
    dist.barrier()


def leaves(rank, world_size):
    """A rank ends itself."""
    if rank == 1:
        os._exit(3)
    dist.barrier()


def is_killed(rank, world_size):
    """A rank is killed."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def crashes(rank, world_size):
    """Native code of a rank crashes."""
    if rank == 1:
        ctypes.string_at(0)
    dist.barrier()


def hangs(rank, world_size):
    """The ranks wait for each other."""
    dist.recv(torch.ones(1), src=(rank + 1) % world_size)


def loops(rank, world_size):
    """A rank never ends."""
    while rank == 1:
        pass
    dist.barrier()


def returns_a_generator(rank, world_size):
    """A result that cannot travel."""
    return (number for number in range(3))


def is_stopped(rank, world_size):
    """The Stop button is pressed while the ranks compute."""
    if rank == 0:
        os.kill(int(os.environ["KERNEL_PID"]), signal.SIGINT)
    while True:
        pass


FAILURES = (raises, leaves, is_killed, crashes, hangs, loops, returns_a_generator, is_stopped)


def run_after_s(failure):
    """Seconds of the `run` that follows one which failed, with 4 ranks."""
    os.environ["KERNEL_PID"] = str(os.getpid())
    try:
        simlib.run(failure, 4, timeout_s=0.5)
    except (simlib.SimlibError, simlib.RunInterrupted):
        return warm_run_s(4)
    raise AssertionError(f"{failure.__name__} did not fail")


def starting(rounds):
    """Print the table of starting times."""
    heading("Until 4 ranks run")
    first = [first_run_s() for _ in range(max(3, rounds // 3))]
    line(
        "first run in a fresh kernel, s", spread(first, digits=2), "<= 3",
        statistics.median(first) <= 3,
    )  # fmt: skip
    warm_run_s(4)
    for failure in FAILURES:
        after = [run_after_s(failure) for _ in range(rounds)]
        held = statistics.median(after) <= 0.5
        what = failure.__name__.replace("_", " ")
        line(f"run after one in which a rank {what}, s", spread(after), "<= 0.5", held)

    heading("A warm run of a cell function, against ways by hand")
    for world_size in (2, 4, 8):
        warm_run_s(world_size)
        forkserver_by_hand_s(world_size)
        ways = {
            "run": lambda n=world_size: statistics.median(warm_run_s(n) for _ in range(20)),
            "forkserver": lambda n=world_size: forkserver_by_hand_s(n),
            "spawn": lambda n=world_size: spawn_s(n),
        }
        values = interleave(ways, rounds)
        is_goal = world_size == 4
        median_ms = statistics.median(values["run"]) * 1e3
        times = 1 / ratio(values["run"], values["spawn"])
        line(
            f"{world_size} ranks: run, warm, ms", spread(values["run"], 1e3, 1),
            "<= 15" if is_goal else "", median_ms <= 15 if is_goal else None,
        )  # fmt: skip
        line(
            f"{world_size} ranks: multiprocessing.spawn of a module function, ms",
            spread(values["spawn"], 1e3, 0),
        )
        line(
            f"{world_size} ranks:   times as long as run", f"{times:,.0f}x",
            ">= 100x" if is_goal else "", times >= 100 if is_goal else None,
        )  # fmt: skip
        line(
            f"{world_size} ranks: forkserver + Gloo by hand, ms",
            spread(values["forkserver"], 1e3, 0),
        )
        line(
            f"{world_size} ranks:   times as long as run",
            f"{1 / ratio(values['run'], values['forkserver']):,.0f}x",
        )


def memory():
    """Print the memory of resting ranks after a training step (an optimizer loads much)."""
    heading("Memory per rank")

    def train(rank, size):
        import torch

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(8, 100)).sum().backward()
        optimizer.step()
        return os.getpid()

    pids = simlib.run(train, 4).results
    used = [psutil.Process(pid).memory_full_info() for pid in pids]
    line("private memory of a rank, MB", spread([m.uss for m in used], 1e-6, 0))
    line("shared out (PSS), MB", spread([m.pss for m in used], 1e-6, 0))
