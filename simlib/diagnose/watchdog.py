"""How long the kernel bears with ranks that print without end, or do nothing to be seen."""

from __future__ import annotations

import time

from . import failures

QUIET_S = 10.0
"""Silence after which the display says where the ranks are."""


class Watchdog:
    """One run's; for the watches of both engines.

    Parameters
    ----------
    monitor : ProcessMonitor or SimulationMonitor
        What `outcome` asks for.
    display : Display
    """

    def __init__(self, monitor, display):
        self._monitor = monitor
        self._display = display
        self._moved_at = time.monotonic()
        self._progress = None
        self._said_quiet = False

    def ending(self, posted):
        """The error that ends the run now, or None; ``posted`` changes with every op of a rank."""
        flooding = [rank for rank, out in enumerate(self._monitor.outputs) if out.is_flood]
        if flooding:
            return failures.endless_output(self._monitor, flooding[0])
        silence_s = self._silence_s(posted)
        limit_s = self._monitor.timeout_s
        if limit_s is not None and silence_s > limit_s:
            return failures.out_of_time(self._monitor)
        if silence_s > QUIET_S and not self._said_quiet:
            self._display.status(failures.where_ranks_are(self._monitor))
            self._said_quiet = True
        self._display.refresh()
        return None

    def _silence_s(self, posted):
        """Seconds since the last op or output of any rank."""
        progress = posted, sum(output.total for output in self._monitor.outputs)
        if progress != self._progress:
            self._progress = progress
            self._moved_at = time.monotonic()
            if self._said_quiet:
                self._display.status("")
                self._said_quiet = False
        return time.monotonic() - self._moved_at
