"""What torch and other libraries keep once for a process, as if a process were a rank.

Here each rank has its own of most of it. Without that, ranks that share a process would be wrong
and nobody would say so: accelerate, for one, would give all of them the shard of the first. The
rest is refused, or lent to one rank at a time.
"""

from __future__ import annotations

import functools
import threading
import weakref

import torch

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local
from ....record.torch_inside import configurations, fields_of_world, when_imported

SHARED_DICTS = {"accelerate.state": ("PartialState", "AcceleratorState", "GradientState")}
"""Module -> classes whose instances all have the dict ``_shared_state`` of their class."""

RANK_OF_FUNCTION = {"lightning_utilities.core.rank_zero": "rank_zero_only"}
"""Module -> a function whose attribute ``rank`` says which rank calls it."""


def own_state_of_libraries():
    """Give each rank its own of what is listed above, when the library is imported."""
    for module, names in SHARED_DICTS.items():
        when_imported(module, functools.partial(_own_dicts, names))
    for module, name in RANK_OF_FUNCTION.items():
        when_imported(module, functools.partial(_own_rank, name))


def _own_dicts(names, module):
    for name in names:
        getattr(module, name)._shared_state = _DictPerRank(f"{module.__name__}.{name}")


def _own_rank(name, module):
    setattr(module, name, _FunctionWithRank(getattr(module, name)))


class _DictPerRank:
    """An attribute of a class: a dict, and for each rank another one."""

    def __init__(self, name):
        self._name = name

    def __get__(self, instance, owner=None):
        return local.__dict__.setdefault("of_libraries", {}).setdefault(self._name, {})


class _FunctionWithRank:
    """A function with an attribute ``rank`` that each rank has set, or not, for itself."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    @property
    def rank(self):
        found = local.__dict__.get("rank")
        return local.__dict__.setdefault("of_libraries", {}).get(self.__wrapped__, found)

    @rank.setter
    def rank(self, value):
        local.__dict__.setdefault("of_libraries", {})[self.__wrapped__] = value


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
