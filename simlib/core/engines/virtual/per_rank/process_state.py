"""State that Python and torch keep once per process, as if a process were a rank.

Here each rank has its own copy of most of it: groups, loggers, process id, folder. simlib refuses
the rest, or gives it to one rank at a time.
"""

from __future__ import annotations

import _warnings
import contextlib
import ctypes
import functools
import logging
import multiprocessing.context
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local
from ....record.torch_inside import configurations, fields_of_world, when_imported

foreign_threads = []
"""Names of threads that have called torch.distributed but are not ranks."""

CLONE_FS = 0x200
"""Flags of Linux's `unshare`: the working folder and the file mask."""
real_process_id = os.getpid
_PROCESSES = ("multiprocessing", "concurrent", "subprocess")
"""Parts of Python that compare process ids with ids from before the first rank."""


class _PerRank:
    """An attribute of instances that each rank has for itself.

    ``duplicate`` makes a rank's first value from the value of the process. By default the rank gets
    a copy.
    """

    def __init__(self, name: str, duplicate: Callable[[Any], Any] = copy) -> None:
        self._name = name
        self._duplicate = duplicate

    def _values(self, instance: Any) -> dict:
        """The values of this attribute for the calling rank; the key is the instance."""
        if "attributes" not in local.__dict__:
            return instance.__dict__
        own = local.attributes.setdefault(instance, {})
        if self._name not in own and self._name in instance.__dict__:
            own[self._name] = self._duplicate(instance.__dict__[self._name])
        return own

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        try:
            return self._values(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: Any) -> None:
        if self._name not in instance.__dict__:
            # Others find in this way what a rank makes.
            instance.__dict__[self._name] = self._duplicate(value)
        self._values(instance)[self._name] = value


def own_loggers() -> None:
    """Give each rank the handlers, levels and filters that it sets."""
    for name in ("handlers", "filters", "level", "propagate", "disabled", "_cache"):
        setattr(logging.Logger, name, _PerRank(name))
    logging.Manager._disable = _PerRank("_disable")  # type: ignore[attr-defined]


def own_locks_on_output() -> None:
    """Let no rank wait for a lock that another rank has while it logs, warns or draws a bar.

    A rank that writes may let other ranks run first. If one of them waited for the writer's lock,
    the writer could never release the lock, because the waiting rank has the turn. So each rank has
    its own locks of logging and tqdm, and a rank that shows a warning releases Python's lock.
    """

    def another(lock):
        return lock and threading.RLock()

    logging.Handler.lock = _PerRank("lock", another)  # type: ignore[assignment]
    bars = _PerRank("locks", lambda locks: [another(lock) for lock in locks])
    when_imported("tqdm.std", lambda tqdm: setattr(tqdm.TqdmDefaultWriteLock, "locks", bars))
    if hasattr(_warnings, "_release_lock"):  # since Python 3.14
        show = warnings._showwarnmsg  # type: ignore[attr-defined]
        warnings._showwarnmsg = functools.partial(_show_without_lock, show)  # type: ignore[attr-defined]


def _show_without_lock(show: Callable[[Any], None], message: Any) -> None:
    """Show a warning. Meanwhile the calling thread does not have Python's lock on warnings."""
    python: Any = _warnings
    count = 0
    with contextlib.suppress(RuntimeError):  # as often as this thread has acquired it
        while True:
            python._release_lock()
            count += 1
    try:
        show(message)
    finally:
        for _ in range(count):
            python._acquire_lock()


def own_start_method() -> None:
    """Let each rank choose once how it starts processes, as a process may."""
    multiprocessing.set_start_method(None, force=True)
    kind = type(multiprocessing.context._default_context)  # type: ignore[attr-defined]
    kind._actual_context = _PerRank("_actual_context")


def own_process_id() -> None:
    """Give each rank and its threads the id of its thread, which no other process has."""

    @functools.wraps(real_process_id)
    def getpid() -> int:
        own = local.__dict__.get("process_id")
        if own is None or _is_of_processes(sys._getframe(1).f_code.co_filename):
            return real_process_id()
        return own

    os.getpid = getpid


@functools.cache
def _is_of_processes(file):
    library = os.path.dirname(os.__file__) + os.sep
    within = file.removeprefix(library).split(os.sep)[0].removesuffix(".py")
    return file.startswith(library) and within in _PROCESSES


def own_folder() -> bool:
    """Give the calling thread its own working folder and file mask; False if this is impossible.

    Its child threads and processes inherit both.
    """
    try:
        return ctypes.CDLL(None).unshare(CLONE_FS) == 0
    except AttributeError:  # no Linux
        return False


class WorldPerThread(threading.local):
    """torch.distributed's table of groups, one for each rank."""

    pg_config_info = configurations()
    fields = fields_of_world()

    def __init__(self):
        # Called in each thread that asks for a field for the first time.
        may_ask = hasattr(local, "rank") or threading.current_thread() is threading.main_thread()
        for name, make in self.fields.items():
            if may_ask or name != "default_pg":
                setattr(self, name, make())

    def __getattr__(self, name):
        if name != "default_pg":
            raise AttributeError(f"torch.distributed's world has no {name!r}")
        foreign_threads.append(threading.current_thread().name)
        raise InvalidCallError(
            "a thread that a rank started has called torch.distributed. In a simulation, only the "
            "rank's own thread may do this. With simlib.run, other threads may do it, too"
        )


class _Profiling:
    """A lock that belongs to the rank with torch's profiler, until the rank's thread ends."""


def one_profiler_at_a_time():
    """Refuse a second profiler at the same time, because it would crash the process."""
    profiler = torch.autograd.profiler
    prepare, disable = profiler._prepare_profiler, profiler._disable_profiler
    holders = weakref.WeakSet()

    def prepare_if_free(*args, **kwargs):
        mine = local.__dict__.setdefault("profiling", _Profiling())
        if any(holder is not mine for holder in holders):
            raise InvalidCallError(
                "another rank is using torch's profiler, and simulated ranks share one profiler: "
                "let only one rank profile at a time, for example with `if rank == 0:`"
            )
        holders.add(mine)
        return prepare(*args, **kwargs)

    def disable_and_free():
        local.__dict__.pop("profiling", None)
        return disable()

    profiler._prepare_profiler, profiler._disable_profiler = prepare_if_free, disable_and_free


def define_ops_once():
    """An op of `torch.library` belongs to the process, with the objects that its function uses."""

    def refuse_others(module):
        init = module.CustomOpDef.__init__
        definers: dict[str, weakref.ref] = {}

        def define(op, namespace, name, *args, **kwargs):
            here = local.__dict__.get("beside")  # it ends with the simulation
            op_name = f"{namespace}::{name}"
            other = definers[op_name]() if op_name in definers else None
            if here is not None and other is not None and other is not here:
                raise InvalidCallError(
                    f"rank {other.rank} has defined the op {op_name} already, and simulated ranks "
                    "share torch's ops: use the op on real ranks (simlib.run), or define the op "
                    "in an installed package, which one rank imports for all"
                )
            if here is not None:
                definers[op_name] = weakref.ref(here)
            init(op, namespace, name, *args, **kwargs)

        module.CustomOpDef.__init__ = define

    when_imported("torch._library.custom_ops", refuse_others)


REASONS = {
    # A rank that left it first would leave the others with attention over their own keys only.
    ("torch.distributed.tensor.experimental._context_parallel._attention", "context_parallel"): (
        "context_parallel replaces torch's attention for a whole process"
    ),
    ("torch.distributed.rpc", "init_rpc"): (
        "torch.distributed.rpc starts one agent and its threads for a whole process"
    ),
}
"""Module and name -> the reason."""


def refuse_parts_of_torch():
    """Let the calls in `REASONS` raise an error with the reason why simulated ranks cannot make
    them."""
    for (module, name), reason in REASONS.items():
        when_imported(module, lambda found, name=name, reason=reason: _refuse(found, name, reason))


def _refuse(module, name, reason):
    def refuse(*args, **kwargs):
        raise InvalidCallError(
            f"{reason}, but simulated ranks share one process: call {name} on real ranks, with "
            "simlib.run"
        )

    setattr(module, name, refuse)
