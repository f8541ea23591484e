"""Processes that rest between runs go when there has been no run for minutes.

They hold several times what a kernel holds: a class on one machine has more kernels that rest than
kernels that run. The next run starts them again, as a first run does.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import threading
from multiprocessing.popen_forkserver import Popen

from ...environment import are_ranks_trusted
from .server import start_server, stop_server

VARIABLE = "SIMLIB_IDLE_MINUTES"
MINUTES = 10.0
"""Minutes where the environment says none: longer than a page of a lesson is read, and coming back
costs seconds."""


def minutes():
    """Minutes of rest after which processes go; infinite where the environment says 0.

    A kernel that grades keeps what it has: its server is the one that no student's code has seen.
    """
    if not are_ranks_trusted():
        return math.inf
    text = os.environ.get(VARIABLE, "")
    try:
        asked = float(text) if text else MINUTES
    except ValueError:
        return MINUTES
    return asked if asked > 0 else math.inf


class IdleTimer:
    """Knows whether something runs, and closes what rests when nothing has for long.

    Parameters
    ----------
    timer : callable
        Makes a timer of seconds and a function, as `threading.Timer` does.
    """

    def __init__(self, timer=threading.Timer):
        self._make_timer = timer
        self._lock = threading.Lock()
        self._at_work = 0
        self._used = set()
        self._timer = None

    def begin(self):
        """What rests now goes when the time is up, though nothing has run."""
        with self._lock:
            self._stop_timer()
            if not self._at_work:
                self._start_timer()

    @contextlib.contextmanager
    def busy(self, resting):
        """Within it something runs, by processes that ``resting.sleep()`` ends."""
        with self._lock:  # waits where processes are just being ended
            self._stop_timer()
            self._at_work += 1
            self._used.add(resting)
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self._start_timer()

    def _start_timer(self):
        seconds = 60 * minutes()
        if seconds > threading.TIMEOUT_MAX:
            return
        timer = self._make_timer(seconds, lambda: self._release(timer))
        timer.daemon = True
        self._timer = timer
        timer.start()

    def _stop_timer(self):
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, timer):
        with self._lock:
            if timer is not self._timer:  # a run began when the time was up
                return
            self._timer = None
            for resting in self._used:
                resting.sleep()
            self._used.clear()
            if not _has_other_children():
                stop_server()


def _has_other_children():
    """Whether the server has forked processes of the learner's own, which live on."""
    return any(isinstance(one._popen, Popen) for one in multiprocessing.active_children())


@functools.cache
def _idle_timer_of(pid):
    return IdleTimer()


def idle_timer():
    """What this process knows of its rest."""
    return _idle_timer_of(os.getpid())


def warm_up():
    """Start the server of ranks before the first run asks for it; this returns at once.

    For a startup file of a class's kernels: the server imports torch while a student still reads.
    """
    start_server()
    idle_timer().begin()
