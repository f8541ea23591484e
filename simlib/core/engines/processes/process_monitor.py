"""`ProcessMonitor`: the kernel's eye on one run of a world."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time

import psutil

from ...diagnose import failures
from ...diagnose.monitor import STACK_LIMIT_S, DeadlockDetector, RunMonitor, Watchdog
from ...diagnose.watching import Watcher
from ...model.trace import Evicted
from ...record.rolling import segment_of
from .. import linux
from ..request import receive, send, send_bytes

POLL_S = 0.02
"""How often the kernel looks at the ranks while none of them has anything to say."""
SETTLE_S = 1.5
"""How long, after a first failure, ranks that still compute may take to fail on their own.

Shorter, and on a busy machine some of those who fail alike would not be named.
"""
CHUNK = 1 << 16


class ProcessMonitor(RunMonitor):
    """Takes in what the processes of a world say, print and die of, until all is told."""

    segment = 0

    def __init__(self, world, display, cells, options):
        super().__init__(options.name, world.world_size, cells, options.timeout_s, options.check)
        self.world = world
        self._watcher = None
        if options.watch_s is not None:
            self.forgotten = Evicted(world.world_size)
            self.segment = segment_of(world.world_size)
            for rank in world.ranks:
                rank.watch(cells, self.segment, self.forgotten)
            self._watcher = Watcher(self, display, options.watch_s)
        self.native = [bytearray() for _ in world.ranks]
        self.detector = DeadlockDetector(self.logs, cells, self._sleep_count)
        self._display = display
        self._watchdog = Watchdog(self, display)
        self.kill, self._to_kill = options.kill, dict(options.kill)
        self.survives = options.on_death == "continue"
        self._memory_kills = linux.kill_count()

    def _sleep_count(self, rank):
        return linux.sleep_count(self.world.ranks[rank].process.pid)

    @property
    def logs(self):
        """The op logs, by rank."""
        return [rank.log for rank in self.world.ranks]

    def until_the_end(self, request):
        """Start the function everywhere and watch; returns the error to raise, or None."""
        args, request.per_rank_args = request.per_rank_args, None
        message = pickle.dumps(("run", request), protocol=5)
        for rank in self.world.ranks:
            try:
                send_bytes(rank.control, message)
                send(rank.control, args and args[rank.rank])
            except OSError:  # it died between two runs; its sentinel says how
                pass
        while self.running():
            self._take_in(POLL_S)
            self._kill_as_asked()
            if self.failed():
                self._let_others_settle()
                return self.failure()
            disagree = self._keep_watch()
            progress = sum(log.progress for log in self.logs)
            found = self.stuck(disagree) if self.may_judge(progress) else None
            if found is not None:
                return self._settled(found)
            found = self._watchdog.ending(progress)
            if found is not None:
                return found
        self._take_in(0)
        return self.failure()

    def _keep_watch(self):
        """Of a run that is watched, keep up with the logs; returns whether ops disagree."""
        if self._watcher is None:
            return False
        disagree = self.detector.keep_up()
        self._watcher.look()
        return disagree

    def memory_bytes(self):
        """Bytes of memory that each rank that runs holds, and this process."""
        ranks = []
        for rank in self.running():
            with contextlib.suppress(psutil.Error):
                ranks.append(psutil.Process(self.world.ranks[rank].process.pid).memory_info().rss)
        return ranks, psutil.Process().memory_info().rss

    def _kill_as_asked(self):
        """Kill the ranks whose time has come."""
        for rank, seconds in list(self._to_kill.items()):
            entered_s = self.logs[rank].entered_s
            if entered_s is not None and time.perf_counter() >= entered_s + seconds:
                del self._to_kill[rank]
                if rank not in self.answers:
                    os.kill(self.world.ranks[rank].process.pid, signal.SIGKILL)

    def _settled(self, found):
        """The verdict when all other ranks have come to rest too, so that it names the same always.

        Ranks that compute are not waited for longer than `SETTLE_S`: the verdict stands already.
        """
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self.detector.all_wait:
            self._take_in(POLL_S)
            self.detector.look(self.running())
            found = self.verdict() or found
        return self.failure() if self.failed() else found

    def _let_others_settle(self):
        """Give the other ranks time to fail too, so that the verdict names all who do.

        Ends when each of them has answered, died, or waits for others and moves no more.
        """
        deadline = time.monotonic() + SETTLE_S
        before = None
        while self.running() and time.monotonic() < deadline:
            self._take_in(POLL_S)
            logs = self.logs
            now = [(rank, logs[rank].progress, logs[rank].waiting) for rank in self.running()]
            if now == before and all(waiting for _, _, waiting in now):
                break
            before = now

    def _take_in(self, timeout_s):
        """Handle what has arrived; waits up to ``timeout_s`` for the first of it."""
        for key, _ in self.world.selector.select(timeout_s):
            sort, rank = key.data
            if sort == "output":
                self.read_output(rank)
            elif sort == "native":
                self.read_native(rank)
            elif sort == "answer" and rank.rank not in self.answers:
                self._read_answer(rank)
            elif sort == "death" and rank.rank not in self.deaths:
                self._note_death(rank)

    def read_output(self, rank):
        """Take in a chunk of what a rank printed; False when there is nothing more for now."""
        chunk = self._read(rank.stdout)
        if chunk:
            output = self.outputs[rank.rank]
            self._display.lines(rank.rank, output.add(chunk))
            self._display.bar(rank.rank, output.unfinished)
        return bool(chunk)

    def read_native(self, rank):
        """Take in a chunk of a rank's native stderr; False when there is nothing more for now."""
        chunk = self._read(rank.stderr)
        if chunk:
            text = self.native[rank.rank]
            text += chunk
            del text[:-CHUNK]
        return bool(chunk)

    def _read(self, fd):
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self._forget(fd)
        return chunk

    def _forget(self, source):
        """Watch a closed end no more."""
        try:
            self.world.selector.unregister(source)
        except KeyError:
            pass

    def _read_answer(self, rank):
        try:
            self.answers[rank.rank] = receive(rank.control, self.world.read)
        except (EOFError, ConnectionError):
            self._forget(rank.control)
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it arrived, but cannot be rebuilt here
            report = f"{type(error).__name__}: {error}"
            self.answers[rank.rank] = "unpicklable", ("result", report)
        while self.read_output(rank):
            pass

    def _note_death(self, rank):
        while self.read_output(rank) or self.read_native(rank):
            pass
        self._forget(rank.process.sentinel)
        rank.process.join()
        code = self.deaths[rank.rank] = rank.process.exitcode
        if rank.rank not in self.kill:
            why = linux.why_killed(code, self._memory_kills, rank.process.pid)
            self.death_words[rank.rank] = failures.death_of(rank.rank, code, why)
        self.died_s[rank.rank] = time.perf_counter()

    def ask_for_stacks(self, ranks):
        """The learner's frames of ranks that compute: `faulthandler` writes them on SIGUSR1."""
        for rank in ranks:
            self.native[rank].clear()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.world.ranks[rank].process.pid, signal.SIGUSR1)
        found = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                self.read_native(self.world.ranks[rank])
                found[rank] = failures.frames_in(self.native[rank])
            time.sleep(0.005)
        return found
