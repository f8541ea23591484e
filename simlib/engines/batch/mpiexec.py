"""`Mpiexec`: ranks started by mpiexec, of whichever MPI it is, on this machine or on hosts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...model import ucx
from ...model.errors import InvalidCallError, JobError
from . import launcher_process

FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that Open MPI is told to take along; the other MPIs take all."""
VERSION_LIMIT_S = 20
LAUNCH = str(Path(launcher_process.__file__).resolve())


@dataclass(frozen=True)
class Mpiexec:
    """Where a job runs: processes started by mpiexec.

    Attributes
    ----------
    hosts : list of str, optional
        Names of the hosts, reached by ssh without a password; none: this machine.
    ranks_per_node : int
        Ranks on each host.
    hostfile : str, optional
        In place of ``hosts``: a file for mpiexec. It may say how many ranks each host takes;
        ``ranks_per_node`` of 2 and more would overrule that.
    launcher : str or list of str, optional
        The command that stands for mpiexec; else the one beside this Python, then that of the PATH.
    time_limit : float
        Seconds after which the job is ended, whatever it does.
    """

    hosts: tuple = None
    ranks_per_node: int = 1
    hostfile: str = None
    launcher: tuple = None
    time_limit: float = 600

    uses_mpi = True

    def __post_init__(self):
        if isinstance(self.hosts, str):
            raise InvalidCallError(f"hosts={self.hosts!r} must be a list: hosts=[{self.hosts!r}]")
        if self.hosts is not None and self.hostfile is not None:
            raise InvalidCallError("name the hosts by hosts or by hostfile, not by both")
        _check_count("ranks_per_node", self.ranks_per_node)
        check_time_limit(self.time_limit)

    @property
    def place(self):
        """Where the ranks run, in words."""
        if self.hostfile is not None:
            return f"the hosts in {self.hostfile}"
        return "this machine" if self.hosts is None else ", ".join(self.hosts)

    def check(self, world_size):
        """Refuse more ranks than there is room for."""
        if self.hosts is None:
            return
        room = len(self.hosts) * self.ranks_per_node
        if not self.hosts or world_size > room:
            raise InvalidCallError(
                f"world_size={world_size} does not fit on {len(self.hosts)} hosts with "
                f"ranks_per_node={self.ranks_per_node}: name more hosts, or more ranks per node"
            )

    def words(self):
        """The command that stands for mpiexec."""
        if self.launcher:
            return words_of(self.launcher)
        beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        found = beside if os.path.exists(beside) else shutil.which("mpiexec")
        if found is None:
            raise JobError(
                "there is no mpiexec on this machine: pip install mpich, or name yours by "
                "simlib.Mpiexec(launcher=...)"
            )
        return [found]

    def command(self, world_size, program):
        """The whole command that runs ``program`` on every rank."""
        words = self.words()
        mpi = mpi_of(words)
        place = self._place_open_mpi(world_size) if mpi == "Open MPI" else self._place_hydra()
        return [*words, "-n", str(world_size), *place, *program]

    def environ(self):
        """Variables for mpiexec and the ranks: a second limit, should ours not reach it; `ucx`."""
        return {"MPIEXEC_TIMEOUT": str(int(self.time_limit) + 30), **ucx.settings()}

    def start(self, folder):
        """Start the launcher, apart from this kernel: it goes on when the kernel ends."""
        program = [sys.executable, "-I", LAUNCH, "--detached", str(folder.path)]
        subprocess.run(program, stdin=subprocess.DEVNULL, check=True)

    def _place_hydra(self):
        """Options of MPICH and Intel MPI."""
        if self.hosts is not None:
            return ["-ppn", str(self.ranks_per_node), "-hosts", ",".join(self.hosts)]
        if self.hostfile is not None:
            each = ["-ppn", str(self.ranks_per_node)] if self.ranks_per_node > 1 else []
            return [*each, "-f", os.path.abspath(self.hostfile)]
        return []

    def _place_open_mpi(self, world_size):
        options = ["--bind-to", "none"]  # else a rank and its supervisor share one core
        options += ["--allow-run-as-root"] if _is_root() else []
        for name in FORWARDED:
            if name in os.environ:
                options += ["-x", name]
        if self.hostfile is not None:
            return [*options, "--hostfile", os.path.abspath(self.hostfile)]
        if self.hosts is None:
            return [*options, "--host", f"localhost:{world_size}"]
        hosts = ",".join(f"{host}:{self.ranks_per_node}" for host in self.hosts)
        return [*options, "--host", hosts]


def words_of(command):
    """The words of a command, told as one text or as words; it may be run from any folder."""
    words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    return [os.path.abspath(words[0]), *words[1:]] if words and os.sep in words[0] else words


def mpi_of(words):
    """Which MPI an mpiexec belongs to: ``MPICH``, ``Intel MPI`` or ``Open MPI``."""
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
    return name_in(done.stdout + done.stderr, shown)


def name_in(text, shown):
    """The MPI that an answer to ``--version`` names."""
    for mark, name in (
        ("Intel", "Intel MPI"),
        ("HYDRA", "MPICH"),
        ("Open MPI", "Open MPI"),
        ("OpenRTE", "Open MPI"),
        ("PRRTE", "Open MPI"),
    ):
        if mark in text:
            return name
    first = next(iter(text.strip().splitlines()), "nothing")
    raise JobError(
        f"{shown} --version answers {first!r}: it is no mpiexec of MPICH, Intel MPI or Open MPI"
    )


def _is_root():
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidCallError(f"{name}={value!r} must be a whole number from 1")


def check_time_limit(value):
    """Refuse what is no number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidCallError(f"time_limit={value!r} must be a positive number of seconds")
