"""Ranks on other hosts: jobs by mpiexec, Slurm, PBS and ssh; the doctor; MPI; practice hosts."""

from __future__ import annotations

PUBLIC = {
    "Job": "batch.job:Job",
    "Mpiexec": "batch.mpiexec:Mpiexec",
    "Pbs": "batch.pbs:Pbs",
    "Slurm": "batch.slurm:Slurm",
    "Ssh": "batch.ssh:Ssh",
    "doctor": "doctor:doctor",
    "jobs": "batch.job:jobs",
    "submit": "batch.submission:submit",
}
"""The names that this package adds to `simlib`: ``{name: "module:object"}``."""
COMMANDS = ("practice.practice_command:add_command", "commands:add_commands")
"""Functions that add this package's commands to the command line's parsers."""


def register() -> None:
    """Add the backend "mpi4py" to the backends of runs."""
    from . import backends  # noqa: F401
