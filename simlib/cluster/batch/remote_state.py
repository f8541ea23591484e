"""`RemoteState`: how a job stands that another host looks after, and its files, brought here.

There files are listed (`listing`) and read (`read_pieces`); here a `Mirror` asks for what is new.
Logs come when the job is over: their 256 MB are room, of which only the used part travels.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.model.errors import JobError
from . import logs
from .folder import JobFolder
from .ssh import UnreachableError, line_to

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


LOOK_S = 0.5
PATIENT_S = 15.0
"""So long nobody is told that the far side cannot be reached: most of it passes."""
CANCEL_S = 40.0
"""How long to wait for a connection; the answer comes when the far job has ended."""


class RemoteState:
    """The same as `JobState`, of a job that the far side has; each look brings what is new.

    While the far side cannot be reached, what it said last holds.

    Parameters
    ----------
    folder : JobFolder
        The one here.
    """

    def __init__(self, folder: JobFolder) -> None:
        self.queue = RemoteQueue(self)
        self.folder = folder
        remote = folder.read_json("remote.json")
        self._there = remote["folder"]
        self._line = line_to(remote["host"], tuple(remote["ssh"]), tuple(remote["python"]))
        self._mirror = Mirror(folder.path)
        self._next_s = 0.0
        self._since_s: float | None = None
        self._why = ""

    @property
    def trouble(self) -> str:
        """A sentence where the far side has not been reached for some time; else empty.

        At once where it has never said that it has the job.
        """
        patient_s = PATIENT_S if self.folder.has("submitted") else 0.0
        if self._since_s is None or time.monotonic() < self._since_s + patient_s:
            return ""
        return self._why

    def now(self) -> dict[str, Any]:
        """See `JobState.now`."""
        state = self.written()
        if state["state"] == "ended" or time.monotonic() < self._next_s:
            return state
        try:
            self._look()
            self._since_s = None
        except UnreachableError as error:
            self._note(f"{self._line.host} cannot be reached at the moment ({error})")
        except JobError as error:
            self._note(str(error))
        except OSError as error:  # this disk is full
            words = error.strerror or error
            self._note(f"{self.folder.path} cannot be filled ({words}): make room there")
        self._next_s = time.monotonic() + LOOK_S
        return self.written()

    def written(self) -> dict[str, Any]:
        """What was known at the last look, with what its queue had said."""
        return self.folder.read_json("state.json") or {"state": "queued"}

    def _note(self, why: str) -> None:
        self._why = why
        self._since_s = self._since_s or time.monotonic()

    def _look(self) -> None:
        found, _ = self.ask("look")
        if found["state"] is None:
            words = f"{self._line.host} has no folder {self._there}"
            if not self.folder.has("submitted"):
                raise JobError(f"{words} yet: it may not have arrived there")
            found["state"] = {"state": "ended", "code": None, "why": "lost", "words": words}
        elif not self.folder.has("submitted"):  # so it has arrived
            self.folder.mark("submitted")
        self._mirror.fetch(found.get("files", {}), self._read)
        state = {**found["state"], "queue": found.get("queue")}
        if state != self.written():  # last of all: a job has ended when all of it is here
            self.folder.write_json(state, "state.json")

    def _read(self, wanted: list[list]) -> tuple[list, bytes]:
        answer, body = self.ask("read", wanted=wanted)
        return answer["pieces"], body

    def ask(self, do: str, wait_s: float | None = None, **what: Any) -> tuple[dict, bytes]:
        """Ask the far side about this job."""
        return self._line.ask({"do": do, "folder": self._there, **what}, wait_s=wait_s)


class RemoteQueue:
    """The same as `JobInQueue`, of such a job."""

    def __init__(self, state: RemoteState) -> None:
        self._state = state

    def _said(self) -> dict[str, Any]:
        return self._state.written().get("queue") or {}

    def state(self) -> str | None:
        """How the far queue has it; None where none does."""
        return self._said().get("state")

    def words(self) -> str:
        """What the batch job and the scheduler have said."""
        return self._said().get("words", "")

    def reason(self) -> str:
        """Why the job still waits, in words."""
        return self._said().get("reason", "")

    def cancel(self) -> None:
        """Have the far side end the job.

        Raises
        ------
        JobError
            It cannot be reached, or refuses.
        """
        folder = self._state.folder
        try:
            self._state.ask("cancel", CANCEL_S, is_known=folder.has("submitted"))
        except JobError as error:
            if isinstance(error, UnreachableError) and error.was_sent:
                raise JobError(
                    f"it is not known yet whether {folder.path.name} is cancelled ({error}): ask "
                    "for its status later"
                ) from None
            for name in ("cancel", "end"):  # nobody has heard of it
                folder.file(name).unlink(missing_ok=True)
            raise JobError(f"{folder.path.name} is not cancelled: {error}") from None
