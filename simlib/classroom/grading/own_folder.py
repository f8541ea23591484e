"""Folders that only the caller writes to: a report, what is kept in it, the caller's key.

Whoever can write to such a folder, or has made it, decides what a grader believes, and by a link
where it writes. `OwnFolder` refuses both. It opens a folder once; all files are then reached by
their names in its descriptor, whatever becomes of the path.
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
    """Others can write to a folder or have made it, or a key is theirs to read; says what to do."""


class OwnFolder:
    """An open folder of the caller's, which is made where there is none.

    Parameters
    ----------
    path : str or Path
    mode : int
        Of a folder that is made.
    above : OwnFolder, optional
        The folder that ``path`` is a name in.

    Raises
    ------
    NotOwn
        It is a link, somebody else's, or others can write to it.
    OSError
        It cannot be made or opened.
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
                f"others can write to {self.path}: make it yours alone (chmod go-w), or name "
                "another folder"
            )

    def __del__(self):
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    @classmethod
    def of(cls, place):
        """The folder at a path; one that is open stays as it is."""
        return place if isinstance(place, cls) else cls(place)

    def below(self, name, mode=0o755):
        """The `OwnFolder` of this name in it."""
        return OwnFolder(name, mode, self)

    def open(self, name, flags, mode=0o600):
        """The descriptor of a file in it, which is no link."""
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self.descriptor)

    def read(self, name):
        """The text of a plain file in it."""
        with open(self.open(name, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self.path / name} is no plain file")
            return file.read()

    def write(self, name, text, mode=0o644, replace=True):
        """Write a file so that it is there whole or not at all; what is no text becomes '?'.

        Without ``replace`` a file that is there stays.
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
        """The names of what is in it."""
        return os.listdir(self.descriptor)

    def remove(self, name):
        """Remove a file of it, if it is there; a name that leads elsewhere is none of its own."""
        if name == os.path.basename(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.descriptor)


def state_folder():
    """Where the caller's own key lies: in no report, and beside no submissions."""
    chosen = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".local/state") / "simlib"


def own_key():
    """The caller's key, which is made when it is first needed.

    Raises
    ------
    NotOwn
        Others may know it.
    """
    folder = OwnFolder(state_folder(), 0o700)
    if KEY not in folder.names():
        folder.write(KEY, secrets.token_hex(32), 0o600, replace=False)
    found = os.stat(KEY, dir_fd=folder.descriptor, follow_symlinks=False)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or found.st_size < 64:
        raise NotOwn(f"others may know {folder.path / KEY}: remove it; all is then graded anew")
    return folder.read(KEY).encode()
