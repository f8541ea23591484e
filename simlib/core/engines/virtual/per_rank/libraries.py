"""What libraries keep once for a process, as if a process were a rank: each rank has its own.

Without it ranks that share a process would be wrong and nobody would say so: accelerate, for one,
would give all of them the shard of the first.
"""

from __future__ import annotations

import functools

from ....record.at_import import when_imported
from ....record.this_rank import here as local

SHARED_DICTS = {
    "accelerate.state": ("PartialState", "AcceleratorState", "GradientState"),
}
"""Module -> classes whose instances all have the dict ``_shared_state`` of their class."""

RANK_OF_FUNCTION = {
    "lightning_utilities.core.rank_zero": "rank_zero_only",
}
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
