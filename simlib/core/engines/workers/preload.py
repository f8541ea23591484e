"""The imports of the server of ranks, so that every rank is forked with them.

The server imports the modules of `LATER` when the kernel asks for them by a signal. Without
`torch._dynamo`, the first optimizer of each rank would import it.
"""

# ruff: noqa: E402, F401
import signal

# The Stop button reaches the whole process group. The server was started with the signal blocked.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import gc

gc.disable()  # it would look through all objects of torch several times

from contextlib import suppress
from importlib import import_module

import cloudpickle
import numpy
import torch
import torch.distributed
import torch.nn.parallel
import torch.optim

from ...record import backend, returned
from ..confinement import confinement
from .server import ALL_SIGNAL, LATER, PRELOADED

for name in PRELOADED:
    import_module(name)

# A progress bar's lock for all processes would be a semaphore in every rank that shows one, left
# behind where the rank is killed. Ranks share no terminal: the lock for threads is enough.
with suppress(ModuleNotFoundError):
    import tqdm.std

    tqdm.std.TqdmDefaultWriteLock.mp_lock = None


def import_all(*_):
    """Import the modules of `LATER`, so that all further processes are forked with them."""
    gc.disable()
    for name in LATER:
        with suppress(ImportError):  # a rank that needs the module tells why
            import_module(name)
    gc.freeze()
    gc.enable()


# A signal that has come while this module was imported has waited until here.
signal.signal(ALL_SIGNAL, import_all)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {ALL_SIGNAL})

confinement().server_begins()

gc.freeze()
gc.enable()
