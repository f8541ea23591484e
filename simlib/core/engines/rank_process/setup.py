"""What every process of ranks arranges first: its end, its output, its variables."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import inspect
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

STDOUT, STDERR = 1, 2
_QUIET_THREADS = frozenset({"MainThread", "simlib-lifeline", "simlib-broker"})
_FEWEST = 2
"""Threads of a rank that has started none."""
THREADS_WITHOUT_OPS = ("TMonitor", "_DummyThread", "_AsyncWriterThread")
"""Sorts of threads that never make an op: tqdm's, Python's stand-in for others, TensorBoard's."""


def is_alone():
    """Whether only the main thread can make ops; another one could end a wait of this rank."""
    threads = threading._active.values()
    return len(threads) <= _FEWEST or all(
        thread.name in _QUIET_THREADS or type(thread).__name__ in THREADS_WITHOUT_OPS
        for thread in list(threads)
    )


def die_with_the_kernel(lifeline):
    """Leave no orphan, whatever this rank is busy with when the kernel goes.

    The kernel holds the other end of ``lifeline``. A thread sees its end even in a Gloo wait, and
    ends this rank and the server, which serves that kernel only. Where native code keeps the
    interpreter's lock, the death of the server ends the rank (Linux); so no rank may keep it alive.
    """
    os.setsid()
    server_pid = os.getppid()
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch():
        os.read(lifeline, 1)
        if server_pid and os.getppid() == server_pid:
            os.kill(server_pid, signal.SIGKILL)
        os.killpg(0, signal.SIGKILL)
        os._exit(1)  # the first process of a sandbox of its own does not die of its own signals

    threading.Thread(target=watch, name="simlib-lifeline", daemon=True).start()


class Output:
    """Where a rank's output goes: Python's to one pipe, line by line; native stderr to another.

    The second pipe also takes the stacks that `faulthandler` writes, on a crash and on SIGUSR1.
    """

    def __init__(self, stdout, stderr):
        self._pipes = {STDOUT: stdout, STDERR: stderr}
        self.restore()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def restore(self):
        """Connect stdout and stderr, whatever the learner's function has made of them."""
        for fd, pipe in self._pipes.items():
            os.dup2(pipe, fd)
        sys.stdout, sys.stderr = _line_writer(), _line_writer()
        faulthandler.enable(STDERR)
        faulthandler.register(signal.SIGUSR1, STDERR)


def show_errors_of_commands():
    """What a command writes to its stderr is shown, as what it prints is."""
    start = subprocess.Popen.__init__
    place = list(inspect.signature(start).parameters).index("stderr")

    @functools.wraps(start)
    def start_shown(*args, **kwargs):
        if len(args) <= place and kwargs.get("stderr") is None:
            kwargs["stderr"] = STDOUT
        start(*args, **kwargs)

    subprocess.Popen.__init__ = start_shown


def _line_writer():
    return open(  # noqa: SIM115 (lives as long as the process)
        STDOUT, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def flush():
    """Send on what the learner's function has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # closed by the learner, or exchanged
            pass


def rank_environ(rank: int, node_of: Sequence[int]) -> dict[str, str]:
    """What one rank finds in its environment, by the names that torchrun has for it.

    Parameters
    ----------
    rank : int
    node_of : sequence of int
        The node of each rank; nodes count from 0.
    """
    beside = [other for other, node in enumerate(node_of) if node == node_of[rank]]
    return _environ(
        rank, len(node_of), beside.index(rank), len(beside), node_of[rank], len(set(node_of))
    )


def environ_on_equal_nodes(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """The same where each node has so many ranks, the last one those that are left."""
    node, local_rank = divmod(rank, ranks_per_node)
    beside = min(ranks_per_node, world_size - node * ranks_per_node)
    return _environ(rank, world_size, local_rank, beside, node, -(-world_size // ranks_per_node))


def _environ(rank, world_size, local_rank, beside, node, nodes):
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": beside,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "ROLE_NAME": "default",
    }
    return {name: str(value) for name, value in values.items()}


def script_environ(is_script: bool) -> dict[str, str]:
    """What the ranks of a whole script find besides, so that Lightning, say, asks the others.

    A restart has another count; see `Restart`.
    """
    if not is_script:
        return {}
    return {"TORCHELASTIC_RUN_ID": "simlib", "TORCHELASTIC_RESTART_COUNT": "0"}
