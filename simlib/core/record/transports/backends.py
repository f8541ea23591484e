"""`BACKENDS`: what ranks can be told to talk by, and what each can. A new backend is one entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...model.errors import InvalidCallError
from .abilities import GLOO, GLOO_ON_CUDA, NCCL, Ability
from .carriers import Carrier, over_gloo, over_nccl


def _nothing(world_size: int) -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """What the ranks of a run talk by.

    Attributes
    ----------
    name : str
        As ``backend=`` says it.
    names : tuple of str
        What a program may call it where it tells torch a backend.
    abilities : dict of str to Ability
        What it can do, by type of device. What has no entry it does not carry.
    open : callable
        ``(options, ranks)`` -> the `Carrier` of a rank in a group, on that rank; torch's options of
        the group, and its members as ranks of the world.
    missing : callable
        What it wants on a machine that has so many ranks of a run: a sentence, or None.
    needs_mpi : bool
        Whether ranks must have been started by the mpiexec of an MPI.
    needs_gpus : bool
        Whether each rank takes a GPU of its own.
    """

    name: str
    names: tuple[str, ...]
    abilities: Mapping[str, Ability]
    open: Callable[[Any, tuple], Carrier]
    missing: Callable[[int], str | None] = _nothing
    needs_mpi: bool = False
    needs_gpus: bool = False

    def take_device(self, local_rank: int) -> None:
        """Make the rank's own GPU its current one, where each rank takes one."""
        if self.needs_gpus:
            torch.cuda.set_device(local_rank)


def _missing_for_nccl(world_size: int) -> str | None:
    otherwise = "take backend='gloo' there, which needs no GPU"
    if not torch.cuda.is_available():
        return f"there is no GPU that torch {torch.__version__} can use: {otherwise}"
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} has been built without NCCL: {otherwise}"
    gpus = torch.cuda.device_count()
    if gpus < world_size:
        return (
            f"NCCL wants a GPU for each rank, and for {world_size} ranks there are {gpus}: run "
            "fewer, or take backend='gloo', whose ranks may share one"
        )
    return None


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("gloo", ("gloo", "mpi"), {"cpu": GLOO, "cuda": GLOO_ON_CUDA}, over_gloo),
        Backend(
            "nccl",
            ("nccl", "gloo"),
            {"cpu": GLOO, "cuda": NCCL},
            over_nccl,
            _missing_for_nccl,
            needs_gpus=True,
        ),
    )
}
"""Others are registered: ``BACKENDS["mpi4py"]`` is that of `simlib.cluster`."""


def backend_named(name: object) -> Backend:
    """The backend that ``backend=`` names; refused where there is none of this name."""
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name]
    *names, last = map(repr, BACKENDS)
    raise InvalidCallError(f"backend={name!r} must be {', '.join(names)} or {last}")


def check_for_processes(name: object, world_size: int) -> Backend:
    """The backend of this name, for ranks that are processes of this machine, started by us."""
    backend = backend_named(name)
    if backend.needs_mpi:
        raise InvalidCallError(
            f"backend={name!r} needs ranks that an mpiexec has started, and run starts plain "
            "processes: take simlib.submit(..., to=simlib.Mpiexec()), or mpiexec -n "
            f"{world_size} python -m simlib.mpi script.py"
        )
    missing = backend.missing(world_size)
    if missing:
        raise InvalidCallError(f"backend={name!r} is not possible on this machine: {missing}")
    return backend
