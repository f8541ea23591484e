"""What every process of ranks sets up first: how it ends, its output, and its variables."""

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
"""The number of threads of a rank that has started none."""
THREADS_WITHOUT_OPS = ("TMonitor", "_DummyThread", "_AsyncWriterThread")
"""Kinds of threads that never make an op: tqdm's, Python's dummy threads, TensorBoard's."""


def is_alone():
    """Whether only the main thread can make ops. An op of another thread could end a wait of this
    rank."""
    threads = threading._active.values()
    return len(threads) <= _FEWEST or all(
        thread.name in _QUIET_THREADS or type(thread).__name__ in THREADS_WITHOUT_OPS
        for thread in list(threads)
    )


def die_with_the_kernel(lifeline):
    """End this rank when the kernel ends, even if the rank is busy.

    The kernel has the other end of ``lifeline``. A thread notices when this end closes, even during
    a wait in Gloo. Then the thread ends this rank and the server, which serves only this kernel. If
    native code holds the interpreter's lock, the thread cannot run. On Linux, the death of the
    server then ends the rank. So no rank may keep the server alive.
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
    """The pipes of a rank's output: Python's, line by line, and native stderr.

    The second pipe also takes the stacks that `faulthandler` writes, on a crash and on SIGUSR1.
    """

    def __init__(self, stdout, stderr):
        self._pipes = {STDOUT: stdout, STDERR: stderr}
        self.restore()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def restore(self):
        """Connect stdout and stderr, even if the learner's function has changed them."""
        for fd, pipe in self._pipes.items():
            os.dup2(pipe, fd)
        sys.stdout, sys.stderr = _line_writer(), _line_writer()
        faulthandler.enable(STDERR)
        faulthandler.register(signal.SIGUSR1, STDERR)


def show_errors_of_commands():
    """Show the stderr of a command like its output."""
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
    """Send on the output of the learner's function."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # closed by the learner, or exchanged
            pass


def rank_environ(rank: int, node_of: Sequence[int]) -> dict[str, str]:
    """The variables of one rank, by torchrun's names for them.

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
    """`rank_environ`, if each node has ``ranks_per_node`` ranks and the last node has the rest."""
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
    """Further variables for ranks of a whole script. For example, Lightning uses these variables.

    A restart has another count; see `Restart`.
    """
    if not is_script:
        return {}
    return {"TORCHELASTIC_RUN_ID": "simlib", "TORCHELASTIC_RESTART_COUNT": "0"}
