"""`Slurm`: a job that a scheduler carries, when it is its turn."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...model.errors import InvalidCallError, JobError
from ..launch.launchers import SRUN, Placement
from .batch_scheduler import BatchJob, NoSchedulerError, QueueError
from .folder import JobFolder
from .launcher_failures import refused
from .mpiexec import LAUNCH, Mpiexec, check_time_limit, mpi_of, words_of
from .schedulers import SCHEDULERS


@dataclass(frozen=True)
class Slurm:
    """Where a job runs: nodes that Slurm gives it, when it is its turn.

    Attributes
    ----------
    nodes : int
    ranks_per_node : int
    partition, account : str, optional
    time_limit : float
        Seconds; Slurm counts whole minutes, so it is rounded up.
    extra : str or sequence of str
        A further option of sbatch, or several, each a word: ``("--exclusive", "--gres=gpu:2")``.
    launcher : str
        ``srun``, which needs no MPI, or ``mpiexec``.
    scheduler : str
        ``slurm``: there is no other yet.
    login : str or sequence of str
        Words to put before sbatch, squeue and scancel where this machine has none: ``"ssh login"``.
    """

    nodes: int
    ranks_per_node: int = 1
    partition: str | None = None
    time_limit: float = 600
    account: str | None = None
    extra: str | Sequence[str] = ()
    launcher: str = "srun"
    scheduler: str = "slurm"
    login: str | Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if self.launcher not in ("srun", "mpiexec"):
            raise InvalidCallError(f"launcher={self.launcher!r} must be 'srun' or 'mpiexec'")
        if self.scheduler not in SCHEDULERS:
            names = " or ".join(map(repr, SCHEDULERS))
            raise InvalidCallError(
                f"scheduler={self.scheduler!r} must be {names}: jobs can be handed to no other"
            )
        check_time_limit(self.time_limit)
        extra = [self.extra] if isinstance(self.extra, str) else self.extra
        object.__setattr__(self, "extra", tuple(extra))

    @property
    def uses_mpi(self) -> bool:
        """Whether ranks ask MPI who they are; srun's ranks ask the environment."""
        return self.launcher == "mpiexec"

    @property
    def place(self) -> str:
        """Where the ranks run, in words."""
        return f"{self.nodes} nodes of {self.scheduler}"

    def check(self, world_size: int) -> None:
        """Refuse more ranks than there is room for."""
        if world_size > self.nodes * self.ranks_per_node:
            raise InvalidCallError(
                f"world_size={world_size} does not fit on nodes={self.nodes} with "
                f"ranks_per_node={self.ranks_per_node}: take more of either"
            )

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """What starts the ranks, once the scheduler has given the nodes."""
        words = Mpiexec().words() if self.uses_mpi else ["srun"]
        launcher = mpi_of(words) if self.uses_mpi else SRUN
        options = launcher.place(Placement(world_size, self.ranks_per_node, in_allocation=True))
        return [*words, "-n", str(world_size), *options, *program]

    def environ(self) -> dict[str, str]:
        """No variables are needed."""
        return {}

    def start(self, folder: JobFolder) -> None:
        """Hand the job to the queue.

        Raises
        ------
        JobError
            The queue refuses it, or there is none.
        """
        script = folder.file("batch.sh")
        words = [sys.executable, "-I", LAUNCH, str(folder.path)]
        folder.write(f"#!/bin/sh\nexec {shlex.join(words)}\n".encode(), "batch.sh")
        # A minute more than our own limit, which says more when it is over.
        minutes = math.ceil(self.time_limit / 60) + 1
        login = words_of(self.login)
        job = BatchJob(
            folder.path.name, script, self.nodes, self.ranks_per_node, minutes,
            self.partition, self.account, self.extra,
        )  # fmt: skip
        scheduler = SCHEDULERS[self.scheduler](login)
        try:
            number = scheduler.submit(job)
        except NoSchedulerError as error:
            raise JobError(str(error)) from None
        except QueueError as error:
            raise JobError(refused("the queue has refused the job", str(error))) from None
        native = {"scheduler": self.scheduler, "id": number, "login": login}
        try:
            folder.write_json(native, "native.json")
        except OSError:  # nobody would know its number
            scheduler.cancel(number)
            raise
