"""The supervisor of a rank is the parent of the rank's process, on the same node."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time

from ...core.diagnose.failures import how_it_ended
from ...core.diagnose.monitor import Watchdog
from ...core.engines.processes.worlds import kill_count, sleep_count, why_killed
from ...core.engines.session import SilentDisplay
from ..rendezvous import serve_store
from . import logs
from .failures import waits_in_words
from .launcher_process import TIMEOUT_S
from .logs import JobMonitor

LOOK_S = 0.1
SEND_S = 1.0
"""Each supervisor sends its rank's records to the folder's server once in this many seconds. In the
same rhythm, rank 0's supervisor shows that it is alive."""
SETTLE_S = 0.6
"""Seconds in which other ranks may still fail by themselves, so that the error names all of
them."""
REFUSED = 77
"""The exit code of a rank that has never reached the learner's function, and has reported why."""
FOLLOWED = 78
"""The exit code of a rank whose wait failed because another rank had ended."""
CAUSE_S = 3.0
"""The most seconds until simlib knows that other rank. On a busy machine, reports of other ranks
may arrive first."""
LEFT = "left"
"""The last message of a rank to its supervisor, just before the rank's process ends."""
SERVE = "serve"
"""A message of rank 0 to its supervisor. Rank 0 sends it if the ranks have no MPI and so need a
store in which they meet."""
EXIT_S = 0.01
"""Seconds in which a process must end after it has closed its files."""
JOIN_S = 60.0
"""Seconds in which the ranks of a job must find each other."""


def die_with_the_supervisor():
    """Let Linux end this process when its supervisor ends, even if this process is busy."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def show_presence(folder):
    """Touch the file ``beat`` again and again. So others notice if the judge is lost with its
    host."""
    while True:
        with contextlib.suppress(OSError):
            folder.mark("beat")
        time.sleep(SEND_S)


class Supervisor:
    """Looks after one rank: records its death, ends it with the job, fetches its stack, and kills
    it if the job asks for this.

    Rank 0's supervisor also reads all ranks' logs, and ends the job if some ranks wait for ever.
    Through ``pipe``, the rank sends its number, `SERVE` and `LEFT`.
    """

    def __init__(self, folder, pid, pipe):
        self._folder = folder
        self._job = folder.about()
        self._pid = pid
        self._pipe = pipe
        os.set_blocking(pipe, False)  # a command of the rank may have the other end
        self._rank = None
        self._has_left = False
        self._parent = os.getppid()
        self._log = None
        self._judge = None
        self._store = None
        self._kill_s = None
        self._begun = time.monotonic()
        self._memory_kills = kill_count()
        self._end_at = None
        self._sent_at = 0.0
        self._looks = 0

    def until_the_end(self):
        """Look after the rank until its process has ended. Return the exit code for the
        launcher."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return self._ended(os.waitstatus_to_exitcode(status))
            if self._is_over():
                self._kill()
                os.waitpid(self._pid, 0)
                self._say_it_was_ended()
                self._clean_up()
                return 1
            self._look()

    def _look(self):
        wait_s = min(LOOK_S, self._kill_as_asked())
        ready = select.select([self._pipe], [], [], wait_s)[0] if self._pipe is not None else ()
        if ready:
            self._listen()
        elif self._pipe is None:
            time.sleep(wait_s)
        if self._rank is None:
            return
        self._looks += 1
        if logs.has_futures_taken(self._log):
            logs.write_sleeps(self._log, self._looks, sleep_count(self._pid))
        self._send_on()
        self._forward_stack_request()
        if self._judge is not None:
            self._judge.look()

    def _kill_as_asked(self):
        """Kill the rank if ``kill=`` asks for it now. Return the seconds until then."""
        entered_s = None if self._kill_s is None else logs.entered_s(self._log)
        if entered_s is None:
            return LOOK_S
        left_s = entered_s + self._kill_s - time.perf_counter()
        if left_s <= 0:
            self._kill_s = None
            if not self._folder.has("answer", self._rank):
                os.kill(self._pid, signal.SIGKILL)
        return max(0.0, left_s)

    def _send_on(self):
        """Write a log's mapped memory to its file now, so that other hosts see it early."""
        now = time.monotonic()
        if now > self._sent_at + SEND_S:
            self._sent_at = now
            place = self._folder.read_json("json", self._rank)
            if place is not None and not place["is_alone"]:
                self._log.flush()

    def _forward_stack_request(self):
        """Ask the rank for its stack, if the job's folder contains such a request."""
        if self._folder.has("stack-wanted", self._rank):
            self._folder.file("stack-wanted", self._rank).unlink(missing_ok=True)
            os.kill(self._pid, signal.SIGUSR1)

    def _listen(self):
        """Handle a message of the rank."""
        try:
            words = os.read(self._pipe, 64).decode().split()
        except BlockingIOError:
            return
        for word in words:
            if word == LEFT:
                self._has_left = True
            elif word == SERVE:
                self._store = serve_store(self._folder)
            else:
                self._learn_rank(int(word))
        if not words:
            os.close(self._pipe)
            self._pipe = None
            time.sleep(EXIT_S)

    def _learn_rank(self, rank):
        self._rank = rank
        self._log = logs.open_memory(self._folder.file("log", rank))
        self._kill_s = self._job["kill"].get(str(rank))
        if rank == 0:
            self._judge = JobJudge(self._folder, self._forward_stack_request)
            threading.Thread(target=show_presence, args=(self._folder,), daemon=True).start()

    def _is_over(self):
        """Whether the rank has to end, because the job has failed, was cancelled, or has no
        launcher any more."""
        now = time.monotonic()
        if not self._folder.has("job.json"):  # somebody has deleted the folder
            return True
        if self._end_at is None and self._folder.has("end"):
            self._end_at = now + SETTLE_S
        if self._rank is None and now > self._begun + JOIN_S:
            return True
        return os.getppid() != self._parent or (self._end_at is not None and now > self._end_at)

    def _kill(self):
        self.kill_commands()
        os.kill(self._pid, signal.SIGKILL)  # it may have no group of its own yet

    def _say_it_was_ended(self):
        """Record that the rank was ended with the job, and is not the cause of the job's end."""
        if self._rank is not None and os.getppid() == self._parent:
            with contextlib.suppress(OSError):
                self._folder.mark("ended", self._rank)

    def kill_commands(self):
        """Kill the rank and its children. The rank must have its own process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def _ended(self, code):
        """Handle the end of a rank's process that has ended by itself."""
        if self._pipe is not None:
            self._listen()
        if self._has_left:
            code = 0
        has_answered = self._rank is not None and self._folder.has("answer", self._rank)
        if not has_answered and code != REFUSED:
            code = self._died(code)
        if code == 0 and self._judge is not None:
            code = self._judge.last_look()
        if code == FOLLOWED and self._job["on_death"] == "end":
            self._await_the_cause()
        if code:
            self._folder.mark("end")
            time.sleep(SETTLE_S)
        self.kill_commands()
        self._clean_up()
        return 1 if code else 0

    def _await_the_cause(self):
        """Before the job ends, wait until the supervisor of the dead rank has recorded the
        death."""
        deadline = time.monotonic() + CAUSE_S
        while time.monotonic() < deadline and not (
            self._folder.has("end") or self._folder.have_all_ended(self._job["world_size"])
        ):
            time.sleep(LOOK_S)

    def _died(self, code):
        """Record the death of the rank. Return the exit code for the launcher."""
        died_s = time.perf_counter()
        if self._rank is None:
            self._died_early(
                f"{how_it_ended(code)}{self._why(code)} before it could join the others: run "
                "`python -c 'from mpi4py import MPI'` on that host, and fix the error that it "
                "prints"
            )
            return code or 1
        self._log.flush()
        has_entered = logs.entered_s(self._log) is not None
        death = {"code": code, "time_s": died_s if has_entered else None, "why": self._why(code)}
        self._folder.write_json(death, "exit", self._rank)
        if self._job["on_death"] == "end":
            return code or 1
        if not has_entered:
            self._died_early(f"{how_it_ended(code)}{death['why']} before it called its function")
            return code or 1
        return self._outlive()

    def _why(self, code):
        """Return the reason of the death in words, as far as it is known."""
        is_asked_for = str(self._rank) in self._job["kill"]
        return "" if is_asked_for else why_killed(code, self._memory_kills, self._pid)

    def _died_early(self, words):
        """Report an early death with the name of the host, because nobody may know the rank yet."""
        if not self._folder.has("end"):
            words = f"a rank on {os.uname().nodename} {words}"
            self._folder.write_once(words.encode(), "died_early")

    def _outlive(self):
        """Stay while other ranks continue, because launchers end a job if one of its processes
        ends."""
        self.kill_commands()
        while not self._folder.have_all_ended(self._job["world_size"]):
            if self._is_over():
                return 1
            time.sleep(LOOK_S)
            if self._judge is not None:
                self._judge.look()
        return 0

    def _clean_up(self):
        if self._rank is not None:
            self._log.close()
            logs.trim(self._folder.file("log", self._rank))


class JobJudge:
    """Runs beside rank 0 and judges all ranks: it finds ranks that wait for ever, and records
    them."""

    def __init__(self, folder, while_waiting):
        self._folder = folder
        self._monitor = JobMonitor(folder, while_waiting)
        self._watchdog = Watchdog(self._monitor, SilentDisplay())
        self._found = None
        self._settled_at = None
        self._thirds = 0
        self._next = 0.0

    def look(self):
        """Look at the logs, but not so often that reading takes all the time."""
        now = time.monotonic()
        if now < self._next or self._folder.has("end"):
            return
        monitor = self._monitor
        monitor.take_in()
        if not monitor.failed():
            progress = sum(log.progress for log in monitor.logs)
            if monitor.may_judge(progress):
                self._found = monitor.stuck() or self._found
            if self._found is not None:
                self._say_when_settled(now)
            else:
                self._tell_waits(self._watchdog.silence_s(progress))
                late = self._watchdog.ending(progress)
                if late is not None:
                    self._say(late)
        self._next = time.monotonic() + 10 * (time.monotonic() - now)

    def _tell_waits(self, silence_s):
        """After each third of ``timeout_s`` without progress, record which rank waits for which."""
        third_s = (self._monitor.timeout_s or TIMEOUT_S) / 3
        thirds = int(silence_s // third_s)
        if thirds != self._thirds:
            self._thirds = thirds
            waits = self._monitor.waits() if thirds else {}
            words = waits_in_words(waits, self._monitor.places, thirds * third_s)
            self._folder.write_json({"thirds": thirds, "words": words}, "waiting.json")

    def last_look(self):
        """After all ranks have returned, judge whether their ops disagreed. Return an exit code."""
        self._monitor.take_in()
        found = self._monitor.failure()
        if found is not None and not self._monitor.failed():
            self._say(found)
        return 1 if found is not None else 0

    def _say_when_settled(self, now):
        """Wait until no other rank makes progress, so that the error always names the same ranks.

        It waits for computing ranks at most `SETTLE_S`, because the verdict is already certain.
        """
        if self._settled_at is None:
            self._settled_at = now + SETTLE_S
        if self._monitor.detector.all_wait or now > self._settled_at:
            self._say(self._found)

    def _say(self, found):
        if not self._folder.has("cancel"):
            self._folder.write(logs.dump_verdict(found), "verdict.pkl")
        self._folder.mark("end")
