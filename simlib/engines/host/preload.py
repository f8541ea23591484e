"""What the server of ranks imports once, so that every rank is forked with it in place.

`torch._dynamo` belongs here: the first optimizer of each rank would import it otherwise.
"""

import signal

# The Stop button reaches the whole process group. The server was started with the signal blocked.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import gc  # noqa: E402
import os  # noqa: E402

import cloudpickle  # noqa: E402, F401
import numpy  # noqa: E402, F401
import torch  # noqa: E402, F401
import torch._dynamo  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401
import torch.nn.parallel  # noqa: E402, F401
import torch.optim  # noqa: E402, F401
import tqdm.std  # noqa: E402

from ...record import backend  # noqa: E402, F401
from ...record.safe_pickle import VARIABLE  # noqa: E402
from ..processes import rank_main  # noqa: E402, F401
from . import hardening  # noqa: E402

# A progress bar's lock for all processes would be a semaphore in every rank that shows one, left
# behind where the rank is killed. Ranks share no terminal: the lock for threads is enough.
tqdm.std.TqdmDefaultWriteLock.mp_lock = None

if VARIABLE in os.environ:  # ranks are not to be trusted, and this is their parent
    hardening.close_to_others()
    hardening.give_up_output()

gc.collect()
gc.freeze()
