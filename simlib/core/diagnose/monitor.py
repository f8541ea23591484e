"""`RunMonitor`: the facts about a run, during the run and after it; one for each engine.

`DeadlockDetector` lets the matcher work on its logs. `Watchdog` ends a run for other reasons than
an endless wait.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from ..model.errors import DeadlockError, FailureReport, SimlibError
from ..model.trace import Evicted, Op, Site
from . import failures, verdicts
from .findings import Evidence, Finding, found_in, of_shared_names, of_values_asked
from .matching import Matcher, Mismatch, Wait

KEPT_BYTES = 1 << 20
"""simlib keeps this many bytes of one rank's output: half from the start, half from the end."""
FLOOD_BYTES, FLOOD_LINES = 32 << 20, 300_000
"""With more output than this, a rank counts as printing for ever."""
STACK_LIMIT_S = 2.0
"""Seconds to wait for the stack of a rank after a request. The machine may be busy."""
TOLD_S = 1.5
"""Seconds in which Gloo must report a death to ranks that wait for the dead rank."""
MAX_TAKEN, LEAST_TAKEN = 8192, 64
"""The matcher gets so many ops of all logs together, and of one log, before the next log's ops. So
simlib forgets complete ops before it makes further objects."""
LOOKS = 3
"""How often a rank must look for its keys without success after all ranks have stopped. The first
look may have begun earlier, and a store may handle a set after a later question."""
QUIET_S = 10.0
"""Seconds of silence after which the display shows the places of ranks."""


class RankOutput:
    """The output of one rank. simlib adds chunks, reads whole lines, and limits the size."""

    def __init__(self) -> None:
        self.total = 0
        self.lines = 0
        self.unfinished = b""
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> list[bytes]:
        """Add a chunk. Returns the lines that the chunk completes, as bytes."""
        self.total += len(chunk)
        room = max(0, KEPT_BYTES // 2 - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > KEPT_BYTES:
            del self._tail[: -KEPT_BYTES // 2]
        *lines, self.unfinished = (self.unfinished + chunk).split(b"\n")
        self.unfinished = self.unfinished[-KEPT_BYTES:]
        self.lines += len(lines)
        return lines

    @property
    def is_flood(self) -> bool:
        """Whether the rank has printed so much that it counts as printing for ever."""
        return self.total > FLOOD_BYTES or self.lines > FLOOD_LINES

    @property
    def text(self) -> str:
        """The output that simlib has kept, with the size of the gap between its start and its
        end."""
        tail = bytes(self._tail[-KEPT_BYTES // 2 :])
        left_out = self.total - len(self._head) - len(tail)
        if left_out:
            note = f"\n... {left_out:,} bytes of output left out ...\n"
            return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
        return (bytes(self._head) + tail).decode("utf-8", "replace")


class DeadlockDetector:
    """Feeds the ops of a run to a `Matcher`, and turns the results into errors and findings.

    The detector looks only when a rank does not move, so it costs a healthy program nothing until
    the end. A verdict does not depend on time: a rank is blocked if only blocked, finished or dead
    ranks can send the data that it waits for. The detector reads the logs while ranks run. A set of
    blocked ranks counts only if no rank of the set made a step between two looks. Then there was a
    moment at which all these ranks were in the state that the detector has read.

    Parameters
    ----------
    logs : list of OpLogReader
        By rank.
    cells : dict
        File name of a notebook cell -> its execution count.
    sleep_count : callable
        ``sleep_count(rank)`` returns how often the rank's main thread has gone to sleep. None while
        the thread is awake, or if simlib cannot know.
    eager_limit_bytes : int
        As for `Matcher`.
    callers : callable
        ``callers({rank: Site})``: the sites of waiting ranks with their callers.
    """

    def __init__(
        self,
        logs: list,
        cells: Mapping[str, int],
        sleep_count: Callable[[int], int | None] = lambda rank: None,
        eager_limit_bytes: float = -1,
        callers: Callable[[dict[int, Site]], dict[int, Site]] = lambda sites: sites,
    ) -> None:
        self._logs = logs
        self._cells = cells
        self._sleep_count = sleep_count
        self._callers = callers
        self._matcher = Matcher(len(logs), eager_limit_bytes)
        self._taken = [0] * len(logs)
        self._at_once = max(MAX_TAKEN // len(logs), LEAST_TAKEN)
        self._open_any: list[Op] = []
        self._states: dict[int, tuple[int, int]] = {}
        self._asleep: dict[int, int | None] = {}
        self._at_keys: tuple[Any, dict[int, tuple[int, int]]] = None, {}
        self._are_still = False
        self.all_wait = False

    def look(self, running: list[int]) -> bool:
        """Note the state of the running ranks. Returns whether a rank waits and has not moved
        since.

        Afterwards ``all_wait`` says whether all running ranks wait and have not moved. After a
        deadlock was found, it says whether all running ranks are blocked.
        """
        states = {rank: self._logs[rank].state for rank in running}
        before, self._states = self._states, states
        still = [rank for rank in running if before.get(rank) == states[rank]]
        self._asleep = {
            rank: self._sleep_count(rank)
            for rank in still
            if not states[rank][1] and self._logs[rank].has_futures_taken
        }
        waiting = [rank for rank in still if states[rank][1] or self._asleep.get(rank) is not None]
        self.all_wait = len(waiting) == len(states)
        self._are_still = len(still) == len(states)
        return bool(waiting)

    def lacks_keys(self, running: list[int], gone: Mapping[int, str]) -> bool:
        """Whether ranks wait for keys of a store that no rank can set any more. Call `look` first.

        All other ranks have finished or wait for ever. A waiting rank looks for its keys again and
        again, so it finds keys that were set before all ranks stopped.
        """
        logs = self._logs
        waiting = [rank for rank in running if self._are_still and not logs[rank].state[1]]
        keys = {rank: logs[rank].awaited_keys() for rank in waiting}
        looks = {rank: logs[rank].looks() for rank in waiting}
        if not keys or not all(names for _, names in keys.values()):
            return False
        if any(logs[rank].has_left_threads() for rank in gone):
            return False
        waits = {rank: wait for rank, (wait, _) in looks.items()}
        now = [log.state for log in logs], keys, waits
        if now != self._at_keys[0]:
            self._at_keys = now, looks
        _, first = self._at_keys
        if any(looks[rank][1] < first[rank][1] + LOOKS for rank in waiting):
            return False
        others = {
            rank: logs[rank].op_at(offset, logs[rank].seq_at(offset), 0, self._cells)
            for rank in running
            if (offset := now[0][rank][1])
        }
        self._take_in()
        gone = dict(gone) | dict.fromkeys(waiting, "waits for a key of a store")
        blocked = self._matcher.blocked(others, gone, self._is_done) if others else None
        self.all_wait = not others or (blocked is not None and blocked.waits.keys() >= set(others))
        return self.all_wait and now[0] == [log.state for log in logs]

    def verdict(self, running: list[int], gone: Mapping[int, str]) -> SimlibError | None:
        """A mismatch or deadlock among the ops so far, as an error; else None.

        Parameters
        ----------
        running : list of int
        gone : dict
            ``{rank: "has finished"}`` of the others.
        """
        before = [log.state for log in self._logs]
        self._take_in()
        if self._matcher.mismatches:
            return self._in_words(self._matcher.mismatches[0])
        waiting = {}
        for rank in running:
            offset = before[rank][1] or self._future_offset(rank)
            if offset:
                log = self._logs[rank]
                waiting[rank] = log.op_at(offset, log.seq_at(offset), 0, self._cells)
        blocked = self._matcher.blocked(waiting, gone, self._is_done)
        if blocked is None or any(self._logs[rank].state != before[rank] for rank in blocked.waits):
            return None
        # Who waits for what has come already is about to go on: a busy machine has not let it yet.
        self.all_wait = self.all_wait and blocked.waits.keys() >= set(running)
        self._find_callers([wait.op for wait in blocked.waits.values()])
        return verdicts.deadlock(blocked, gone, self._matcher)

    def _in_words(self, found: Mismatch) -> SimlibError:
        # The rank of an asynchronous op goes on: where it is now is chance.
        self._find_callers([op for op in found.ops.values() if not op.async_op])
        return verdicts.mismatch(found)

    def _find_callers(self, ops: list[Op]) -> None:
        """Complete the sites of those ops in which their ranks wait at this moment."""
        waiting = {}
        for op in ops:
            log = self._logs[op.rank]
            if log.waiting_offset and log.seq_at(log.waiting_offset) == op.seq:
                waiting[op.rank] = op
        sites = self._callers({rank: op.site for rank, op in waiting.items()})
        for rank, op in waiting.items():
            op.site = sites[rank]

    def waits(self, running: list[int]) -> dict[int, Wait]:
        """The present waits of ranks, and the ranks for which they wait. Empty if all have
        arrived."""
        self._take_in()
        found = {}
        for rank in running:
            log, offset = self._logs[rank], self._logs[rank].state[1]
            if offset:
                op = log.op_at(offset, log.seq_at(offset), 0, self._cells)
                found[rank] = self._matcher.wait_of(op)
        return found

    def _future_offset(self, rank: int) -> int:
        """The op for whose future C++ code waits on this rank, if this is certain. Otherwise 0.

        DDP's reducer waits in this way at the end of `backward`, and no Python code sees it. The
        wait is certain if the rank's thread has slept there since the last look.
        """
        log = self._logs[rank]
        count = self._asleep.get(rank)
        if not log.has_futures_taken or count is None or self._sleep_count(rank) != count:
            return 0
        for offset in log.futures_taken():
            op = log.op_at(offset, log.seq_at(offset), 0, self._cells)
            if op.seq >= self._taken[rank]:
                return 0  # posted since the look: the rank goes on
            if not self._matcher.is_satisfied(op):
                return offset
        return 0

    def site_of_future(self, rank: int) -> Site | None:
        """The site of the op for whose future C++ code waits on this rank; None if simlib is not
        certain of such a wait."""
        self._take_in()
        offset = self._future_offset(rank)
        return self._logs[rank].op_at(offset, 0, 0, self._cells).site if offset else None

    def mismatch(self, after_death: bool = False) -> SimlibError | None:
        """The first mismatch among all ops, as an error, or None.

        With ``after_death``, a mismatch that is only suspected counts too, because a rank has died.
        """
        self._take_in()
        found = next(iter(self._matcher.mismatches), None)
        if found is None and after_death:
            found = self._matcher.suspected()
        return self._in_words(found) if found else None

    def findings(self, dead: Container[int] = ()) -> list[Finding]:
        """The left-over ops and races of a run that ended well; see `findings`.

        Ops that are open because of a dead rank do not count.
        """
        self._take_in()
        evidence = Evidence(
            unfinished=[op for op in self._matcher.unfinished() if not self._is_for_want(op, dead)],
            absent=[
                (arrived, missing)
                for arrived, missing in self._matcher.absent()
                if not any(rank in dead for rank in (*arrived, *missing))
            ],
            never_waited=[
                log.op_at(log.offset_of(seq), seq, 0, self._cells)
                for rank, log in enumerate(self._logs)
                if rank not in dead
                for seq in log.requests_never_waited()
            ],
            touched=[race for log in self._logs for race in log.races(self._cells)],
        )
        return found_in(evidence) if any(evidence) else []

    def keep_up(self) -> bool:
        """Read logs that roll over, so that ranks may continue in their oldest segments.

        Each call reads only a part of the logs. Ranks that are far ahead wait. Returns whether ops
        disagree. A disagreement is final.
        """
        self._take_some(self._counts())
        self._resolve_any()
        for log, taken in zip(self._logs, self._taken, strict=True):
            log.let_go(taken)
        return bool(self._matcher.mismatches)

    def _is_for_want(self, op: Op, dead: Container[int]) -> bool:
        """Whether an op was left over because a rank died, was missing, or raised an error."""
        now = self._now(op)
        has_failed = now is not None and now.failed_s is not None
        return op.rank in dead or op.peer in dead or (has_failed and bool(dead))

    def _take_in(self) -> None:
        """Give the matcher the ops that were posted since the last time."""
        counts = self._counts()
        while self._take_some(counts):
            pass
        self._resolve_any()

    def _counts(self) -> list[int]:
        """How many ops each rank has posted by now."""
        for log in self._logs:
            log.read_on()
        return [log.count for log in self._logs]

    def _take_some(self, counts: list[int]) -> bool:
        """Give the matcher ops of each log, up to these counts. Returns whether there were any."""
        before = list(self._taken)
        for rank, log in enumerate(self._logs):
            first = self._taken[rank]
            until = min(counts[rank], first + self._at_once)
            for op in log.ops(0, self._cells, first, until) if first < until else ():
                self._post(op)
                self._taken[rank] = op.seq + 1
        return self._taken != before

    def _post(self, op: Op) -> None:
        peer = op.peer
        if op.any_source:
            op.peer = None
        self._matcher.post(op)
        if op.any_source:
            op.peer = peer
            self._open_any.append(op)

    def _now(self, op: Op) -> Op | None:
        """The op in the present state of the log. None if the log has forgotten the op."""
        log = self._logs[op.rank]
        offset = log.offset_of(op.seq)
        return None if offset is None else log.op_at(offset, op.seq, 0, self._cells)

    def _is_done(self, op: Op) -> bool:
        now = self._now(op)
        return now is None or now.done

    def _resolve_any(self) -> None:
        """Give the matcher the senders that recvs of any source have found by now."""
        still_open = []
        for op in self._open_any:
            now = self._now(op)
            if now is not None and now.peer is not None:
                self._matcher.resolve(now)
            else:
                still_open.append(op)
        self._open_any = still_open


class RunMonitor(ABC):
    """The facts that the kernel knows about one run.

    Each engine has its own subclass. It handles the messages, output and deaths of ranks, and sets
    these attributes. `failures` and `Watchdog` describe the outcome in words. `results` makes a
    `Run` of it.

    Attributes
    ----------
    engine : str
        ``"real"`` or ``"simulated"``.
    name : str
        Name of the rank function.
    world_size : int
    cells : dict of str to int
        File name of a notebook cell -> its execution count.
    timeout_s : float or None
        simlib ends the run after this many seconds without progress.
    check : bool
        Whether simlib reports more than errors, deaths, and runs without progress for
        ``timeout_s``.
    logs : list of OpLogReader
        By rank.
    detector : DeadlockDetector
        The detector that reads these logs. It exists when there are logs.
    answers : dict of int to tuple
        rank -> (word, content) as the rank sent it, see `returned.answer_of`.
    deaths : dict of int to int
        rank -> exit code of a rank's process that ended by itself.
    died_s : dict of int to float
        rank -> its time of death, on the ranks' clock, if it is known.
    death_words : dict of int to str
        rank -> a description of its death, if simlib may know more than the exit code.
    outputs : list of RankOutput
        By rank.
    native : list or dict of bytes
        The native stderr of each rank: crash stacks, and requested stacks.
    survives : bool
        Whether the other ranks continue when a rank dies.
    has_streams : bool
        Whether the simulated devices are asynchronous.
    forgotten : Forgotten or None
        For a watched run, sums over the ops that the logs have forgotten.
    have_all_run : bool
        Whether all ranks have logs. If not, the messages of the ranks without logs are unknown.
    without_gpus : str
        The hint for ranks that ask for a GPU and see none.
    kill : Mapping
        The ranks that were to be killed, with their times.
    wire, memory, flops, processes : list or None
        For a simulation that has ended: see `Run`.
    shared : Mapping
        For a simulation that has ended: see `Run`.
    set_by_many : list
        For a simulation: names of shared modules that several ranks set, see `of_shared_names`.
    values_asked : list
        For a simulation without data: the places at which each rank asked for a value, see
        `of_values_asked`.
    """

    engine: str = "real"
    survives: bool = False
    has_streams: bool = False
    have_all_run: bool = True
    without_gpus: str = ""
    kill: Mapping[int, float] = {}
    forgotten: Evicted | None = None
    wire: list | None = None
    memory: list | None = None
    flops: list | None = None
    processes: list | None = None
    shared: Mapping[str, str] = {}
    set_by_many: Sequence[tuple] = ()
    values_asked: Sequence[dict] = ()
    detector: DeadlockDetector
    logs: list
    native: Any

    def __init__(
        self,
        name: str,
        world_size: int,
        cells: Mapping[str, int],
        timeout_s: float | None,
        check: bool,
    ):
        self.name = name
        self.world_size = world_size
        self.cells = cells
        self.timeout_s = timeout_s
        self.check = check
        self.answers: dict[int, tuple] = {}
        self.deaths: dict[int, int] = {}
        self.died_s: dict[int, float] = {}
        self.death_words: dict[int, str] = {}
        self.outputs = [RankOutput() for _ in range(world_size)]
        self._moved = -1, 0
        self._still_since_s = 0.0

    @abstractmethod
    def ask_for_stacks(self, ranks: list[int]) -> dict[int, list]:
        """The learner's frames of computing ranks, outermost first; empty if none arrived."""

    def with_callers(self, sites: dict[int, Site]) -> dict[int, Site]:
        """The sites at which ranks wait, with callers, which simlib reads from the ranks' stacks.

        A line of the rank function itself has no callers.
        """
        running = self.running()
        asked = [r for r, site in sites.items() if r in running and site.function != self.name]
        stacks = self.ask_for_stacks(asked) if asked else {}
        found = {r: failures.with_callers(sites[r], stacks[r], self.cells) for r in asked}
        return sites | found

    def running(self) -> list[int]:
        """Ranks that have neither answered nor died."""
        ranks = range(self.world_size)
        return [rank for rank in ranks if rank not in self.answers and rank not in self.deaths]

    def exited(self) -> dict[int, str]:
        """Ranks that post no more ops, with the reason in words."""
        return dict.fromkeys(self.answers, "has finished") | dict.fromkeys(self.deaths, "has died")

    def failed(self) -> bool:
        """Whether a rank has raised, or a rank has died and the others must end, or all have
        died."""
        raised = any(word != "result" for word, _ in self.answers.values())
        return raised or self._ended_by_death()

    def _ended_by_death(self) -> bool:
        are_left = self.survives and len(self.deaths) < self.world_size
        return bool(self.deaths) and not are_left

    def failed_by_itself(self) -> bool:
        """Like `failed`, but without ranks whose wait failed because of another rank."""
        return self.raised_by_itself() or self._ended_by_death()

    def raised_by_itself(self) -> bool:
        """Like `failed_by_itself`, but without ranks whose process ended: the host may be the
        cause."""
        failed = [content for word, content in self.answers.values() if word != "result"]
        first = [one for one in failed if not isinstance(one, FailureReport) or not one.from_wait]
        return bool(first)

    def stuck(self, disagree: bool = False) -> SimlibError | None:
        """The error for ranks that wait for ever, or for ops that disagree. None if there is none
        yet.

        There is a verdict only for ranks that have not moved since the last call, or if it is known
        that ops ``disagree``.
        """
        if not self.check:
            return None
        found = self.verdict() if self.detector.look(self.running()) or disagree else None
        if found is not None or not self.detector.lacks_keys(self.running(), self.exited()):
            return found
        if self.has_helpers():
            return None
        return failures.waits_for_the_dead(self, None) if self.deaths else failures.at_rest(self)

    def has_helpers(self) -> bool:
        """Whether processes that ranks have started may still help them. True if this is
        unknown."""
        return True

    def findings(self) -> list[Finding]:
        """The faults of a run that ended well."""
        found = self.detector.findings(self.deaths) if self.have_all_run else []
        if self.set_by_many:
            found += of_shared_names(self.set_by_many, self.cells)
        if any(self.values_asked):
            found += of_values_asked(self.values_asked, self.cells)
        return found

    def waits(self) -> dict[int, Wait]:
        """Which rank waits for which now, if the run is fully diagnosed."""
        return self.detector.waits(self.running()) if self.check else {}

    def verdict(self) -> SimlibError | None:
        """The fault in the ops so far, or None. If a rank died, the error names the death."""
        found = self.detector.verdict(self.running(), self.exited())
        if not self.deaths or not isinstance(found, DeadlockError):
            return found
        if found.graph.cycle and not self.deaths.keys() & found.graph.gone.keys():
            return failures.deadlock_apart_from_the_dead(self, found)
        return failures.waits_for_the_dead(self, found)

    def may_judge(self, progress: int) -> bool:
        """Whether a wait that looks endless is really endless. ``progress`` changes with every op.

        If a rank has just died, Gloo may still report the death to the others, so the wait may end.
        """
        moved = progress, len(self.deaths)
        if moved != self._moved:
            self._moved, self._still_since_s = moved, time.monotonic()
        return not self.deaths or time.monotonic() > self._still_since_s + TOLD_S

    def mismatch(self) -> SimlibError | None:
        """The error for ops that disagree, which explains all later failures; or None."""
        after_death = bool(self.deaths) and not self.survives
        return self.detector.mismatch(after_death) if self.check else None

    def failure(self) -> SimlibError | None:
        """The error for the ranks' failures, or None if all is well so far.

        Ops that disagree come first, because they explain all later failures.
        """
        found = self.mismatch()
        if found is None and self.failed():
            found = failures.of_failures(self, set(self.deaths) if self._ended_by_death() else ())
        return found


class Watchdog:
    """Ends a run whose ranks print without end, or show no activity for too long.

    Parameters
    ----------
    monitor : RunMonitor
    display : Display
        The display that shows the places of ranks after `QUIET_S` seconds of silence.
    running : sequence of int, optional
        The ranks that print. The default is all ranks.
    """

    def __init__(
        self, monitor: RunMonitor, display: Any, running: Sequence[int] | None = None
    ) -> None:
        self._monitor = monitor
        self._display = display
        ranks = range(monitor.world_size) if running is None else running
        self._outputs = [(rank, monitor.outputs[rank]) for rank in ranks]
        self._moved_at = time.monotonic()
        self._progress: tuple[int, int] | None = None
        self._said_quiet = False

    def ending(self, posted: int) -> SimlibError | None:
        """The error that ends the run now, or None. ``posted`` changes with every op of a rank."""
        flooding = [rank for rank, output in self._outputs if output.is_flood]
        is_watched = self._monitor.forgotten is not None  # by somebody who sees what is printed
        if flooding and not is_watched:
            return failures.endless_output(self._monitor, flooding[0])
        silence_s = self.silence_s(posted)
        limit_s = self._monitor.timeout_s
        if limit_s is not None and silence_s > limit_s:
            return failures.out_of_time(self._monitor)
        if silence_s > QUIET_S and not self._said_quiet and not is_watched:
            self._display.status(failures.where_ranks_are(self._monitor))
            self._said_quiet = True
        self._display.refresh()
        return None

    def silence_s(self, posted: int) -> float:
        """Seconds since the last op or output of any rank."""
        progress = posted, sum(output.total for _, output in self._outputs)
        if progress != self._progress:
            self._progress = progress
            self._moved_at = time.monotonic()
            if self._said_quiet:
                self._display.status("")
                self._said_quiet = False
        return time.monotonic() - self._moved_at
