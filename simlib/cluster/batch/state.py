"""The state of a job. simlib finds it in the job's folder and queue, and looks whether the launcher
process still runs."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil

from ...core.model.errors import InvalidCallError, JobError
from . import SYSTEMS
from .batch_system import OVER, JobStatus, QueueError, Scheduler
from .failures import refused
from .folder import JobFolder

POLL_S = 1.0
FAILURES = 3
"""If the scheduler gives no answer this many times in a row, the job counts as failed."""


class JobInQueue:
    """What the scheduler says about a job. For a job without a scheduler, all texts are empty.

    Parameters
    ----------
    folder : JobFolder
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._scheduler: Scheduler | None = None
        self._standing = JobStatus("queued")
        self._is_over = False
        self._failures = 0
        self._next_s = 0.0
        # It holds commands: those of a job that may be anybody's are not run.
        native = None if folder.is_recorded else folder.read_json("native.json")
        if native is not None:
            if native["scheduler"] not in SYSTEMS:
                raise InvalidCallError(
                    f"{folder.path} is a job of the scheduler {native['scheduler']!r}, which this "
                    "version of simlib does not know"
                )
            self._scheduler = SYSTEMS[native["scheduler"]].scheduler(native["login"])
            self._number: str = native["id"]

    def state(self) -> str | None:
        """The state in the queue: ``queued``, ``active``, ``done``, ``failed``, ``cancelled``, or
        None."""
        return None if self._scheduler is None else self._ask(self._scheduler).state

    def words(self) -> str:
        """The output of the batch job, and the scheduler's reason."""
        if self._scheduler is None:
            return ""
        return "\n".join([self._folder.text("batch.err"), self._ask(self._scheduler).reason])

    def reason(self) -> str:
        """A text that says why the job still waits; empty if the scheduler gives no reason."""
        if self._scheduler is None:
            return ""
        return self._scheduler.in_words(self._ask(self._scheduler).reason)

    def cancel(self) -> None:
        """Take the job out of the queue, or end it.

        Raises
        ------
        JobError
            The scheduler refuses.
        """
        if self._scheduler is None or self._is_over:
            return
        try:
            self._scheduler.cancel(self._number)
        except QueueError as error:
            name = self._folder.path.name
            raise JobError(refused(f"the queue has not cancelled {name}", str(error))) from None

    def _ask(self, scheduler: Scheduler) -> JobStatus:
        if not self._is_over and time.monotonic() > self._next_s:
            try:
                self._standing = scheduler.ask(self._number)
                self._is_over = self._standing.state in OVER
                self._failures = 0
            except QueueError as error:  # its controller starts again, say
                self._failures += 1
                if self._failures >= FAILURES:
                    self._standing = JobStatus("failed", str(error))
            self._next_s = time.monotonic() + POLL_S
        return self._standing


START_S = 60.0
"""A job of mpiexec starts at once. If it has not begun after this many seconds, it never will."""
SETTLE_S = 5.0
"""The job's folder may show the end of the job this many seconds later than the queue."""


class JobState:
    """The state of a job, as far as this host can know it.

    Parameters
    ----------
    folder : JobFolder
    submitted : float
        The time at which the job was submitted, in seconds since 1970.
    """

    trouble = ""
    """For a job on another host: a text that says why the state is unknown now."""

    def __init__(self, folder: JobFolder, submitted: float) -> None:
        self.queue = JobInQueue(folder)
        self._folder = folder
        self._submitted = submitted
        self._over_at: float | None = None

    def now(self) -> dict[str, Any]:
        """Return a dict like the contents of ``state.json``. Its ``state`` is ``queued``,
        ``active`` or ``ended``.

        If the job has ended, the dict also contains ``code`` and ``why``, as in `launcher_process`.
        ``why`` is ``lost`` if no process is left that could record the reason. Then ``words`` says
        more.
        """
        state = self._written()
        if state["state"] == "ended":
            return state
        in_queue = self._in_queue()
        if in_queue == "cancelled":
            return {"state": "ended", "code": None, "why": "cancel"}
        lost = self._why_over(in_queue) if in_queue else self._why_lost(state)
        if lost is None:
            return state
        state = self._written()  # it may have ended just now
        if state["state"] != "ended":
            state = {"state": "ended", "code": None, "why": "lost", "words": lost}
        return state

    def _written(self) -> dict[str, Any]:
        return self._folder.read_json("state.json") or {"state": "queued"}

    def _in_queue(self) -> str | None:
        state = self.queue.state()
        if state is None and self._folder.has("native.json"):  # handed to the queue meanwhile
            self.queue = JobInQueue(self._folder)
            state = self.queue.state()
        return state

    def _why_over(self, in_queue: str) -> str | None:
        """Return a text on a job that has ended according to its queue, but not according to its
        folder."""
        if in_queue not in ("done", "failed"):
            self._over_at = None
            return None
        self._over_at = self._over_at or time.monotonic()
        is_settled = time.monotonic() > self._over_at + SETTLE_S
        return "the queue has ended the job" if is_settled else None

    def _why_lost(self, state: dict[str, Any]) -> str | None:
        """Return a text on a job of mpiexec whose launcher process has vanished."""
        if state["state"] == "active":
            if _is_gone(state, self._folder.path.name):
                return (
                    f"the process {state['pid']} that watched the job's launcher has ended. The "
                    "job's ranks may still be running: job.cancel() ends them"
                )
        elif time.time() - self._submitted > START_S:
            return "the job was never started: did the notebook's kernel end during submit?"
        return None


def _is_gone(state: dict[str, Any], name: str) -> bool:
    """Whether the process that waits for the launcher has ended, as far as this host knows.

    A later process may get the same process id, but not the same command. Start times would not
    help, because somebody may have set the clock meanwhile.
    """
    if state["host"] != os.uname().nodename:
        return False
    try:
        words = psutil.Process(state["pid"]).cmdline()
    except psutil.Error:  # there is none, it is a zombie, or another account's
        return True
    return not words or os.path.basename(words[-1]) != name
