"""simlib: run one rank function on real ranks, and see what its ranks said to each other.

::

    import simlib, torch, torch.distributed as dist

    def main(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        return x.item()

    run = simlib.run(main, world_size=4)
"""

from . import clusters, digits, scale
from .batch import Job, Mpiexec, Slurm, jobs, submit
from .cluster import Cluster, Device, Link
from .compute import compute
from .curves import draw_curves, live_curves
from .diagnosis import Finding
from .doctor import doctor
from .errors import (
    DeadlockError,
    InvalidCallError,
    JobError,
    MismatchError,
    OutOfMemoryError,
    RaceError,
    RankDiedError,
    RankError,
    RunInterrupted,
    SimlibError,
    StuckError,
    UnfinishedError,
)
from .held import held
from .processes import run
from .results import Run
from .saved import load
from .trace import Collective, Group, Message, Op, Site, Trace
from .virtual import simulate

__all__ = [
    "Cluster",
    "Collective",
    "DeadlockError",
    "Device",
    "Finding",
    "Group",
    "InvalidCallError",
    "Job",
    "JobError",
    "Link",
    "Message",
    "MismatchError",
    "Mpiexec",
    "Op",
    "OutOfMemoryError",
    "RaceError",
    "RankDiedError",
    "RankError",
    "Run",
    "RunInterrupted",
    "SimlibError",
    "Site",
    "Slurm",
    "StuckError",
    "Trace",
    "UnfinishedError",
    "clusters",
    "compute",
    "digits",
    "doctor",
    "draw_curves",
    "held",
    "jobs",
    "live_curves",
    "load",
    "run",
    "scale",
    "simulate",
    "submit",
]
__version__ = "0.1.0"
