"""A process that others of the same user can neither look into nor speak for."""

from __future__ import annotations

import ctypes
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import secrets
import sys
from multiprocessing import forkserver

from ...core.environment import are_ranks_trusted

PR_SET_DUMPABLE = 4


def close_to_others():
    """Let no process of the same user look into this one's memory, or change it (Linux).

    Nor can it open this one's descriptors. What is forked from this process begins closed, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def give_up_output():
    """Let what is written to stdout and stderr from here on go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def do_without_tracker():
    """Start no process that removes what others leave behind; what it is told goes nowhere.

    It would be open to all processes of the user, and hold this one's stderr.
    """
    tracker = multiprocessing.resource_tracker._resource_tracker
    if tracker._fd is None:
        tracker._fd = os.open(os.devnull, os.O_WRONLY)


def keep_one_server(start):
    """Start the server of processes that nobody can take the place of, by ``start()`` (Linux).

    Nobody else can bind its address while it lives. Where it ends, this process ends, too, when it
    next asks for the server: one begun later would be begun beside whoever ended the first.
    """
    if sys.platform != "linux":
        start()
        return
    multiprocessing.connection.arbitrary_address = lambda family: f"\0{secrets.token_hex(16)}"
    start()
    server = forkserver._forkserver
    server.ensure_running = forkserver.ensure_running = end_without_server


def end_without_server():
    """End this process if its server of processes has ended."""
    try:
        ended, _ = os.waitpid(forkserver._forkserver._forkserver_pid, os.WNOHANG)
    except ChildProcessError:
        ended = True
    if ended:
        os._exit(1)


def go_home():
    """In a grading run be where the notebook is, and import from there, as in JupyterLab.

    The kernel of such a run and its server of processes are elsewhere, and do not.
    """
    if not are_ranks_trusted():
        os.chdir(os.environ["HOME"])
        sys.path.insert(0, "")
