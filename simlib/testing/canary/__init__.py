"""Small programs that tell whether a version of torch works.

``python -m simlib.engines.canary`` runs them.

Each runs on real and on simulated ranks, asserts inside that the world is as large as it should be,
and gives what one process without `torch.distributed` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

PROGRAMS = []
"""All of them, in the order in which they are written; filled by `canary`."""


@dataclass(frozen=True)
class Program:
    """A rank function ``function(rank, n)``, and what it has to give.

    Attributes
    ----------
    function : callable
    alone : callable
        ``alone(rank, n)`` gives the same in one process.
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
    """Declare the decorated rank function a program of the canary."""

    def add(function):
        PROGRAMS.append(Program(function, alone, ranks))
        return function

    return add


def check_world(rank, n):
    """Fail where the calling rank is in another world than it should be, whoever is asked."""
    world = dist.group.WORLD
    told = dist.get_world_size(), world.size(), len(dist.get_process_group_ranks(world))
    assert told == (n, n, n), f"a world of {n} says that its size is {told}"
    assert (dist.get_rank(), world.rank()) == (rank, rank), "this rank is another one"


def brought(rank):
    """The numbers that a rank brings: a tensor of 4, other ones on each rank."""
    return torch.arange(4.0) + 10 * rank


def summed(n):
    """The sum of what all ranks bring."""
    return sum(brought(rank) for rank in range(n))
