"""torch.distributed over MPI, by mpi4py: pip's torch has no MPI backend of its own.

::

    import simlib.mpi                               # in a program started by mpiexec
    torch.distributed.init_process_group("mpi4py")

Published scripts that say ``backend="mpi"`` run unchanged::

    mpiexec -n 2 python -m simlib.mpi ptdist.py
"""

import os

from ...core.environment import need
from ..launch import ucx

need("cluster", "mpi4py", what="simlib.mpi")
os.environ.update(ucx.settings())  # before mpi4py is imported: that is MPI_Init

from ..launch.addresses import interface_towards  # noqa: E402
from ..launch.rendezvous import meet  # noqa: E402
from ..transports.mpi_group import MpiGroup  # noqa: E402
from ..transports.mpi_request import MpiWork  # noqa: E402
from .mpi_backend import install  # noqa: E402

__all__ = ["MpiGroup", "MpiWork", "interface_towards", "meet"]

install()
