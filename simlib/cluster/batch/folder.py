"""`JobFolder` keeps all facts about a job in files that every host of the job sees.

======================  ====================================================================
``job.json``            what was asked for; never changes
``state.json``          queued, active or ended, see `launcher_process`
``request.pkl``         the function, its arguments, the cells of the notebook
``start.py``            a copy of `bootstrap`, which the launcher runs for each rank
``rank.sh``             runs it, if a shell has to do something before; see `Resources`
``launch.json``         the command of `launcher_process`, and its time limit
``launch.err``          errors of `launcher_process`; empty while it does not fail
``native.json``         its number in a queue, and the queue; ``batch.*``: the batch job's output
``meeting.json``        the address of rank 0, for ranks without MPI
``launcher.out, .err``  the output of mpiexec or srun
``rank-0.json``         the place of rank 0: host, process, clock
``rank-0.log``          its op log
``rank-0.out, .err``    its output; what native code wrote to stderr
``rank-0.answer``       its function's result or exception (see `logs`)
``rank-0.exit``         how and when its process died
``rank-0.ended``        its process was ended with the job; it had not failed
``verdict.pkl``         the error that ended the job: ranks that wait for ever
``refused``             why ranks could not begin or end: the first reason from a rank
``rank-0.stack-wanted`` a request for the stack of rank 0; its supervisor removes it
``beat``                touched by rank 0's supervisor once a second
``gone.json``           ranks whose supervisor was ended from outside, from ``start.py``
``reach.json``          hosts that answered at the start; ``lost.json``: lost ones among them
``waiting.json``        which rank waits for which, after a third of ``timeout_s``
``mute.json``           hosts with a silent ssh server, if the job could not begin
``end``                 all ranks must end: one has failed. ``cancel``: the learner ended it
``attempt-1``...        of a job with ``restarts=``: each attempt, a folder like this one
``restarts.pkl``        of such a job: the number of restarts, the launcher, the deaths
======================  ====================================================================
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ...core.model.errors import InvalidCallError, JobError
from .staging import name_once

JOBS = "simlib-jobs"
"""The folder for the folders of jobs, if the call names no other."""


class GoneError(JobError):
    """Somebody has deleted the job's folder, or a file that every job needs."""


class JobFolder:
    """Reads and writes the files of one job. A file exists as a whole or not at all.

    simlib reads no file that another account may have written (see `_check`). A *recorded* job may
    belong to any account, because simlib reads it as plain data.

    Parameters
    ----------
    path : str or Path
    is_recorded : bool
    """

    def __init__(self, path: str | Path, is_recorded: bool = False) -> None:
        self.path = Path(path)
        self.is_recorded = is_recorded
        self._ended = 0
        self._checked: tuple[int, ...] = ()

    def file(self, name: str, rank: int | None = None) -> Path:
        """Return the path of a file. ``file("log", 2)`` is the path of rank 2's log."""
        return self.path / (name if rank is None else f"rank-{rank}.{name}")

    def write(self, content: bytes, name: str, rank: int | None = None) -> None:
        """Write a file in one step. A reader sees either the whole new file or the old one."""
        self._write(content, self.file(name, rank), os.replace)

    def write_once(self, content: bytes, name: str) -> None:
        """Write a file as `write` does, but only if it does not exist yet. So the first writer
        wins."""
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
        """Return the bytes of a file; None if the file does not exist (yet).

        Raises
        ------
        InvalidCallError
            Another account may have written the folder.
        """
        file = self.open(name, rank)
        if file is None:
            return None
        with file:
            return file.read()

    def open(self, name: str, rank: int | None = None) -> BinaryIO | None:
        """Open a file for reading; returns None if the file does not exist (yet).

        The folder is opened again each time, so that a file which another host has just made is
        found. NFS asks the server when a folder is opened. Otherwise NFS remembers for half a
        minute or longer that a file was missing (nfs(5), "close-to-open" and "directory entry
        caching"). simlib opens the file through the folder's descriptor. So nobody can replace the
        folder in between.
        """
        path = self.file(name, rank)
        folder = _opened(self.path, os.O_DIRECTORY)
        if folder is None:
            return None
        try:
            file = _opened(path, os.O_NONBLOCK, folder)  # a pipe would wait for who writes
            if file is None:
                return None
            try:
                self._check(path, os.fstat(folder), os.fstat(file))
            except BaseException:
                os.close(file)
                raise
            return open(file, "rb")
        finally:
            os.close(folder)

    def _check(self, path: Path, folder: os.stat_result, file: os.stat_result) -> None:
        """Refuse a file that another account can have written.

        In a folder that only this account can enter, a file may have any mode. simlib checks a
        folder again only if the path leads to another folder than before, or if the folder's owner
        or mode has changed.
        """
        if not self.is_recorded:
            found = (folder.st_dev, folder.st_ino, folder.st_uid, folder.st_mode)
            if found != self._checked:
                _check_owner(self.path, folder)
                _check_mode(self.path, folder)
                self._checked = found
            if file.st_uid != folder.st_uid:
                _check_owner(path, file)
            if folder.st_mode & ENTERED and file.st_mode & BY_OTHERS:
                _check_mode(path, file)
        if not stat.S_ISREG(file.st_mode):
            raise InvalidCallError(
                f"{path} cannot be read as a file of a job: it is not a regular file"
            )

    def write_json(self, value: object, name: str, rank: int | None = None) -> None:
        """Write plain data as JSON, in one step."""
        self.write(json.dumps(value, indent=1).encode(), name, rank)

    def read_json(self, name: str, rank: int | None = None) -> Any:
        """Return the plain data of a JSON file; None if there is no such file."""
        content = self.read(name, rank)
        return None if content is None else json.loads(content)

    def need(self, name: str) -> bytes:
        """Return the bytes of a file that every job needs.

        Raises
        ------
        GoneError
            Somebody has deleted the folder.
        """
        content = self.read(name)
        if content is None:
            raise GoneError(
                f"{self.path.name} no longer exists: somebody deleted its folder {self.path}, or "
                f"the file {name} in it. The job's ranks end by themselves. Submit the job again"
            )
        return content

    def about(self) -> Any:
        """Return the contents of ``job.json``. If the file is deleted, raise a `GoneError`."""
        return json.loads(self.need("job.json"))

    def text(self, name: str, rank: int | None = None) -> str:
        """Return a file as text; empty if there is no such file."""
        return (self.read(name, rank) or b"").decode("utf-8", "replace")

    def mark(self, name: str, rank: int | None = None) -> None:
        """Create an empty file as a signal to other processes: ``end`` or ``cancel``."""
        self.file(name, rank).touch()

    def has(self, name: str, rank: int | None = None) -> bool:
        """Whether such a file exists."""
        return _is_there(self.file(name, rank))

    def attempt(self, number: int) -> JobFolder:
        """Return the folder of an attempt, which may not exist yet. The first attempt has number
        1."""
        return JobFolder(self.path / f"attempt-{number}", self.is_recorded)

    def attempts(self) -> list[JobFolder]:
        """Return the folders of all attempts so far; empty for a job without restarts."""
        found: list[JobFolder] = []
        while self.attempt(len(found) + 1).has("job.json"):
            found.append(self.attempt(len(found) + 1))
        return found

    def have_all_ended(self, world_size: int) -> bool:
        """Whether each rank has returned its answer or has died."""
        while self._ended < world_size:  # who has ended is not looked for again
            if not (self.has("answer", self._ended) or self.has("exit", self._ended)):
                return False
            self._ended += 1
        return True


def _is_there(path: Path) -> bool:
    """Whether a file exists, even if another host has created it only a moment ago.

    NFS remembers for half a minute or longer that a file was missing. It asks the server again when
    the folder is opened (nfs(5), "close-to-open" and "directory entry caching").
    """
    if path.exists():
        return True
    try:
        os.close(os.open(path.parent, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return path.exists()


BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ENTERED = stat.S_IXGRP | stat.S_IXOTH


def _opened(path: Path, how: int, within: int | None = None) -> int | None:
    """Open a file or folder and return its descriptor; None if the path does not exist."""
    name = path if within is None else path.name
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | how, dir_fd=within)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise
    except OSError as error:  # of a socket, say
        raise InvalidCallError(
            f"{path} cannot be read as a file of a job: {error.strerror}"
        ) from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidCallError(
            f"{path} belongs to {_name(found.st_uid)}, but this account is {_name(os.geteuid())}. "
            "Reading a job runs code from the job's folder. So only the account that submitted "
            "the job can read it"
        )


def _check_mode(path: Path, found: os.stat_result) -> None:
    if found.st_mode & BY_OTHERS:
        raise InvalidCallError(
            f"{path} can be written by other accounts (mode {stat.S_IMODE(found.st_mode):o}), and "
            "reading a job runs code from the job's folder: if no other account has written "
            f"there, run `chmod go-w {path}`"
        )


def check_folder(path: Path) -> None:
    """Refuse a folder that belongs to another account, or to which another account can write.

    Raises
    ------
    InvalidCallError
    """
    found = path.stat()
    _check_owner(path, found)
    _check_mode(path, found)


def check_place(parent: Path) -> None:
    """Refuse to make a job's folder in a place where other accounts could replace it.

    Raises
    ------
    InvalidCallError
    """
    for path in (parent, *parent.parents):
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise InvalidCallError(
                f"any account can create folders in {path} (mode {stat.S_IMODE(mode):o}), so "
                "another account could replace the job's folder: name another folder with "
                "folder=..."
            )


def _name(uid: int) -> str:
    """Return words for an account: its name, or its number if this machine knows no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"


class TakenError(JobError):
    """A file or folder with exactly this name exists already."""


@contextmanager
def new_folder(within: str | Path, name: str, is_exact: bool = False) -> Iterator[JobFolder]:
    """Create a folder NAME-NUMBER. Only this account may read it, because it contains the learner's
    data.

    With ``is_exact``, the folder is called NAME. If simlib cannot make or fill the folder, for
    example because the disk is full, simlib removes the folder, and also the folder around it if
    simlib made that one too.

    Raises
    ------
    JobError
        simlib cannot make or fill the folder. If the exact name is taken, the error is a
        `TakenError`.
    InvalidCallError
        Other accounts could replace the folder.
    """
    parent = Path(within).absolute()
    is_new = not parent.exists()
    path = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        check_place(parent)
        path = _make(parent, name, is_exact)
        check_folder(path)
        yield JobFolder(path)
    except BaseException as error:
        if isinstance(error, JobError):  # a queue's, say: the folder tells of it
            raise
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise JobError(
                f"a folder for the job cannot be made and filled in {parent} "
                f"({error.strerror or error}): free some space there, or name another folder with "
                "folder=..."
            ) from None
        raise


def _make(parent: Path, name: str, is_exact: bool) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    names = [name] if is_exact else (f"{safe}-{number}" for number in itertools.count(1))
    for one in names:
        with suppress(FileExistsError):
            os.mkdir(parent / one, 0o700)
            return parent / one
    raise TakenError(f"{parent / name} already exists")
