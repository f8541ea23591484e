"""`submit`: the same rank function as a job on a real cluster, by mpiexec or Slurm."""

from .job import Job, jobs
from .mpiexec import Mpiexec
from .pbs import Pbs
from .remote.ssh import Ssh
from .slurm import Slurm
from .submission import submit

__all__ = ["Job", "Mpiexec", "Pbs", "Slurm", "Ssh", "jobs", "submit"]
