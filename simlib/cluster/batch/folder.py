"""`JobFolder`: all that is known of a job, in files that every host of it sees.

======================  ====================================================================
``job.json``            what was asked for; never changes
``state.json``          queued, active, ended (`launcher_process` says how)
``request.pkl``         the function, its arguments, the cells of the notebook
``start.py``            what the launcher runs for each rank: a copy of `bootstrap`
``rank.sh``             what runs that, where a shell has to do something before; see `needs`
``launch.json``         what `launcher_process` runs, and for how long at most
``launch.err``          what that one said: nothing, as long as it does not fail
``native.json``         its number in a queue, and whose queue; ``batch.*``: what the batch job said
``meeting.json``        where rank 0 listens, for ranks that have no MPI to tell them
``launcher.out, .err``  what mpiexec or srun said
``rank-0.json``         where rank 0 is: host, process, clock
``rank-0.log``          its op log
``rank-0.out, .err``    what it printed; what native code wrote to stderr
``rank-0.answer``       what its function returned or raised (`answers`)
``rank-0.exit``         how its process ended, and when, where it died
``rank-0.ended``        its process was ended, as all are when the job ends; it had not failed
``verdict.pkl``         the error by which the job was ended: ranks that wait for ever
``refused``             why ranks could not begin or end: the first reason that one of them gave
``rank-0.stack-wanted`` somebody wants to know where rank 0 is; its supervisor takes it away
``beat``                touched by rank 0's supervisor once a second
``gone.json``           where the supervisor of a rank was ended from outside, as ``start.py`` saw
``reach.json``          which hosts answered at the start; ``lost.json``: which do no more
``end``                 somebody has failed: all ranks end soon. ``cancel``: the learner says so
``attempt-1``...        of a job with ``restarts=``: each attempt, a folder like this one
``restarts.pkl``        of such a job: how often it may begin anew, where, and who is to die
======================  ====================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from ..launch.limits import JOBS as JOBS
from . import ownership
from .staging import name_once


class JobFolder:
    """Reads and writes the files of one job; a file is there whole or not at all.

    Nothing is read that another account can have written (`own_folder`), unless the job is a
    *recorded* one. Of that everything is read as plain data, so it may be anybody's.

    Parameters
    ----------
    path : str or Path
    is_recorded : bool
    """

    def __init__(self, path: str | Path, is_recorded: bool = False) -> None:
        self.path = Path(path)
        self.is_recorded = is_recorded
        self._ended = 0

    def file(self, name: str, rank: int | None = None) -> Path:
        """The path of a file: ``file("log", 2)`` is rank 2's."""
        return self.path / (name if rank is None else f"rank-{rank}.{name}")

    def write(self, content: bytes, name: str, rank: int | None = None) -> None:
        """Write bytes in one piece: whoever reads sees all of them, or what was there before."""
        self._write(content, self.file(name, rank), os.replace)

    def write_once(self, content: bytes, name: str) -> None:
        """The same, unless there is such a file already: the first who says something counts."""
        self._write(content, self.file(name), name_once)

    def _write(self, content: bytes, path: Path, put: Callable[[Path, Path], None]) -> None:
        draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        try:
            draft.write_bytes(content)
            put(draft, path)
        except OSError:  # no room, say: what is left of it can go to those who tell of it
            draft.unlink(missing_ok=True)
            raise

    def read(self, name: str, rank: int | None = None) -> bytes | None:
        """The bytes of a file; None where there is none (yet).

        Raises
        ------
        InvalidCallError
            Another account can have written it.
        """
        with self.open(name, rank) as file:
            return None if file is None else file.read()

    def open(self, name: str, rank: int | None = None) -> AbstractContextManager[BinaryIO | None]:
        """The same, opened to be read."""
        return ownership.opened(self.file(name, rank), self.is_recorded)

    def write_json(self, value: object, name: str, rank: int | None = None) -> None:
        """Write plain data in one piece."""
        self.write(json.dumps(value, indent=1).encode(), name, rank)

    def read_json(self, name: str, rank: int | None = None) -> Any:
        """Plain data; None where there is no such file."""
        content = self.read(name, rank)
        return None if content is None else json.loads(content)

    def text(self, name: str, rank: int | None = None) -> str:
        """A file as text; empty where there is none."""
        return (self.read(name, rank) or b"").decode("utf-8", "replace")

    def mark(self, name: str, rank: int | None = None) -> None:
        """Leave a word: ``end`` or ``cancel``."""
        self.file(name, rank).touch()

    def has(self, name: str, rank: int | None = None) -> bool:
        """Whether there is such a file."""
        return _is_there(self.file(name, rank))

    def attempt(self, number: int) -> JobFolder:
        """The folder of an attempt, which need not be there; they count from 1."""
        return JobFolder(self.path / f"attempt-{number}", self.is_recorded)

    def attempts(self) -> list[JobFolder]:
        """The folders of the attempts so far; none but for a job that begins anew when it fails."""
        found: list[JobFolder] = []
        while self.attempt(len(found) + 1).has("job.json"):
            found.append(self.attempt(len(found) + 1))
        return found

    def have_all_ended(self, world_size: int) -> bool:
        """Whether each rank has answered, or died."""
        while self._ended < world_size:  # who has ended is not looked for again
            if not (self.has("answer", self._ended) or self.has("exit", self._ended)):
                return False
            self._ended += 1
        return True


def _is_there(path: Path) -> bool:
    """Whether a file exists, also if another host has just made it.

    NFS remembers for half a minute and more that a file was not there. It asks anew when the folder
    is opened (nfs(5), "close-to-open" and "directory entry caching").
    """
    if path.exists():
        return True
    try:
        os.close(os.open(path.parent, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return path.exists()
