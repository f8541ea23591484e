"""How a run is watched, and what its callers may ask for; the same in every engine."""

from __future__ import annotations

import numbers
import os
import runpy
import sys
from dataclasses import dataclass

from ...model.errors import InvalidCallError


@dataclass(frozen=True)
class Options:
    """How a run is watched; see `run`."""

    name: str
    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True


def check_function(function, caller):
    """Refuse what cannot be called; ``caller`` is the name of the function it was given to."""
    if not callable(function):
        raise InvalidCallError(
            f"{caller} needs a function main(rank, world_size) to call, not {function!r}"
        )


def check_world_size(world_size, most, why):
    """The number of ranks as an int; refused where it is none from 1 to ``most``."""
    is_count = isinstance(world_size, numbers.Integral) and not isinstance(world_size, bool)
    if is_count and 1 <= world_size <= most:
        return int(world_size)
    raise InvalidCallError(f"world_size={world_size!r} is not possible: {why}")


def check_timeout(timeout_s):
    """Refuse what is no limit in seconds; None is one that never comes."""
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        raise InvalidCallError(
            f"timeout_s={timeout_s!r} must be a positive number of seconds, or None for no limit"
        )


def name_of(function):
    """What a rank function is called."""
    return getattr(function, "__name__", type(function).__name__)


def script(rank, world_size, path):
    """The rank function of a whole script: every rank runs it, as ``__main__``."""
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")
