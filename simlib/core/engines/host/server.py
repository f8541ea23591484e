"""The server that processes of ranks are forked from: it imports torch once per kernel.

This module does without torch, so that who is in a hurry can start the server before its own
imports.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import forkserver

PRELOADED = [
    "simlib.facade",
    "simlib.core.engines.processes.rank_main",
    "simlib.core.engines.host.preload",
]
"""What the server imports, by name: processes that are forked from it begin with it."""


def stop_server():
    """End the server, though it may still import; whoever needs it again starts another one."""
    server = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()


def start_server(also=()):
    """Start the server where there is none; it may import for a while after this has returned.

    ``also`` are names of modules that it imports beside the others.

    It is started deaf to Ctrl-C, from its first moment on: a blocked signal is inherited.
    """
    forkserver.set_forkserver_preload([*PRELOADED, *also])
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
