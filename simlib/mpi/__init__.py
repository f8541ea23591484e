"""torch.distributed over MPI, by mpi4py: pip's torch has no MPI backend of its own.

::

    import simlib.mpi                               # in a program started by mpiexec
    torch.distributed.init_process_group("mpi4py")

Published scripts that say ``backend="mpi"`` run unchanged::

    mpiexec -n 2 python -m simlib.mpi ptdist.py
"""

from ..addresses import interface_towards
from ..rendezvous import meet
from .backend import install
from .group import MpiGroup
from .work import MpiWork

__all__ = ["MpiGroup", "MpiWork", "interface_towards", "meet"]

install()
