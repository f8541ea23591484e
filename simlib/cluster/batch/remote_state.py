"""`RemoteState`: the state of a job on another host, and copies of the job's files on this side.

For each look, this side tells the remote side which parts of the files it has (`held`). The remote
side answers with new parts (`news`), as many as fit into one answer, and `take` puts them in place.
Logs arrive only when the job is over: while it runs, they reserve 256 MB, and the remote side sends
only their used part.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
"""Files of which each side has its own version, because they depend on the place."""
STARTING = {"native.json", "remote.json"}
"""Files with commands for programs on this side. simlib does not write them for an attempt."""
GROWING = (".out", ".err", ".log")
"""The endings of files that only grow, so that the part on this side stays valid."""
NAME = re.compile(r"(attempt-\d+/)?\w[\w.-]*", re.ASCII)
"""simlib writes only files with such names here, even if the remote side sends others."""
DRAFT = ".part"
"""The ending of an incomplete file. The file's name begins with a dot."""
PIECE_BYTES = 8 << 20

Held = Mapping[str, list[int]]
"""Maps a file's name to the number of bytes that are here, and to their time in ns."""


def held(folder: Path) -> dict[str, list[int]]:
    """Return which parts of copied files are here. If there is a draft of a new version, it counts
    instead of the old file."""
    found = {}
    for path in sorted(_files(folder), key=_is_draft):
        name = path.name[1 : -len(DRAFT)] if _is_draft(path) else path.name
        with suppress(FileNotFoundError):  # another kernel looks, too
            stat = path.stat()
            place = path.relative_to(folder).with_name(name).as_posix()
            found[place] = [stat.st_size, stat.st_mtime_ns]
    return found


def _is_draft(path: Path) -> bool:
    return path.name[0] == "." and path.suffix == DRAFT


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith("attempt-"):
            yield from (one for one in path.iterdir() if one.is_file())
        elif path.is_file() and path.name not in OWN:
            yield path


def news(folder: Path, here: Held, is_over: bool) -> tuple[list[dict[str, Any]], bytes]:
    """Return messages that bring files up to date, as many as fit into one answer, and their bytes.

    Each message has the file's ``name``, the first byte of its part (``at``) and the part's length.
    ``of`` contains the file's number of bytes and its time.
    """
    messages: list[dict[str, Any]] = []
    body = bytearray()
    for path in _files(folder):
        if path.name[0] == "." or (path.suffix == ".log" and not is_over):
            continue
        name = path.relative_to(folder).as_posix()
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                size = logs.used_bytes(path) if path.suffix == ".log" else stat.st_size
                have, time_ns = here.get(name, (-1, 0))
                is_begun = name.endswith(GROWING) or time_ns == stat.st_mtime_ns
                if is_begun and have >= size:
                    continue
                at = max(0, have) if is_begun else 0
                content = os.pread(file.fileno(), min(size - at, PIECE_BYTES - len(body)), at)
        except OSError:  # taken away just now
            continue
        of = [size, stat.st_mtime_ns]
        messages.append({"name": name, "at": at, "length": len(content), "of": of})
        body += content
        if len(body) >= PIECE_BYTES:
            break
    return messages, bytes(body)


def take(folder: Path, messages: list[dict[str, Any]], body: bytes) -> None:
    """Put the parts from the remote side in place.

    Growing files get the new part at their end. Other files appear only when they are complete.
    They get the time of the remote file, which shows later whether the remote file has changed. So
    a new kernel needs nothing except the folder.
    """
    for message in messages:
        name, at, (size, time_ns) = message["name"], message["at"], message["of"]
        content, body = body[: message["length"]], body[message["length"] :]
        if not _is_brought(name):
            raise JobError(f"the remote side sent {name!r}, which is not a file of this job")
        path = folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if name.endswith(GROWING):
            _write(path, at, content)
            continue
        draft = path.with_name(f".{path.name}{DRAFT}")
        _write(draft, at, content)
        if at + len(content) == size:
            draft = draft.replace(path)
        os.utime(draft, ns=(time_ns, time_ns))  # last: a kernel that dies before has it sent again


def _is_brought(name: str) -> bool:
    """Whether a file that the remote side names may be written here."""
    attempt, _, own = name.rpartition("/")
    return bool(NAME.fullmatch(name)) and own not in (STARTING if attempt else OWN)


def _write(path: Path, offset: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.seek(offset)
        file.write(content)


LOOK_S = 0.5
PATIENT_S = 15.0
"""simlib reports a lost remote side only after this many seconds, because most losses are short."""
CANCEL_S = 40.0
"""Seconds to wait for a connection when a job is cancelled. The answer arrives when the remote job
has ended."""


class RemoteState:
    """Does the same as `JobState` for a job of the remote side. Each look brings new parts of
    files.

    While simlib cannot reach the remote side, the last known state counts. This object also serves
    as its own ``queue``.

    Parameters
    ----------
    folder : JobFolder
        The job's folder on this side.
    """

    def __init__(self, folder: JobFolder) -> None:
        self.queue = self
        self.folder = folder
        remote = folder.read_json("remote.json")
        self._there = remote["folder"]
        self._line = line_to(remote["host"], tuple(remote["ssh"]), tuple(remote["python"]))
        self._next_s = 0.0
        self._since_s: float | None = None
        self._why = ""

    @property
    def trouble(self) -> str:
        """A sentence if simlib has not reached the remote side for some time; else empty.

        If the remote side has never confirmed the job, the sentence appears at once.
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
            self._note(f"{self.folder.path} cannot be filled ({words}): free some space there")
        self._next_s = time.monotonic() + LOOK_S
        return self.written()

    def written(self) -> dict[str, Any]:
        """Return the state at the last look, with the output of the job's queue."""
        return self.folder.read_json("state.json") or {"state": "queued"}

    def _note(self, why: str) -> None:
        self._why = why
        self._since_s = self._since_s or time.monotonic()

    def _look(self) -> None:
        while True:
            found, body = self.ask("look", here=held(self.folder.path))
            if found["state"] is None:
                words = f"{self._line.host} has no folder {self._there}"
                if not self.folder.has("submitted"):
                    raise JobError(f"{words} yet: the job may not have arrived there")
                found["state"] = {"state": "ended", "code": None, "why": "lost", "words": words}
            elif not self.folder.has("submitted"):  # so it has arrived
                self.folder.mark("submitted")
            take(self.folder.path, found["files"], body)
            if found["state"]["state"] != "ended" or not found["files"]:
                break
        state = {**found["state"], "queue": found.get("queue")}
        if state != self.written():  # last of all: a job has ended when all of it is here
            self.folder.write_json(state, "state.json")

    def ask(self, do: str, wait_s: float | None = None, **what: Any) -> tuple[dict, bytes]:
        """Ask the remote side about this job."""
        return self._line.ask({"do": do, "folder": self._there, **what}, wait_s=wait_s)

    # The same as `JobInQueue`, as the far queue has it

    def _said(self, what: str) -> Any:
        return (self.written().get("queue") or {}).get(what)

    def state(self) -> str | None:
        """The job's state in the remote queue; None if there is no queue."""
        return self._said("state")

    def words(self) -> str:
        """The output of the batch job and the words of the scheduler."""
        return self._said("words") or ""

    def reason(self) -> str:
        """A text that says why the job still waits."""
        return self._said("reason") or ""

    def cancel(self) -> None:
        """Tell the remote side to end the job.

        Raises
        ------
        JobError
            simlib cannot reach the remote side, or the remote side refuses.
        """
        folder = self.folder
        try:
            self.ask("cancel", CANCEL_S, is_known=folder.has("submitted"))
        except JobError as error:
            if isinstance(error, UnreachableError) and error.was_sent:
                raise JobError(
                    f"simlib does not know yet whether {folder.path.name} is cancelled ({error}): "
                    "ask for the job's status later"
                ) from None
            for name in ("cancel", "end"):  # nobody has heard of it
                folder.file(name).unlink(missing_ok=True)
            raise JobError(f"{folder.path.name} is not cancelled: {error}") from None
