"""Objects that cloudpickle cannot send to another process by itself, or would send wrongly.

If simlib sends a rank function of a notebook, it also sends the objects that the function uses.
Examples are functions with caches, modules with their own class (``torch.backends``,
``torch.ops``), and ops of torch. The other process can find each of these objects by its name.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import cloudpickle
import cloudpickle.cloudpickle as cloudpickle_state


def _reduce_cached(cached):
    """The form in which cloudpickle sends a function with a cache (`functools.lru_cache`).

    Without this, cloudpickle sends the function's name. Ranks do not know the name of a function in
    a notebook.
    """
    found = cloudpickle_state._lookup_module_and_qualname(cached)
    if found and not cloudpickle_state._is_registered_pickle_by_value(found[0]):
        return found[1]
    return _cached_again, (cached.__wrapped__, cached.cache_parameters())


def _cached_again(function, parameters):
    return functools.lru_cache(**parameters)(function)


def _property_again(function, name):
    made = functools.cached_property(function)
    made.attrname = name
    return made


cloudpickle.Pickler.dispatch_table[type(functools.cache(len))] = _reduce_cached
cloudpickle.Pickler.dispatch_table[functools.cached_property] = lambda one: (
    _property_again,
    (one.func, one.attrname),
)


def learn_names() -> None:
    """Send modules that are imported now by name, if cloudpickle knows no name for these."""
    by_class = cloudpickle.Pickler.dispatch_table
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and type(module) is not ModuleType:
            by_class.setdefault(type(module), lambda one: (_named, (one.__name__,)))
    torch = sys.modules.get("torch")
    if torch is not None:
        for kind in map(type, (torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default)):
            by_class.setdefault(kind, lambda one: (_named, (_name_of_op(one),)))
    attention = sys.modules.get("torch.nn.attention")
    if attention is not None:  # its class says that it is called `_SDPBackend`, which nothing is
        attention.SDPBackend.__name__ = attention.SDPBackend.__qualname__ = "SDPBackend"  # type: ignore[attr-defined]


def _name_of_op(op: Any) -> str:
    return op.__name__ if isinstance(op, ModuleType) else f"torch.ops.{op}"


def _named(path: str) -> Any:
    """A module, or an object that a package has under this path."""
    if path in sys.modules:
        return sys.modules[path]
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        package, *names = path.split(".")
        return functools.reduce(getattr, names, importlib.import_module(package))
