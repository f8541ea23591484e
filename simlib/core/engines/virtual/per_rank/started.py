"""Threads, processes and commands that a rank starts belong to the rank.

A thread's computing is work of the rank's one device. So its seconds are added to the rank's
seconds, and its memory is the rank's memory. simlib does not count the computing of other
processes. These have the rank's environment, and their output counts as the rank's output: while
they start, the rank's pipe replaces descriptors 1 and 2.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import codecs
import contextlib
import functools
import os
import select
import subprocess
import sys
import threading
from math import fsum

from ....record.this_rank import here as local

_real_process_id = os.getpid


class WorkBeside:
    """The computing of one rank's threads, until the rank's own clock includes it.

    Parameters
    ----------
    rank : int

    Attributes
    ----------
    meter : MemoryMeter or None
        The rank's own meter.
    make_mode : callable
        A function that makes the context in which simlib counts the ops of a thread.
    handed_on : dict
        What threads of the rank share with the rank, by names of `local`.
    processes : int
        The number of processes that the rank has started.
    take_part : callable
        What each such thread calls first.
    took_part : bool
        Whether there was any such thread.
    write_out : callable
        ``write_out(rank, text)`` shows the output of a rank's processes.

    The sum does not depend on the order of threads. A thread holds ``lock`` from the beginning of
    an op until the op is counted. So nobody can read the sum before.
    """

    def __init__(self, rank):
        self.rank = rank
        self._pump, self._has_ended = None, False
        self.lock = threading.RLock()
        self.meter = None
        self.make_mode = None
        self.handed_on = {}
        self.processes = 0
        self.take_part = lambda: None
        self.took_part = False
        self._seconds = []

    def add(self, seconds):
        """A thread has computed for this many seconds."""
        with self.lock:
            self._seconds.append(seconds)

    def take(self):
        """Seconds since the last call of this method."""
        with self.lock:
            seconds, self._seconds = self._seconds, []
        return fsum(seconds)

    def start(self, start, *args, **kwargs):
        """Start a process whose output belongs to the rank."""
        with self.lock:
            if self._has_ended:
                return start(*args, **kwargs)
            if self._pump is None:
                self._pump = _Pump(functools.partial(self.write_out, self.rank))
        return self._pump.start(start, *args, **kwargs)

    def show(self):
        """Show the output of the rank's processes so far, before the rank's next output."""
        if self._pump is not None:
            self._pump.drain()

    def end(self):
        """The rank has ended."""
        with self.lock:
            self._has_ended = True
        if self._pump is not None:
            self._pump.end()

    def call(self, function, *args, **kwargs):
        """Call a function in a thread of the rank."""
        self.took_part = True
        self.take_part()
        local.beside, local.advance = self, self.add
        local.__dict__.update(self.handed_on)
        if self.meter is not None:
            local.meter = self.meter
        try:
            with self.make_mode():
                return function(*args, **kwargs)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):  # closed
                    stream.flush()


def own_threads_and_processes(write_out, all_cpus):
    """Let threads and processes that a rank starts, and their work, belong to the rank.

    Commands may use all CPUs, through ``all_cpus()``.
    """
    WorkBeside.write_out = staticmethod(write_out)
    for name, others in (
        ("start_new_thread", ((_thread, "start_new"), (threading, "_start_new_thread"))),
        # Since Python 3.13:
        ("start_joinable_thread", ((threading, "_start_joinable_thread"),)),
    ):
        if hasattr(_thread, name):
            start = _as_ranks(getattr(_thread, name))
            for module, own_name in ((_thread, name), *others):
                setattr(module, own_name, start)
    for module, name, cpus in (
        (os, "fork", contextlib.nullcontext),  # whoever forks has them anyway
        (os, "forkpty", contextlib.nullcontext),
        (os, "posix_spawn", all_cpus),
        (os, "posix_spawnp", all_cpus),
        (_posixsubprocess, "fork_exec", all_cpus),
        (subprocess, "_fork_exec", all_cpus),
    ):
        if hasattr(module, name):
            place = _ENVIRONMENT.get(name.lstrip("_"))
            setattr(module, name, _of_rank(getattr(module, name), cpus, place))
    execute = os.execv
    os.execv = lambda path, args: (
        os.execve(path, args, os.environ) if "environ" in local.__dict__ else execute(path, args)
    )
    _own_system()


def _as_ranks(start):
    @functools.wraps(start)
    def start_as_ranks(function, *args, **kwargs):
        beside = local.__dict__.get("beside")
        if beside is not None:
            function = functools.partial(beside.call, function)
        return start(function, *args, **kwargs)

    return start_as_ranks


_ENVIRONMENT = {"fork_exec": 5, "posix_spawn": 2, "posix_spawnp": 2}
"""The place of the environment among the arguments. Since Python 3.13 it may be None in each."""


def _of_rank(start, cpus, place):
    @functools.wraps(start)
    def start_of_rank(*args, **kwargs):
        if place and args[place] is None and "environ" in local.__dict__:
            own = os.environ.copy()
            if place == _ENVIRONMENT["fork_exec"]:
                own = [os.fsencode(f"{name}={value}") for name, value in own.items()]
            args = (*args[:place], own, *args[place + 1 :])
        beside = local.__dict__.get("beside")
        if beside is None:
            return start(*args, **kwargs)
        beside.processes += 1
        with cpus():
            return beside.start(start, *args, **kwargs)

    return start_of_rank


CHUNK = 1 << 16
_turn = threading.Lock()
"""The output of code that has replaced descriptors 1 and 2 by its own."""


class _Pump:
    """The output of one rank's processes, which a thread shows at once as the rank's output."""

    def __init__(self, show):
        self._show = show
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._lock = threading.Lock()
        self._is_open, self._has_ended = True, False
        # The engine's own thread, not the rank's: counting its ops may import, and a rank that
        # starts a command while it imports waits here with the lock on imports.
        beside = local.__dict__.pop("beside")
        try:
            self._thread = threading.Thread(target=self._until_the_end, daemon=True)
            self._thread.start()
        finally:
            local.beside = beside

    def start(self, start, *args, **kwargs):
        """Start a process whose output is the other end of the pipe."""
        own, pid = {}, _real_process_id()
        with _turn:
            if self._has_ended:
                return start(*args, **kwargs)
            try:
                for fd in (1, 2):
                    own[fd] = os.dup(fd)
                    os.dup2(self._writing, fd)
                return start(*args, **kwargs)
            finally:
                if _real_process_id() == pid:  # and not that of a child
                    for fd, copy in own.items():
                        os.dup2(copy, fd)
                        os.close(copy)

    def _until_the_end(self):
        poll = select.poll()  # descriptors are many here: each rank has one
        poll.register(self._reading, select.POLLIN)
        while self._is_open:
            poll.poll()
            self.drain()

    def drain(self):
        """Show the output so far."""
        with self._lock:
            while self._is_open:
                try:
                    data = os.read(self._reading, CHUNK)
                except BlockingIOError:
                    return
                text = self._decode(data, not data)
                if text:
                    self._show(text)
                if not data:
                    self._is_open = False
                    os.close(self._reading)

    def end(self):
        """The rank has ended. Processes that still run keep the other end of the pipe."""
        with _turn:
            self._has_ended = True
            os.close(self._writing)
        self.drain()
        if not self._is_open:
            self._thread.join()


def _own_system():
    system = os.system

    def system_as_rank(command):
        if not local.__dict__.keys() & {"rank", "beside"}:
            return system(command)
        code = subprocess.call(command, shell=True)
        return code << 8 if code >= 0 else -code  # as the C library tells it

    os.system = system_as_rank
