"""What a rank starts belongs to it: threads, processes, commands.

What a thread computes is work of the rank's one device, so its seconds are added to the rank's own,
and what it holds the rank holds. Nothing is counted of what another process computes. A command has
the rank's environment, and what it prints is the rank's.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import codecs
import functools
import inspect
import os
import select
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
    handed_on : dict
        What threads of the rank have in common with it, by names of `local`.
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
        self.handed_on = {}
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
        local.__dict__.update(self.handed_on)
        if self.meter is not None:
            local.meter = self.meter
        with self.make_mode():
            return function(*args, **kwargs)


def own_threads_and_processes():
    """Let what a rank starts, or what it has started does, belong to the rank."""
    for name, others in (
        ("start_new_thread", ((_thread, "start_new"), (threading, "_start_new_thread"))),
        # Since Python 3.13:
        ("start_joinable_thread", ((threading, "_start_joinable_thread"),)),
    ):
        if hasattr(_thread, name):
            start = _as_ranks(getattr(_thread, name))
            for module, own_name in ((_thread, name), *others):
                setattr(module, own_name, start)
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


def _as_ranks(start):
    @functools.wraps(start)
    def start_as_ranks(function, *args, **kwargs):
        beside = local.__dict__.get("beside")
        if beside is not None:
            function = functools.partial(beside.call, function)
        return start(function, *args, **kwargs)

    return start_as_ranks


def _noting(start):
    @functools.wraps(start)
    def start_and_note(*args, **kwargs):
        beside = local.__dict__.get("beside")
        if beside is not None:
            beside.processes += 1
        return start(*args, **kwargs)

    return start_and_note


CHUNK = 1 << 16


class _Pump:
    """What one command prints, shown as the rank's: by a thread, as long as it may print."""

    def __init__(self, rank, write_out):
        self._rank, self._write_out = rank, write_out
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._lock = threading.Lock()
        self._is_open = True

    def begin(self):
        """The command has the other end."""
        os.close(self.writing)
        # The engine's own thread, not the rank's: counting its ops may import, and a rank that
        # starts a command while it imports waits here with the lock on imports.
        beside = local.__dict__.pop("beside", None)
        try:
            threading.Thread(target=self._until_the_end, daemon=True).start()
        finally:
            if beside is not None:
                local.beside = beside

    def _until_the_end(self):
        poll = select.poll()  # descriptors are many here: each rank has one
        poll.register(self._reading, select.POLLIN)
        while self._is_open:
            poll.poll()
            self.drain()

    def drain(self):
        """Show what has come so far."""
        with self._lock:
            while self._is_open:
                try:
                    data = os.read(self._reading, CHUNK)
                except BlockingIOError:
                    return
                text = self._decode(data, not data)
                if text:
                    self._write_out(self._rank, text)
                if not data:
                    self._is_open = False
                    os.close(self._reading)


def own_commands(write_out, all_cpus):
    """Let each command that a rank starts have the rank's environment and output, and all CPUs."""
    start, poll, wait = (getattr(subprocess.Popen, n) for n in ("__init__", "poll", "wait"))
    names = list(inspect.signature(start).parameters)[1:]

    @functools.wraps(start)
    def start_as_rank(self, *args, **kwargs):
        rank = getattr(local, "rank", None)
        if rank is None:
            return start(self, *args, **kwargs)
        options = dict(zip(names, args, strict=False)) | kwargs
        if options.get("env") is None:
            options["env"] = os.environ.copy()
        streams = [name for name in ("stdout", "stderr") if options.get(name) is None]
        if not streams:
            with all_cpus():
                return start(self, **options)
        self._pump = _Pump(rank, write_out)
        try:
            with all_cpus():
                start(self, **options | dict.fromkeys(streams, self._pump.writing))
        finally:
            self._pump.begin()

    def showing(method):
        @functools.wraps(method)
        def ended(self, *args, **kwargs):
            code = method(self, *args, **kwargs)
            pump = getattr(self, "_pump", None)
            if code is not None and pump is not None:
                pump.drain()  # so that it stands before what the rank prints next
            return code

        return ended

    subprocess.Popen.__init__ = start_as_rank
    subprocess.Popen.poll, subprocess.Popen.wait = showing(poll), showing(wait)
    _own_system()


def _own_system():
    system = os.system

    def system_as_rank(command):
        if not hasattr(local, "rank"):
            return system(command)
        code = subprocess.call(command, shell=True)
        return code << 8 if code >= 0 else -code  # as the C library tells it

    os.system = system_as_rank
