"""Folders to which only the caller can write: a report, its cache, and the caller's key.

If others can write to such a folder, or have made it, they can decide which results the grader
believes. With a link, they can decide where the grader writes. `OwnFolder` refuses both. It opens a
folder once. Then it opens all files by their names, relative to the folder's descriptor. So it has
no effect if somebody changes the path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
OTHERS_WRITE = 0o022
KEY = "key"


class NotOwn(Exception):
    """Others can write to a folder, have made the folder, or can read a key. The message says what
    to do."""


class OwnFolder:
    """An open folder of the caller. simlib makes the folder if it does not exist.

    Parameters
    ----------
    path : str or Path
    mode : int
        The mode of the folder, if simlib makes it.
    above : OwnFolder, optional
        The folder that contains the name ``path``.

    Raises
    ------
    NotOwn
        The folder is a link, belongs to another account, or other accounts can write to it.
    OSError
        simlib cannot make or open the folder.
    """

    def __init__(self, path, mode=0o755, above=None):
        self.path = above.path / path if above else Path(path)
        below = above and above.descriptor
        place = path if above else self.path
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(place, dir_fd=below, follow_symlinks=False).st_mode):
                raise NotOwn(f"{self.path} is a link: remove it, or name another folder")
        if above:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, mode, dir_fd=below)
        else:
            self.path.mkdir(mode, parents=True, exist_ok=True)
        self.descriptor = os.open(place, FOLDER, dir_fd=below)
        found = os.fstat(self.descriptor)
        if found.st_uid != os.geteuid():
            raise NotOwn(
                f"{self.path} belongs to another account (user id {found.st_uid}): remove it, or "
                "name another folder"
            )
        if found.st_mode & OTHERS_WRITE:
            raise NotOwn(
                f"other accounts can write to {self.path}: remove that right (chmod go-w), or name "
                "another folder"
            )

    def __del__(self):
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    @classmethod
    def of(cls, place):
        """Return the folder at a path. Return an open folder unchanged."""
        return place if isinstance(place, cls) else cls(place)

    def below(self, name, mode=0o755):
        """Return the `OwnFolder` of this name inside this folder."""
        return OwnFolder(name, mode, self)

    def open(self, name, flags, mode=0o600):
        """Open a file in the folder and return its descriptor. Refuse a link."""
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self.descriptor)

    def read(self, name):
        """Return the text of a plain file in the folder."""
        with open(self.open(name, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self.path / name} is not a regular file")
            return file.read()

    def write(self, name, text, mode=0o644, replace=True):
        """Write either the whole file or nothing. Characters that are not valid text become '?'.

        Without ``replace`` an existing file stays.
        """
        new = f".new-{secrets.token_hex(8)}"
        fd = self.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(fd, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                os.fchmod(fd, mode)
            places = {"src_dir_fd": self.descriptor, "dst_dir_fd": self.descriptor}
            if replace:
                os.replace(new, name, **places)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(new, name, **places)
        finally:
            self.remove(new)

    def names(self):
        """Return the names of the files and folders in this folder."""
        return os.listdir(self.descriptor)

    def remove(self, name):
        """Remove a file of the folder, if it exists. Ignore a name that leads out of the folder."""
        if name == os.path.basename(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.descriptor)


def state_folder():
    """Return the folder of the caller's own key. It is neither in a report nor next to
    submissions."""
    chosen = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".local/state") / "simlib"


def own_key():
    """Return the caller's key. Make the key at the first call.

    Raises
    ------
    NotOwn
        Other accounts may know the key.
    """
    folder = OwnFolder(state_folder(), 0o700)
    if KEY not in folder.names():
        folder.write(KEY, secrets.token_hex(32), 0o600, replace=False)
    found = os.stat(KEY, dir_fd=folder.descriptor, follow_symlinks=False)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or found.st_size < 64:
        raise NotOwn(
            f"other accounts may have read {folder.path / KEY}: remove this file; then everything "
            "is graded again"
        )
    return folder.read(KEY).encode()
