"""Ranks on other hosts: jobs by mpiexec, Slurm, PBS and ssh, the doctor, MPI, practice hosts."""

from __future__ import annotations

from typing import Any

PUBLIC = {
    "Job": "batch.job",
    "Mpiexec": "batch.mpiexec",
    "Pbs": "batch.pbs",
    "Slurm": "batch.slurm",
    "Ssh": "batch.ssh",
    "doctor": "doctor",
    "jobs": "batch.job",
    "submit": "batch.submission",
}
"""What this package adds to the names of `simlib`, and the modules that have it."""


def register() -> None:
    """Add the backend "mpi4py" to those that runs know."""
    from . import backends  # noqa: F401


def add_commands(commands: Any) -> None:
    """Add this package's commands to the command line's parsers."""
    from . import commands as own
    from .practice import practice_command

    practice_command.add_command(commands)
    own.add_commands(commands)
