"""`Slurm`: a job that a scheduler carries, when it is its turn; `Queued`: any scheduler."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ...core.model.errors import InvalidCallError, JobError, check_count
from ..launchers import SRUN, Placement
from .batch_scheduler import BatchJob, NoSchedulerError, QueueError
from .failures import refused
from .folder import JobFolder
from .mpiexec import LAUNCH, Mpiexec, Resources, check_time_limit, mpi_of, staged, words_of
from .schedulers import SCHEDULERS


@dataclass(frozen=True)
class Queued(Resources):
    """Where a job runs: nodes that a scheduler gives it, when it is its turn.

    Attributes
    ----------
    nodes : int
    ranks_per_node : int
    partition, account : str, optional
    time_limit : float
        Seconds; the queue's limit is a minute more, in whole minutes.
    extra : str or sequence of str
        A further option of the command that submits, or several, each a word:
        ``("--exclusive", "--gres=gpu:2")``.
    launcher : str
        What starts the ranks on the nodes.
    login : str or sequence of str
        Words to put before the scheduler's commands where this machine has none: ``"ssh login"``.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank, memory
        See `Resources`.
    """

    nodes: int
    ranks_per_node: int = 1
    partition: str | None = None
    time_limit: float = 600
    account: str | None = None
    extra: str | Sequence[str] = ()
    launcher: str = "mpiexec"
    login: str | Sequence[str | Path] = ()

    scheduler: ClassVar[str]
    """Its name in `SCHEDULERS`."""
    launchers: ClassVar[tuple[str, ...]]
    """What can start ranks there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.launcher not in self.launchers:
            names = " or ".join(map(repr, self.launchers))
            raise InvalidCallError(f"launcher={self.launcher!r} must be {names}")
        for name in ("nodes", "ranks_per_node"):
            check_count(name, getattr(self, name))
        check_time_limit(self.time_limit)
        words_of(self.login, "login")
        extra = [self.extra] if isinstance(self.extra, str) else self.extra
        if not isinstance(extra, Sequence) or not all(isinstance(word, str) for word in extra):
            raise InvalidCallError(
                f"extra={self.extra!r} must be an option, or a list of options: "
                "extra=['--exclusive']"
            )
        object.__setattr__(self, "extra", tuple(extra))

    @property
    def uses_mpi(self) -> bool:
        """Whether ranks ask MPI who they are."""
        return True

    @property
    def place(self) -> str:
        """Where the ranks run, in words."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{nodes} of {self.scheduler}"

    def check(self, world_size: int) -> None:
        """Refuse more ranks than there is room for."""
        if world_size > self.nodes * self.ranks_per_node:
            raise InvalidCallError(
                f"world_size={world_size} does not fit on nodes={self.nodes} with "
                f"ranks_per_node={self.ranks_per_node}: take more of either"
            )

    def before_launcher(self) -> list[str]:
        """None: the launcher runs where the batch job does."""
        return []

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """What starts the ranks, once the scheduler has given the nodes."""
        words = Mpiexec().words()
        options = mpi_of(words).place(self._placement(world_size))
        return [*words, "-n", str(world_size), *options, *program]

    def _placement(self, world_size: int) -> Placement:
        return Placement(
            world_size, self.ranks_per_node, in_allocation=True, cpus_per_rank=self.cpus_per_rank
        )

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
            self.cpus_per_rank, self.gpus_per_rank, self.memory,
        )  # fmt: skip
        scheduler = SCHEDULERS[self.scheduler](login)
        try:
            number = self._hand_over(scheduler, job)
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

    def _hand_over(self, scheduler: Any, job: BatchJob) -> str:
        return scheduler.submit(job)


@dataclass(frozen=True)
class Slurm(Queued):
    """Where a job runs: nodes that Slurm gives it, when it is its turn.

    Attributes
    ----------
    launcher : {"srun", "mpiexec"}
        srun needs no MPI.
    mpi : str, optional
        How srun serves MPI, as its ``--mpi`` says: ``"pmix"``, ``"pmi2"``. Then ranks ask MPI who
        they are, and may use it; without, srun's ranks ask the environment.
    stage : bool
        For nodes that do not see this machine's files, nor each other's: as `Mpiexec.stage`, with
        srun. The job is then looked after by this machine, not by the first node: it ends with it.
    nodes, ranks_per_node, partition, time_limit, account, extra, login
        See `Queued`; ``extra`` are sbatch's.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank, memory
        See `Resources`.
    """

    launcher: str = "srun"
    mpi: str | None = None
    stage: bool = False

    scheduler: ClassVar[str] = "slurm"
    launchers: ClassVar[tuple[str, ...]] = ("srun", "mpiexec")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mpi is not None and self.launcher != "srun":
            raise InvalidCallError(f"mpi={self.mpi!r} is an option of srun: launcher='srun'")
        if self.stage and self.launcher != "srun":
            raise InvalidCallError("stage=True copies the job by srun: launcher='srun'")

    @property
    def uses_mpi(self) -> bool:
        """Whether ranks ask MPI who they are; without ``mpi`` srun's ranks ask the environment."""
        return self.launcher == "mpiexec" or self.mpi is not None

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """What starts the ranks, once the scheduler has given the nodes."""
        if self.launcher == "mpiexec":
            return super().command(world_size, program)
        options = SRUN.place(replace(self._placement(world_size), mpi=self.mpi))
        command = ["srun", "-n", str(world_size), *options, *program]
        return staged(command) if self.stage else command

    def _hand_over(self, scheduler: Any, job: BatchJob) -> str:
        return scheduler.hold(job) if self.stage else scheduler.submit(job)
