"""The generators of Python and numpy, of which each rank has its own.

For torch's see `turns`.
"""

from __future__ import annotations

import random

import numpy as np

from ....record.this_rank import here as local


def _own(name, make):
    """This rank's own generator; the process's own for other threads."""
    fields = local.__dict__
    if name not in fields:
        fields[name] = make(fields.get("rank"))
    return fields[name]


def _through(module, names, key, make):
    """Replace a module's functions, which belong to one generator, by those of the rank's own."""
    for name in names:

        def call(*args, _name=name, **kwargs):
            return getattr(_own(key, make), _name)(*args, **kwargs)

        call.__name__ = name
        call.__doc__ = getattr(module, name).__doc__
        setattr(module, name, call)


def _numpy_generator(rank):
    return np.random.RandomState(None if rank is None else rank)


def _python_generator(rank):
    return random.Random() if rank is None else random.Random(f"rank {rank}")


def own_random_numbers():
    names = [n for n in random.__all__ if getattr(getattr(random, n), "__self__", None)]
    _through(random, names, "python_random", _python_generator)
    source = np.random.mtrand._rand
    names = [n for n in dir(source) if not n.startswith("_") and hasattr(np.random, n)]
    _through(np.random, names, "numpy_random", _numpy_generator)
