"""Process-wide state that must change with the running rank, and random numbers of each rank."""

from __future__ import annotations

import ctypes
import functools
import random
import sys

import numpy as np
import torch

from ....record.this_rank import here as local

_MAIN, _SYS = "__main__", vars(sys)


class StateInTurn:
    """torch's random numbers, default dtype and modes, a rank's modules, and its values of `sys`.

    Parameters
    ----------
    seeds : list of int
        By rank.
    modules, modes : ModulesInTurn, ModesInTurn
    """

    def __init__(self, seeds, modules, modes):
        world_size = len(seeds)
        self._modules = modules
        modules.begin(world_size)
        self._numbers = _RandomNumbers(seeds)
        self.modes = modes
        self._dtypes = [torch.get_default_dtype()] * world_size
        self._of_sys: list = [None] * world_size
        self._at_first = sys.stdout, sys.stderr, sys.argv, sys.path
        self._rank = None

    def __len__(self):
        return len(self._dtypes)

    def enter(self, rank):
        """The thread of this rank continues."""
        last = self._rank
        if rank == last:
            return
        if self._modules.names.is_seen:
            self.look()
        self._numbers.enter(last, rank)
        self._change_modules(last, rank)
        if self.modes.of_rank:
            self.modes.enter(last, rank)
        dtype = torch.get_default_dtype()
        if last is not None:
            self._dtypes[last] = dtype
            self._of_sys[last] = sys.stdout, sys.stderr, sys.argv, sys.path
        if self._dtypes[rank] is not dtype:
            torch.set_default_dtype(self._dtypes[rank])
        values = self._of_sys[rank] or self._as_at_first()
        # `SharedNames` would note each attribute that is set, so set the items of the dict.
        _SYS["stdout"], _SYS["stderr"], _SYS["argv"], _SYS["path"] = values
        self._rank = rank

    def look(self):
        """Note the names that the last running rank has set in modules that ranks share."""
        if self._modules.names.is_seen and self._rank is not None:
            self._modules.names.look(self._rank)

    def _change_modules(self, last, rank):
        modules, of_rank = sys.modules, self._modules.of_rank
        if last is not None:
            names, new = of_rank[last], of_rank[rank]
            is_main = _MAIN in names and _MAIN in new and _MAIN in modules
            if is_main and len(names) == 1 == len(new):  # most ranks have no other modules
                names[_MAIN] = modules[_MAIN]
            else:
                of_rank[last] = {name: modules.pop(name) for name in names if name in modules}
        modules.update(of_rank[rank])

    def _as_at_first(self):
        stdout, stderr, argv, path = self._at_first
        return stdout, stderr, list(argv), list(path)

    def leave(self):
        """The ranks have ended, and the process has its own state again."""
        sys.stdout, sys.stderr, sys.argv, sys.path = self._at_first
        self._modules.begin(0)
        self.modes.leave()


class Turns:
    """What happens when a rank's thread continues: note which rank runs, and stop dead ranks.

    Parameters
    ----------
    running : memoryview
        The memory that gets the rank, and the native id of its thread.
    deaths : dict
        Its keys are the ranks that are dead.
    state : StateInTurn
    park : callable
        A function that stops the calling thread for ever.
    """

    def __init__(self, running, deaths, state, park):
        self.native_ids = [0] * len(state)
        self._running = running
        self._deaths = deaths
        self._state = state
        self._park = park

    def enter(self, rank):
        """The thread of this rank continues."""
        self._running[0], self._running[1] = rank, self.native_ids[rank]
        self._state.enter(rank)
        if rank in self._deaths:
            self._park()


class _RandomNumbers:
    """The state of torch's generator, by rank.

    Reading this state costs 3 us, more than all other work of a change of ranks, and most ranks
    draw no numbers between two ops. So simlib reads the state only if the generator's memory has
    changed.
    """

    def __init__(self, seeds):
        self._generator = torch.default_generator
        self._memory = memory_of(self._generator)
        self._states = [self._generator.manual_seed(seed).get_state() for seed in seeds]
        self._current = self._states[-1]
        self._seen = self._memory and bytes(self._memory)

    def enter(self, last, rank):
        """Rank ``last`` (or None) has drawn its numbers so far; ``rank`` is next."""
        memory = self._memory
        if last is not None and (memory is None or bytes(memory) != self._seen):
            self._current = self._states[last] = self._generator.get_state()
        state = self._states[rank]
        if state is not self._current:
            self._current = state
            self._generator.set_state(state)
            self._seen = memory and bytes(memory)


def memory_of(generator):
    """A view of a generator's whole memory, with its place in the sequence; None if unknown.

    simlib uses this view only if every way of drawing changes the memory. One of these ways draws a
    pair of normal numbers and keeps the second number for the next call.
    """
    size_of = _size_of_allocation()
    return None if size_of is None else _view(generator, size_of)


@functools.cache
def _size_of_allocation():
    """The C library's function for it, or None if memory does not show a generator's state."""
    try:
        size_of = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):  # not with glibc
        return None
    size_of.argtypes, size_of.restype = [ctypes.c_void_p], ctypes.c_size_t
    trial = torch.Generator()
    return size_of if _shows_all(_view(trial, size_of), trial) else None


def _view(generator, size_of):
    place = generator._cdata
    return memoryview((ctypes.c_char * size_of(place)).from_address(place)).cast("B")


def _shows_all(memory, generator):
    for draw in [torch.rand, torch.randn, torch.randn] * 220:  # more than it makes in one go: 624
        before = bytes(memory)
        draw((), generator=generator)
        if bytes(memory) == before:
            return False
    return True


def _own(name, make):
    """This rank's own generator, with its threads; the process's own for other threads."""
    fields = local.__dict__
    own = fields.get("generators", fields)
    if name not in own:
        own[name] = make(fields.get("seed"))
    return own[name]


def _through(module, names, key, make):
    """Replace a module's functions, which use one generator, by functions of the rank's own."""
    for name in names:

        def call(*args, _name=name, **kwargs):
            return getattr(_own(key, make), _name)(*args, **kwargs)

        call.__name__ = name
        call.__doc__ = getattr(module, name).__doc__
        setattr(module, name, call)


def _as_ranks(kind, key, make):
    """A generator of this kind that is, for each rank, the rank's own. Libraries use it."""

    def ask(self, name):
        return getattr(_own(key, make), name)

    return type(kind.__name__, (kind,), {"__getattribute__": ask})()


def _numpy_generator(seed):
    return np.random.RandomState(None if seed is None else seed & 0xFFFFFFFF)


def own_random_numbers():
    names = [n for n in random.__all__ if getattr(getattr(random, n), "__self__", None)]
    _through(random, names, "python_random", random.Random)
    random._inst = _as_ranks(random.Random, "python_random", random.Random)
    source = np.random.mtrand._rand
    names = [n for n in dir(source) if not n.startswith("_") and hasattr(np.random, n)]
    _through(np.random, names, "numpy_random", _numpy_generator)
    np.random.mtrand._rand = _as_ranks(np.random.RandomState, "numpy_random", _numpy_generator)
