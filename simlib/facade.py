"""The names that `import simlib` gives, and all that is behind them."""

from importlib import import_module
from typing import TYPE_CHECKING

from . import clusters, scale
from .checks.guesses import guess
from .datasets import digits, letters
from .diagnose.findings import Finding
from .draw.curves import draw_curves, live_curves
from .engines.processes import run
from .engines.virtual import simulate
from .model.cluster import Cluster, Device, Link
from .model.errors import (
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
from .model.trace import Collective, Group, Message, Op, Site, Trace
from .record import lightning
from .record.this_rank import compute, held, hold, span
from .results.comparison import Comparison, compare
from .results.load import load
from .results.run import Run

if TYPE_CHECKING:
    from .engines.batch import Job, Mpiexec, Pbs, Slurm, Ssh, jobs, submit
    from .engines.batch.doctor import doctor

__all__ = [
    "Cluster",
    "Collective",
    "Comparison",
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
    "Pbs",
    "RaceError",
    "RankDiedError",
    "RankError",
    "Run",
    "RunInterrupted",
    "SimlibError",
    "Site",
    "Slurm",
    "Ssh",
    "StuckError",
    "Trace",
    "UnfinishedError",
    "clusters",
    "compare",
    "compute",
    "digits",
    "doctor",
    "draw_curves",
    "guess",
    "held",
    "hold",
    "jobs",
    "letters",
    "lightning",
    "live_curves",
    "load",
    "run",
    "scale",
    "simulate",
    "span",
    "submit",
]

_OF_JOBS = ("Job", "Mpiexec", "Pbs", "Slurm", "Ssh", "jobs", "submit")


def __getattr__(name):
    """What belongs to jobs is imported when it is used: most programs have none."""
    if name in _OF_JOBS:
        return getattr(import_module(".engines.batch", __package__), name)
    if name == "doctor":
        return import_module(".engines.batch.doctor", __package__).doctor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
