"""One rank: the process that runs the learner's function, again and again while it stays clean."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import inspect
import linecache
import mmap
import multiprocessing.forkserver
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

from ...record import backend, returned
from ...record.fingerprints import MeetingTable
from ...record.oplog import CAPACITY, OpLogWriter
from ...record.recorder import Recorder
from ..host import channel, nesting
from ..host.hardening import go_home
from ..host.isolation import Baseline, fresh_random_state

STDOUT, STDERR = 1, 2


def rank_main(rank, world_size, store, table, control, lifeline, stdout, stderr, log):
    """Serve runs until the kernel closes the control socket.

    ``table``, ``control``, ``lifeline``, ``stdout``, ``stderr`` and ``log`` are file descriptors on
    their way from the kernel; ``store`` is one too, or a path, see `world.create_store`.
    """
    die_with_the_kernel(lifeline.detach())
    nesting.serve("a run")
    go_home()
    output = Output(stdout.detach(), stderr.detach())
    show_errors_of_commands()
    writer = OpLogWriter(mmap.mmap(log.detach(), CAPACITY))
    sock = socket.socket(fileno=control.detach())
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    recorder = Recorder(writer, is_alone)
    meetings = MeetingTable(table.detach(), world_size, rank)
    backend.install(backend.gloo_member(recorder))
    rendezvous = dist.FileStore(_store_path(store), world_size)
    backend.join_world(rendezvous, rank, world_size)
    membership = backend.Membership(rendezvous)
    baseline = Baseline()
    own_pid = os.getpid()
    channel.send(sock, ("ready", None))
    while True:
        try:
            word, request = channel.receive(sock)
        except (EOFError, ConnectionError):
            os._exit(0)
        if word == "run":
            membership.begin(request["number"])
            recorder.begin(meetings if request["check"] else None)
            request["own"] = channel.receive(sock)
            answer = _run(request, rank, world_size, writer)
            if os.getpid() != own_pid:
                os._exit(0)  # a child that the learner forked has come back from the function
            channel.send_bytes(sock, answer)
        else:
            channel.send(sock, ("clean", _clean(baseline, recorder, membership, output)))


_QUIET_THREADS = frozenset({"MainThread", "simlib-lifeline"})
THREADS_WITHOUT_OPS = ("TMonitor", "_DummyThread", "_AsyncWriterThread")
"""Sorts of threads that never make an op: tqdm's, Python's stand-in for others, TensorBoard's."""


def is_alone():
    """Whether only the main thread can make ops; another one could end a wait of this rank."""
    threads = threading._active.values()
    return len(threads) <= len(_QUIET_THREADS) or all(
        thread.name in _QUIET_THREADS or type(thread).__name__ in THREADS_WITHOUT_OPS
        for thread in list(threads)
    )


def _store_path(store):
    return store if isinstance(store, str) else f"/proc/self/fd/{store.detach()}"


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
        if os.getppid() == server_pid:
            os.kill(server_pid, signal.SIGKILL)
        os.killpg(0, signal.SIGKILL)

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


def _run(request, rank, world_size, writer):
    """Run the learner's function once; returns the answer for the kernel, as bytes."""
    _enter_surroundings(request, rank, world_size)
    fresh_random_state()

    def call():
        function, args, kwargs = pickle.loads(request["payload"])
        if request["own"]:
            args = pickle.loads(request["own"])
        writer.enter()
        try:
            return function(rank, world_size, *args, **kwargs)
        finally:
            writer.leave()
            flush()

    return returned.answer_of(call, request["is_script"])


def flush():
    """Send on what the learner's function has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # closed by the learner, or exchanged
            pass


def _enter_surroundings(request, rank, world_size):
    """Take on the kernel's environment, folder, import path and cells, as a launcher would."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
    )
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.chdir(request["cwd"])
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    linecache.cache.update(request["cells"])


def _clean(baseline, recorder, membership, output):
    """Be as new; returns why this rank must end, or None."""
    try:
        output.restore()
        membership.end()
        reason = baseline.restore()
    except Exception as error:
        return returned.short(error)
    recorder.end()
    return reason
