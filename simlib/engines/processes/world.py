"""One world: the processes of n ranks, and the kernel's ends of everything they share."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing.connection
import os
import selectors
import shutil
import signal
import socket
import tempfile

from ...record import fingerprints, safe_pickle
from ...record.oplog import CAPACITY, OpLogReader, create_shared_memory
from ..host import channel
from ..host.forkserver import RANK_NAME, server_context, travelling, uninterrupted
from .rank_main import rank_main

START_LIMIT_S = 60


def create_store():
    """Where the ranks of a world find each other: memory that goes with its last user, or a file.

    torch's FileStore opens its path anew for every access, and Linux opens a descriptor's memory
    by a path under /proc: so a killed kernel leaves no file. Elsewhere it is a temporary file.
    """
    if os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(AttributeError, OSError):  # a sandbox may allow none
            return os.memfd_create("simlib-store")
    return os.path.join(tempfile.mkdtemp(prefix="simlib-"), "store")


def remove_store(store):
    """Give back what `create_store` made."""
    if isinstance(store, str):
        shutil.rmtree(os.path.dirname(store), ignore_errors=True)
    else:
        os.close(store)


class RankProcess:
    """The kernel's side of one rank."""

    def __init__(self, context, rank, world_size, store, table):
        self.rank = rank
        self.control, control = socket.socketpair()
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
                    travelling(store),
                    travelling(table),
                    *map(travelling, theirs),
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

    def kill(self):
        """End the process and everything it started; safe to call again."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.process.pid, signal.SIGKILL)

    def reap(self):
        """Wait for the killed process to be gone, and close this side."""
        self.process.join()
        self.process.close()
        self._close()

    def _close(self):
        self.control.close()
        self.log.close()
        for fd in (self._lifeline, self.stdout, self.stderr):
            os.close(fd)


class World:
    """n ranks that wait for a function, joined in one default process group."""

    def __init__(self, world_size):
        self.world_size = world_size
        self._store = create_store()
        table = create_shared_memory("simlib-fingerprints", fingerprints.size_of_table(world_size))
        self.fingerprints = fingerprints.FingerprintTable(table, world_size)
        self.ranks = []
        self.cells_sent = set()
        self._ready = False
        self.runs = 0
        self._being_cleaned = False
        self.selector = selectors.DefaultSelector()
        context = server_context()
        try:
            for rank in range(world_size):
                with uninterrupted():
                    self.ranks.append(RankProcess(context, rank, world_size, self._store, table))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(table)
        for rank in self.ranks:
            for source, sort in (
                (rank.control, "answer"),
                (rank.stdout, "output"),
                (rank.stderr, "native"),
                (rank.process.sentinel, "death"),
            ):
                self.selector.register(source, selectors.EVENT_READ, (sort, rank))

    def wait_until_ready(self):
        """Wait for the ranks to join or, after a run, to be clean. False if one cannot serve."""
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
        rank.control.settimeout(START_LIMIT_S)
        try:
            return channel.receive(rank.control, safe_pickle.loads)[1]
        finally:
            rank.control.settimeout(None)

    def start_cleaning(self):
        """Ask the ranks to put back what the run changed; the answer is awaited at the next run.

        False where a rank is gone.
        """
        try:
            for rank in self.ranks:
                channel.send(rank.control, ("clean", None))
        except OSError:
            return False
        self._being_cleaned = True
        return True

    def is_alive(self):
        """Whether all processes run; one may have been killed while the world rested."""
        return not multiprocessing.connection.wait([r.process.sentinel for r in self.ranks], 0)

    def native_text(self):
        """What native code of the ranks has written to stderr."""
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
            self.fingerprints.close()
            remove_store(self._store)
