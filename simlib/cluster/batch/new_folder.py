"""`new_folder`: the folder of a job that is about to be submitted; none stays where that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...core.model.errors import JobError
from . import ownership
from .folder import JobFolder


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
        ownership.check_place(parent)
        path = _make_exact(parent, name) if is_exact else _make(parent, name)
        ownership.check_folder(path)
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


def _make_exact(parent: Path, name: str) -> Path:
    path = parent / name
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise TakenError(f"{path} is there already") from None
    return path


def _make(parent: Path, name: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    number = 1
    while True:
        path = parent / f"{safe}-{number}"
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            number += 1
