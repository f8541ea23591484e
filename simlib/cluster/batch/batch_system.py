"""The base classes of all batch systems: `Scheduler` submits jobs, `Queued` describes their nodes.

A new batch system needs one file with a subclass of each, and one line in
`simlib.cluster.batch.SYSTEMS`.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core.model.errors import InvalidCallError, check_count
from ..launchers import Placement
from .folder import JobFolder
from .mpiexec import LAUNCH, MEMORY, Mpiexec, Resources, check_time_limit, mpi_of, words_of

ANSWER_S = 10.0
OVER = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class BatchJob:
    """A job, as simlib describes it to a scheduler.

    Attributes
    ----------
    name : str
    script : Path
        A shell script, which the scheduler runs on the first of the nodes.
    minutes : int
        The scheduler ends the job after this many minutes.
    needs : Queued
        The nodes and all other resources that the job requests from the queue.
    """

    name: str
    script: Path
    minutes: int
    needs: Queued

    def memory_of_node(self) -> tuple[int, str] | None:
        """Return ``(number, unit)`` of the memory that one node's ranks need; None if not given."""
        found = MEMORY.fullmatch(self.needs.memory or "")
        if found is None:
            return None
        number, unit = found.groups()
        return int(number) * self.needs.ranks_per_node, unit


@dataclass(frozen=True)
class JobStatus:
    """The state of a job in the queue.

    Attributes
    ----------
    state : {"queued", "active", "done", "failed", "cancelled"}
        If the queue does not know the job, the state is ``done``, because a queue forgets jobs that
        have ended.
    reason : str
        The reason for the state, in the scheduler's own word; empty if it gives no reason.
    """

    state: str
    reason: str = ""


class QueueError(Exception):
    """A command of the scheduler has failed. The error's text is the output of the command."""


class NoSchedulerError(QueueError):
    """This machine has no such scheduler. The error's text says what to do."""


def has_no(command: str, said: str) -> bool:
    """Whether the output of this machine or of a remote shell says that the command is missing."""
    name = re.escape(command)
    pattern = rf"No such file or directory: '{name}'|{name}\W*: (No such file|(command )?not found)"
    return re.search(pattern, said) is not None


class Scheduler(ABC):
    """Submits jobs to a batch system through the commands of this system.

    Parameters
    ----------
    login : sequence of str
        Words that simlib puts before each command if this machine does not have the commands.
    """

    failures: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Patterns for the scheduler's error messages, with their meaning, as in `Launcher`."""
    ended_by_queue: ClassVar[str]
    """A pattern for the scheduler's output when it ends a job for a reason of its own."""
    name: ClassVar[str]
    """The scheduler's key in `SYSTEMS` and its flag on the command line: ``"slurm"``."""
    called: ClassVar[str]
    """The scheduler's name in sentences: ``"Slurm"``."""

    def __init__(self, login: Sequence[str] = ()) -> None:
        self.login = list(login)

    @abstractmethod
    def submit(self, job: BatchJob) -> str:
        """Submit a job to the queue, and return the job's number there.

        Raises
        ------
        QueueError
            The queue refuses the job. Without a scheduler it is a `NoSchedulerError`.
        """

    @abstractmethod
    def ask(self, number: str) -> JobStatus:
        """The state of a job."""

    @abstractmethod
    def cancel(self, number: str) -> None:
        """Take a job out of the queue, or end it. A job that has ended stays as it is."""

    @abstractmethod
    def in_words(self, reason: str) -> str:
        """Explain a scheduler's reason to a user who waits; empty if it needs no words."""

    def hand_over(self, *words: str) -> str:
        """Run the command that submits, without a time limit. Return the last word of its output.

        Raises
        ------
        QueueError
            As for `submit`.
        """
        try:
            said = self.run(*words, timeout=None).split()
        except QueueError as error:
            if has_no(words[0], str(error)):
                raise self.none(words[0], error) from None
            raise
        if not said:
            raise QueueError(f"{words[0]} did not print a job id")
        return said[-1]

    def none(self, command: str, error: Exception) -> NoSchedulerError:
        """Return the error for a missing command. Its text ends with the original message."""
        return NoSchedulerError(
            f"this machine has no {command}: submit from a host of the cluster that has "
            f'{self.called}, or name such a host: login="ssh HOST"\n    {str(error).strip()}'
        )

    def run(self, *words: str, timeout: float | None = ANSWER_S) -> str:
        """Run a command, with the words of ``login`` before it, and return its output.

        Raises
        ------
        QueueError
            The command has failed, or it does not exist.
        """
        try:
            done = subprocess.run(
                [*self.login, *words], capture_output=True, text=True, timeout=timeout,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise QueueError(f"{words[0]} has not answered for {timeout:g} s") from None
        except OSError as error:
            raise QueueError(str(error)) from None
        if done.returncode:
            said = "\n".join(filter(None, (done.stdout, done.stderr)))
            raise QueueError(said or f"{words[0]} ended with exit code {done.returncode}")
        return done.stdout


@dataclass(frozen=True)
class Flag:
    """An option of ``simlib submit`` that sets one attribute of a `Queued`.

    Attributes
    ----------
    name : str
        The name of the attribute.
    metavar, help : str
    type : type
        The type of the option's value.
    is_list : bool
        Whether the option may be repeated.
    owner : str
        The program to which the option belongs, if only some batch systems support it:
        ``"srun's"``.
    """

    name: str
    metavar: str
    help: str
    type: type = str
    is_list: bool = False
    owner: str = ""


@dataclass(frozen=True)
class Queued(Resources):
    """Run a job on nodes that a scheduler allocates.

    Attributes
    ----------
    nodes : int
    ranks_per_node : int
    partition, account : str, optional
    time_limit : float
        simlib ends the job after this many seconds. The queue's own limit is about a minute longer,
        because queues count whole minutes.
    extra : str or sequence of str
        Further options for the command that submits the job. Each option is one word:
        ``("--exclusive", "--gres=gpu:2")``.
    launcher : str
        The program that starts the ranks on the nodes.
    login : str or sequence of str
        Words that simlib puts before the scheduler's commands if this machine does not have these
        commands: ``"ssh login"``.
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

    scheduler: ClassVar[type[Scheduler]]
    launchers: ClassVar[tuple[str, ...]]
    """The programs that can start ranks on the nodes of this batch system."""
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("nodes", "N", "how many nodes the job gets from the queue (1)", int),
        Flag("partition", "P", "the partition or queue for the job"),
        Flag("account", "A", "the account or project for the job"),
        Flag(
            "extra",
            "OPTION",
            "one more option for the queue: --extra=--exclusive; may be repeated",
            is_list=True,
        ),
        Flag("login", "CMD", 'put this before each command of the queue, as in "ssh login"'),
    )
    """The command-line options of this batch system, in addition to the options that every place
    has."""

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
        """Whether ranks get their numbers from MPI."""
        return True

    @property
    def place(self) -> str:
        """A text that says where the ranks run."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{nodes} of {self.scheduler.name}"

    def check(self, world_size: int) -> None:
        """Raise an error if the nodes do not have room for so many ranks."""
        if world_size > self.nodes * self.ranks_per_node:
            raise InvalidCallError(
                f"world_size={world_size} does not fit on nodes={self.nodes} with "
                f"ranks_per_node={self.ranks_per_node}: increase one of the two"
            )

    def before_launcher(self) -> list[str]:
        """Return an empty list, because the launcher runs on the same node as the batch job."""
        return []

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """The command that starts the ranks after the scheduler has given the nodes."""
        words = Mpiexec().words()
        options = mpi_of(words).place(self._placement(world_size))
        return [*words, "-n", str(world_size), *options, *program]

    def _placement(self, world_size: int) -> Placement:
        return Placement(
            world_size, self.ranks_per_node, in_allocation=True, cpus_per_rank=self.cpus_per_rank
        )

    def environ(self) -> dict[str, str]:
        """Return an empty dict, because ranks need no extra environment variables."""
        return {}

    def start(self, folder: JobFolder) -> None:
        """Submit the job to the queue.

        Raises
        ------
        QueueError
            The queue refuses the job. Without a scheduler it is a `NoSchedulerError`.
        """
        script = folder.file("batch.sh")
        words = [sys.executable, "-I", LAUNCH, str(folder.path)]
        folder.write(f"#!/bin/sh\nexec {shlex.join(words)}\n".encode(), "batch.sh")
        # A minute more than our own limit, which says more when it is over.
        minutes = math.ceil(self.time_limit / 60) + 1
        login = words_of(self.login)
        scheduler = self.scheduler(login)
        number = self._hand_over(scheduler, BatchJob(folder.path.name, script, minutes, self))
        native = {"scheduler": scheduler.name, "id": number, "login": login}
        try:
            folder.write_json(native, "native.json")
        except OSError:  # nobody would know its number
            scheduler.cancel(number)
            raise

    def _hand_over(self, scheduler: Any, job: BatchJob) -> str:
        return scheduler.submit(job)
