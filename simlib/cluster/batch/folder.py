"""`JobFolder`: all that is known of a job, in files that every host of it sees.

======================  ====================================================================
``job.json``            what was asked for; never changes
``state.json``          queued, active, ended (`launcher_process` says how)
``request.pkl``         the function, its arguments, the cells of the notebook
``start.py``            what the launcher runs for each rank: a copy of `bootstrap`
``rank.sh``             what runs that, where a shell has to do something before; see `Resources`
``launch.json``         what `launcher_process` runs, and for how long at most
``launch.err``          what that one said: nothing, as long as it does not fail
``native.json``         its number in a queue, and whose queue; ``batch.*``: what the batch job said
``meeting.json``        where rank 0 listens, for ranks that have no MPI to tell them
``launcher.out, .err``  what mpiexec or srun said
``rank-0.json``         where rank 0 is: host, process, clock
``rank-0.log``          its op log
``rank-0.out, .err``    what it printed; what native code wrote to stderr
``rank-0.answer``       what its function returned or raised (see `logs`)
``rank-0.exit``         how its process ended, and when, where it died
``rank-0.ended``        its process was ended, as all are when the job ends; it had not failed
``verdict.pkl``         the error by which the job was ended: ranks that wait for ever
``refused``             why ranks could not begin or end: the first reason that one of them gave
``rank-0.stack-wanted`` somebody wants to know where rank 0 is; its supervisor takes it away
``beat``                touched by rank 0's supervisor once a second
``gone.json``           where the supervisor of a rank was ended from outside, as ``start.py`` saw
``reach.json``          which hosts answered at the start; ``lost.json``: which do no more
``waiting.json``        who waits for whom, where nothing has moved for a third of ``timeout_s``
``mute.json``           hosts whose ssh server says nothing, where the job could not begin
``end``                 somebody has failed: all ranks end soon. ``cancel``: the learner says so
``attempt-1``...        of a job with ``restarts=``: each attempt, a folder like this one
``restarts.pkl``        of such a job: how often it may begin anew, where, and who is to die
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
"""Where the folders of jobs are made, unless another place is named."""


class GoneError(JobError):
    """Somebody has deleted the job's folder, or what each job has in it."""


class JobFolder:
    """Reads and writes the files of one job; a file is there whole or not at all.

    Nothing is read that another account can have written (see `_check`), unless the job is a
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
        self._checked: tuple[int, ...] = ()

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
        file = self.open(name, rank)
        if file is None:
            return None
        with file:
            return file.read()

    def open(self, name: str, rank: int | None = None) -> BinaryIO | None:
        """The same, opened to be read.

        The folder is opened anew each time. So a file that another host has just made is there,
        too: NFS asks then, and else remembers for half a minute and more that it was not (nfs(5),
        "close-to-open" and "directory entry caching"). The file is opened by that descriptor:
        nothing can be put into the folder's place in between.
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
        """Refuse a file that somebody else can have written.

        In a folder that nobody else can enter a file may have any mode. A folder is checked again
        only where it is another one than before, or its owner or mode has changed.
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
                f"{path} cannot be read, as a job's file: it is not a regular file"
            )

    def write_json(self, value: object, name: str, rank: int | None = None) -> None:
        """Write plain data in one piece."""
        self.write(json.dumps(value, indent=1).encode(), name, rank)

    def read_json(self, name: str, rank: int | None = None) -> Any:
        """Plain data; None where there is no such file."""
        content = self.read(name, rank)
        return None if content is None else json.loads(content)

    def need(self, name: str) -> bytes:
        """The bytes of a file that each job has.

        Raises
        ------
        GoneError
            Somebody has deleted it.
        """
        content = self.read(name)
        if content is None:
            raise GoneError(
                f"{self.path.name} is gone: somebody has deleted its folder {self.path}, or the "
                f"file {name} in it. Its ranks end by themselves; submit it again"
            )
        return content

    def about(self) -> Any:
        """What ``job.json`` says; a `GoneError` where it is deleted."""
        return json.loads(self.need("job.json"))

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


BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ENTERED = stat.S_IXGRP | stat.S_IXOTH


def _opened(path: Path, how: int, within: int | None = None) -> int | None:
    """A descriptor of what is there; None where there is nothing."""
    name = path if within is None else path.name
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | how, dir_fd=within)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise
    except OSError as error:  # of a socket, say
        raise InvalidCallError(
            f"{path} cannot be read, as a job's file: {error.strerror}"
        ) from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidCallError(
            f"{path} belongs to {_name(found.st_uid)}, and this account is "
            f"{_name(os.geteuid())}: a job is read by who has submitted it, since reading it runs "
            "what was put there"
        )


def _check_mode(path: Path, found: os.stat_result) -> None:
    if found.st_mode & BY_OTHERS:
        raise InvalidCallError(
            f"{path} can be written by other accounts (mode {stat.S_IMODE(found.st_mode):o}), and "
            "reading a job runs what was put there: if nobody else has written there, say "
            f"`chmod go-w {path}`"
        )


def check_folder(path: Path) -> None:
    """Refuse a folder in which another account can write, or that belongs to one.

    Raises
    ------
    InvalidCallError
    """
    found = path.stat()
    _check_owner(path, found)
    _check_mode(path, found)


def check_place(parent: Path) -> None:
    """Refuse to make a job's folder where any account could put another into its place.

    Raises
    ------
    InvalidCallError
    """
    for path in (parent, *parent.parents):
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise InvalidCallError(
                f"any account can put other folders into {path} (mode {stat.S_IMODE(mode):o}), "
                "also in place of the job's, and what it starts is there: name another folder by "
                "folder=..."
            )


def _name(uid: int) -> str:
    """An account by name, where it has one here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"


class TakenError(JobError):
    """There is already something of this very name."""


@contextmanager
def new_folder(within: str | Path, name: str, is_exact: bool = False) -> Iterator[JobFolder]:
    """A new folder NAME-NUMBER, which this account alone may read: it holds the learner's data.

    With ``is_exact`` it is called NAME. Where it cannot be made, or what is done with it fails for
    want of room or the like, it is taken away again, also the one that it is in, if that is new.

    Raises
    ------
    JobError
        It cannot be made or filled; a `TakenError` where there is one of the exact name.
    InvalidCallError
        Other accounts could put something else into its place.
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
                f"({error.strerror or error}): make room there, or name another by folder=..."
            ) from None
        raise


def _make(parent: Path, name: str, is_exact: bool) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    names = [name] if is_exact else (f"{safe}-{number}" for number in itertools.count(1))
    for one in names:
        with suppress(FileExistsError):
            os.mkdir(parent / one, 0o700)
            return parent / one
    raise TakenError(f"{parent / name} is there already")
