"""Walk a folder that students can change meanwhile: by descriptor, no link is ever followed.

A path is looked up anew each time it is used, so a folder of a student's may have become a link to
somebody else's. Here each folder is opened by its name in the descriptor of the one above.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from pathlib import PurePosixPath

from .notebook_file import NOTEBOOK, Unreadable, read_bytes

MAX_ENTRIES = 100_000
"""Files and folders below one that lies at the top, a student's that is."""
DEEPEST = 30
"""Folders in one another, each of which is held open."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY


class Walk:
    """All files below a folder.

    Parameters
    ----------
    top : str or Path
        The one path that may lead through links.
    report : str or Path or None
        A folder that is left out, wherever it lies.

    Attributes
    ----------
    left_out : list of PurePosixPath
        Folders that hold nothing handed in by their names, but notebooks.
    """

    def __init__(self, top, report=None):
        self._top = top
        self._report = identity(report) if report else None
        self._room = MAX_ENTRIES
        self.left_out = []

    def files(self):
        """``(path, reader, time)`` of each file; a reader works until the next one is asked for.

        Readers are called with the most bytes that they may give, see `read_bytes`. A folder that
        is not looked into is a file that says so.
        """
        yield from self._opened(PurePosixPath(), self._top, None, 0)

    def _opened(self, path, name, above, flags):
        try:
            folder = os.open(name, FOLDER | flags, dir_fd=above)
        except OSError:
            yield not_looked_into(path, "a folder that cannot be opened")
            return
        try:
            if identity(folder) != self._report:
                yield from self._inside(path, folder)
        finally:
            os.close(folder)

    def _inside(self, path, folder):
        is_top = not path.parts
        try:
            with os.scandir(folder) as entries:
                entries = list(entries if is_top else itertools.islice(entries, self._room + 1))
        except OSError:
            yield not_looked_into(path, "a folder that cannot be opened")
            return
        if not is_top and len(entries) > self._room:
            entries = []
            yield not_looked_into(path, f"more files than {MAX_ENTRIES:,}")
        self._room -= len(entries)
        entries.sort(key=lambda one: one.name)
        for entry in entries:
            if not is_folder(entry):
                yield path / entry.name, reader(entry.name, folder), changed(entry)
        for entry in filter(is_folder, entries):
            if is_top:
                self._room = MAX_ENTRIES
            below = path / entry.name
            if is_left_out(entry.name):
                self._look_for_notebooks(below, folder)
            elif len(below.parts) > DEEPEST:
                yield not_looked_into(below, f"folders in one another, more than {DEEPEST}")
            else:
                yield from self._opened(below, entry.name, folder, os.O_NOFOLLOW)

    def _look_for_notebooks(self, path, above):
        """Note a folder that is left out where there are notebooks in it."""
        with contextlib.suppress(OSError):
            folder = os.open(path.name, FOLDER | os.O_NOFOLLOW, dir_fd=above)
            try:
                for *_, files, _ in itertools.islice(os.fwalk(dir_fd=folder), DEEPEST):
                    if any(NOTEBOOK.search(name) for name in files):
                        self.left_out.append(path)
                        return
            finally:
                os.close(folder)


def identity(folder):
    """What tells a folder from all others, however it is named; None where there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_folder(entry):
    """Whether something listed is a folder, and no link to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def reader(name, folder):
    """What reads a file of an open folder."""
    return lambda most: read_bytes(name, most, folder)


def changed(entry):
    """When a file was last changed; None where that is no time, or the file has vanished."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        seconds = entry.stat(follow_symlinks=False).st_mtime
        return datetime.datetime.fromtimestamp(seconds).astimezone()
    return None


def not_looked_into(path, what):
    """A file in place of a folder's."""

    def refuse(most):
        raise Unreadable(what)

    return path / what, refuse, None


def is_left_out(folder):
    """Whether a folder holds nothing that was handed in: copies of JupyterLab, git's, macOS's."""
    return folder == "__MACOSX" or (folder.startswith(".") and folder.strip(".") != "")
