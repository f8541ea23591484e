"""What torch keeps once for a process, as if a process were a rank.

Here each rank has its own of most of it. The rest is refused, or lent to one rank at a time.
"""

from __future__ import annotations

import threading
import weakref

import torch

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local
from ....record.torch_inside import configurations, fields_of_world, when_imported

foreign_threads = []
"""Names of threads that called torch.distributed without being a rank."""


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
            "this thread was started by a rank and is none: in a simulation only the rank's own "
            "thread may call torch.distributed (on real ranks, simlib.run, others may too)"
        )


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


REASONS = {
    # A rank that left it first would leave the others with attention over their own keys only.
    ("torch.distributed.tensor.experimental._context_parallel._attention", "context_parallel"): (
        "context_parallel replaces torch's attention for a whole process"
    ),
    ("torch.distributed.rpc", "init_rpc"): (
        "torch.distributed.rpc has one agent, and threads of its own, for a whole process"
    ),
}
"""Module and name -> why not."""


def refuse_parts_of_torch():
    """Let the calls of `REASONS` say why a simulated rank cannot make them."""
    for (module, name), reason in REASONS.items():
        when_imported(module, lambda found, name=name, reason=reason: _refuse(found, name, reason))


def _refuse(module, name, reason):
    def refuse(*args, **kwargs):
        raise InvalidCallError(
            f"{reason}, and simulated ranks share one: use it on real ranks (simlib.run)"
        )

    setattr(module, name, refuse)
