"""A learner's own copy of the course, which a newer course renews.

Files that the learner changed stay as they are. The file `RECORD` in the copy keeps a
digest of each file as the course gave it. If a file still has this digest, the learner has not
changed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from ...core.environment import VERSION
from ...core.model.errors import InvalidCallError

RECORD = ".rank-by-rank.json"
PARTS = ("START.md", "notebooks", "exercises", "solutions", "docs")
"""What belongs to the course: files and folders of a clone."""
LEFT_OUT = {"__pycache__", "checks", "simlib-jobs"}
"""Folders inside `PARTS` that do not. A wheel has the checks elsewhere."""


class Renewed(NamedTuple):
    """What `renew` did."""

    written: list[str]
    """The files that are new, or that replace a file which the learner had not changed."""
    beside: dict[str, str]
    """A file that both the learner and the course have changed -> the name of the new file."""


def files_of(root: Path) -> dict[str, Path]:
    """The files of the course below a folder: ``{name: path}``."""
    found = {}
    for path in (one for part in PARTS for one in (root / part, *sorted((root / part).rglob("*")))):
        name = path.relative_to(root)
        is_hidden = any(part.startswith(".") or part in LEFT_OUT for part in name.parts)
        if path.is_file() and not is_hidden:
            found[name.as_posix()] = path
    return found


def renew(source: Path, folder: Path) -> Renewed:
    """Bring a learner's copy up to date.

    Parameters
    ----------
    source : Path
        The folder that contains the course.
    folder : Path
        The copy: a folder that is missing, empty, or an earlier copy.

    Raises
    ------
    InvalidCallError
        The folder contains other files.
    """
    record, given = folder / RECORD, {}
    if record.exists():
        with contextlib.suppress(ValueError):  # it was damaged: so every file counts as changed
            given = json.loads(record.read_text(encoding="utf-8"))
    elif folder.is_dir() and any(folder.iterdir()):
        raise InvalidCallError(
            f"{folder} contains files, but no copy of the course: name a folder that is new or "
            "empty"
        )
    _write(record, json.dumps(given).encode())  # if the copying is interrupted, it can go on
    renewed = Renewed([], {})
    for name, path in files_of(source).items():
        data, target, before = path.read_bytes(), folder / name, given.get(name)
        given[name] = _digest(data)
        own = _digest(target.read_bytes()) if target.exists() else None
        if own in (None, before) and own != given[name]:
            _write(target, data)
            renewed.written.append(name)
        elif own not in (before, given[name]) and before != given[name]:
            new = _free(target.with_name(f"new-in-{VERSION}-{target.name}"))
            _write(new, data)
            renewed.beside[name] = new.name
    _write(record, json.dumps(given, indent=1).encode())
    return renewed


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(target: Path, data: bytes) -> None:
    """Write a file at once, so that an interrupted copying leaves no half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.half")
    half.write_bytes(data)
    os.replace(half, target)


def _free(wanted: Path) -> Path:
    """The path, or the same with a number if there is such a file."""
    path, number = wanted, 2
    while path.exists():
        path, number = wanted.with_stem(f"{wanted.stem}-{number}"), number + 1
    return path
