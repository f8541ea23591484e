"""Whose a job's folder and its files are: what another account can have put there is not read.

A job is read again by pickles, and a scheduler is asked by commands that stand in its folder: both
could do anything. So the owner and the mode of the folder and of each file are compared, by the
descriptor through which it is then read: nothing can be put into its place in between.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import contextmanager
from pathlib import Path

from ...core.model.errors import InvalidCallError

BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ENTERED = stat.S_IXGRP | stat.S_IXOTH


@contextmanager
def opened(path: Path, is_anybodys: bool = False):
    """A file of a job's folder, to be read as bytes; None where there is none.

    The folder is opened anew each time. So a file that another host has just made is there, too:
    NFS asks then, and else remembers for half a minute and more that it was not (nfs(5),
    "close-to-open" and "directory entry caching").

    Parameters
    ----------
    path : Path
        The file; what it is in is the job's folder.
    is_anybodys : bool
        Whether it does not matter who can have written it.

    Raises
    ------
    InvalidCallError
        Another account can have written it, or it is no regular file.
    """
    with _held(path.parent, os.O_DIRECTORY) as folder:
        if folder is None:
            yield None
            return
        with _held(path, os.O_NONBLOCK, folder) as file:  # a pipe would wait for who writes
            if file is None:
                yield None
                return
            if not is_anybodys:
                _compare(path, os.fstat(folder), os.fstat(file))
            _check_kind(path, os.fstat(file))
            with open(file, "rb", closefd=False) as content:
                yield content


@contextmanager
def _held(path: Path, how: int, within: int | None = None):
    """A descriptor of what is there, closed in the end; None where there is nothing."""
    name = path if within is None else path.name
    try:
        held = os.open(name, os.O_RDONLY | os.O_CLOEXEC | how, dir_fd=within)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except PermissionError:
        raise
    except OSError as error:  # of a socket, say
        raise InvalidCallError(
            f"{path} cannot be read, as a job's file: {error.strerror}"
        ) from None
    try:
        yield held
    finally:
        os.close(held)


def _compare(path: Path, folder: os.stat_result, file: os.stat_result) -> None:
    """Refuse a file that somebody else can have written.

    In a folder that nobody else can enter a file may have any mode.
    """
    _check_owner(path.parent, folder)
    _check_mode(path.parent, folder)
    _check_owner(path, file)
    if folder.st_mode & ENTERED:
        _check_mode(path, file)


def _check_kind(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidCallError(f"{path} cannot be read, as a job's file: it is not a regular file")


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
