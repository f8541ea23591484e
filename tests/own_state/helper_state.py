"""A module that keeps who calls, as real ones do: in a global, a class, a cache, a constant."""

import functools
import os

AT_IMPORT = os.environ.get("RANK")
_rank = None


class Registry:
    """Keeps the rank as an attribute of a class."""

    rank = None


def initialize(rank):
    """Keep it in both."""
    global _rank
    _rank = Registry.rank = rank


def my_rank():
    """What the global says."""
    return _rank


@functools.cache
def world():
    """What the environment says, once."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
