"""How long the kernel bears with ranks that print without end, or do nothing to be seen."""

from __future__ import annotations

import time

from . import failures

QUIET_S = 10.0
"""Silence after which the display says where the ranks are."""


class Patience:
    """One run's; for the watches of both engines.

    Parameters
    ----------
    watch : Watch or SimulationWatch
        What `outcome` asks for.
    display : Display
    """

    def __init__(self, watch, display):
        self._watch = watch
        self._display = display
        self._moved_at = time.monotonic()
        self._progress = None
        self._said_quiet = False

    def ending(self, posted):
        """The error that ends the run now, or None; ``posted`` changes with every op of a rank."""
        flooding = [rank for rank, out in enumerate(self._watch.outputs) if out.is_flood]
        if flooding:
            return failures.endless_output(self._watch, flooding[0])
        silence_s = self._silence_s(posted)
        limit_s = self._watch.timeout_s
        if limit_s is not None and silence_s > limit_s:
            return failures.out_of_time(self._watch)
        if silence_s > QUIET_S and not self._said_quiet:
            self._display.status(failures.where_ranks_are(self._watch))
            self._said_quiet = True
        self._display.refresh()
        return None

    def _silence_s(self, posted):
        """Seconds since the last op or output of any rank."""
        progress = posted, sum(output.total for output in self._watch.outputs)
        if progress != self._progress:
            self._progress = progress
            self._moved_at = time.monotonic()
            if self._said_quiet:
                self._display.status("")
                self._said_quiet = False
        return time.monotonic() - self._moved_at
