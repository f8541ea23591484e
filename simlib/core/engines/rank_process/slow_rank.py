"""A real rank that was made slow: it sleeps for as long as its computing would take longer."""

from __future__ import annotations

import contextlib
import threading
import time

from ...model.chance import Pace
from ...record.this_rank import here

LEAST_S = 1e-4
"""A sleep of less takes much longer than it was asked to: what is owed is kept until it is more."""


class SlowRank:
    """Stretches the computing of the calling thread, which is the rank's.

    Parameters
    ----------
    pace : Pace
    next_op : callable
        The number of the rank's next op.
    cpu_s : callable, optional
        Seconds that this thread has computed. Not those of a wall clock: the time in which the
        processor served others is no work of this rank.
    """

    def __init__(self, pace, next_op, cpu_s=time.thread_time):
        self._pace = pace
        self._next_op = next_op
        self._cpu_s = cpu_s
        self._thread = threading.get_ident()
        self._calls = 0
        self._owed_s = 0.0
        self._since_s = cpu_s()

    def compute(self, seconds):
        """The rank calls `simlib.compute`, a piece of its own."""
        factor = self._pace.factor(self._calls)
        self._calls += 1
        time.sleep(seconds * factor)

    def stretch(self):
        """Before an op, a wait, or the end: sleep for what was computed since the last of these."""
        if threading.get_ident() != self._thread:
            return
        computed_s = self._cpu_s() - self._since_s
        # No processor can be made faster: what is really computed is never shortened.
        self._owed_s += computed_s * max(0.0, self._pace.factor(self._next_op()) - 1)
        if self._owed_s >= LEAST_S:
            owed_s, self._owed_s = self._owed_s, 0.0
            time.sleep(owed_s)
        self._since_s = self._cpu_s()


@contextlib.contextmanager
def slowed(slow, rank, recorder):
    """Let the calling thread compute as slowly as ``slow`` says, a number or a `Jitter`."""
    log = recorder.log
    own = SlowRank(Pace(slow, rank), lambda: log.posted)
    here.advance = own.compute
    recorder.before_op = recorder.before_wait = own.stretch
    try:
        yield
        own.stretch()
    finally:
        recorder.before_op = recorder.before_wait = None
        del here.advance
