"""torch.distributed over MPI, through mpi4py, because pip's torch has no MPI backend of its own.

::

    import simlib.mpi                               # in a program started by mpiexec
    torch.distributed.init_process_group("mpi4py")

Published scripts that say ``backend="mpi"`` run unchanged::

    mpiexec -n 2 python -m simlib.mpi ptdist.py
"""

# ruff: noqa: E402 (MPI is imported when its settings are there)

from __future__ import annotations

import inspect
import os
import sys

from ...core.environment import need
from .. import launchers

need("cluster", "mpi4py", what="simlib.mpi")
os.environ.update(launchers.ucx_settings())  # before mpi4py is imported: that is MPI_Init

import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import default_pg_timeout

from ...core.model.errors import InvalidCallError, JobError
from ...core.record.torch_inside import constructor_of_groups, use_constructor_of_groups
from ..mpi_group import MpiGroup, MpiWork
from ..rendezvous import interface_towards, meet

__all__ = ["MpiGroup", "MpiWork", "interface_towards", "meet"]

BACKEND = "mpi4py"
KNOWN_TO_MPI = ("backend", "init_method", "store", "rank", "world_size")
SIZES = tuple(dict.fromkeys(size for each in launchers.MPIS for _, size in each.identity))
"""For each MPI, the environment variable in which its mpiexec passes the number of processes."""
_torch_init = c10d.init_process_group
_torch_new_group = constructor_of_groups()


def install():
    """Register the backend. ``init_process_group("mpi4py")`` then asks MPI for rank and size.

    From now on, torch's own name ``mpi`` means the same backend.
    """
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    use_constructor_of_groups(_new_group)
    for module in (dist, c10d):
        module.init_process_group = init_process_group
        module.is_mpi_available = lambda: True


def init_process_group(backend=None, *args, **kwargs):
    """Replace torch's `init_process_group`. For ``mpi4py`` and ``mpi``, get rank and world size
    from MPI.

    Raises
    ------
    InvalidCallError
        ``rank`` or ``world_size`` differs from MPI's.
    JobError
        The launcher belongs to another MPI than mpi4py's library.
    """
    if not _is_ours(backend):
        return _torch_init(backend, *args, **kwargs)
    given = inspect.signature(_torch_init).bind(backend, *args, **kwargs).arguments
    comm = MPI.COMM_WORLD
    check_launcher(comm)
    for name, truth in {"world_size": comm.size, "rank": comm.rank}.items():
        if given.get(name, -1) not in (-1, None, truth):
            raise InvalidCallError(
                f"init_process_group says {name}={given[name]}, but MPI started this process with "
                f"{name} {truth}: leave {name} out, because MPI knows it"
            )
    others = {name: value for name, value in given.items() if name not in KNOWN_TO_MPI}
    store, _ = meet(comm)
    return _torch_init(BACKEND, store=store, rank=comm.rank, world_size=comm.size, **others)


def check_launcher(comm):
    """Raise an error if mpiexec belongs to another MPI than mpi4py's library.

    MPI itself reports no error in this case: every process becomes rank 0 of a world of size 1.
    """
    started = [int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()]
    if comm.size > 1 or not started or max(started) == 1:
        return
    library = " ".join(MPI.Get_library_version().split())[:40]
    raise JobError(
        f"mpiexec started {max(started)} processes, but MPI says that this process is alone: that "
        f"mpiexec belongs to another MPI than the one mpi4py has loaded ({library}). Call the "
        f"mpiexec of that MPI; {os.path.join(os.path.dirname(sys.executable), 'mpiexec')} is the "
        "mpiexec of this Python"
    )


def _is_ours(backend):
    return str(backend or "").lower() in (BACKEND, "mpi")


def _new_group(size, rank, ranks, backend, store, *args, **kwargs):
    """Replace torch's only constructor of groups, which takes "mpi" as the name of torch's own,
    missing backend."""
    backend = dist.Backend(BACKEND) if _is_ours(backend) else backend
    return _torch_new_group(size, rank, ranks, backend, store, *args, **kwargs)


def _create(options, _):
    """Return the group of these ranks of the world, on the calling rank. All members must call
    this."""
    world = MPI.COMM_WORLD
    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout if options.timeout < default_pg_timeout else None
    comm = world.Create_group(world.group.Incl(ranks)) if ranks else world.Dup()
    return MpiGroup(comm, timeout)


install()
