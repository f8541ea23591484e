"""Commands that a rank starts: they have its environment, and what they print is the rank's."""

from __future__ import annotations

import codecs
import functools
import inspect
import os
import select
import subprocess
import threading

from ....record.this_rank import here as local

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
