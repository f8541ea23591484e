"""`Scheduler`: what every batch system can do with a job. A new one is one class."""

from __future__ import annotations

import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

ANSWER_S = 10.0
OVER = ("done", "failed", "cancelled")
MEMORY = re.compile(r"([1-9]\d*)([KMGT])")


@dataclass(frozen=True)
class BatchJob:
    """What a scheduler is asked for.

    Attributes
    ----------
    name : str
    script : Path
        A shell script, to be run on the first of the nodes.
    nodes, ranks_per_node : int
    minutes : int
        After which it is to be ended.
    partition, account : str, optional
    extra : sequence of str
        Further options of the command that submits.
    cpus_per_rank, gpus_per_rank : int, optional
    memory : str, optional
        For each rank; see `Resources`.
    """

    name: str
    script: Path
    nodes: int
    ranks_per_node: int
    minutes: int
    partition: str | None = None
    account: str | None = None
    extra: Sequence[str] = ()
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    memory: str | None = None

    def memory_of_node(self) -> tuple[int, str] | None:
        """``(number, unit)`` of the memory of all ranks of one node; None where nobody asks."""
        if self.memory is None:
            return None
        number, unit = MEMORY.fullmatch(self.memory).groups()
        return int(number) * self.ranks_per_node, unit


@dataclass(frozen=True)
class JobStatus:
    """How a job stands in the queue.

    Attributes
    ----------
    state : {"queued", "active", "done", "failed", "cancelled"}
        ``done`` also where the queue knows nothing of the job: it forgets those that are over.
    reason : str
        The scheduler's own word for why; empty where it says none.
    """

    state: str
    reason: str = ""


class QueueError(Exception):
    """A command of the scheduler has failed; its text is what was said."""


class NoSchedulerError(QueueError):
    """This machine has no such scheduler; its text says what to do."""


def has_no(command: str, said: str) -> bool:
    """Whether these words, of this machine or of a shell on another one, say that it has none."""
    name = re.escape(command)
    pattern = rf"No such file or directory: '{name}'|{name}\W*: (No such file|(command )?not found)"
    return re.search(pattern, said) is not None


class Scheduler(ABC):
    """Hands jobs to a batch system, by its commands.

    Parameters
    ----------
    login : sequence of str
        Words to put before each command, where this machine does not have them.
    """

    failures: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Patterns of its words on failing, and what they mean; as a `Launcher` has them."""
    ended_by_queue: ClassVar[str]
    """A pattern of its words on ending a job for a reason of its own."""
    called: ClassVar[str]
    """What people call it: ``"Slurm"``."""

    def __init__(self, login: Sequence[str] = ()) -> None:
        self.login = list(login)

    @abstractmethod
    def submit(self, job: BatchJob) -> str:
        """Hand a job to the queue; returns the number that it has there.

        Raises
        ------
        QueueError
            It was refused; a `NoSchedulerError` where there is nobody to refuse it.
        """

    @abstractmethod
    def ask(self, number: str) -> JobStatus:
        """How a job stands."""

    @abstractmethod
    def cancel(self, number: str) -> None:
        """Take a job out of the queue, or end it; one that is over stays as it is."""

    @abstractmethod
    def in_words(self, reason: str) -> str:
        """What a reason means to who waits; empty where it says nothing."""

    def hand_over(self, *words: str) -> str:
        """Run the command that submits, however long it takes; returns the last word that it says.

        Raises
        ------
        QueueError
            As `submit`.
        """
        try:
            said = self.run(*words, timeout=None).split()
        except QueueError as error:
            if has_no(words[0], str(error)):
                raise self.none(words[0], error) from None
            raise
        if not said:
            raise QueueError(f"{words[0]} has told no number of the job")
        return said[-1]

    def none(self, command: str, error: Exception) -> NoSchedulerError:
        """The error where there is no such command; it ends with what was said."""
        return NoSchedulerError(
            f"this machine has no {command}: submit from a host of the cluster that has "
            f'{self.called}, or name one by login="ssh HOST"\n    {str(error).strip()}'
        )

    def run(self, *words: str, timeout: float | None = ANSWER_S) -> str:
        """Run a command behind ``login``; returns what it printed.

        Raises
        ------
        QueueError
            It has failed, or there is no such command.
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
            raise QueueError(said or f"{words[0]} has ended with {done.returncode}")
        return done.stdout
