"""What travels to the ranks: the function by value, its arguments, the kernel's surroundings."""

from __future__ import annotations

import contextlib
import linecache
import sys
import warnings

import cloudpickle

from ...model.errors import InvalidCallError

HEAVY_BYTES = 20 << 20


class ByRank:
    """Arguments that differ from rank to rank: a rank is sent its own and no others.

    Parameters
    ----------
    args : sequence of sequence
        By rank.
    """

    def __init__(self, args):
        self.packed = [cloudpickle.dumps(tuple(own), protocol=5) for own in args]


def pack(function, args, kwargs, world_size):
    """The function and its arguments as bytes; a clear error where something cannot travel."""
    if not isinstance(args, (tuple, list)):
        raise InvalidCallError(f"args={args!r} must be a tuple: for one argument args=({args!r},)")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise InvalidCallError(f"kwargs={kwargs!r} must be a dict: kwargs={{'name': value}}")
    try:
        payload = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})), protocol=5)
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        culprit = _culprit(function, args, kwargs)
        raise InvalidCallError(
            f"{name} cannot be sent to the ranks, which are other processes: {culprit} "
            f"({type(error).__name__}: {error}). Make it inside the function instead."
        ) from None
    if len(payload) > HEAVY_BYTES:
        size = len(payload) / 1e6
        heaviest = max(_parts(function, args, kwargs), key=lambda part: _size(part[1]))[0]
        warnings.warn(
            f"every one of the {world_size} ranks is sent {size:,.0f} MB with this function, most "
            f"of it {heaviest}: make large data inside the function",
            stacklevel=4,
        )
    return payload


def _parts(function, args, kwargs):
    """What the function takes along, each with its name in words."""
    parts = [(f"argument {number}", value) for number, value in enumerate(args)]
    parts += [(f"argument {name!r}", value) for name, value in (kwargs or {}).items()]
    code = getattr(function, "__code__", None)
    if code is not None:
        for name in _global_names(code):
            if name in function.__globals__:
                parts.append((f"the global {name!r}", function.__globals__[name]))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                parts.append((f"the outer variable {name!r}", cell.cell_contents))
    return parts or [("the function itself", function)]


def _global_names(code):
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _global_names(constant)
    return names


def _size(value):
    try:
        return len(cloudpickle.dumps(value, protocol=5))
    except Exception:
        return 0


def _culprit(function, args, kwargs):
    for name, value in _parts(function, args, kwargs):
        try:
            cloudpickle.dumps(value, protocol=5)
        except Exception:
            return f"{name}, a {type(value).__qualname__}, has no copy that can travel"
    return "something it holds has no copy that can travel"


def cell_numbers():
    """File name of every notebook cell run so far -> its execution count."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return dict(getattr(getattr(shell, "compile", None), "_filename_map", None) or {})


def new_cells(world, cells):
    """The sources of cells that this world has not been sent yet."""
    new = {
        name: linecache.cache[name]
        for name in cells
        if name not in world.cells_sent and name in linecache.cache
    }
    world.cells_sent |= set(new)
    return new
