"""The files of a job that is carried out elsewhere: which travel, and in what pieces.

There they are listed (`listing`) and read (`read_pieces`); here a `Mirror` asks for what is new.
Logs come when the job is over: their 256 MB are room, of which only the used part travels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ....core.model.errors import JobError
from .. import logs

OWN = {
    "job.json", "request.pkl", "start.py", "rank.sh", "launch.json", "batch.sh", "restarts.pkl",
    "native.json", "state.json", "remote.json", "submitted", "beat",
}  # fmt: skip
"""Each side has its own of these: they depend on the place."""
STARTING = {"native.json", "remote.json"}
"""Words that are started here stand in them: of an attempt neither is written."""
GROWING = (".out", ".err", ".log")
"""Files of these kinds are only added to, so what is here already stays."""
NAME = re.compile(r"(attempt-\d+/)?\w[\w.-]*", re.ASCII)
"""Other names are never written here, whatever the far side says."""
PIECE_BYTES = 8 << 20

Listing = Mapping[str, list[int]]
Piece = tuple[str, int, int, int, int]
"""Name, offset, length; size and time of the whole file."""
Reader = Callable[[list[list]], tuple[list[Piece], bytes]]


def listing(folder: Path, is_over: bool) -> dict[str, list[int]]:
    """Size and time of last change (ns) of each file that travels, by its name in the folder."""
    found = {}
    for path in _files(folder):
        try:
            stat = path.stat()
            size = stat.st_size
            if path.suffix == ".log":
                if not is_over:
                    continue
                size = logs.used_bytes(path)
        except OSError:  # taken away just now
            continue
        found[path.relative_to(folder).as_posix()] = [size, stat.st_mtime_ns]
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file() and path.name not in OWN and path.name[0] != ".":
            yield path
        elif path.is_dir() and path.name.startswith("attempt-"):
            yield from (one for one in path.iterdir() if one.is_file() and one.name[0] != ".")


def read_pieces(folder: Path, wanted: list[list]) -> tuple[list[Piece], bytes]:
    """Of each file the bytes from an offset up to an end, as far as one answer has room.

    ``wanted`` holds ``[name, offset, end]``. A file that is gone has a piece of no bytes.
    """
    pieces: list[Piece] = []
    body = bytearray()
    for name, offset, end in wanted:
        try:
            with open(folder / name, "rb") as file:
                stat = os.fstat(file.fileno())
                file.seek(offset)
                content = file.read(max(0, min(end - offset, PIECE_BYTES - len(body))))
        except FileNotFoundError:
            content, stat = b"", os.stat_result([0] * 10)
        pieces.append((name, offset, len(content), stat.st_size, stat.st_mtime_ns))
        body += content
        if len(body) >= PIECE_BYTES:
            break
    return pieces, bytes(body)


class Mirror:
    """Brings the files of a far folder into one that is here, as far as they have changed.

    Growing files are added to where they are; others appear whole, with the time of the far one, by
    which it is known that they have not changed. So a new kernel needs no more than the folder.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, there: Listing, read: Reader) -> None:
        """Take in all that differs from a listing; ``read`` asks for pieces."""
        done: set[str] = set()
        while wanted := [one for name in there if (one := self._wanted(name, there, done))]:
            pieces, body = read(wanted)
            asked = {one[0] for one in wanted}
            start = 0
            for piece in pieces:
                if piece[0] not in asked:
                    raise JobError(f"the far side sends {piece[0]!r}, and was not asked for it")
                self._take(piece, body[start : start + piece[2]], there, done)
                start += piece[2]

    def _wanted(self, name: str, there: Listing, done: set[str]) -> list | None:
        """``[name, offset, end]`` of what is still to come of a file, or None."""
        size, changed_ns = there[name]
        if name in done or not _is_brought(name):
            return None
        here = _stat(self._folder / name)
        if name.endswith(GROWING):
            have = -1 if here is None else here.st_size
            return [name, max(0, have), size] if have < size else None
        if here is not None and (here.st_size, here.st_mtime_ns) == (size, changed_ns):
            return None
        draft = _stat(self._draft(name))
        is_begun = draft is not None and draft.st_mtime_ns == changed_ns
        return [name, draft.st_size if draft is not None and is_begun else 0, size]

    def _take(self, piece: Piece, content: bytes, there: Listing, done: set[str]) -> None:
        name, offset, length, size, changed_ns = piece
        path, draft = self._folder / name, self._draft(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if name.endswith(GROWING):
            _write(path, offset, content)
            if not length:
                done.add(name)
            return
        if [size, changed_ns] != there[name]:  # replaced meanwhile, or gone: the next look has it
            done.add(name)
            draft.unlink(missing_ok=True)
            return
        _write(draft, offset, content)
        os.utime(draft, ns=(changed_ns, changed_ns))
        if offset + length == size:
            os.replace(draft, path)

    def _draft(self, name: str) -> Path:
        path = self._folder / name
        return path.with_name(f".{path.name}.part")


def _is_brought(name: str) -> bool:
    """Whether a file that the far side names may be written here."""
    attempt, _, own = name.rpartition("/")
    return bool(NAME.fullmatch(name)) and own not in (STARTING if attempt else OWN)


def _write(path: Path, offset: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.seek(offset)
        file.write(content)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
