"""What Python keeps once for a process, and each rank has here: loggers, process id, folder."""

from __future__ import annotations

import ctypes
import functools
import logging
import multiprocessing.context
import os
import sys
from copy import copy
from typing import Any

from ....record.this_rank import here as local

CLONE_FS = 0x200
"""Of Linux's `unshare`: the working folder and the file mask."""
real_process_id = os.getpid
_PROCESSES = ("multiprocessing", "concurrent", "subprocess")
"""Parts of Python that compare process ids: with those that they have found before any rank was."""


class _PerRank:
    """An attribute of instances that each rank has for itself, at first a copy of the first one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _values(self, instance: Any) -> dict:
        """Where this attribute is for whoever asks, with the instance as the key of a rank's."""
        if "attributes" not in local.__dict__:
            return instance.__dict__
        own = local.attributes.setdefault(instance, {})
        if self._name not in own and self._name in instance.__dict__:
            own[self._name] = copy(instance.__dict__[self._name])
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
            instance.__dict__[self._name] = copy(value)  # how others find what a rank makes
        self._values(instance)[self._name] = value


def own_loggers() -> None:
    """Give each rank the handlers, levels and filters that it sets."""
    for name in ("handlers", "filters", "level", "propagate", "disabled", "_cache"):
        setattr(logging.Logger, name, _PerRank(name))
    logging.Manager._disable = _PerRank("_disable")  # type: ignore[attr-defined]


def own_start_method() -> None:
    """Let each rank say once how it starts processes, as a process may."""
    multiprocessing.set_start_method(None, force=True)
    kind = type(multiprocessing.context._default_context)  # type: ignore[attr-defined]
    kind._actual_context = _PerRank("_actual_context")


def own_process_id() -> None:
    """Let each rank, with its threads, have the number of its thread: no other process has it."""

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
    """Give the calling thread a working folder and a file mask of its own; False where none can be.

    Threads and processes that it starts have them too.
    """
    try:
        return ctypes.CDLL(None).unshare(CLONE_FS) == 0
    except AttributeError:  # no Linux
        return False
