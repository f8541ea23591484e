"""The kernel's side of the simulating process. One such process is always ready."""

from __future__ import annotations

import atexit
import contextlib
import functools
import mmap
import os
import signal
import socket
from dataclasses import replace

from ...environment import uninterrupted
from ...record import safe_pickle
from ...record.oplog import HEADER, NOBODY, OpLogWriter, create_shared_memory
from ...record.oplog_reader import OpLogReader, Shared
from ..session import ANSWER_LIMIT_S, answer_of, kernels_end
from ..workers.server import RANK_NAME, other_server, server_context, travelling
from .ranks import PAGE, RUNNING

MEMORY = 1 << 36
"""Address space for the logs of all ranks, in bytes. The logs take memory only as they grow."""
LARGEST_LOG = 256 << 20


def _empty_log():
    """The log of a rank that does not run."""
    memory = mmap.mmap(-1, HEADER)
    OpLogWriter(memory)
    return memory


class SimulatorProcess:
    """One child process, and the kernel's side of what the two processes share.

    Parameters
    ----------
    main : callable
        The function of the process: ``main(control, lifeline, stdout, stderr, memory)``.
    is_unlike : bool
        Whether sets of strings have another order in this process than in other processes.
    """

    def __init__(self, main, is_unlike=False):
        self.main, self.cells_sent = main, set()
        own, control = socket.socketpair()
        self.control = kernels_end(own)
        lifeline, self._lifeline = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.memory = create_shared_memory("simlib-simulation", MEMORY)
        self._head = mmap.mmap(self.memory, PAGE)
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        theirs = [control.detach(), lifeline, stdout, stderr]
        self._state = "starting"
        try:
            with uninterrupted(), other_server() if is_unlike else contextlib.nullcontext():
                self.process = server_context().Process(
                    target=main,
                    args=(*map(travelling, theirs), travelling(self.memory)),
                    name=f"{RANK_NAME}s, simulated",
                )
                self.process.start()
        except BaseException:
            self._close_ends()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def wait_until_ready(self):
        """Wait until the process has started or, after a simulation, is clean. False if it cannot
        serve."""
        if self._state == "ready":
            return True
        try:
            if not self.control.poll(ANSWER_LIMIT_S):
                return False
            reason = safe_pickle.loads(answer_of(self.control))[1]
        except (EOFError, OSError):
            return False
        self._state = "ready"
        return not reason

    def start_cleaning(self):
        """Tell the process to undo the changes of the ranks. False if the process has ended."""
        try:
            self.control.send(("clean", None))
        except OSError:
            return False
        self._state = "cleaning"
        return True

    def start(self, request):
        """Begin a simulation. Returns the readers of its ranks' logs."""
        classes = request.options.classes
        running = range(request.world_size) if classes is None else classes.running
        size = len(running)
        room = (MEMORY - PAGE) // size // PAGE * PAGE
        region = min(LARGEST_LOG, room)
        os.ftruncate(self.memory, PAGE)
        os.ftruncate(self.memory, MEMORY)
        shared = Shared()
        pieces = (
            mmap.mmap(self.memory, region, offset=PAGE + place * region) for place in range(size)
        )
        by_rank = {
            rank: OpLogReader(piece, rank, shared)
            for rank, piece in zip(running, pieces, strict=True)
        }
        empty = None if classes is None else _empty_log()
        readers = [
            by_rank.get(rank) or OpLogReader(empty, rank, shared)
            for rank in range(request.world_size)
        ]
        RUNNING.pack_into(self._head, 0, NOBODY, 0)
        self._state = "running"
        self.control.send(("run", replace(request, region=region)))
        return readers

    @property
    def running(self):
        """(rank, thread id) of the rank that has the baton."""
        return RUNNING.unpack_from(self._head)

    def is_alive(self):
        """Whether the process runs."""
        return self.process.is_alive()

    def close(self):
        """End the process and release everything."""
        with uninterrupted():
            self.kill()
            self.process.join()
            self.process.close()
            self._close_ends()

    def kill(self):
        """End the process and its children. You can call it again."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.process.pid, signal.SIGKILL)

    def _close_ends(self):
        self.control.close()
        self._head.close()
        for fd in (self._lifeline, self.stdout, self.stderr, self.memory):
            os.close(fd)


class Simulators:
    """One unused process, and a spare process that replaces it if the first process had to end."""

    def __init__(self):
        self._resting = []
        self.has_served = False

    def take(self, main):
        """A ready process. A new one runs ``main``."""
        while True:
            is_new = not self._resting
            process = SimulatorProcess(main) if is_new else self._resting.pop()
            try:
                is_ready = process.is_alive() and process.wait_until_ready()
            except BaseException:  # the Stop button
                process.close()
                raise
            if is_ready:
                self.has_served = True
                self._keep_a_spare(main)
                return process
            process.close()
            if is_new:
                raise OSError("the process of the simulation did not start")

    def take_unlike(self, main):
        """A process in which sets of strings have another order. The caller closes the process."""
        process = SimulatorProcess(main, is_unlike=True)
        if process.wait_until_ready():
            return process
        process.close()
        raise OSError("the process of the simulation did not start")

    def _keep_a_spare(self, main):
        """Start the next process while this one works. So after an error it is ready at once."""
        if not self._resting:
            with contextlib.suppress(OSError):  # no room: the next simulation tries, and tells
                self._resting.append(SimulatorProcess(main))

    def give_back(self, process, clean):
        """Return a process after its simulation. simlib ends a process that is not clean."""
        if clean and process.start_cleaning():
            self._resting.append(process)
        else:
            process.close()
            self._keep_a_spare(process.main)
        while len(self._resting) > 2:
            self._resting.pop(0).close()

    def sleep(self):
        """End all processes before the server ends, too."""
        self.close()
        self.has_served = False

    def close(self):
        """End all processes."""
        while self._resting:
            self._resting.pop().close()


@functools.cache
def _simulators_of(pid):
    simulators = Simulators()
    atexit.register(lambda: simulators.close() if os.getpid() == pid else None)
    return simulators


def simulators():
    """The simulating processes of this process."""
    return _simulators_of(os.getpid())
