"""`JobInQueue`: what the scheduler that has a job says of it, asked at most once a second."""

from __future__ import annotations

import time

from ...core.model.errors import InvalidCallError, JobError
from .batch_scheduler import OVER, JobStatus, QueueError, Scheduler
from .folder import JobFolder
from .launcher_failures import refused
from .schedulers import SCHEDULERS

POLL_S = 1.0
FAILURES = 3
"""So often in a row may a scheduler give no answer; then a job counts as failed."""


class JobInQueue:
    """What the scheduler says of a job; says nothing of one that no scheduler has.

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
            if native["scheduler"] not in SCHEDULERS:
                raise InvalidCallError(
                    f"{folder.path} is a job of the scheduler {native['scheduler']!r}, which this "
                    "simlib does not ask"
                )
            self._scheduler = SCHEDULERS[native["scheduler"]](native["login"])
            self._number: str = native["id"]

    def state(self) -> str | None:
        """``queued``, ``active``, ``done``, ``failed``, ``cancelled``, or None."""
        return None if self._scheduler is None else self._ask(self._scheduler).state

    def words(self) -> str:
        """What the batch job and the scheduler have said."""
        if self._scheduler is None:
            return ""
        return "\n".join([self._folder.text("batch.err"), self._ask(self._scheduler).reason])

    def reason(self) -> str:
        """Why the job still waits, in words; empty where the scheduler does not say."""
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
            except QueueError as error:  # its controller starts anew, say
                self._failures += 1
                if self._failures >= FAILURES:
                    self._standing = JobStatus("failed", str(error))
            self._next_s = time.monotonic() + POLL_S
        return self._standing
