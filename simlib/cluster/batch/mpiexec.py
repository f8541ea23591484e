"""`Mpiexec`: ranks started by mpiexec, of whichever MPI it is, on this machine or on hosts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ...core.model.errors import InvalidCallError, JobError, check_count
from ...core.record.oplog import COMMITTED, HEADER
from ..launch.hostfile import check_name, hosts_in, refuse_text
from ..launch.launchers import MPIS, Launcher, Placement, mpi_of_version
from . import launcher_process, staging
from .folder import JobFolder
from .resources import Resources, words_of

VERSION_LIMIT_S = 20
LAUNCH = str(Path(launcher_process.__file__).resolve())
STAGING = str(Path(staging.__file__).resolve())


@dataclass(frozen=True)
class Mpiexec(Resources):
    """Where a job runs: processes started by mpiexec.

    Attributes
    ----------
    hosts : list of str, optional
        Names of the hosts, reached by ssh without a password; none: this machine.
    ranks_per_node : int
        Ranks on each host.
    hostfile : str, optional
        In place of ``hosts``: a file with a host on each line, in the form of any MPI. It may say
        how many ranks each host takes; ``ranks_per_node`` of 2 and more would overrule that. It is
        read at once.
    launcher : str or list of str, optional
        The command that stands for mpiexec; else the one beside this Python, then that of the PATH.
    time_limit : float
        Seconds after which the job is ended, whatever it does.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank
        See `Resources`. mpiexec gives no rank cores or GPUs: where there are too few GPUs,
        it is said.
    stage : bool
        For hosts that share no filesystem: each gets a copy of the job's folder, at the same path,
        and what its ranks write is brought back. The environment must be at one path everywhere.
    """

    hosts: Sequence[str] | None = None
    ranks_per_node: int = 1
    hostfile: str | None = None
    launcher: str | Sequence[str | Path] | None = None
    time_limit: float = 600
    stage: bool = False
    slots: tuple[tuple[str, int], ...] | None = field(init=False, repr=False, compare=False)

    uses_mpi: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            raise InvalidCallError(
                f"memory={self.memory!r}: mpiexec knows no limit of memory, only a queue does "
                "(simlib.Slurm, simlib.Pbs)"
            )
        refuse_text(self.hosts)
        if self.hosts is not None and self.hostfile is not None:
            raise InvalidCallError("name the hosts by hosts or by hostfile, not by both")
        check_count("ranks_per_node", self.ranks_per_node)
        check_time_limit(self.time_limit)
        words_of(self.launcher or (), "launcher")
        object.__setattr__(self, "slots", self._slots())
        if self.stage and self.slots is None:
            raise InvalidCallError("stage=True copies the job to hosts: name them by hosts=[...]")

    def _slots(self) -> tuple[tuple[str, int], ...] | None:
        """The hosts, and how many ranks each takes; None: this machine."""
        if self.hostfile is not None:
            overruled = self.ranks_per_node > 1
            return tuple(
                (host, self.ranks_per_node if overruled or count is None else count)
                for host, count in hosts_in(self.hostfile)
            )
        if self.hosts is None:
            return None
        for number, host in enumerate(self.hosts):
            check_name(host, f"hosts[{number}]")
        return tuple((host, self.ranks_per_node) for host in self.hosts)

    @property
    def place(self) -> str:
        """Where the ranks run, in words."""
        if self.hostfile is not None:
            return f"the hosts in {self.hostfile}"
        return "this machine" if self.hosts is None else ", ".join(self.hosts)

    def check(self, world_size: int) -> None:
        """Refuse more ranks than there is room for."""
        if self.slots is None or world_size <= sum(count for _, count in self.slots):
            return
        where = f"{len(self.slots)} hosts with ranks_per_node={self.ranks_per_node}"
        if self.hostfile is not None:
            counts = ", ".join(f"{host}:{count}" for host, count in self.slots)
            where = f"the hosts in {self.hostfile} ({counts})"
        raise InvalidCallError(
            f"world_size={world_size} does not fit on {where}: name more hosts, or more ranks per "
            "node"
        )

    def words(self) -> list[str]:
        """The command that stands for mpiexec."""
        if self.launcher:
            return words_of(self.launcher)
        beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        found = beside if os.path.exists(beside) else shutil.which("mpiexec")
        if found is None:
            raise JobError(
                'there is no mpiexec on this machine: pip install "simlib[cluster]" brings one, '
                "or name yours by simlib.Mpiexec(launcher=...)"
            )
        return [found]

    def before_launcher(self) -> list[str]:
        """The words that run a program where mpiexec runs: those before it."""
        words = self.words()
        names = [os.path.basename(word) for word in words]
        first = next((at for at, name in enumerate(names) if re.match("mpi(exec|run)", name)), 0)
        return words[:first]

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """The whole command that runs ``program`` on every rank."""
        words = self.words()
        at = Placement(world_size, self.ranks_per_node, self.slots)
        command = [*words, "-n", str(world_size), *mpi_of(words).place(at), *program]
        return staged(command, [host for host, _ in self.slots]) if self.stage else command

    def environ(self) -> dict[str, str]:
        """Variables for mpiexec and the ranks, of whichever MPI: the others' are not read."""
        found = {}
        for mpi in MPIS:
            found.update(mpi.environ(self.time_limit))
        return found

    def start(self, folder: JobFolder) -> None:
        """Start the launcher in a session of its own: it goes on when the notebook ends.

        It has none of the caller's files: who reads this program's output by a pipe would wait
        for the end of the job.
        """
        program = [sys.executable, "-I", LAUNCH, "--detached", str(folder.path)]
        with open(folder.file("launch.err"), "wb") as said:
            subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=True
            )  # fmt: skip


def staged(command: list[str], hosts: Sequence[str] | None = None) -> list[str]:
    """A launcher's command behind `staging`; the hosts are those of a Slurm job by default."""
    plan = {"hosts": hosts, "python": sys.executable, "log": [HEADER, COMMITTED]}
    return [sys.executable, "-I", STAGING, json.dumps(plan), *command]


def mpi_of(words: list[str]) -> Launcher:
    """Which MPI an mpiexec belongs to."""
    shown = shlex.join(words)
    try:
        done = subprocess.run(
            [*words, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise JobError(
            f"there is no command {words[0]!r}: is the launcher spelled right?"
        ) from None
    except subprocess.TimeoutExpired:
        raise JobError(
            f"{shown} --version has not answered for {VERSION_LIMIT_S} s: is it an mpiexec?"
        ) from None
    answer = done.stdout + done.stderr
    mpi = mpi_of_version(answer)
    if mpi is None:
        first = next(iter(answer.strip().splitlines()), "nothing")
        *names, last = (mpi.name for mpi in MPIS)
        raise JobError(
            f"{shown} --version answers {first!r}: it is no mpiexec of {', '.join(names)} or {last}"
        )
    return mpi


def check_time_limit(value: object) -> None:
    """Refuse what is no number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidCallError(f"time_limit={value!r} must be a positive number of seconds")
