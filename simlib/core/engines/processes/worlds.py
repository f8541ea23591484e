"""Worlds: the processes of n ranks, what they share with the kernel, and unused worlds.

The module also asks Linux whether such a process sleeps, and why it was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import mmap
import multiprocessing.connection
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from ...environment import uninterrupted
from ...record import safe_pickle
from ...record.oplog import CAPACITY, create_shared_memory, size_of_table
from ...record.oplog_reader import OpLogReader
from ...record.rolling import RollingReader
from ...record.transports.backends import BACKENDS
from ..confinement import confinement
from ..session import ANSWER_LIMIT_S, answer_of, kernels_end
from ..workers.server import (
    RANK_NAME,
    await_complete_server,
    is_complete,
    other_server,
    server_context,
    travelling,
)
from .rank_main import Ends, Gpus, rank_main

GLOO, NO_GPU = BACKENDS["gloo"], Gpus()
"""Ranks with this backend and without GPUs serve several runs. All other ranks serve one run."""
BY_KERNEL = ", because the machine ran out of memory"
PERHAPS = ", perhaps because the machine ran out of memory"
LOG_S = 2.0
"""Seconds that simlib may take to read the log of the Linux kernel."""
ROOT = Path("/")
MAX_RESTING_RANKS = 24
MAX_SPARE_RANKS = 16
SPARE_AFTER_S = 0.3


def create_store():
    """The meeting place of a world's ranks: memory that vanishes with its last user, or a file.

    torch's FileStore opens its path again for every access. Linux opens a descriptor's memory by a
    path under /proc, so a killed kernel leaves no file. Other systems use a temporary file.
    """
    if os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(AttributeError, OSError):  # a sandbox may allow none
            return os.memfd_create("simlib-store")
    return os.path.join(tempfile.mkdtemp(prefix="simlib-"), "store")


def remove_store(store):
    """Release the result of `create_store`."""
    if isinstance(store, str):
        shutil.rmtree(os.path.dirname(store), ignore_errors=True)
    else:
        os.close(store)


class SharedRendezvous:
    """What the trusted ranks of a world share.

    They share a store in which they find each other, and the table of fingerprints.
    """

    def __init__(self, world_size):
        self._store = create_store()
        size = size_of_table(world_size)
        self._table = create_shared_memory("simlib-fingerprints", size)
        self._fingerprints = mmap.mmap(self._table, size)

    def of_rank(self, rank):
        """The data for a rank: descriptors, or a path of the store."""
        return self._store, self._table

    def began(self):
        """Note that all ranks have been started."""
        os.close(self._table)
        self._table = None

    def begin_run(self):
        """Forget the fingerprints of the last run."""
        self._fingerprints[:] = bytes(len(self._fingerprints))

    def complaint(self, trace):
        """Returns None, because no other process has counted messages."""

    def close(self):
        """Release the store and the table."""
        if self._table is not None:
            self.began()
        self._fingerprints.close()
        remove_store(self._store)


class RankProcess:
    """The kernel's side of one rank."""

    def __init__(self, context, rank, world_size, backend_name, gpus, ties):
        self.rank = rank
        own, control = socket.socketpair()
        self.control = kernels_end(own)
        lifeline, self._lifeline = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        log = create_shared_memory("simlib-ops", CAPACITY)
        self.log = OpLogReader(mmap.mmap(log, CAPACITY), rank)
        theirs = [control.detach(), lifeline, stdout, stderr, log]
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        try:
            self.process = context.Process(
                target=rank_main,
                args=(
                    rank,
                    world_size,
                    backend_name,
                    gpus,
                    tuple(map(travelling, ties)),
                    Ends(*map(travelling, theirs)),
                ),
                name=f"{RANK_NAME} {rank}",
            )
            self.process.start()
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def watch(self, cells, segment, forgotten):
        """Read a log that rolls over, see `RollingReader`. This process serves no other run."""
        self.log = RollingReader(self.log.memory, self.rank, segment, cells, forgotten)

    def kill(self):
        """End the process and its children. You can call it again."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.process.pid, signal.SIGKILL)

    def reap(self):
        """Wait until the killed process has ended, and close this side."""
        self.process.join()
        self.process.close()
        self._close()

    def _close(self):
        self.control.close()
        self.log.close()
        for fd in (self._lifeline, self.stdout, self.stderr):
            os.close(fd)


class World:
    """n ranks that wait for a function, joined in one default process group.

    With ``are_unlike`` every second rank has another hash seed, so its sets of strings have another
    order. With ``complete``, a server with all its modules forks the ranks. ``sort`` is the
    number of ranks, ``are_unlike``, and whether the server was complete.
    """

    def __init__(self, world_size, backend=GLOO, are_unlike=False, gpus=NO_GPU, complete=False):
        self.world_size = world_size
        self.serves_again = backend is GLOO and gpus == NO_GPU
        context = server_context(complete)
        self.sort = world_size, are_unlike, is_complete()
        # Ranks that are not trusted have nothing in common but who carries what they send.
        self._ties = confinement().ties(world_size, SharedRendezvous)
        self.read = safe_pickle.reader()
        self.ranks = []
        self.cells_sent = set()
        self._ready = False
        self.runs = 0
        self._being_cleaned = False
        self.selector = selectors.DefaultSelector()
        try:
            for rank in range(world_size):
                server = other_server() if are_unlike and rank % 2 else contextlib.nullcontext()
                with uninterrupted(), server:
                    ties = self._ties.of_rank(rank)
                    one = RankProcess(context, rank, world_size, backend.name, gpus, ties)
                    self.ranks.append(one)
        except BaseException:
            self.close()
            raise
        self._ties.began()
        for rank in self.ranks:
            for source, sort in (
                (rank.control, "answer"),
                (rank.stdout, "output"),
                (rank.stderr, "native"),
                (rank.process.sentinel, "death"),
            ):
                self.selector.register(source, selectors.EVENT_READ, (sort, rank))

    def wait_until_ready(self):
        """Wait until all ranks have joined or, after a run, are clean. False if a rank cannot
        serve."""
        try:
            if not self._ready:
                for rank in self.ranks:
                    self._answer(rank)
                self._ready = True
            if self._being_cleaned:
                reports = [self._answer(rank) for rank in self.ranks]
                self._being_cleaned = False
                for rank in self.ranks:
                    rank.log.restart()
                if any(reports):
                    return False
        except (EOFError, OSError):
            return False
        # A rank speaks when it is asked. What is to be read now is the end of one that was killed
        # at rest; the server tells of it a little later.
        return not multiprocessing.connection.wait([rank.control for rank in self.ranks], 0)

    def _answer(self, rank):
        if not rank.control.poll(ANSWER_LIMIT_S):
            raise TimeoutError(f"rank {rank.rank} did not answer for {ANSWER_LIMIT_S} s")
        return self.read(answer_of(rank.control))[1]

    def start_cleaning(self):
        """Tell the ranks to undo the changes of the run. The next run waits for their answer.

        False if a rank has ended.
        """
        try:
            for rank in self.ranks:
                rank.control.send(("clean", None))
        except OSError:
            return False
        self._being_cleaned = True
        return True

    def begin_run(self):
        """Another run begins, without traces of the run before. Returns the number of the new
        run."""
        self._ties.begin_run()
        self.runs += 1
        return self.runs

    def complaint(self, trace):
        """A sentence if ranks have not recorded all their messages, else None."""
        return self._ties.complaint(trace)

    def is_alive(self):
        """Whether all processes run. Somebody may have killed one while the world was not in
        use."""
        return not multiprocessing.connection.wait([r.process.sentinel for r in self.ranks], 0)

    def native_text(self):
        """The text that native code of the ranks has written to stderr."""
        parts = []
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                parts.append(os.read(rank.stderr, 1 << 16).decode("utf-8", "replace"))
        return "".join(parts).strip()

    def close(self):
        """End all processes and remove everything the world made."""
        with uninterrupted():
            for rank in self.ranks:
                rank.kill()
            for rank in self.ranks:
                rank.reap()
            self.ranks = []
            self.selector.close()
            self._ties.close()


class Pool:
    """Worlds ready for use.

    The pool keeps a world that ended its run cleanly for the next run of its size. While there is
    no run, the pool prepares one spare world of the last size. So even the run after an error
    starts at once, although the error has ended the world.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._resting = []
        self._spare = None
        self._spare_timer = None
        self._in_use = set()
        self.has_server = False

    def take(self, sort, fresh=False, backend=GLOO, gpus=NO_GPU):
        """A ready world of this sort: an unused world, the spare world, or a new world. See
        `World`."""
        with self._lock:
            self._stop_timer()
        while True:
            found = self._find(sort, fresh) if backend is GLOO and gpus == NO_GPU else None
            world = found or World(sort[0], backend, sort[1], gpus, complete=sort[2])
            self._in_use.add(world)
            try:
                ready = world.wait_until_ready()
            except BaseException:
                self._end(world)
                raise
            if ready:
                self.has_server = True
                return world
            text = world.native_text()
            self._end(world)
            if found is None:
                raise OSError(f"they did not reach each other ({text or 'no reason given'})")

    def _find(self, sort, fresh):
        with self._lock:
            if not fresh:
                for world in reversed(self._resting):
                    if world.sort[:2] == sort[:2] and world.sort[2] >= sort[2]:
                        self._resting.remove(world)
                        if world.is_alive():
                            return world
                        world.close()
            spare = self._spare
            if spare is not None and spare.sort[:2] == sort[:2] and spare.sort[2] >= sort[2]:
                world, self._spare = self._spare, None
                if world.is_alive():
                    return world
                world.close()
        return None

    def give_back(self, world, clean):
        """Return a world after its run. It is ended if it is not clean, or serves only once."""
        if not (clean and world.serves_again and world.start_cleaning()):
            self._end(world)
            clean = False
        with self._lock:
            self._in_use.discard(world)
            if clean:
                self._resting.append(world)
            superfluous = self._over_budget()
            self._stop_timer()
            if not self._in_use:
                of = world.sort[:2]
                self._spare_timer = threading.Timer(SPARE_AFTER_S, self._prepare_spare, of)
                self._spare_timer.daemon = True
                self._spare_timer.start()
        for old in superfluous:
            old.close()

    def _over_budget(self):
        """Worlds to end, longest unused first, if the pool has too many unused ranks."""
        superfluous = []
        while sum(w.world_size for w in self._resting) > MAX_RESTING_RANKS:
            if len(self._resting) == 1:
                break
            superfluous.append(self._resting.pop(0))
        return superfluous

    def _stop_timer(self):
        if self._spare_timer is not None:
            self._spare_timer.cancel()
            self._spare_timer = None

    def _prepare_spare(self, world_size, are_unlike):
        sort, old, timer = (world_size, are_unlike, True), [], self._spare_timer
        if timer is None:  # a run has begun, or all worlds have ended
            return
        with contextlib.suppress(OSError, EOFError):  # no room: the next run tries, and tells
            await_complete_server()  # without the lock, so that the next run does not wait, too
            with self._lock:
                if world_size > MAX_SPARE_RANKS or self._in_use or timer is not self._spare_timer:
                    return
                if self._spare is not None and self._spare.sort == sort:
                    return
                spare = World(world_size, GLOO, are_unlike, complete=True)
                old = [one for one in self._resting if one.sort == (*sort[:2], False)]
                self._resting = [one for one in self._resting if one not in old]
                old += [self._spare] if self._spare else []
                self._spare = spare
        for world in old:
            world.close()

    def _end(self, world):
        world.close()
        self._in_use.discard(world)

    def sleep(self):
        """End all unused worlds before the server ends. The next run starts like a first run."""
        self.close()
        self.has_server = False

    def close(self):
        """End all worlds, including those of a present run."""
        with self._lock:
            self._stop_timer()
            worlds = [*self._resting, *self._in_use, *([self._spare] if self._spare else [])]
            self._resting, self._spare = [], None
            self._in_use.clear()
        for world in worlds:
            world.close()


@functools.cache
def _pool_of(pid):
    pool = Pool()
    atexit.register(lambda: pool.close() if os.getpid() == pid else None)  # not in a forked child
    return pool


def pool():
    """The pool of this process."""
    return _pool_of(os.getpid())


def kill_count(root: Path = ROOT) -> int | None:
    """How many processes of this process's group Linux has killed for lack of memory, or None.

    Linux counts such kills for each group of processes with its own limit (cgroup, version 1 or 2),
    and for the machine. So the count is read at the beginning, and again after a process was ended
    by SIGKILL. If no count can be read, Linux's log may have the answer. Otherwise it is unknown.
    """
    for path in _places(root):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _places(root: Path) -> list[Path]:
    """The possible files of the count: of this process's group, of a container, of the machine."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            counts = [groups / f"memory{at}/memory.oom_control" for at in (path, "")]
            found = [*counts, *found]
        elif number == "0":
            found.append(groups / path.lstrip("/") / "memory.events")
    return [*found, groups / "memory.events", root / "proc/vmstat"]


def why_killed(code: int, before: int | None, pid: int, root: Path = ROOT) -> str:
    """Words that continue "was ended by signal 9 (SIGKILL)"; empty if memory was not the cause.

    Parameters
    ----------
    code : int
        The exit code of the process, negative for a signal.
    before : int or None
        The result of `kill_count` when the process began.
    pid : int
        The process id.
    """
    if code != -signal.SIGKILL:
        return ""
    now = kill_count(root)
    if before is not None and now is not None:
        return BY_KERNEL if now > before else ""
    log = _kernel_log()
    if log is None:
        return PERHAPS
    return BY_KERNEL if re.search(rf"[Kk]illed process {pid}\b", log) else ""


def _kernel_log() -> str | None:
    """The log of the system's kernel; None if this account may not read it."""
    try:
        done = subprocess.run(
            ["dmesg"], capture_output=True, text=True, errors="replace", timeout=LOG_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def sleep_count(pid: int) -> int | None:
    """How often the thread has gone to sleep, if it sleeps now. None if it runs or is unknown.

    If two calls return the same count, the thread slept all the time in between.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/status") as file:
            pairs = (line.partition(":") for line in file)
            fields = {name: text.strip() for name, _, text in pairs}
    except OSError:
        return None
    if not fields["State"].startswith("S"):
        return None
    return int(fields["voluntary_ctxt_switches"])
