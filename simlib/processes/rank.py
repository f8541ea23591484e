"""One rank: the process that runs the learner's function, again and again while it stays clean."""

from __future__ import annotations

import ctypes
import faulthandler
import linecache
import mmap
import multiprocessing.forkserver
import os
import pickle
import re
import signal
import socket
import sys
import threading
import traceback

import cloudpickle
import torch
import torch.distributed as dist

from .. import group
from ..errors import InvalidCallError
from ..meetings import MeetingTable
from ..oplog import CAPACITY, OpLogWriter
from ..recorder import Recorder, is_learners
from . import channel
from .isolation import Baseline, fresh_random_state

STDOUT, STDERR = 1, 2
LONGEST = 8000
_GLOO_WORDS = re.compile(r"^(ProcessGroupGloo::|\[[^\]]*\] )")
"""What Gloo puts before the words that a learner can use."""


def rank_main(rank, world_size, store, table, control, lifeline, stdout, stderr, log):
    """Serve runs until the kernel closes the control socket.

    ``table``, ``control``, ``lifeline``, ``stdout``, ``stderr`` and ``log`` are file descriptors on
    their way from the kernel; ``store`` is one too, or a path, see `world.create_store`.
    """
    _die_with_the_kernel(lifeline.detach())
    output = Output(stdout.detach(), stderr.detach())
    writer = OpLogWriter(mmap.mmap(log.detach(), CAPACITY))
    sock = socket.socket(fileno=control.detach())
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    recorder = Recorder(writer, _is_alone)
    meetings = MeetingTable(table.detach(), world_size, rank)
    group.install(group.gloo_member(recorder))
    rendezvous = dist.FileStore(_store_path(store), world_size)
    group.join_world(rendezvous, rank, world_size)
    membership = group.Membership(rendezvous)
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
            answer = _run(request, rank, world_size, writer)
            if os.getpid() != own_pid:
                os._exit(0)  # a child that the learner forked has come back from the function
            channel.send_bytes(sock, answer)
        else:
            channel.send(sock, ("clean", _clean(baseline, recorder, membership, output)))


_QUIET_THREADS = frozenset({"MainThread", "simlib-lifeline"})


def _is_alone():
    """Whether only the main thread can make ops; another one could end a wait of this rank."""
    threads = threading._active.values()
    return len(threads) <= len(_QUIET_THREADS) or all(
        thread.name in _QUIET_THREADS or type(thread).__name__ in ("TMonitor", "_DummyThread")
        for thread in list(threads)
    )


def _store_path(store):
    return store if isinstance(store, str) else f"/proc/self/fd/{store.detach()}"


def _die_with_the_kernel(lifeline):
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


def _line_writer():
    return open(  # noqa: SIM115 (lives as long as the process)
        STDOUT, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _run(request, rank, world_size, writer):
    """Run the learner's function once; returns the answer for the kernel, as bytes."""
    _enter_surroundings(request, rank, world_size)
    fresh_random_state()
    try:
        function, args, kwargs = pickle.loads(request["payload"])
        writer.enter()
        try:
            result = function(rank, world_size, *args, **kwargs)
        finally:
            writer.leave()
            _flush()
        return _result_as_bytes(result)
    except SystemExit as error:
        return _exit_as_bytes(error, request)
    except BaseException as error:  # whatever it is belongs to the learner
        return pickle.dumps(("error", describe(error)))


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (ValueError, OSError):  # closed by the learner
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


def _result_as_bytes(result):
    try:
        return cloudpickle.dumps(("result", result), protocol=5)
    except Exception as error:
        return pickle.dumps(("unpicklable", (type(result).__qualname__, _short(error))))


def _exit_as_bytes(error, request):
    """A script may end itself with ``sys.exit(0)``; in a function `sys.exit` is an early end."""
    code = error.code if isinstance(error.code, int | str) or error.code is None else 1
    if request["is_script"] and not code:
        return pickle.dumps(("result", None))
    report = describe(error)
    report["exit_code"] = code
    return pickle.dumps(("exit", report))


def _clipped(text):
    """At most `LONGEST` characters of a text: its beginning and its end."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} more characters ... {text[-half:]}"


def _short(error):
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else text[:297] + "..."


def describe(error):
    """An exception as plain data: its words, the learner's frames, and whose fault it is.

    Returns
    -------
    dict
        ``type`` and ``message``; ``frames``, a list of (file, lineno, function), outermost first;
        ``text``, the traceback without the frames of simlib and torch; ``invalid``, whether torch
        or simlib refused the call; ``from_wait``, whether it ended a wait for other ranks.
    """
    frames = traceback.extract_tb(error.__traceback__)
    innermost = frames[-1].filename if frames else ""
    try:
        message = _clipped("".join(str(error)))
    except Exception:
        message = "(its message could not be made)"
    in_torch = innermost.endswith(os.path.join("distributed", "distributed_c10d.py"))
    refused = in_torch and isinstance(error, (ValueError, TypeError, RuntimeError))
    in_wait = innermost == group.__file__ and frames[-1].name in ("wait", "monitored_barrier")
    if innermost == group.__file__ and not in_wait and isinstance(error, RuntimeError):
        refused = True
        message = _GLOO_WORDS.sub("", message)
    return {
        "type": type(error).__name__,
        "message": message,
        "frames": [(f.filename, f.lineno, f.name) for f in frames if is_learners(f.filename)],
        "text": _learners_traceback(error),
        "invalid": isinstance(error, InvalidCallError) or refused,
        "from_wait": in_wait,
    }


def _learners_traceback(error):
    """The traceback as text, with the learner's frames only."""
    try:
        whole = traceback.TracebackException.from_exception(error, compact=True)
        part = whole
        while part is not None:
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if is_learners(frame.filename)]
            )
            part = part.__cause__ or part.__context__
        return _clipped("".join(whole.format()))
    except Exception:
        return "".join(traceback.format_exception_only(type(error), error))


def _clean(baseline, recorder, membership, output):
    """Be as new; returns why this rank must end, or None."""
    try:
        output.restore()
        membership.end()
        reason = baseline.restore()
    except Exception as error:
        return _short(error)
    recorder.end()
    return reason
