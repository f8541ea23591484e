"""A real rank with a ``slow=`` factor. It sleeps for the additional time of its computing."""

from __future__ import annotations

import contextlib
import threading
import time

from ...model.chance import Pace
from ...record.this_rank import here

LEAST_S = 1e-4
"""A shorter sleep takes much longer than requested. So shorter sleeps are added up first."""


class SlowRank:
    """Stretches the computing of the calling thread, which is the rank's main thread.

    Parameters
    ----------
    pace : Pace
    next_op : callable
        The number of the rank's next op.
    cpu_s : callable, optional
        Seconds that this thread has computed. A wall clock would also count the time in which the
        processor served other threads.
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
        """The rank calls `simlib.compute`, a separate piece."""
        factor = self._pace.factor(self._calls)
        self._calls += 1
        time.sleep(seconds * factor)

    def stretch(self):
        """Called before an op, a wait, or the end. Sleep for the computing since the last call."""
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
    """Slow down the calling thread by ``slow``, a number or a `Jitter`."""
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
