"""Starting rank processes, safe from Ctrl-C and from running the learner's script again."""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
from multiprocessing import popen_forkserver, spawn
from multiprocessing.reduction import DupFd

import torch.multiprocessing

from .server import start_server

RANK_NAME = "simlib rank"
_preparation = spawn.get_preparation_data


def _preparation_without_main(name):
    """What multiprocessing tells a new process; our ranks are not told of the kernel's script.

    They would run it again, and functions travel by value: a rank has no need of it.
    """
    data = _preparation(name)
    if name.startswith(RANK_NAME):
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
    return data


spawn.get_preparation_data = _preparation_without_main


def _polled_by_one(poll):
    """`Popen.poll` for several threads: the exit code lies in a pipe, and can be read once.

    Whoever starts a process polls all others. So the thread that prepares the spare world would
    take the exit code away from the thread that waits for it, and that one would say 255.
    """
    lock = threading.Lock()

    def poll_once(self, flag=os.WNOHANG):
        if self.returncode is None:
            wait_s = 0 if flag == os.WNOHANG else None
            if not multiprocessing.connection.wait([self.sentinel], wait_s):
                return None
            with lock:
                return poll(self)
        return self.returncode

    return poll_once


popen_forkserver.Popen.poll = _polled_by_one(popen_forkserver.Popen.poll)


def server_context():
    """torch.multiprocessing's forkserver context, with its server started."""
    start_server()
    return torch.multiprocessing.get_context("forkserver")


class _Descriptor:
    """A file descriptor on its way to a rank; multiprocessing duplicates it while it starts one."""

    def __init__(self, fd):
        self._fd = fd

    def __reduce__(self):
        return _same, (DupFd(self._fd),)


def _same(value):
    return value


def travelling(value):
    """A descriptor as an argument of a process that starts; other values as they are."""
    return _Descriptor(value) if isinstance(value, int) else value
