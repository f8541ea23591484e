"""How long it takes from the call of `run` to the verdict on a wrong program."""

from __future__ import annotations

import contextlib
import io
import statistics
import time

import torch
import torch.distributed as dist

import simlib

from .table import heading, line, spread


def both_receive(rank, world_size):
    """Each waits for the other."""
    dist.recv(torch.ones(1), src=1 - rank) if rank < 2 else None


def ring_of_sends(rank, world_size):
    """Each sends before it receives."""
    dist.send(torch.ones(1), dst=(rank + 1) % world_size)


def one_is_missing(rank, world_size):
    """A rank skips a collective."""
    if rank != 2:
        dist.all_reduce(torch.ones(1))


def other_size(rank, world_size):
    """A rank brings more elements."""
    dist.all_reduce(torch.ones(5 if rank == 2 else 4))


def other_order(rank, world_size):
    """A rank swaps two collectives."""
    x = torch.ones(4)
    calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, src=0)]
    for call in calls if rank else reversed(calls):
        call()


def verdict_s(program):
    """Seconds until the verdict on a program, with 4 ranks."""
    start = time.perf_counter()
    with contextlib.suppress(simlib.DeadlockError, simlib.MismatchError):
        simlib.run(program, 4, timeout_s=20)
        raise AssertionError(f"no verdict on {program.__name__}")
    return time.perf_counter() - start


def diagnosing(rounds):
    """Print the table of times to a verdict."""
    heading("From the call to the verdict, 4 ranks")
    programs = (both_receive, ring_of_sends, one_is_missing, other_size, other_order)
    every = []
    for program in programs:
        with contextlib.redirect_stdout(io.StringIO()):
            seconds = [verdict_s(program) for _ in range(3 * rounds)]
        every += seconds
        line(program.__name__.replace("_", " ") + ", s", spread(seconds))
    line("all, s", spread(every), "median <= 0.5", statistics.median(every) <= 0.5)
