"""torch's profiler, of which the process has one."""

from __future__ import annotations

import weakref

import torch

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local


class _Profiling:
    """Held by the rank that has torch's profiler; gone with its thread."""


def one_profiler_at_a_time():
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
