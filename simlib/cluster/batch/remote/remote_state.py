"""`RemoteState`: how a job stands that another host looks after, and its files, brought here."""

from __future__ import annotations

import time
from typing import Any

from ....core.model.errors import JobError
from ..folder import JobFolder
from .connection import UnreachableError, line_to
from .files import Mirror

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
