"""`Mpiexec`: the mpiexec of any MPI starts the ranks, on this machine or on other hosts.

`Resources` describes what a program needs on every host before it can begin. All launchers use it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from ...core.environment import VERSION
from ...core.model.errors import InvalidCallError, JobError, check_count
from ...core.record.oplog import COMMITTED, HEADER
from ..launchers import MPIS, Launcher, Placement, check_name, hosts_in, mpi_of_version, refuse_text
from . import launcher_process, staging
from .bootstrap import UNWRITTEN
from .folder import JobFolder

START = "start.py"
RANK = "rank.sh"
MEMORY = re.compile(r"([1-9]\d*)([KMGT])")
NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the ranks of a job need. The fields are the same for all launchers.

    Attributes
    ----------
    setup : sequence of str
        Lines of bash, for example ``["module load gcc", "conda activate course"]``. A login shell
        runs them one after the other before Python, on every host and once for each rank. If a
        line fails, the job ends.
    env : dict of str to str
        Variables for the lines of ``setup`` and for the ranks.
    cpus_per_rank : int, optional
        The number of cores that a queue gives each rank, and the number of threads that torch uses.
        The default is one.
    gpus_per_rank : int, optional
        The number of GPUs that each rank needs. As under torchrun, every rank sees all GPUs of its
        node, and uses ``LOCAL_RANK`` to choose its own GPU.
    memory : str, optional
        The memory that a queue gives each rank, for example ``"4G"``: a whole number and one of K,
        M, G and T. These letters mean powers of 1024 bytes.
    container : str or sequence of str
        A command that runs another command in a container. simlib puts it before the command of
        each rank, for example ``"apptainer exec image.sif"``. This Python, simlib and the folders
        of the job must have the same paths in the container.
    working_dir : str, optional
        The folder in which the ranks run. The default is the folder in which you submit the job.
    """

    setup: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    memory: str | None = None
    container: str | Sequence[str | Path] = ()
    working_dir: str | Path | None = None

    def __post_init__(self) -> None:
        _check_setup(self.setup)
        _check_env(self.env)
        words_of(self.container, "container")
        for name in ("cpus_per_rank", "gpus_per_rank"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if self.memory is not None and not MEMORY.fullmatch(str(self.memory)):
            raise InvalidCallError(
                f"memory={self.memory!r} must be a whole number followed by K, M, G or T: "
                "memory='4G' gives each rank 4 GiB"
            )

    @property
    def has_script(self) -> bool:
        """Whether a shell has to run lines before Python."""
        return bool(self.setup or self.env or self.container)

    def program(self) -> list[str]:
        """The command that the launcher starts for each rank, without the file of `write_start`.

        ``setup`` needs a login shell: the system's start files define the function `module`.
        """
        if not self.has_script:
            return [sys.executable]
        return ["bash", "-l"] if self.setup else ["sh"]

    def write_start(self, folder: JobFolder) -> Path:
        """Write the file to start for each rank into the job's folder; returns its path."""
        start = folder.file(START)
        folder.write(Path(__file__).with_name("bootstrap.py").read_bytes(), START)
        if not self.has_script:
            return start
        folder.write(self._script(folder, start).encode(), RANK)
        return folder.file(RANK)

    def _script(self, folder: JobFolder, start: Path) -> str:
        container = words_of(self.container)
        parts = [f"folder={shlex.quote(str(folder.path))}", REFUSE]
        parts += [f"export {name}={shlex.quote(str(value))}" for name, value in self.env.items()]
        if self.setup:
            parts += [SETUP, *(f"setup {shlex.quote(line)}" for line in self.setup), SET_UP]
        if container:
            parts.append(CONTAINER.format(program=shlex.quote(container[0])))
        parts.append("exec " + shlex.join([*container, sys.executable, str(start)]))
        return "\n".join(parts) + "\n"

    def cwd(self, here: str) -> str:
        """The folder in which ranks run. In it, ``~`` means the home folder of each host."""
        if self.working_dir is None:
            return here
        path = str(self.working_dir)
        return path if path.startswith("~") else os.path.join(here, path)

    def threads(self) -> int:
        """How many threads torch uses in each rank."""
        return self.cpus_per_rank or 1


REFUSE = """\
host=$(uname -n)
refuse() {  # say why there can be no rank here, and have the others end, if they do not already
    [ -e "$folder/end" ] && exit 1
    draft=$folder/.refused.$host.$$
    if printf '%s %s' "$host" "$1" > "$draft"; then
        ln "$draft" "$folder/refused" 2> /dev/null || [ -e "$folder/refused" ] ||
            mv "$draft" "$folder/refused"  # a filesystem without links
    else
        printf 'UNWRITTEN%s %s\\n' "$host" "$1" >&2
    fi
    rm -f "$draft"
    : > "$folder/end"
    exit 1
}""".replace("UNWRITTEN", UNWRITTEN)
"""Stores a reason, as `bootstrap` does. The first reason stays, because `ln` replaces no file."""

SETUP = """\
said=$(mktemp)
line=
conda() {  # it need not be there yet; activating needs more of it than the program
    unset -f conda
    eval "$(command conda shell.bash hook)"
    conda "$@"
}
setup() {
    line=$1
    eval "$line" > "$said" 2>&1 || exit
}
failed() {
    code=$?
    words=$(tail -n 3 "$said" | tr -s '[:space:]' ' ' | cut -c -300)
    rm -f "$said"
    words=${words% }
    words=${words:-the line printed nothing}
    refuse "could not carry out the line '$line' of setup (exit code $code): $words"
}
left() {  # somebody ends this from outside: it is no reason of its own
    trap - EXIT
    rm -f "$said"
    exit 1
}
trap failed EXIT
trap left HUP INT TERM"""
"""The first trap of the script. It is necessary because a line of ``setup`` may end the shell."""

SET_UP = """\
trap - EXIT HUP INT TERM
rm -f "$said\""""

CONTAINER = """\
command -v {program} > /dev/null || refuse "has no command "{program}", which container= names"\
"""


def words_of(command: str | Sequence[str | Path], name: str = "command") -> list[str]:
    """The words of a command, from one text or from words. The command works from any folder.

    Raises
    ------
    InvalidCallError
        The command is neither text nor words. The error calls the command by ``name``.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    except (TypeError, ValueError) as error:
        raise InvalidCallError(
            f"{name}={command!r} must be a command: one string, as in a shell, or a list of "
            f"strings ({error})"
        ) from None
    return [os.path.abspath(words[0]), *words[1:]] if words and os.sep in words[0] else words


def _check_setup(setup):
    if isinstance(setup, str):
        raise InvalidCallError(f"setup={setup!r} must be a list of lines: setup=[{setup!r}]")
    for line in setup:
        if not isinstance(line, str) or not line.strip():
            raise InvalidCallError(f"setup has {line!r}, which is not a line of shell code")


def _check_env(env):
    if not isinstance(env, Mapping):
        raise InvalidCallError(f"env={env!r} must be a dict: env={{'NAME': 'value'}}")
    for name, value in env.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidCallError(f"env has the name {name!r}: use only letters, digits and _")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidCallError(f"env[{name!r}]={value!r} must be a str: {str(value)!r}")


VERSION_LIMIT_S = 20
LAUNCH = str(Path(launcher_process.__file__).resolve())
STAGING = str(Path(staging.__file__).resolve())


@dataclass(frozen=True)
class Mpiexec(Resources):
    """Run a job whose ranks mpiexec starts.

    Attributes
    ----------
    hosts : list of str, optional
        Names of the hosts, which ssh reaches without a password. Without hosts, the job runs on
        this machine.
    ranks_per_node : int
        The number of ranks on each host.
    hostfile : str, optional
        A file that replaces ``hosts``. It has a host on each line, in the form that your MPI uses.
        The file may also contain the number of ranks for each host. If ``ranks_per_node`` is 2 or
        more, simlib uses ``ranks_per_node`` instead. simlib reads the file when you create the
        `Mpiexec`.
    launcher : str or list of str, optional
        The command to use as mpiexec. The default is the mpiexec in the folder of this Python, or
        else the mpiexec on the PATH.
    time_limit : float
        simlib ends the job after this many seconds, even if the job still makes progress.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank
        See `Resources`. mpiexec assigns no cores and no GPUs to ranks. If a host has too few GPUs,
        simlib raises an error.
    stage : bool
        True for hosts that share no filesystem. Each host gets a copy of the job's folder, at the
        same path, and simlib copies back the files that its ranks write. The environment must have
        the same path on all hosts.
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
                f"memory={self.memory!r}: mpiexec cannot limit memory, only a queue can "
                "(simlib.Slurm, simlib.Pbs)"
            )
        refuse_text(self.hosts)
        if self.hosts is not None and self.hostfile is not None:
            raise InvalidCallError("name the hosts with hosts= or with hostfile=, not with both")
        check_count("ranks_per_node", self.ranks_per_node)
        check_time_limit(self.time_limit)
        words_of(self.launcher or (), "launcher")
        object.__setattr__(self, "slots", self._slots())
        if self.stage and self.slots is None:
            raise InvalidCallError("stage=True copies the job to hosts: name them with hosts=[...]")

    def _slots(self) -> tuple[tuple[str, int], ...] | None:
        """The hosts, with the number of ranks on each; None for this machine."""
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
        """A text that says where the ranks run."""
        if self.hostfile is not None:
            return f"the hosts in {self.hostfile}"
        return "this machine" if self.hosts is None else ", ".join(self.hosts)

    def check(self, world_size: int) -> None:
        """Refuse more ranks than the hosts have room for."""
        if self.slots is None or world_size <= sum(count for _, count in self.slots):
            return
        where = f"{len(self.slots)} hosts with ranks_per_node={self.ranks_per_node}"
        if self.hostfile is not None:
            counts = ", ".join(f"{host}:{count}" for host, count in self.slots)
            where = f"the hosts in {self.hostfile} ({counts})"
        raise InvalidCallError(
            f"world_size={world_size} does not fit on {where}: give more hosts, or more ranks per "
            "node"
        )

    def words(self) -> list[str]:
        """The command to use as mpiexec."""
        if self.launcher:
            return words_of(self.launcher)
        beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        found = beside if os.path.exists(beside) else shutil.which("mpiexec")
        if found is None:
            raise JobError(
                "there is no mpiexec on this machine: "
                'pip install "rank-by-rank[cluster]" brings one, '
                "or name yours by simlib.Mpiexec(launcher=...)"
            )
        return [found]

    def before_launcher(self) -> list[str]:
        """Return the words of the command that stand before ``mpiexec``. They name a program that
        starts mpiexec on the same machine."""
        words = self.words()
        names = [os.path.basename(word) for word in words]
        first = next((at for at, name in enumerate(names) if re.match("mpi(exec|run)", name)), 0)
        return words[:first]

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """Return the whole command that runs ``program`` on every rank."""
        words = self.words()
        at = Placement(world_size, self.ranks_per_node, self.slots)
        command = [*words, "-n", str(world_size), *mpi_of(words).place(at), *program]
        return staged(command, [host for host, _ in self.slots or ()]) if self.stage else command

    def environ(self) -> dict[str, str]:
        """Environment variables for mpiexec and the ranks. Each MPI reads only its own
        variables."""
        found = {}
        for mpi in MPIS:
            found.update(mpi.environ(self.time_limit))
        return found

    def start(self, folder: JobFolder) -> None:
        """Start the launcher in a session of its own, so that it continues when the notebook ends.

        The launcher inherits no files from the caller. Otherwise a program that reads the caller's
        output by a pipe would wait for the end of the job.
        """
        program = [sys.executable, "-I", LAUNCH, "--detached", str(folder.path)]
        with open(folder.file("launch.err"), "wb") as said:
            subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=True
            )  # fmt: skip


def staged(command: list[str], hosts: Sequence[str] | None = None) -> list[str]:
    """A launcher's command, run by `staging`. By default, the hosts are the hosts of a Slurm
    job."""
    plan = {"hosts": hosts, "python": sys.executable, "log": [HEADER, COMMITTED]}
    return [sys.executable, "-I", STAGING, json.dumps(plan), *command]


def mpi_of(words: list[str]) -> Launcher:
    """The MPI to which an mpiexec belongs."""
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
            f"{shown} --version answers {first!r}: it is not an mpiexec of {', '.join(names)} or "
            f"{last}"
        )
    return mpi


def check_time_limit(value: object) -> None:
    """Refuse a value that is not a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidCallError(f"time_limit={value!r} must be a positive number of seconds")


def versions() -> dict[str, str | None]:
    """``{name: version}`` of all packages on which functions and results depend; None if
    missing."""
    import torch  # here alone: the command line asks for places before torch is loaded

    try:
        mpi4py = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        mpi4py = None

    return {
        "Python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "simlib": VERSION,
        "mpi4py": mpi4py,
    }


def check_versions(wanted: dict[str, str | None]) -> None:
    """Refuse to run a rank if this node has other versions than the notebook.

    Python's minor version must be the same, because functions travel as bytecode. The version of
    mpi4py may differ, because only some launchers need mpi4py.
    """
    here = versions()
    for name in ("Python", "torch", "simlib"):
        version = wanted[name]
        parts = 2 if name == "Python" else 3
        if (here[name] or "").split(".")[:parts] != (version or "").split(".")[:parts]:
            raise JobError(
                f"{os.uname().nodename} runs {sys.executable} with {name} {here[name]}, but the "
                f"notebook has {version}: install the same version on every node"
            )
