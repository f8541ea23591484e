"""What each simulated rank has to itself although it is only a thread.

torch keeps most of its modes by thread already (gradient mode, autocast, default device). Here is
the rest: torch.distributed's world, random numbers, output, environment, clock, default dtype.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import timeit
import weakref
from collections.abc import MutableMapping

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


class OutputPerRank:
    """``sys.stdout`` and ``sys.stderr``: whole lines go to ``write_out(rank, text)``.

    What other threads print goes to ``other``.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, write_out, other):
        self._write_out = write_out
        self._other = other

    def write(self, text):
        rank = getattr(local, "rank", None)
        if rank is None:
            return self._other.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        buffer = local.__dict__.setdefault("printed", [])
        buffer.append(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        buffer = local.__dict__.get("printed")
        if buffer:
            self._write_out(local.rank, "".join(buffer))
            buffer.clear()

    def isatty(self):
        return False

    def writable(self):
        return True

    def fileno(self):
        return self._other.fileno()


class EnvironmentPerRank(MutableMapping):
    """``os.environ``: the process's, and over it what belongs to one rank."""

    def __init__(self, base):
        self.base = base

    def _mine(self):
        return local.__dict__.setdefault("environ", {})

    def __getitem__(self, name):
        value = self._mine().get(name)
        return self.base[name] if value is None else value

    def __setitem__(self, name, value):
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"str expected, not {type(text).__name__}")
        self._mine()[name] = value

    def __delitem__(self, name):
        if name not in self._mine():
            raise KeyError(name)
        del self._mine()[name]

    def __iter__(self):
        return iter({**self.base, **self._mine()})

    def __len__(self):
        return len({**self.base, **self._mine()})

    def __contains__(self, name):
        return name in self._mine() or name in self.base

    def copy(self):
        return {**self.base, **self._mine()}


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
        if clock is None:
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
        if sleep_here is None:
            sleep_in_reality(seconds)
        elif seconds < 0:
            raise ValueError("sleep length must be non-negative")
        else:
            sleep_here(seconds)

    time.sleep = sleep


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
    """Give every rank thread of this process its own world; call once, before any function runs."""
    _own_random_numbers()
    _own_clock()
    _one_profiler_at_a_time()
    c10d._world = WorldPerThread()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    os.environ = EnvironmentPerRank(os.environ)  # noqa: B003 (its base is the environment)
    sys.stdout = OutputPerRank(write_out, sys.stdout)
    sys.stderr = OutputPerRank(write_out, sys.stderr)


class TorchState:
    """What of torch belongs to the process and must change with the rank: the random numbers."""

    def __init__(self, world_size, seed):
        torch.manual_seed(seed)
        begin = torch.default_generator.get_state()
        self._states = [begin] * world_size
        self._dtypes = [torch.get_default_dtype()] * world_size
        self._rank = None

    def enter(self, rank):
        """The thread of this rank goes on."""
        if rank == self._rank:
            return
        if self._rank is not None:
            self._states[self._rank] = torch.default_generator.get_state()
            self._dtypes[self._rank] = torch.get_default_dtype()
        torch.default_generator.set_state(self._states[rank])
        if self._dtypes[rank] is not torch.get_default_dtype():
            torch.set_default_dtype(self._dtypes[rank])
        self._rank = rank
