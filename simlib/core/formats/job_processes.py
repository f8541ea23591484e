"""Find the ranks of a job that torchrun has started on this host, by their processes' environment.

Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
MOST_RANKS, MOST_PORT, MOST_DIGITS = 1 << 16, 65535, 5
SAID_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that every rank of torchrun has."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process of a job: its start time, in the host's ticks, and its environment."""

    pid: int
    parent: int
    started: int
    environ: dict[str, str]

    @property
    def rank(self) -> int:
        return int(self.environ["RANK"])

    def file(self, path: str) -> Path:
        """A path as this process sees it."""
        return PROC / str(self.pid) / "cwd" / path  # which an absolute path replaces

    @property
    def job(self) -> tuple[str, str, str]:
        """A key that is the same for all ranks of a job, and differs between jobs."""
        run_id = self.environ.get("TORCHELASTIC_RUN_ID", "")
        return self.environ["MASTER_ADDR"], self.environ["MASTER_PORT"], run_id


@dataclass(slots=True)
class LiveJob:
    """The ranks of one job that live on this host.

    Attributes
    ----------
    address : tuple of (str, int)
        Host and port of the store in which its ranks have found each other.
    world_size : int
        The number of ranks of the whole job.
    ranks : dict of int to RankProcess
        The ranks on this host.
    """

    address: tuple[str, int]
    world_size: int
    ranks: dict[int, RankProcess] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """The process id of torchrun, or of the first rank if torchrun is gone."""
        first = self.ranks[min(self.ranks)]
        return first.parent if first.parent > 1 else first.pid

    def __str__(self) -> str:
        return f"job {self.pid} ({len(self.ranks)} of {self.world_size} ranks are on this host)"


def find_job(pid: int | None = None) -> LiveJob:
    """Find the ranks of this user's only job on this host.

    Parameters
    ----------
    pid : int or None
        The process id of torchrun, of a rank, or of a process above or below these. It may be None
        if the user has only one job.

    Raises
    ------
    ValueError
        The user has no such job, or several jobs. The message lists them.
    """
    if not sys.platform.startswith("linux"):
        raise ValueError(
            "simlib finds the ranks of a running job through /proc, which only Linux has"
        )
    jobs = _jobs()
    if pid is not None:
        if not (PROC / str(pid)).exists():
            raise ValueError(f"there is no process {pid} on this host")
        jobs = [job for job in jobs if _is_about(job, pid)]
        if not jobs:
            raise ValueError(
                f"process {pid} is neither a torchrun whose ranks are alive nor a rank of this "
                "user: give `simlib diagnose --job` without a number, and simlib finds the job"
            )
    if not jobs:
        raise ValueError(
            f"no process of this user has {', '.join(SAID_BY_TORCHRUN[:-1])} and "
            f"{SAID_BY_TORCHRUN[-1]} in its environment. Is the job on this host, and did "
            "torchrun start the job?"
        )
    if len(jobs) > 1:
        raise ValueError(
            f"several jobs run on this host: {'; '.join(map(str, jobs))}. Give the number of one "
            f"job, for example --job {jobs[0].pid}"
        )
    return jobs[0]


def _jobs() -> list[LiveJob]:
    """All jobs of this user."""
    processes = [one for one in map(_read, _own_pids()) if one is not None]
    jobs: dict[tuple[str, str, str], LiveJob] = {}
    for process in sorted(processes, key=_order(processes)):
        host, port, _ = process.job
        size = int(process.environ["WORLD_SIZE"])
        job = jobs.setdefault(process.job, LiveJob((host, int(port)), size))
        job.ranks.setdefault(process.rank, process)
    return list(jobs.values())


def _order(processes: list[RankProcess]) -> Callable[[RankProcess], tuple[int, int, int]]:
    """A key for sorting: first the children of torchrun, and of these the oldest.

    All processes that a rank starts inherit its environment: data loaders, and helpers that still
    run when the rank has ended. torchrun itself is not a rank. It has more ranks below it than any
    other process.
    """
    own = {one.pid for one in processes}
    below: dict[int, set[tuple]] = defaultdict(set)
    for one in processes:
        if one.parent > 1 and one.parent not in own:
            below[one.parent].add((one.job, one.rank))
    return lambda one: (-len(below[one.parent]), one.started, one.pid)


def _own_pids() -> list[int]:
    own = []
    for name in sorted(filter(str.isdecimal, os.listdir(PROC)), key=int):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.stat(PROC / name).st_uid == os.getuid() and int(name) != os.getpid():
                own.append(int(name))
    return own


def _read(pid: int) -> RankProcess | None:
    """A `RankProcess` of any job, or None for other processes."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
        parent, started = _parent_and_start(pid)
    except OSError:
        return None
    pairs = (item.partition("=") for item in os.fsdecode(data).split("\0"))
    environ = {name: value for name, _, value in pairs}
    numbers = [environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    if not all(name in environ for name in SAID_BY_TORCHRUN):
        return None
    if not all(text.isdecimal() and len(text) <= MOST_DIGITS for text in numbers):
        return None
    rank, size, port = map(int, numbers)
    if not (rank < size <= MOST_RANKS and port <= MOST_PORT):
        return None
    return RankProcess(pid, parent, started, environ)


def _parent_and_start(pid: int) -> tuple[int, int]:
    """The parent of a process (0 if it has none), and the start time of the process."""
    words = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(words[1]), int(words[19])


def _line(pid: int) -> list[int]:
    """A process, its parent, and all further ancestors."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        try:
            pid = _parent_and_start(pid)[0]
        except OSError:
            break
    return line


def _is_about(job: LiveJob, pid: int) -> bool:
    above = _line(pid)
    return any(rank.pid in above or pid in _line(rank.pid) for rank in job.ranks.values())
