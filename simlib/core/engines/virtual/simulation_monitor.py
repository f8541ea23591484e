"""`SimulationMonitor`: the facts that the kernel knows about one simulation."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ...diagnose import failures
from ...diagnose.monitor import STACK_LIMIT_S, DeadlockDetector, RunMonitor, Watchdog
from ...model import errors
from ...model.words import seconds_text
from ...record import safe_pickle
from ..request import FRAME
from ..session import SilentDisplay, answer_of, cell_numbers
from .one_cpu import OneCpu

if TYPE_CHECKING:
    from .process import SimulatorProcess

POLL_S, POLL_S_A_RANK = 0.02, 0.0003
"""Seconds between two looks at the logs: the first number, or the second for each rank if this is
more. So looking costs the kernel a few percent of a CPU. A message of the ranks ends the pause."""
BUSY_S = 0.2
"""If two looks this many seconds apart find no new op, the kernel checks whether some ranks wait
for ever."""
CHUNK = 1 << 16


class SimulationMonitor(RunMonitor):
    """Handles the output and outcome of simulated ranks, until the simulating process is done."""

    engine = "simulated"
    without_gpus = "A simulated rank has no GPU: keep its tensors on the CPU."

    def __init__(self, engine: Any, process: SimulatorProcess, display: SilentDisplay) -> None:
        name, asked = engine.program.name, engine.diagnosis
        self.classes = engine.options.classes
        self.have_all_run = self.classes is None
        self._is_checked = asked.check
        check = asked.check and self.classes is None  # what ranks that do not run called is unknown
        super().__init__(name, engine.world_size, cell_numbers(), asked.timeout_s, check)
        self.process = process
        self._display = display
        self._selector = selectors.DefaultSelector()
        for source, sort in (
            (process.control, "answer"),
            (process.stdout, "output"),
            (process.stderr, "native"),
            (process.process.sentinel, "death"),
        ):
            self._selector.register(source, selectors.EVENT_READ, sort)
        self._eager_limit_bytes = engine.options.eager_limit_bytes
        self.kill = engine.options.kill
        device = engine.cluster.device
        self.has_streams = device is not None and device.asynchronous
        self.survives = engine.options.on_death == "continue"
        self.logs = []
        self.report = None
        self._framed = b""
        self._native = bytearray()
        self._process_died = False
        self._failure = None
        everyone = range(engine.world_size)
        self._running = self.classes.running if self.classes else everyone
        self._watchdog = Watchdog(self, display, self._running)
        self._cpu = None
        self._ops, self._ops_at = 0, time.monotonic()

    @property
    def native(self):
        """The native stderr, by rank: it belongs to the running rank."""
        return {rank: self._native for rank in range(self.world_size)}

    def until_the_end(self, request):
        """Simulate and watch; returns the error to raise, or None."""
        pid = self.process.process.pid
        self._cpu = OneCpu(pid, lambda: thread_as_seen_here(pid, self.process.running[1]))
        self.logs = self.process.start(request)
        self.detector = DeadlockDetector(
            self.logs,
            self.cells,
            eager_limit_bytes=self._eager_limit_bytes,
            callers=self.with_callers,
        )
        running = [self.logs[rank] for rank in self._running]
        poll_s = max(POLL_S, len(running) * POLL_S_A_RANK)
        while self.report is None:
            self._take_in(poll_s)
            self._cpu.look()
            if self._failure is not None:
                return self._of_our_own()
            if self._process_died:
                return self._of_dead_process()
            posted = sum(log.progress for log in running)
            found = self._blocked_beside_a_busy_one(posted)
            if found is not None:
                return found
            found = self._watchdog.ending(posted)
            if found is not None:
                return found
            self._display.progress(self._how_far)
        self._take_in(0)
        return self._of_report()

    def _how_far(self):
        """The virtual time and the number of ops, in words."""
        logs = [self.logs[rank] for rank in self._running]
        for log in logs:
            log.read_on()
        now_s = max((log.last_post_s for log in logs if log.count), default=0.0)
        ops = sum(log.count for log in logs)
        return f"virtual time {seconds_text(now_s)}, {ops:,} ops"

    def _blocked_beside_a_busy_one(self, posted):
        """The deadlock of some ranks while another rank computes without end, or None."""
        if posted != self._ops:
            self._ops, self._ops_at = posted, time.monotonic()
        return self.stuck() if time.monotonic() - self._ops_at >= BUSY_S else None

    def _of_report(self):
        """The error for the outcome of the ranks, or None."""
        self._failure = self.report["failure"]
        if self._failure is not None:
            return self._of_our_own()
        if self.classes is not None and self.report["refused"]:
            return errors.InvalidCallError(self.report["refused"])
        if self.report["foreign_threads"] and self.running():
            return failures.called_by_a_foreign_thread(self)
        mismatch = self.mismatch()
        if mismatch is not None:
            return mismatch
        left = set() if self.survives else set(self.deaths) - set(self.report["killed"])
        if left or any(word != "result" for word, _ in self.answers.values()):
            return failures.of_failures(self, left)
        if not self.running():
            self.check = self._is_checked
            return None if self.answers else failures.of_failures(self, set(self.deaths))
        found = (self.verdict() or self.detector.mismatch(True)) if self.check else None
        if found is None and self.deaths:
            return failures.waits_for_the_dead(self, None)
        return found or failures.at_rest(self)

    def _of_our_own(self):
        """The error if simlib itself failed."""
        return errors.SimlibError(
            "simlib itself failed. Please report this error and your function:\n" + self._failure
        )

    def _of_dead_process(self):
        """Native code of a rank has ended the whole process."""
        self.process.kill()  # it may only have closed its end
        self.process.process.join()
        while self._read_native():
            pass
        rank, _ = self.process.running
        if rank not in range(self.world_size):
            return errors.SimlibError(
                "something outside simlib ended the simulator's process before any rank had begun: "
                "perhaps the machine ran out of memory"
            )
        self.deaths[rank] = self.process.process.exitcode
        return failures.of_failures(self, {rank})

    def _take_in(self, timeout_s):
        """Handle messages that have arrived. Waits up to ``timeout_s`` for the first message."""
        sorts = {key.data for key, _ in self._selector.select(timeout_s)}
        if "output" in sorts:
            self._read_output()
        if "native" in sorts:
            self._read_native()
        if "answer" in sorts:
            self._read_report()
        elif "death" in sorts:
            self._process_died = True

    def _read_output(self):
        chunk = self._read(self.process.stdout)
        self._framed += chunk
        while len(self._framed) >= FRAME.size:
            rank, length = FRAME.unpack_from(self._framed)
            if len(self._framed) < FRAME.size + length:
                break
            piece = self._framed[FRAME.size : FRAME.size + length]
            self._framed = self._framed[FRAME.size + length :]
            self._display.lines(rank, self.outputs[rank].add(piece))
        return bool(chunk)

    def _read_native(self):
        chunk = self._read(self.process.stderr)
        self._native += chunk
        del self._native[:-CHUNK]
        return bool(chunk)

    @staticmethod
    def _read(fd):
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            return b""

    def _read_report(self):
        try:
            word, report = safe_pickle.loads(answer_of(self.process.control))
        except (EOFError, OSError):
            self._process_died = True
            return
        if word == "failed":
            self._failure = report
            return
        while self._read_output():
            pass
        self.deaths, self.died_s = report["deaths"], report["died_s"]
        for rank, answer in report["answers"].items():
            try:
                self.answers[rank] = safe_pickle.loads(answer)
            except BaseException as error:  # it arrived, but cannot be rebuilt here
                words = f"{type(error).__name__}: {error}"
                self.answers[rank] = "unpicklable", ("result", words)
        self._answer_for_others(report)
        self.report, self.wire, self.memory = report, report["wire"], report["memory"]
        self.flops, self.processes = report["flops"], report["processes"]
        self.shared, self.set_by_many = report["shared"], report["set_by_many"]
        self.values_asked = report["values_asked"]

    def _answer_for_others(self, report):
        """Copy end and memory of a class's first rank to its other ranks. Their results are
        unknown."""
        if self.classes is None:
            return
        for ranks in self.classes.members.values():
            for rank in ranks[1:-1]:
                if ranks[0] in self.answers:
                    self.answers[rank] = "result", None
                report["memory"][rank] = report["memory"][rank] or report["memory"][ranks[0]]
                report["flops"][rank] = report["flops"][ranks[0]]

    def ask_for_stacks(self, ranks):
        """The learner's frames of ranks that are not in an op."""
        if self.report is not None:
            return {rank: self.report["frames"].get(rank, []) for rank in ranks}
        found = dict.fromkeys(ranks, [])
        rank, thread = self.process.running
        if rank not in found:
            return found
        self._native.clear()
        self._signal_thread(thread)
        deadline = time.monotonic() + STACK_LIMIT_S
        while not found[rank] and time.monotonic() < deadline:
            self._read_native()
            found[rank] = failures.frames_in(self._native, whole=True)
            time.sleep(0.005)
        return {rank: found[rank]}

    def _signal_thread(self, thread):
        """Ask one thread of the process for its stack (Linux; elsewhere the running thread)."""
        pid = self.process.process.pid
        thread = thread_as_seen_here(pid, thread)
        tgkill = getattr(ctypes.CDLL(None), "tgkill", None) if sys.platform == "linux" else None
        with contextlib.suppress(ProcessLookupError):
            if tgkill is None or tgkill(pid, thread, signal.SIGUSR1):
                os.kill(pid, signal.SIGUSR1)

    def close(self):
        """Stop watching."""
        if self._cpu is not None:
            self._cpu.let_go()
        self._selector.close()
        for log in self.logs:
            log.close()


def thread_as_seen_here(pid, thread):
    """The id of a process's thread in this process's numbering, if that process has its own ids."""
    if os.path.isdir(f"/proc/{pid}/task/{thread}"):
        return thread
    with contextlib.suppress(OSError):
        for one in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{one}/status") as file:
                ids = next(line for line in file if line.startswith("NSpid:")).split()
            if int(ids[-1]) == thread:
                return int(one)
    return thread
