"""`submit`: the same rank function as a job on a real cluster, by mpiexec, a queue or ssh."""

from . import failures
from .batch_system import Queued
from .pbs import Pbs
from .slurm import Slurm

SYSTEMS: dict[str, type[Queued]] = {place.scheduler.name: place for place in (Slurm, Pbs)}
"""The batch systems that take jobs, by the names in ``native.json`` and on the command line."""

for _place in SYSTEMS.values():
    failures.know(_place.scheduler)
