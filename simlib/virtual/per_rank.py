"""What each simulated rank has to itself although it is only a thread.

torch keeps most of its modes by thread already (gradient mode, autocast, default device). Here is
the rest: torch.distributed's world, random numbers, output, environment, clock, default dtype.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import inspect
import io
import math
import operator
import os
import random
import subprocess
import sys
import threading
import time
import timeit
import weakref
from collections.abc import Mapping, MutableMapping

import numpy as np
import torch
from torch.distributed import distributed_c10d as c10d

from ..compute import here
from ..errors import InvalidCallError

local = here
"""What belongs to the rank of this thread: ``rank``, ``clock`` and what is made on first use."""


strangers = []
"""Names of threads that called torch.distributed without being a rank."""


def _world_field(name, make):
    def read(self):
        fields = local.__dict__
        if name not in fields:
            fields[name] = make()
        return fields[name]

    def write(self, value):
        setattr(local, name, value)

    return property(read, write)


def _default_group():
    """No group: asked for by a rank before it has joined, or by a thread that is no rank."""
    if not hasattr(local, "rank") and threading.current_thread() is not threading.main_thread():
        strangers.append(threading.current_thread().name)
        raise InvalidCallError(
            "this thread was started by a rank and is none: in a simulation only the rank's own "
            "thread may call torch.distributed (on real ranks, simlib.run, others may too)"
        )


class WorldPerThread:
    """torch.distributed's table of groups, one for each rank."""

    default_pg = _world_field("default_pg", _default_group)
    pg_map = _world_field("pg_map", dict)
    pg_names = _world_field("pg_names", dict)
    pg_group_ranks = _world_field("pg_group_ranks", dict)
    pg_backend_config = _world_field("pg_backend_config", dict)
    group_count = _world_field("group_count", int)
    tags_to_pg = _world_field("tags_to_pg", dict)
    pg_to_tag = _world_field("pg_to_tag", dict)
    pg_coalesce_state = _world_field("pg_coalesce_state", dict)
    comms = _world_field("comms", list)
    pg_config_info = c10d._World.pg_config_info


LONGEST_HELD = 8192
"""Characters of a line after which it is shown although it has not ended."""


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

    What other threads print goes to ``other``.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, write_out, other):
        self.buffer = _BytesPerRank(self)
        self._write_out = write_out
        self._other = other

    def write(self, text):
        rank = getattr(local, "rank", None)
        if rank is None:
            return self._other.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fields = local.__dict__
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
            self._write_out(local.rank, text)

    def close(self):
        """Let everything out; it stays open, as it belongs to all ranks."""
        self.flush()

    def reconfigure(self, *, encoding=None, errors=None, newline=None, **buffering):
        """Lines are shown as they end, in UTF-8, whatever is asked for."""
        self.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._other.fileno()


_DELETED = object()


class EnvironmentPerRank(MutableMapping):
    """``os.environ``: the process's, and over it what belongs to one rank."""

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


def _own_environment_of_commands():
    """A command that a rank starts has that rank's environment."""
    start = subprocess.Popen.__init__
    place = list(inspect.signature(start).parameters).index("env")

    @functools.wraps(start)
    def start_with_environment(*args, **kwargs):
        if len(args) <= place and kwargs.get("env") is None and hasattr(local, "rank"):
            kwargs["env"] = os.environ.copy()
        start(*args, **kwargs)

    subprocess.Popen.__init__ = start_with_environment


def flush(streams):
    """Let out what this rank has printed; its own `sys.stdout` may be anything."""
    for stream in (sys.stdout, sys.stderr, *streams):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed by the learner
            stream.flush()


def _own(name, make):
    """This rank's own generator; the process's own for other threads."""
    fields = local.__dict__
    if name not in fields:
        fields[name] = make(fields.get("rank"))
    return fields[name]


def _through(module, names, key, make):
    """Replace a module's functions, which belong to one generator, by those of the rank's own."""
    for name in names:

        def call(*args, _name=name, **kwargs):
            return getattr(_own(key, make), _name)(*args, **kwargs)

        call.__name__ = name
        call.__doc__ = getattr(module, name).__doc__
        setattr(module, name, call)


def _numpy_generator(rank):
    return np.random.RandomState(None if rank is None else rank)


def _python_generator(rank):
    return random.Random() if rank is None else random.Random(f"rank {rank}")


def _own_random_numbers():
    names = [n for n in random.__all__ if getattr(getattr(random, n), "__self__", None)]
    _through(random, names, "python_random", _python_generator)
    source = np.random.mtrand._rand
    names = [n for n in dir(source) if not n.startswith("_") and hasattr(np.random, n)]
    _through(np.random, names, "numpy_random", _numpy_generator)


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


def _own_clock():
    """Clocks tell a rank its virtual time, and sleeping advances it."""
    for name, zero_s in (("perf_counter", 0.0), ("monotonic", 0.0), ("time", time.time())):
        nanoseconds = name + "_ns"
        exact = _virtual(
            getattr(time, nanoseconds), lambda s, zero_s=zero_s: round((zero_s + s) * 1e9)
        )
        setattr(time, name, _virtual(getattr(time, name), lambda s, zero_s=zero_s: zero_s + s))
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


def _end_virtual_time():
    """In a child that a rank forked: it holds no baton, and lives in the machine's time."""
    for name in ("clock", "sleep", "advance", "settle", "before_output"):
        local.__dict__.pop(name, None)


class _Profiling:
    """Held by the rank that has torch's profiler; gone with its thread."""


def _one_profiler_at_a_time():
    """torch's profiler belongs to the process: a second one beside it would crash it."""
    profiler = torch.autograd.profiler
    prepare, disable = profiler._prepare_profiler, profiler._disable_profiler
    holders = weakref.WeakSet()

    def prepare_if_free(*args, **kwargs):
        mine = local.__dict__.setdefault("profiling", _Profiling())
        if any(holder is not mine for holder in holders):
            raise InvalidCallError(
                "another rank has torch's profiler open, and simulated ranks share one: "
                "let one rank profile at a time, as in `if rank == 0:`"
            )
        holders.add(mine)
        return prepare(*args, **kwargs)

    def disable_and_free():
        local.__dict__.pop("profiling", None)
        return disable()

    profiler._prepare_profiler, profiler._disable_profiler = prepare_if_free, disable_and_free


def separate_threads(write_out):
    """Give every rank thread of this process its own world; call once, before any function runs.

    Returns ``sys.stdout`` and ``sys.stderr`` as every rank finds them.
    """
    _own_random_numbers()
    _own_clock()
    os.register_at_fork(after_in_child=_end_virtual_time)
    _one_profiler_at_a_time()
    c10d._world = WorldPerThread()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _own_environment_of_commands()
    os.environ = EnvironmentPerRank(os.environ)  # noqa: B003 (its base is the environment)
    sys.stdout = OutputPerRank(write_out, sys.stdout)
    sys.stderr = OutputPerRank(write_out, sys.stderr)
    return sys.stdout, sys.stderr


class StateInTurn:
    """What belongs to the process and must change with the rank.

    torch's random numbers and default dtype, and what `sys.stdout` and `sys.stderr` are.
    """

    def __init__(self, world_size, seed):
        torch.manual_seed(seed)
        begin = torch.default_generator.get_state()
        self._states = [begin] * world_size
        self._dtypes = [torch.get_default_dtype()] * world_size
        self._streams = [(sys.stdout, sys.stderr)] * world_size
        self._rank = None

    def enter(self, rank):
        """The thread of this rank goes on."""
        if rank == self._rank:
            return
        if self._rank is not None:
            self._states[self._rank] = torch.default_generator.get_state()
            self._dtypes[self._rank] = torch.get_default_dtype()
            self._streams[self._rank] = sys.stdout, sys.stderr
        torch.default_generator.set_state(self._states[rank])
        if self._dtypes[rank] is not torch.get_default_dtype():
            torch.set_default_dtype(self._dtypes[rank])
        sys.stdout, sys.stderr = self._streams[rank]
        self._rank = rank
