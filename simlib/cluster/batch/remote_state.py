"""`RemoteState`: how a job stands that another host looks after, and its files, brought here.

A look tells the far side what is here (`held`); it answers with what is new (`news`), as far as one
answer has room, and here `take` puts that into place. Logs come when the job is over: their 256 MB
are room, of which only the used part travels.
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
"""Each side has its own of these: they depend on the place."""
STARTING = {"native.json", "remote.json"}
"""Words that are started here stand in them: of an attempt neither is written."""
GROWING = (".out", ".err", ".log")
"""Files of these kinds are only added to, so what is here already stays."""
NAME = re.compile(r"(attempt-\d+/)?\w[\w.-]*", re.ASCII)
"""Other names are never written here, whatever the far side says."""
DRAFT = ".part"
"""Ends the name of a file that is not all here, which a dot begins."""
PIECE_BYTES = 8 << 20

Held = Mapping[str, list[int]]
"""By the name of a file, how many bytes of it are here, and of which time (ns) it is."""


def held(folder: Path) -> dict[str, list[int]]:
    """What is here of the files that travel; a draft counts more than what it is to replace."""
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
    """Messages that bring files up to date, as far as one answer has room, and their bytes.

    Each has the file's ``name``, ``at`` which byte its part begins, and how long that is; ``of``
    how many bytes the file is, and its time.
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
    """Put what the far side has sent into place.

    Growing files are added to where they are; others appear whole, with the time of the far one, by
    which it is known that they have not changed. So a new kernel needs no more than the folder.
    """
    for message in messages:
        name, at, (size, time_ns) = message["name"], message["at"], message["of"]
        content, body = body[: message["length"]], body[message["length"] :]
        if not _is_brought(name):
            raise JobError(f"the far side sends {name!r}, which is no file for this side")
        path = folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if name.endswith(GROWING):
            _write(path, at, content)
            continue
        draft = path.with_name(f".{path.name}{DRAFT}")
        _write(draft, at, content)
        if at + len(content) == size:
            draft = draft.replace(path)
        os.utime(draft, ns=(time_ns, time_ns))  # last: a kernel that dies before has it sent anew


def _is_brought(name: str) -> bool:
    """Whether a file that the far side names may be written here."""
    attempt, _, own = name.rpartition("/")
    return bool(NAME.fullmatch(name)) and own not in (STARTING if attempt else OWN)


def _write(path: Path, offset: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.seek(offset)
        file.write(content)


LOOK_S = 0.5
PATIENT_S = 15.0
"""So long nobody is told that the far side cannot be reached: most of it passes."""
CANCEL_S = 40.0
"""How long to wait for a connection; the answer comes when the far job has ended."""


class RemoteState:
    """The same as `JobState`, of a job that the far side has; each look brings what is new.

    While the far side cannot be reached, what it said last holds. It is its own ``queue``.

    Parameters
    ----------
    folder : JobFolder
        The one here.
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
        while True:
            found, body = self.ask("look", here=held(self.folder.path))
            if found["state"] is None:
                words = f"{self._line.host} has no folder {self._there}"
                if not self.folder.has("submitted"):
                    raise JobError(f"{words} yet: it may not have arrived there")
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
        """Ask the far side about this job."""
        return self._line.ask({"do": do, "folder": self._there, **what}, wait_s=wait_s)

    # The same as `JobInQueue`, as the far queue has it

    def _said(self, what: str) -> Any:
        return (self.written().get("queue") or {}).get(what)

    def state(self) -> str | None:
        """How the far queue has it; None where none does."""
        return self._said("state")

    def words(self) -> str:
        """What the batch job and the scheduler have said."""
        return self._said("words") or ""

    def reason(self) -> str:
        """Why the job still waits, in words."""
        return self._said("reason") or ""

    def cancel(self) -> None:
        """Have the far side end the job.

        Raises
        ------
        JobError
            It cannot be reached, or refuses.
        """
        folder = self.folder
        try:
            self.ask("cancel", CANCEL_S, is_known=folder.has("submitted"))
        except JobError as error:
            if isinstance(error, UnreachableError) and error.was_sent:
                raise JobError(
                    f"it is not known yet whether {folder.path.name} is cancelled ({error}): ask "
                    "for its status later"
                ) from None
            for name in ("cancel", "end"):  # nobody has heard of it
                folder.file(name).unlink(missing_ok=True)
            raise JobError(f"{folder.path.name} is not cancelled: {error}") from None
