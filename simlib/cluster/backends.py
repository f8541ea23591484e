"""The backend "mpi4py", and the checks whether a host has what a backend needs."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import torch

from ..core.model.errors import JobError
from ..core.record.transports.backends import (
    BACKENDS,
    COMPLEX,
    CPU,
    FLOATS,
    WHOLES,
    Backend,
    Capabilities,
    Transport,
)

NAME = "mpi4py"
MPIS_TAGS = 2**15 - 1
"""The largest tag that every MPI accepts. A rank asks its own MPI for its limit."""
MPI = Capabilities(
    NAME,
    carries=None,
    reduces=frozenset(FLOATS | WHOLES | COMPLEX | {torch.int16}),
    lacks={"monitored_barrier": "call barrier()"},
    moves_memory=False,
    largest_tag=MPIS_TAGS,
)


def over_mpi(options: Any, ranks: tuple) -> Transport:
    """mpi4py's MPI. The ranks are its world."""
    from mpi4py import MPI as library  # it starts MPI: only here, and not where nobody asks for it

    from .mpi_group import CUSTOM, MpiGroup

    world = library.COMM_WORLD
    is_world = len(ranks) == world.size
    comm = world.Dup() if is_world else world.Create_group(world.group.Incl(ranks))
    group = MpiGroup(comm, options.timeout)
    return Transport(
        NAME,
        "cpu:mpi4py",
        group,
        ((CPU, CUSTOM, group.stand_in),),
        {"cpu": replace(MPI, largest_tag=world.Get_attr(library.TAG_UB))},
        group.set_timeout,
    )


def _missing_for_mpi(world_size: int) -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: build it with pip for the MPI that your mpiexec belongs to"
    return None


MPI4PY = Backend(
    NAME,
    ("mpi4py", "mpi", "gloo"),
    {"cpu": MPI},
    over_mpi,
    _missing_for_mpi,
    needs_mpi=True,
)


BACKENDS.setdefault(MPI4PY.name, MPI4PY)


def check_for_host(backend: Backend, ranks: int) -> None:
    """Refuse a host on which so many ranks cannot communicate by this backend."""
    missing = backend.missing(ranks)
    if missing:
        raise JobError(
            f"backend={backend.name!r} is not possible on {os.uname().nodename}: {missing}"
        )
