"""The kernel's eye on one run of a world."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time

from ...diagnose import failures
from ...diagnose.deadlock_detector import Checker
from ...diagnose.watchdog import Patience
from ...record import safe_pickle
from ..host import channel, sleep_count
from ..host.display import RankOutput

POLL_S = 0.02
"""How often the kernel looks at the ranks while none of them has anything to say."""
SETTLE_S = 1.5
"""How long, after a first failure, ranks that still compute may take to fail on their own.

Shorter, and on a busy machine some of those who fail alike would not be named.
"""
STACK_LIMIT_S = 2.0
"""How long to wait for the stack of a rank that was asked where it is: the machine may be busy."""
CHUNK = 1 << 16


class Watch:
    """The kernel's eye on one run: takes in what ranks say, print and die of, until all is told.

    Attributes
    ----------
    answers : dict
        rank -> (word, content) as the rank sent it.
    deaths : dict
        rank -> exit code of a process that ended by itself.
    outputs : list of RankOutput
    native : list of bytearray
        What native code wrote to stderr, by rank: crash stacks, and stacks asked for.
    """

    engine = "real"
    report = None

    def __init__(self, world, display, cells, options):
        self.world = world
        self.world_size = world.world_size
        self.cells = cells
        self.name = options.name
        self.timeout_s = options.timeout_s
        self.check = options.check
        self.checker = Checker(self.logs, cells, self._sleep_count)
        self.answers = {}
        self.deaths = {}
        self.outputs = [RankOutput() for _ in world.ranks]
        self.native = [bytearray() for _ in world.ranks]
        self._display = display
        self._patience = Patience(self, display)

    def _sleep_count(self, rank):
        return sleep_count.sleep_count(self.world.ranks[rank].process.pid)

    @property
    def logs(self):
        """The op logs, by rank."""
        return [rank.log for rank in self.world.ranks]

    def running(self):
        """Ranks that have neither answered nor died."""
        return [
            rank.rank
            for rank in self.world.ranks
            if rank.rank not in self.answers and rank.rank not in self.deaths
        ]

    def until_the_end(self, request):
        """Start the function everywhere and watch; returns the error to raise, or None."""
        own = request.pop("own")
        message = pickle.dumps(("run", request), protocol=5)
        for rank in self.world.ranks:
            try:
                channel.send_bytes(rank.control, message)
                channel.send(rank.control, own and own[rank.rank])
            except OSError:  # it died between two runs; its sentinel says how
                pass
        while self.running():
            self._take_in(POLL_S)
            if self._failed():
                self._let_others_settle()
                return self._mismatch() or failures.of_failures(self, set(self.deaths))
            if self.check and self.checker.look(self.running()):
                found = self.checker.verdict(self.running(), self._gone())
                if found is not None:
                    return self._settled(found)
            found = self._patience.ending(sum(log.progress for log in self.logs))
            if found is not None:
                return found
        self._take_in(0)
        if self._failed():
            return self._mismatch() or failures.of_failures(self, set(self.deaths))
        return self._mismatch()

    def _settled(self, found):
        """The verdict when all other ranks have come to rest too, so that it names the same always.

        Ranks that compute are not waited for longer than `SETTLE_S`: the verdict stands already.
        """
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self.checker.all_wait:
            self._take_in(POLL_S)
            self.checker.look(self.running())
            found = self.checker.verdict(self.running(), self._gone()) or found
        if self._failed():
            return self._mismatch() or failures.of_failures(self, set(self.deaths))
        return found

    def _mismatch(self):
        """Ops that meet and disagree explain whatever came of it; None where there are none."""
        return self.checker.mismatch(bool(self.deaths)) if self.check else None

    def _gone(self):
        """Ranks that post nothing any more, and why, in words."""
        return dict.fromkeys(self.answers, "has finished") | dict.fromkeys(self.deaths, "has died")

    def _failed(self):
        return self.deaths or any(word != "result" for word, _ in self.answers.values())

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
            self.answers[rank.rank] = channel.receive(rank.control, safe_pickle.loads)
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
        self.deaths[rank.rank] = rank.process.exitcode

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

    def result(self):
        """The `Run` as far as it came."""
        return failures.make_run(self)
