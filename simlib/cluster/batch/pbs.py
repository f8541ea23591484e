"""`Pbs`: nodes that PBS gives a job, when it is its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .slurm import Queued


@dataclass(frozen=True)
class Pbs(Queued):
    """Where a job runs: nodes that PBS (OpenPBS, PBS Professional) gives it, when it is its turn.

    It was tried against a stand-in for qsub, qstat and qdel only, which behaves as their manuals
    say, and never on a cluster with PBS.

    Attributes
    ----------
    partition : str, optional
        The queue.
    launcher : {"mpiexec"}
        One that finds the nodes by PBS: MPICH's, Intel MPI's, or an Open MPI built with it.
    nodes, ranks_per_node, time_limit, account, extra, login
        See `Queued`; ``extra`` are qsub's.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank, memory
        See `Resources`.
    """

    scheduler: ClassVar[str] = "pbs"
    launchers: ClassVar[tuple[str, ...]] = ("mpiexec",)
