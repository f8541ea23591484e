"""Clocks that tell a rank its virtual time, and sleeping that advances it."""

from __future__ import annotations

import functools
import math
import operator
import os
import sys
import threading
import time
import timeit

from ....record.this_rank import here as local

_WAITING = frozenset(
    "asyncio concurrent multiprocessing queue selectors socket subprocess threading".split()
)
"""Modules of Python that wait for something outside the ranks: in the machine's time."""
_STANDARD_LIBRARY = os.path.dirname(threading.__file__) + os.sep


@functools.cache
def _waits_in_reality(filename):
    if not filename.startswith(_STANDARD_LIBRARY):
        return False
    return filename[len(_STANDARD_LIBRARY) :].split(os.sep)[0].removesuffix(".py") in _WAITING


PATIENCE = 1000
"""Readings of an unmoved clock after which each further one costs `READING_S`; twice as much after
so many more, and so on up to a thousand times."""
READING_S = 1e-6


def _virtual(function, convert):
    """A clock's function that tells a rank its own time, and other threads the machine's.

    Reading the clock takes no virtual time, unless a rank does nothing else: a loop that waits for
    a moment to come would wait for ever.
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
    """Clocks tell a rank its virtual time, and sleeping advances it."""
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
    """The seconds as a float; refused is what `time.sleep` refuses, in its words."""
    seconds = float(seconds if isinstance(seconds, float) else operator.index(seconds))
    if math.isnan(seconds):
        raise ValueError("Invalid value NaN (not a number)")
    if abs(seconds) * 1e9 >= 2**63:
        raise OverflowError("timestamp out of range for platform time_t")
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    return seconds


def end_virtual_time():
    """In a child that a rank forked: it holds no baton, and lives in the machine's time."""
    for name in ("clock", "sleep", "advance", "settle", "before_output", "beside"):
        local.__dict__.pop(name, None)
