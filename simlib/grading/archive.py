"""The files below a folder and in a zip file, each with what reads it and its time."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import zipfile
from pathlib import Path, PurePosixPath

from .notebook_file import LARGEST_BYTES, Unreadable, read_bytes

MOST_FILES = 20_000
AGAIN = re.compile(r"(-\d+| ?\(\d+\)| - Copy)+$")
"""What systems add to the name of a second copy."""


class CannotCollect(Exception):
    """A place without submissions; the message is the reason."""


def files_of_folder(folder):
    """``(path, reader, time)`` of every file below a folder; links are not followed."""
    closed = []
    for above, folders, files in os.walk(folder, onerror=closed.append):
        folders[:] = sorted(one for one in folders if not is_left_out(one))
        for file in sorted(files):
            path = Path(above) / file
            seconds = path.lstat().st_mtime
            when = datetime.datetime.fromtimestamp(seconds).astimezone()
            relative = PurePosixPath(path.relative_to(folder).as_posix())
            yield relative, (lambda path=path: read_bytes(path)), when
    for error in closed:
        path = PurePosixPath(Path(error.filename).relative_to(folder).as_posix())
        yield path / "a folder that cannot be opened", (lambda: b""), None


def is_left_out(folder):
    """Whether a folder holds nothing that was handed in: copies of JupyterLab, git's, macOS's."""
    return folder == "__MACOSX" or (folder.startswith(".") and folder.strip(".") != "")


def files_of_zip(path, exercises):
    """The same of a zip file. Nothing is written anywhere, so no name in it can do harm."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise CannotCollect(f"{path} is damaged ({error}): download it again") from None
    with archive:
        members = archive.infolist()
        if len(members) > MOST_FILES:
            raise CannotCollect(f"{path} holds {len(members):,} files: more than {MOST_FILES:,}")
        wrapped = wrapping(path, members, exercises)
        for member in sorted(members, key=lambda one: one.filename):
            parts = parts_of(member)[len(wrapped) :]
            if member.is_dir() or not parts or any(map(is_left_out, parts[:-1])):
                continue
            when = None
            with contextlib.suppress(ValueError):
                when = datetime.datetime(*member.date_time).astimezone()
            reader = lambda member=member: read_member(archive, member)  # noqa: E731
            yield PurePosixPath(*parts), reader, when


def parts_of(member):
    """The folders and the name of a zip's file; what would lead out of the zip is left out."""
    return tuple(p for p in PurePosixPath(member.filename).parts if p not in ("/", ".", ".."))


def wrapping(path, members, exercises):
    """The folder around a whole class, as a tuple of its name; empty where there is none.

    macOS and Windows pack the folder ``class`` as ``class.zip`` with ``class/student_07/...`` in
    it: the students are one below. A student's own packed folder holds exercises right away.
    """
    files = [parts_of(member) for member in members if not member.is_dir()]
    files = [parts for parts in files if parts and not is_left_out(parts[0])]
    own = {"exercises", *(f"{name}.ipynb" for name in exercises)}
    above = {parts[0] for parts in files}
    is_class = (
        len(above) == 1
        and above <= {path.stem, AGAIN.sub("", path.stem)}
        and all(len(parts) > 1 and parts[1] not in own for parts in files)
    )
    return files[0][:1] if is_class else ()


def read_member(archive, member):
    """A zip's file; one that is larger than it may be is refused before it is unpacked."""
    if member.file_size > LARGEST_BYTES:
        raise Unreadable(f"the file is larger than {LARGEST_BYTES >> 20} MB")
    try:
        with archive.open(member) as file:
            content = file.read(LARGEST_BYTES + 1)
    except Exception as error:  # damaged, encrypted, or packed in an unknown way
        raise Unreadable(f"the zip file's entry cannot be read ({error})") from None
    if len(content) > LARGEST_BYTES:
        raise Unreadable(f"the file is larger than {LARGEST_BYTES >> 20} MB")
    return content
