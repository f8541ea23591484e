"""The server that forks the processes of ranks, and functions that start the server.

The server imports torch once per kernel. This module does not import torch, so that a program in a
hurry can start the server before its own imports.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, popen_forkserver, resource_tracker, spawn
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from typing import Any

PRELOADED = [
    "simlib.core.engines.workers.preload",
    "simlib.facade",
    "simlib.core.engines.processes.rank_main",
]
"""The modules that the server imports, by name. Processes forked from it have them. The first
imports the others."""
LATER = ["torch._dynamo", "torch.distributed.pipelining"]
"""The modules that the server imports when it must be complete. Importing them takes almost as long
as importing torch. Optimizers and DDP need them, but most first runs do not."""
ALL_SIGNAL = signal.SIGUSR1
"""By this signal, the kernel asks the server to be complete."""
RANK_NAME = "simlib rank"
_preparation = spawn.get_preparation_data


def stop_server() -> None:
    """End the server, even if it is still importing. A later request starts another server."""
    servers: list[Any] = [forkserver._forkserver, _other]
    for server in servers:
        if server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    _incomplete.clear()
    _awaited.clear()


def start_server(also: Sequence[str] = (), complete: bool = True) -> None:
    """Start the server if there is none. The server may still import after this call has returned.

    ``also`` contains the names of further modules that the server imports. With ``complete``, the
    server imports the modules of `LATER`, too, before it forks the next process.

    The server ignores Ctrl-C from its first moment on, because it inherits the blocked signal.
    """
    _start(forkserver._forkserver, also, complete)


def start_other_server() -> None:
    """Start the second server, so that both servers import at the same time."""
    _start(_other)


def is_complete() -> bool:
    """Whether the server imports all its modules before it forks the next process.

    The server may still be importing them. `await_complete_server` waits until it has done so.
    """
    return forkserver._forkserver._forkserver_pid not in _incomplete  # type: ignore[attr-defined]


def _start(server: Any, also: Sequence[str] = (), complete: bool = True) -> None:
    before = server._forkserver_pid
    server.set_forkserver_preload([*PRELOADED, *also])
    resource_tracker.ensure_running()  # which would unblock the signal where it is started below
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, ALL_SIGNAL})
    try:
        server.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    if server._forkserver_pid != before:
        _incomplete.add(server._forkserver_pid)
    if complete and server._forkserver_pid in _incomplete:
        _incomplete.discard(server._forkserver_pid)
        os.kill(server._forkserver_pid, ALL_SIGNAL)


_incomplete: set[int | None] = set()
"""The process ids of servers that have not been asked to be complete. A server that the learner has
started is not among them, because the signal would end it."""


_other = forkserver.ForkServer()
"""A second server with its own hash seed. Sets of strings have another order in its children, as
in processes that torchrun starts."""
_chosen = threading.local()


@contextlib.contextmanager
def other_server() -> Iterator[None]:
    """Within the block, processes are forked from the second server."""
    _start(_other)
    _chosen.server = _other
    try:
        yield
    finally:
        _chosen.server = None


def _connect_to_new_process(fds: Any) -> Any:
    server = getattr(_chosen, "server", None) or forkserver._forkserver  # type: ignore[attr-defined]
    return server.connect_to_new_process(fds)


forkserver.connect_to_new_process = _connect_to_new_process


def _preparation_without_main(name: str) -> dict[str, Any]:
    """The data of multiprocessing for a new process, without the kernel's script.

    With the script, a rank would run the script again. A rank does not need the script, because
    functions travel by value.
    """
    data = _preparation(name)
    if name.startswith(RANK_NAME):
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
    return data


spawn.get_preparation_data = _preparation_without_main


def _polled_by_one(poll: Callable[..., int | None]) -> Callable[..., int | None]:
    """`Popen.poll` for several threads. The exit code is in a pipe, and can be read once.

    A thread that starts a process polls all other processes. So the thread that prepares the spare
    world would read the exit code of a process for which another thread waits. The other thread
    would then report 255.
    """
    lock = threading.Lock()

    def poll_once(self: Any, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            wait_s = 0 if flag == os.WNOHANG else None
            if not multiprocessing.connection.wait([self.sentinel], wait_s):
                return None
            with lock:
                return poll(self)
        return self.returncode

    return poll_once


popen_forkserver.Popen.poll = _polled_by_one(popen_forkserver.Popen.poll)  # type: ignore[method-assign]


def server_context(complete: bool = True) -> ForkServerContext:
    """The standard library's forkserver context, with its server started; see `start_server`."""
    start_server(complete=complete)
    return multiprocessing.get_context("forkserver")


def await_complete_server() -> None:
    """Wait until the server has imported all its modules."""
    context = server_context()
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server not in _awaited:
        process = context.Process(target=int, name=RANK_NAME)
        process.start()  # returns when the server has forked the process
        process.join()
        _awaited.add(server)


_awaited: set[int | None] = set()
"""The process ids of servers for which `await_complete_server` has waited."""


class _Descriptor:
    """A file descriptor for a rank. multiprocessing duplicates it when it starts the rank."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple:
        return _same, (DupFd(self._fd),)


def _same(value: Any) -> Any:
    return value


def travelling(value: Any) -> Any:
    """A descriptor as an argument of a new process; other values unchanged."""
    return _Descriptor(value) if isinstance(value, int) else value
