"""Pictures of runs. They import matplotlib, so each is imported when it is first asked for."""

from importlib import import_module

_FILE_OF = {"draw_memory": "memory", "draw_parts": "memory", "draw_states": "states"}

__all__ = ["draw_memory", "draw_parts", "draw_states"]


def __getattr__(name):
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FILE_OF[name]}", __name__), name)
