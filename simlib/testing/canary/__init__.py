"""Small programs that check whether a version of torch works.

``python -m simlib.engines.canary`` runs them.

Each program runs on real and on simulated ranks, and asserts that the world has the right size. Its
results must equal those of one process without `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

PROGRAMS = []
"""All programs, in the order in which they are written. `canary` fills the list."""


@dataclass(frozen=True)
class Program:
    """A rank function ``function(rank, n)``, and a function that computes its expected results.

    Attributes
    ----------
    function : callable
    alone : callable
        ``alone(rank, n)`` returns the same results in one process.
    ranks : int
    """

    function: Callable[[int, int], Any]
    alone: Callable[[int, int], Any]
    ranks: int

    @property
    def name(self):
        """The function's name."""
        return self.function.__name__


def canary(alone, ranks=4):
    """Add the decorated rank function to the programs of the canary."""

    def add(function):
        PROGRAMS.append(Program(function, alone, ranks))
        return function

    return add


def check_world(rank, n):
    """Fail if any function of torch.distributed reports a wrong rank or a wrong world size."""
    world = dist.group.WORLD
    told = dist.get_world_size(), world.size(), len(dist.get_process_group_ranks(world))
    assert told == (n, n, n), f"a world of {n} says that its size is {told}"
    got = dist.get_rank(), world.rank()
    assert got == (rank, rank), f"this should be rank {rank}, but torch.distributed says {got}"


def brought(rank):
    """The numbers that a rank contributes: a tensor of 4 numbers, different on each rank."""
    return torch.arange(4.0) + 10 * rank


def summed(n):
    """The sum of the numbers of all ranks."""
    return sum(brought(rank) for rank in range(n))
