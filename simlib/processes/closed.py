"""A process that others of the same user can neither look into nor speak for."""

from __future__ import annotations

import ctypes
import multiprocessing.resource_tracker
import os
import sys

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
