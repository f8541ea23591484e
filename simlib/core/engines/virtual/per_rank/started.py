"""Threads that a rank starts belong to it; processes that it starts are told of.

What such a thread computes is work of the rank's one device, so its seconds are added to the
rank's own, and what it holds the rank holds. Nothing is counted of what another process computes.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import functools
import os
import subprocess
import threading
from math import fsum

from ....record.this_rank import here as local


class WorkBeside:
    """What the threads that one rank has started compute, until its own clock takes it in.

    Attributes
    ----------
    meter : MemoryMeter or None
        The rank's own.
    make_mode : callable
        Makes the context in which the ops of a thread are counted.
    processes : int
        How many processes the rank has started.
    took_part : bool
        Whether there was any such thread.

    The sum is the same in whatever order threads run. An op is counted before anybody can take
    the sum: ``lock`` is held from its beginning on.
    """

    def __init__(self):
        self.lock = threading.RLock()
        self.meter = None
        self.make_mode = None
        self.processes = 0
        self.took_part = False
        self._seconds = []

    def add(self, seconds):
        """A thread has worked for so long."""
        with self.lock:
            self._seconds.append(seconds)

    def take(self):
        """Seconds since this was last called."""
        with self.lock:
            seconds, self._seconds = self._seconds, []
        return fsum(seconds)

    def call(self, function, *args, **kwargs):
        """Call a function in a thread of the rank's."""
        self.took_part = True
        local.beside, local.advance = self, self.add
        if self.meter is not None:
            local.meter = self.meter
        with self.make_mode():
            return function(*args, **kwargs)


def own_threads_and_processes():
    """Let what a rank starts, or what it has started does, belong to the rank."""
    start = _thread.start_new_thread

    @functools.wraps(start)
    def start_as_ranks(function, *args, **kwargs):
        beside = local.__dict__.get("beside")
        if beside is not None:
            function = functools.partial(beside.call, function)
        return start(function, *args, **kwargs)

    _thread.start_new_thread = _thread.start_new = start_as_ranks
    threading._start_new_thread = start_as_ranks
    joinable = getattr(_thread, "start_joinable_thread", None)  # since Python 3.13
    if joinable is not None:

        @functools.wraps(joinable)
        def start_joinable_as_ranks(function, *args, **kwargs):
            beside = local.__dict__.get("beside")
            if beside is not None:
                function = functools.partial(beside.call, function)
            return joinable(function, *args, **kwargs)

        _thread.start_joinable_thread = start_joinable_as_ranks
        threading._start_joinable_thread = start_joinable_as_ranks
    for module, name in (
        (os, "fork"),
        (os, "forkpty"),
        (os, "posix_spawn"),
        (os, "posix_spawnp"),
        (_posixsubprocess, "fork_exec"),
        (subprocess, "_fork_exec"),
    ):
        if hasattr(module, name):
            setattr(module, name, _noting(getattr(module, name)))


def _noting(start):
    @functools.wraps(start)
    def start_and_note(*args, **kwargs):
        beside = local.__dict__.get("beside")
        if beside is not None:
            beside.processes += 1
        return start(*args, **kwargs)

    return start_and_note
