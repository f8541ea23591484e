"""Who is graded beside whom: a verdict that a limit has brought is final only for one alone."""

from __future__ import annotations

import contextlib
import threading


class SharedExclusiveLock:
    """Those that are graded at the moment."""

    def __init__(self):
        self._changed = threading.Condition()
        self._here = {}  # a visit -> whether it had company
        self._waiting = 0

    @contextlib.contextmanager
    def shared(self):
        """Grade beside others; gives a function that tells whether there were any."""
        visit = object()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._here[visit] = bool(self._here)
            if len(self._here) > 1:
                self._here = dict.fromkeys(self._here, True)
        try:
            yield lambda: self._here[visit]
        finally:
            with self._changed:
                del self._here[visit]
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self):
        """Grade when all others have ended; nobody begins meanwhile."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._here)
            visit = object()
            self._here[visit] = False
        try:
            yield
        finally:
            with self._changed:
                del self._here[visit]
                self._waiting -= 1
                self._changed.notify_all()
