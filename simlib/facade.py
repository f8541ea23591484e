"""The names that `import simlib` provides, and the code behind them.

The names of the core are here. Each package in `PARTS` adds the names in its table ``PUBLIC``.
simlib imports such a name when a program first uses it.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from . import classroom, cluster, course
from .core import clusters, devices, scale
from .core.diagnose.findings import Finding
from .core.draw.curves import draw_curves, live_curves
from .core.engines.options import Diagnosis, Faults, Measurement, Network, Restarts
from .core.engines.processes.real_run import run
from .core.engines.virtual.simulated_run import simulate
from .core.model.cluster import Cluster, Device, Link
from .core.model.errors import (
    DeadlockError,
    InvalidCallError,
    JobError,
    MismatchError,
    NoValueError,
    OutOfMemoryError,
    RaceError,
    RankDiedError,
    RankError,
    RunInterrupted,
    SharedNameError,
    SimlibError,
    StuckError,
    UnfinishedError,
)
from .core.model.outcome import ExitCode
from .core.model.trace import Collective, Group, Message, Op, Site, Trace
from .core.record import lightning
from .core.record.this_rank import compute, held, hold, span
from .core.results.comparison import Comparison, compare
from .core.results.job_diagnosis import JobDiagnosis, diagnose
from .core.results.load import load, load_chakra
from .core.results.run import Run

if TYPE_CHECKING:
    from .classroom.checks.verdict import guess
    from .cluster.batch.job import Job, jobs
    from .cluster.batch.mpiexec import Mpiexec
    from .cluster.batch.pbs import Pbs
    from .cluster.batch.slurm import Slurm
    from .cluster.batch.ssh import Ssh
    from .cluster.batch.submission import submit
    from .cluster.doctor import doctor
    from .course.datasets import digits, letters

PARTS = (cluster, classroom, course)

__all__ = [
    "Cluster",
    "Collective",
    "Comparison",
    "DeadlockError",
    "Device",
    "Diagnosis",
    "ExitCode",
    "Faults",
    "Finding",
    "Group",
    "InvalidCallError",
    "Job",
    "JobDiagnosis",
    "JobError",
    "Link",
    "Measurement",
    "Message",
    "MismatchError",
    "Mpiexec",
    "Network",
    "Op",
    "NoValueError",
    "OutOfMemoryError",
    "Pbs",
    "RaceError",
    "RankDiedError",
    "RankError",
    "Restarts",
    "Run",
    "RunInterrupted",
    "SharedNameError",
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
    "devices",
    "diagnose",
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
    "load_chakra",
    "run",
    "scale",
    "simulate",
    "span",
    "submit",
]

cluster.register()


def __getattr__(name: str) -> Any:
    """Import a name of a part at its first use, because most programs do not use it."""
    for part in PARTS:
        if name in part.PUBLIC:
            return resolve_name(f"{part.__name__}.{part.PUBLIC[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
