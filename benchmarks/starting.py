"""How long it takes until ranks run: the first time, warm, after a failure; and their memory."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

import simlib

from .grading import ROOT, Processors
from .programs import forkserver_by_hand_s, spawn_s
from .table import heading, interleave, line, ratio, spread

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank())])
dist.all_reduce(x)
"""
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


def fails(rank, world_size, way):
    """Rank 1 fails in one of `WAYS`; or all ranks do."""
    if way == "hangs":
        dist.recv(torch.ones(1), src=(rank + 1) % world_size)
    if way == "returns a generator":
        return (number for number in range(3))
    if way == "is stopped" and rank == 0:
        os.kill(int(os.environ["KERNEL_PID"]), signal.SIGINT)
    while way == "is stopped" or (way == "loops" and rank == 1):
        pass
    if rank == 1:
        if way == "raises":
            raise ValueError
        if way == "leaves":
            os._exit(3)
        if way == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "crashes":
            ctypes.string_at(0)
    dist.barrier()


WAYS = "raises, leaves, is killed, crashes, hangs, loops, returns a generator, is stopped".split(
    ", "
)


def run_after_s(way):
    """Seconds of the `run` that follows one which failed, with 4 ranks."""
    os.environ["KERNEL_PID"] = str(os.getpid())
    try:
        simlib.run(fails, 4, args=(way,), timeout_s=0.5)
    except (simlib.SimlibError, simlib.RunInterrupted):
        return warm_run_s(4)
    raise AssertionError(f"a rank that {way} did not fail")


def starting(rounds):
    """Print the table of starting times."""
    heading("Until 4 ranks run")
    first = [first_run_s() for _ in range(max(3, rounds // 3))]
    held = statistics.median(first) <= 2.5
    line("first run in a fresh kernel, s", spread(first, digits=2), "<= 2.5", held)
    commands(rounds)
    warm_run_s(4)
    for way in WAYS:
        after = [run_after_s(way) for _ in range(rounds)]
        held = statistics.median(after) <= 0.5
        line(f"run after one in which a rank {way}, s", spread(after), "<= 0.5", held)

    heading("A warm run of a cell function, against ways by hand")
    for world_size in (2, 4, 8):
        _beside_ways_by_hand(world_size, rounds, has_goal=world_size == 4)
    memory()


def _beside_ways_by_hand(world_size, rounds, has_goal):
    warm_run_s(world_size)
    forkserver_by_hand_s(world_size)
    ways = {
        "run": lambda: statistics.median(warm_run_s(world_size) for _ in range(20)),
        "forkserver": lambda: forkserver_by_hand_s(world_size),
        "spawn": lambda: spawn_s(world_size),
    }
    values = interleave(ways, rounds)
    goal = ("<= 15", statistics.median(values["run"]) <= 0.015) if has_goal else ()
    line(f"{world_size} ranks: run, warm, ms", spread(values["run"], 1e3, 1), *goal)
    for way, what in (
        ("spawn", "multiprocessing.spawn of a module function"),
        ("forkserver", "forkserver + Gloo by hand"),
    ):
        times = 1 / ratio(values["run"], values[way])
        goal = (">= 100x", times >= 100) if has_goal and way == "spawn" else ()
        line(f"{world_size} ranks: {what}, ms", spread(values[way], 1e3, 0))
        line(f"{world_size} ranks:   times as long as run", f"{times:,.0f}x", *goal)


def commands(rounds):
    """Print the seconds of commands: by the clock, and of the processors."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        ways = {
            "simlib run -n 4": ("run", "-n", "4", str(script)),
            "simlib progress": ("progress",),
        }
        calls = {name: functools.partial(_command_s, words) for name, words in ways.items()}
        measured = interleave(calls, max(3, rounds // 3))
    for name, goal_s in ("simlib run -n 4", 3.5), ("simlib progress", 3.0):
        wall_s, processors_s = zip(*measured[name], strict=True)
        held = statistics.median(wall_s) <= goal_s
        line(f"{name}, s", spread(wall_s, digits=2), f"<= {goal_s:g}", held)
        line(f"{name}, s of the processors", spread(processors_s, digits=2))


def _command_s(words):
    command = [sys.executable, "-m", "simlib", *words]
    begun = time.perf_counter()
    with Processors() as used:
        subprocess.run(command, cwd=ROOT, capture_output=True)
    return time.perf_counter() - begun, used.seconds


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
