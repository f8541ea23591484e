"""`Resources`: what a program needs on every host before it can begin, by any launcher."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.model.errors import InvalidCallError, check_count
from .batch_scheduler import MEMORY
from .folder import JobFolder

START = "start.py"
RANK = "rank.sh"
NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job's ranks need, whatever starts them.

    Attributes
    ----------
    setup : sequence of str
        Lines of bash, carried out one after the other before Python on every host, once for each
        rank, in a login shell: ``["module load gcc", "conda activate course"]``. One that fails
        ends the job.
    env : dict of str to str
        Variables for the lines of ``setup`` and for the ranks.
    cpus_per_rank : int, optional
        Cores that a queue gives each rank, and threads that torch takes; else one.
    gpus_per_rank : int, optional
        GPUs that there must be for each rank. As under torchrun every rank sees all those of its
        node, and takes its own by ``LOCAL_RANK``.
    memory : str, optional
        What a queue gives each rank: a whole number and K, M, G or T, in powers of 1024 bytes,
        ``"4G"``.
    container : str or sequence of str
        A command that runs the one after it in a container, ``"apptainer exec image.sif"``. This
        Python, simlib and the folders of the job are found there at the same paths.
    working_dir : str, optional
        In which folder the ranks run; else the one in which the job is submitted.
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
                f"memory={self.memory!r} must be a whole number and K, M, G or T, for each rank: "
                "memory='4G' is 4 GiB"
            )

    @property
    def has_script(self) -> bool:
        """Whether a shell has to do something before Python."""
        return bool(self.setup or self.env or self.container)

    def program(self) -> list[str]:
        """What the launcher starts for each rank, up to the file that `write_start` writes.

        A login shell for ``setup``: `module` is a function that the system's start files make.
        """
        if not self.has_script:
            return [sys.executable]
        return ["bash", "-l"] if self.setup else ["sh"]

    def write_start(self, folder: JobFolder) -> Path:
        """Write what is run for each rank into the job's folder; returns the file to start."""
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
        """The folder in which ranks run; ``~`` is each host's own."""
        if self.working_dir is None:
            return here
        path = str(self.working_dir)
        return path if path.startswith("~") else os.path.join(here, path)

    def threads(self) -> int:
        """How many threads torch takes in each rank."""
        return self.cpus_per_rank or 1


REFUSE = """\
host=$(uname -n)
refuse() {  # say why there can be no rank here, and have the others end, if they do not already
    [ -e "$folder/end" ] && exit 1
    draft=$folder/.refused.$host.$$
    if printf '%s %s' "$host" "$1" > "$draft"; then
        ln "$draft" "$folder/refused" 2> /dev/null || [ -e "$folder/refused" ] ||
            mv "$draft" "$folder/refused"  # a filesystem without links
    fi
    rm -f "$draft"
    : > "$folder/end"
    exit 1
}"""
"""As `bootstrap` does it: the first reason stays, since `ln` replaces nothing."""

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
    words=${words:-it said nothing}
    refuse "could not carry out the line '$line' of setup (exit code $code): $words"
}
left() {  # somebody ends this from outside: it is no reason of its own
    trap - EXIT
    rm -f "$said"
    exit 1
}
trap failed EXIT
trap left HUP INT TERM"""
"""The first trap, since a line may end the shell itself."""

SET_UP = """\
trap - EXIT HUP INT TERM
rm -f "$said\""""

CONTAINER = """\
command -v {program} > /dev/null || refuse "has no command "{program}", which container= names"\
"""


def words_of(command: str | Sequence[str | Path], name: str = "command") -> list[str]:
    """The words of a command, given as one text or as words; it may be run from any folder.

    Raises
    ------
    InvalidCallError
        It is neither; ``name`` says what it was given as.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    except (TypeError, ValueError) as error:
        raise InvalidCallError(
            f"{name}={command!r} must be a command, one text as a shell takes it or a list of its "
            f"words ({error})"
        ) from None
    return [os.path.abspath(words[0]), *words[1:]] if words and os.sep in words[0] else words


def _check_setup(setup):
    if isinstance(setup, str):
        raise InvalidCallError(f"setup={setup!r} must be a list of lines: setup=[{setup!r}]")
    for line in setup:
        if not isinstance(line, str) or not line.strip():
            raise InvalidCallError(f"setup has {line!r}, which is no line of a shell")


def _check_env(env):
    if not isinstance(env, Mapping):
        raise InvalidCallError(f"env={env!r} must be a dict: env={{'NAME': 'value'}}")
    for name, value in env.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidCallError(f"env has the name {name!r}: a variable's is letters, digits, _")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidCallError(f"env[{name!r}]={value!r} must be a str: {str(value)!r}")
