"""The surroundings of a rank, as a process has them: clocks, environment variables, output."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import math
import operator
import os
import sys
import threading
import time
import timeit
from collections.abc import Mapping, MutableMapping

from ....record.this_rank import here as local

_WAITING = frozenset(
    "asyncio concurrent multiprocessing queue selectors socket subprocess threading".split()
)
"""Modules of Python that wait for something outside the ranks, in the machine's time."""
_write = os.write
_STANDARD_LIBRARY = os.path.dirname(threading.__file__) + os.sep


@functools.cache
def _waits_in_reality(filename):
    if not filename.startswith(_STANDARD_LIBRARY):
        return False
    return filename[len(_STANDARD_LIBRARY) :].split(os.sep)[0].removesuffix(".py") in _WAITING


PATIENCE = 1000
"""If a rank reads its clock this many times and the clock does not advance, each further reading
takes `READING_S`. After as many more readings, a reading takes twice as long, and so on, up to a
thousand times as long."""
READING_S = 1e-6


def _virtual(function, convert):
    """A clock's function. It gives a rank its own time, and other threads the machine's time.

    Reading the clock takes no virtual time, unless a rank does nothing else. In that case it takes
    time, because a loop that waits for a moment would otherwise never end.
    """

    def now():
        clock = getattr(local, "clock", None)
        if clock is None or _waits_in_reality(sys._getframe(1).f_code.co_filename):
            return function()
        time_s = clock()
        if local.__dict__.get("read_s") != time_s:
            local.read_s, local.readings = time_s, 0
        local.readings += 1
        if local.readings > PATIENCE:
            local.sleep(READING_S * 2 ** min(10, local.readings // PATIENCE - 1))
            local.read_s = clock()
        return convert(time_s)

    return now


def own_clock():
    """Clocks give a rank its virtual time, and sleeping advances this time."""
    for name, origin_s in (("perf_counter", 0.0), ("monotonic", 0.0), ("time", time.time())):
        nanoseconds = name + "_ns"
        exact = _virtual(
            getattr(time, nanoseconds), lambda s, origin_s=origin_s: round((origin_s + s) * 1e9)
        )
        setattr(
            time, name, _virtual(getattr(time, name), lambda s, origin_s=origin_s: origin_s + s)
        )
        setattr(time, nanoseconds, exact)
    timeit.default_timer = time.perf_counter
    sleep_in_reality = time.sleep

    def sleep(seconds):
        sleep_here = getattr(local, "sleep", None)
        if sleep_here is None or _waits_in_reality(sys._getframe(1).f_code.co_filename):
            sleep_in_reality(seconds)
        else:
            sleep_here(_checked_sleep(seconds))

    time.sleep = sleep


def _checked_sleep(seconds):
    """The seconds as a float. It refuses the same values as `time.sleep`, in its words."""
    seconds = float(seconds if isinstance(seconds, float) else operator.index(seconds))
    if math.isnan(seconds):
        raise ValueError("Invalid value NaN (not a number)")
    if abs(seconds) * 1e9 >= 2**63:
        raise OverflowError("timestamp out of range for platform time_t")
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    return seconds


def end_virtual_time():
    """In a child that a rank forked: the child has no baton, and uses the machine's time."""
    for name in ("clock", "sleep", "advance", "settle", "before_output", "beside", "process_id"):
        local.__dict__.pop(name, None)
    local.write_out = lambda rank, text: _write(1, text.encode("utf-8", "backslashreplace"))


_DELETED = object()


class EnvironmentPerRank(MutableMapping):
    """``os.environ``: the variables of one rank, and for other names the variables of the
    process."""

    def __init__(self, base):
        self.base = base

    def _mine(self):
        return local.__dict__.setdefault("environ", {})

    def __getitem__(self, name):
        value = self._mine().get(name)
        if value is _DELETED:
            raise KeyError(name)
        return self.base[name] if value is None else value

    def __setitem__(self, name, value):
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"str expected, not {type(text).__name__}")
        self._mine()[name] = value

    def __delitem__(self, name):
        if name not in self:
            raise KeyError(name)
        self._mine()[name] = _DELETED

    def __iter__(self):
        return iter(self.copy())

    def __len__(self):
        return len(self.copy())

    def __repr__(self):
        return f"environ({self.copy()!r})"

    def __or__(self, other):
        return self.copy() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other):
        return dict(other) | self.copy() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other):
        self.update(other)
        return self

    def copy(self):
        values = {**self.base, **self._mine()}
        return {name: value for name, value in values.items() if value is not _DELETED}


LONGEST_HELD = 8192
"""simlib shows an unfinished line when it has this many characters."""


class _BytesPerRank(io.RawIOBase):
    """``sys.stdout.buffer``: the same output, as UTF-8."""

    def __init__(self, text):
        self._text = text

    def write(self, data):
        decoder = local.__dict__.get("decoder")
        if decoder is None:
            decoder = local.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        data = bytes(data)
        self._text.write(decoder.decode(data))
        return len(data)

    def writable(self):
        return True

    def flush(self):
        self._text.flush()

    def close(self):
        self.flush()

    def fileno(self):
        return self._text.fileno()


class OutputPerRank(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr``: whole lines go to ``write_out(rank, text)``.

    The output of threads that no rank has started goes to ``other``.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, write_out, other):
        self.buffer = _BytesPerRank(self)
        self._write_out = write_out
        self._other = other

    def write(self, text):
        fields = local.__dict__
        if not fields.keys() & {"rank", "beside"}:
            return self._other.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fields.setdefault("printed", []).append(text)
        fields["held"] = fields.get("held", 0) + len(text)
        if "\n" in text or fields["held"] >= LONGEST_HELD:
            self.flush()
        return len(text)

    def flush(self):
        fields = local.__dict__
        if fields.get("printed"):
            fields.get("before_output", bool)()
            text = "".join(fields["printed"])
            fields["printed"], fields["held"] = [], 0
            beside = fields.get("beside")  # none in a child that was forked
            if beside is not None:
                beside.show()
            rank = fields.get("rank") if beside is None else beside.rank
            fields.get("write_out", self._write_out)(rank, text)

    def close(self):
        """Write out all text. The stream stays open, because it belongs to all ranks."""
        self.flush()

    def reconfigure(self, *, encoding=None, errors=None, newline=None, **buffering):
        """Ignore the arguments: lines are shown when they end, in UTF-8."""
        self.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._other.fileno()


def write_to_descriptors(stdout, stderr):
    """Text that a rank writes to descriptor 1 or 2 is its output, too."""
    streams = {1: stdout, 2: stderr}

    def write(fd, data):
        if fd in streams and local.__dict__.keys() & {"rank", "beside"}:
            return streams[fd].buffer.write(data)
        return _write(fd, data)

    os.write = write


def flush(streams):
    """Write out this rank's output. The rank may have replaced `sys.stdout`."""
    for stream in (sys.stdout, sys.stderr, *streams):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed by the learner
            stream.flush()
