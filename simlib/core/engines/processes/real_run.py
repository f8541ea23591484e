"""`run`: one rank function on real processes, watched from start to end."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from ...diagnose import failures
from ...diagnose.monitor import STACK_LIMIT_S, DeadlockDetector, RunMonitor, Watchdog
from ...diagnose.watching import Watcher
from ...environment import NO_GPUS, are_ranks_trusted
from ...model import errors
from ...model.chance import Failures, Slow
from ...model.trace import Evicted
from ...record.rolling import segment_of
from ...record.transports.backends import BACKENDS, Backend, check_for_processes, missing_gpu
from ...results.run import Run, is_quiescent, make_run, origin_of
from ..options import (
    NO_FAULTS,
    CheckedFaults,
    Diagnosis,
    Faults,
    Program,
    Restart,
    Restarts,
    check_function,
    check_timeout,
    check_world_size,
    checked_faults,
    either,
    program_of_function,
    program_of_script,
    refuse_foreign,
    restarts_of,
    seconds_between_lines,
)
from ..rank_process.profiling import profiles_in
from ..restarts import remaining_kills, with_restarts
from ..run_outputs import MAX_PROCESSES
from ..session import (
    Engine,
    Failure,
    SilentDisplay,
    answer_of,
    cell_numbers,
    context_here,
    new_cells,
    perform,
)
from ..torch_versions import warn_of_untested_torch
from .rank_main import Gpus, RunRequest
from .worlds import NO_GPU, RankProcess, World, kill_count, pool, sleep_count, why_killed

POLL_S = 0.02
"""While all ranks are silent, the kernel looks at them once in this many seconds."""
PROFILES_S, PROFILES_OF_FAILED_S = 600.0, 10.0
"""After a run, ranks must read their profiles in this time; after a failed run, in the second."""
SETTLE_S = 1.5
"""After a first failure, ranks that still compute get this many seconds to fail by themselves.

With less time, a busy machine would not name some of the ranks that fail in the same way.
"""
CHUNK = 1 << 16
SMALL_BYTES = 1 << 20
"""simlib does not search a longer function for names: it may contain a model."""
NEEDS_ALL = re.compile(
    rb"optim|Parallel|compile|checkpoint|pipelining|fsdp|fully_shard|\.tensor|functional_coll|profile"
    rb"|vmap|func\x94|Mode\x94"
)
"""Names in a packed function that uses modules of torch which an incomplete server does not have.
pickle writes the byte ``\\x94`` behind a name."""
SEES_NO_GPU = (
    'Without gpus=True or backend="nccl", the ranks of simlib.run see no GPU: ask for GPUs, or '
    "keep tensors on the CPU."
)


def run(
    function: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    slow: Slow | None = None,
    kill: Mapping[int, float] | Failures | None = None,
    on_death: str = "end",
    restarts: int | Restarts = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    timeout_s: float | None = 120,
    strict: bool = False,
    check: bool = True,
    fresh: bool = False,
    watch: bool | float = False,
    backend: str = "gloo",
    gpus: bool = False,
    seed: int | str = 0,
    profile: bool = False,
    faults: Faults | None = None,
    diagnosis: Diagnosis | None = None,
) -> Run:
    """Run a rank function on real processes of this machine.

    Parameters
    ----------
    function : callable
        Each rank calls it as ``function(rank, world_size, *args, **kwargs)``. The default process
        group exists before this call. Each rank gets its own copy of the function and of what it
        uses.
    world_size : int
        Number of ranks, 1 to 64.
    args, kwargs : sequence, dict
        Further arguments, the same on every rank.
    kill : dict or Failures, optional
        ``{rank: seconds}``. simlib kills the process of each of these ranks with SIGKILL. The
        seconds count from the moment at which the rank entered the function.
        `simlib.scale.Failures` draws such deaths at random.
    on_death : {"end", "continue"}
        With ``"end"`` the death of a rank's process ends the run. With ``"continue"`` the other
        ranks go on, as with plain Gloo. An op that needs the dead rank raises an error in the other
        ranks. All other ops continue. The result of the dead rank is None. A rank may also wait for
        a survivor that has raised. Such a wait ends after the group's ``timeout=`` (of
        `init_process_group` or `new_group`). Without a ``timeout=`` the run ends, and its error
        says which rank waits for which.
    restarts : int or Restarts
        How many times simlib may call the function again after ranks have died or raised an error.
        As with torchrun, simlib ends all ranks and starts new ranks. ``TORCHELASTIC_RESTART_COUNT``
        is in their environment. ``run.attempts`` has all attempts. The times of ``kill`` count from
        the beginning of the first attempt. The time between two attempts does not count. A
        `Restarts` object also contains ``min_ranks`` and ``on_restart``.
    min_ranks : int, optional
        If at least ``min_ranks`` ranks are left after a failure, the next attempt uses only these
        ranks. With None, each restart has as many ranks as the first attempt.
    on_restart : callable, optional
        simlib calls this function with a `Restart`, in this process, before the ranks begin again.
    slow : dict, Jitter or callable, optional
        Ranks that compute slower, or with noise, as for `simulate`. A rank's factor multiplies the
        seconds of `simlib.compute`. After real computing, the rank sleeps before its next op or
        wait. It sleeps for ``factor - 1`` times the processor time that its own thread used. A
        factor below 1 does not change real computing, because simlib cannot make a processor
        faster.
    timeout_s : float or None
        simlib ends the run if no rank makes an op or prints a line for this many seconds. With None
        there is no limit. simlib finds deadlocks without this limit.
    strict : bool
        True to raise the first finding as an error. Findings are, for example, messages that no
        rank received, and buffers that a rank touched too early.
    check : bool
        With False simlib only records the run. Use False to measure times. simlib then reports only
        errors, deaths, and runs that make no progress for ``timeout_s``.
    fresh : bool
        True for new processes that no run has used before.
    watch : bool or float
        Watch a run that takes hours. True prints a line every minute, and a number sets the seconds
        between lines. A line shows the number of ops and the ranks that wait. A watched run keeps
        only the last ops, about 900,000 of all ranks together, so that it does not fill the memory.
        Sums and findings cover the whole run. Ranks may print any amount of text.
    faults : Faults, optional
        ``slow``, ``kill`` and ``on_death`` as one object.
    diagnosis : Diagnosis, optional
        ``timeout_s``, ``strict``, ``check`` and ``watch`` as one object.
    backend : {"gloo", "nccl"}
        The library that moves the data. With ``nccl`` each rank needs a GPU of its own. This GPU
        becomes the rank's current GPU. Tensors on the CPU still use Gloo. The backend ``mpi4py``
        works only with `submit`.
    gpus : bool
        True if ranks may use the GPUs that this process sees. Otherwise ranks see a GPU only with
        ``backend="nccl"``, so that a program does the same on machines with and without a GPU. The
        current GPU of rank r is GPU r, so ``x.cuda()`` uses another GPU on each rank. If there are
        fewer GPUs than ranks, ranks share them: rank r uses GPU r modulo the number of GPUs.
    seed : int, "same" or "new"
        The seed for the random numbers of torch, numpy and `random`. As with torchrun, each rank
        has its own seed. simlib derives the seeds of all ranks from this number, so you can repeat
        a run. With ``"new"``, simlib draws the number at random and stores it in ``run.seed``.
        ``"same"`` gives every rank the same random numbers.
    profile : bool
        True to run torch's profiler on each rank. ``run.profile`` contains the work of each rank's
        GPU. Pictures and ``run.states`` show this work. If a rank used no GPU, ``run.profile``
        contains the operators that the rank called. Profiling costs time and memory, so profile
        only a few steps of a long training.

    Returns
    -------
    Run

    Raises
    ------
    InvalidCallError
        An argument is invalid, or a rank made a call that can never be right.
    RankError
        A rank raised an exception, or returned a value that cannot be sent back.
    RankDiedError
        A rank's process ended before the function returned.
    DeadlockError
        Ranks wait for each other or for a rank that has finished. Or every rank waited when
        ``timeout_s`` had passed.
    MismatchError
        Ops that belong together disagree, for example about the shape.
    StuckError
        A rank was still computing when ``timeout_s`` had passed, or a rank prints without end.
    UnfinishedError, RaceError
        The run used ``strict=True`` and had a finding.
    RunInterrupted
        Somebody pressed the Stop button or Ctrl-C.
    """
    check_function(function, "run")
    size = _check_world_size(world_size)
    spoken = _check_backend(backend, size)
    seen = _check_gpus(gpus, spoken)
    hint = SEES_NO_GPU if seen == NO_GPU else ""
    program = program_of_function(function, args, kwargs, size, seed, hint)
    by_keyword = Faults(kill=kill, slow=slow, on_death=on_death)
    asked = checked_faults(either("faults", faults, by_keyword), size)
    watched = Diagnosis(timeout_s=timeout_s, strict=strict, check=check, watch=watch)
    plan = Restarts(min_ranks=min_ranks, on_restart=on_restart)
    plan = restarts_of(restarts, plan, size)
    refuse_foreign("run", plan, restart_s="simulate")
    engine = ProcessEngine(
        program=program,
        world_size=size,
        faults=asked,
        diagnosis=_check_diagnosis(either("diagnosis", diagnosis, watched)),
        backend=spoken,
        gpus=seen,
        fresh=fresh,
        profile=_check_profile(profile),
    )
    return _attempts(engine, plan)


def run_script(
    path: str,
    world_size: int,
    argv: Sequence[str],
    *,
    restarts: Restarts | int = 0,
    diagnosis: Diagnosis | None = None,
    backend: str = "gloo",
    seed: int | str | None = None,
    is_module: bool = False,
    profile: bool = False,
) -> Run:
    """Run a whole script, or a module by its name, on every rank; ``argv`` are its arguments.

    Ranks see the same GPUs as under torchrun. They use a GPU only with ``backend="nccl"``.
    """
    size, is_trusted = _check_world_size(world_size), are_ranks_trusted()
    spoken = _check_backend(backend, size)
    engine = ProcessEngine(
        backend=spoken,
        gpus=_gpus_here(own=spoken.needs_gpus) if is_trusted else NO_GPU,
        program=program_of_script(path, argv, size, seed, is_module),
        world_size=size,
        diagnosis=_check_diagnosis(diagnosis or Diagnosis()),
        are_unlike=is_trusted,
        profile=_check_profile(profile),
    )
    return _attempts(engine, restarts_of(restarts, Restarts(), size))


def _check_world_size(world_size: Any) -> int:
    why = f"give a whole number from 1 to {MAX_PROCESSES}, the most processes that one run starts"
    return check_world_size(world_size, MAX_PROCESSES, why)


def _check_backend(name: Any, world_size: int) -> Backend:
    return BACKENDS["gloo"] if name == "gloo" else check_for_processes(name, world_size)


def _check_profile(profile: Any) -> bool:
    if not isinstance(profile, bool):
        raise errors.InvalidCallError(f"profile={profile!r} must be True or False")
    if profile and not are_ranks_trusted():
        raise errors.InvalidCallError(
            "profile=True is not possible in a graded run, because graded ranks may not write "
            "files: leave profile= out"
        )
    return profile


def _check_gpus(asked: Any, backend: Backend) -> Gpus:
    """The `Gpus` of the ranks. Refuse GPUs if this machine has no GPU, or if ranks are graded."""
    if not isinstance(asked, bool):
        raise errors.InvalidCallError(f"gpus={asked!r} must be True or False")
    if not (asked or backend.needs_gpus):
        return NO_GPU
    if not are_ranks_trusted():
        raise errors.InvalidCallError("graded ranks cannot use a GPU: leave out gpus= and backend=")
    missing = missing_gpu()
    if missing:
        raise errors.InvalidCallError(f"gpus=True is not possible on this machine: {missing}")
    return _gpus_here(own=True)


def _gpus_here(own: bool) -> Gpus:
    """The GPUs that this process sees, for ranks."""
    return Gpus({name: os.environ.get(name) for name in NO_GPUS}, own)


def _check_diagnosis(asked: Diagnosis) -> Diagnosis:
    seconds_between_lines(asked.watch)
    check_timeout(asked.timeout_s)
    return asked


def _attempts(engine: ProcessEngine, plan: Restarts) -> Run:
    """Run, and run again after a failure, as a `Restarts` says."""

    def attempt(size: int, begin_s: float, environ: Mapping[str, str]) -> Run:
        kill = remaining_kills(engine.faults.kill, size, begin_s)
        return perform(replace(engine, world_size=size, kill=kill, environ=environ))

    warn_of_untested_torch()
    if engine.faults is NO_FAULTS and not plan.most:
        return perform(engine)
    return with_restarts(attempt, engine.world_size, plan)


def _needs_all(program: Program) -> bool:
    """Whether ranks probably use modules of torch that an incomplete server has not imported.

    An incomplete server is ready a second earlier. If the answer is wrong, each rank imports these
    modules itself. A function that pickle sends by its module's name (without ``__main__``) does
    not show what it uses. If the learner's process has imported sympy, it has imported
    torch._dynamo, so the learner uses it.
    """
    sent = program.payload
    is_small = b"__main__" in sent and len(sent) < SMALL_BYTES and "sympy" not in sys.modules
    return not is_small or NEEDS_ALL.search(sent) is not None


@dataclass(frozen=True, kw_only=True)
class ProcessEngine(Engine):
    """Runs a program once on real processes of this machine.

    Attributes
    ----------
    kill : dict of int to float
        For each rank that simlib kills, the time in seconds since the rank began.
    gpus : Gpus
        The GPUs that ranks see.
    fresh : bool
        Whether the processes must be new.
    are_unlike : bool
        Whether sets of strings have another order on every second rank.
    environ : dict of str to str
        Variables of the ranks in addition to the kernel's.
    profile : bool
        Whether ranks use a profiler.
    """

    program: Program
    world_size: int
    faults: CheckedFaults = NO_FAULTS
    kill: Mapping[int, float] = field(default_factory=dict)
    diagnosis: Diagnosis = Diagnosis()
    backend: Backend = BACKENDS["gloo"]
    gpus: Gpus = NO_GPU
    fresh: bool = False
    are_unlike: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    profile: bool = False

    sort = "a run"
    resting = property(lambda self: pool())

    def open(self, display: SilentDisplay) -> ProcessMonitor:
        """Reserve a world of processes. Returns the monitor that will watch the world."""
        worlds = pool()
        needs_all = self.profile or _needs_all(self.program)
        if not worlds.has_server:
            display.waiting("starting the rank server, which imports torch (about 3 seconds) ...")
        try:
            sort = self.world_size, self.are_unlike, needs_all
            world = worlds.take(sort, self.fresh, self.backend, self.gpus)
        except (OSError, EOFError) as error:
            raise errors.SimlibError(
                f"the {self.world_size} processes of this run could not be started: {error}. "
                "Close other kernels or programs, or run fewer ranks."
            ) from None
        finally:
            display.waiting("")
        return ProcessMonitor(self, world, display)

    def execute(self, monitor: ProcessMonitor) -> Failure | None:
        """Run to the end; returns the error that ended it, or None."""
        seen = {name: value for name, value in self.gpus.variables.items() if value is not None}
        request = RunRequest(
            payload=self.program.payload,
            execution_context=context_here(self.program.argv, {**self.environ, **seen}),
            per_rank_args=self.program.per_rank_args,
            cells=new_cells(monitor.world, monitor.cells),
            seeds=self.program.seeds,
            timeout_s=self.diagnosis.timeout_s,
            check=self.diagnosis.check,
            survives=monitor.survives,
            slow=self.faults.slow,
            segment=monitor.segment,
            number=monitor.world.begin_run(),
            profile_folder=monitor.profile_folder,
        )
        failure = monitor.until_the_end(request)
        if self.profile:
            monitor.await_profiles(PROFILES_S if failure is None else PROFILES_OF_FAILED_S)
        return failure

    def make_run(self, monitor: ProcessMonitor) -> Run:
        """The `Run` from the present facts of the monitor."""
        run = make_run(monitor)
        if self.profile:
            began_s = origin_of(monitor)
            folder, size = monitor.profile_folder, self.world_size
            run.profile = profiles_in(folder, size, began_s, monitor.answers)
        return run

    def complete(
        self,
        monitor: ProcessMonitor,
        run: Run,
        failure: Failure | None,
    ) -> Failure | None:
        """Return the error of the run. It is an error if ranks have hidden messages from the
        record."""
        forged = monitor.world.complaint(run.trace) if failure is None else None
        return errors.SimlibError(forged) if forged else failure

    def close(
        self,
        monitor: ProcessMonitor,
        run: Run | None,
        failure: Failure | None,
    ) -> None:
        """Give the world back. Later runs use it again if nothing of this run is left in it."""
        changed = monitor.deaths or monitor.segment or self.profile  # torch keeps a profiler's part
        is_as_new = failure is None and not changed
        clean = is_as_new and run is not None and is_quiescent(run.trace)
        pool().give_back(monitor.world, clean)
        if self.profile:  # ranks that might still write there have ended
            shutil.rmtree(monitor.profile_folder, ignore_errors=True)


class ProcessMonitor(RunMonitor):
    """Handles the messages, output and deaths of a world's processes until the run has ended."""

    segment = 0
    profile_folder = ""

    def __init__(self, engine: ProcessEngine, world: World, display: SilentDisplay) -> None:
        asked, cells = engine.diagnosis, cell_numbers()
        name = engine.program.name
        super().__init__(name, world.world_size, cells, asked.timeout_s, asked.check)
        self.world = world
        if engine.profile:
            self.profile_folder = tempfile.mkdtemp(prefix="simlib-profile-")
        self._profiled: set[int] = set()
        self.without_gpus = SEES_NO_GPU if engine.gpus == NO_GPU else ""
        self._watcher = None
        every_s = seconds_between_lines(asked.watch) if asked.watch else None
        if every_s is not None:
            self.forgotten = Evicted(world.world_size)
            self.segment = segment_of(world.world_size)
            for rank in world.ranks:
                rank.watch(cells, self.segment, self.forgotten)
            self._watcher = Watcher(self, display, every_s)
        self.logs = [rank.log for rank in world.ranks]
        self.native = [bytearray() for _ in world.ranks]
        self.detector = DeadlockDetector(
            self.logs, cells, self._sleep_count, callers=self.with_callers
        )
        self._display = display
        self._watchdog = Watchdog(self, display)
        self.kill, self._to_kill = engine.kill, dict(engine.kill)
        self.survives = engine.faults.on_death == "continue"
        self._memory_kills = kill_count()

    def _sleep_count(self, rank: int) -> int | None:
        return sleep_count(self.world.ranks[rank].process.pid)

    def until_the_end(self, request: RunRequest) -> Failure | None:
        """Start the function everywhere and watch; returns the error to raise, or None."""
        args, request.per_rank_args = request.per_rank_args, None
        message = pickle.dumps(("run", request), protocol=5)
        for rank in self.world.ranks:
            try:
                rank.control.send_bytes(message)
                rank.control.send(args and args[rank.rank])
            except OSError:  # it died between two runs; its sentinel says how
                pass
        while self.running():
            self._take_in(POLL_S)
            if self._to_kill:
                self._kill_as_asked()
            if self.failed():
                self._let_others_settle()
                return self.failure()
            disagree = self._watcher is not None and self._keep_watch()
            progress = sum(log.progress for log in self.logs)
            found = self.stuck(disagree) if self.may_judge(progress) else None
            if found is not None:
                return self._settled(found)
            found = self._watchdog.ending(progress)
            if found is not None:
                return found
            self._display.progress(self._how_far)
        self._take_in(0)
        return self.failure()

    def _how_far(self) -> str:
        """How many ranks run, and when a rank last did something, in words."""
        silence_s = self._watchdog.silence_s(sum(log.progress for log in self.logs))
        count = len(self.running())
        ranks = "1 rank runs" if count == 1 else f"{count} ranks run"
        return f"{ranks}, last op or output {silence_s:.0f} s ago"

    def await_profiles(self, most_s: float) -> None:
        """Wait at most ``most_s`` seconds until ranks that have answered have read their
        profiles."""
        until_s = time.monotonic() + most_s
        self._display.status("ranks read the results of their profilers ...")
        while self.answers.keys() - self._profiled and time.monotonic() < until_s:
            self._take_in(POLL_S)
        self._display.status("")

    def _keep_watch(self) -> bool:
        """For a watched run, keep up with the logs; returns whether ops disagree."""
        disagree = self.detector.keep_up()
        assert self._watcher is not None
        self._watcher.look()
        return disagree

    def memory_bytes(self) -> tuple[list[int], int]:
        """Bytes of memory of each running rank, and of this process."""
        ranks = []
        for rank in self.running():
            with contextlib.suppress(psutil.Error):
                ranks.append(psutil.Process(self.world.ranks[rank].process.pid).memory_info().rss)
        return ranks, psutil.Process().memory_info().rss

    def has_helpers(self) -> bool:
        """Whether a rank has started a process that still runs."""
        for rank in self.world.ranks:
            with contextlib.suppress(psutil.Error):
                if psutil.Process(rank.process.pid).children():
                    return True
        return False

    def _kill_as_asked(self) -> None:
        """Kill the ranks whose time in ``kill`` has come."""
        for rank, seconds in list(self._to_kill.items()):
            entered_s = self.logs[rank].entered_s
            if entered_s is not None and time.perf_counter() >= entered_s + seconds:
                del self._to_kill[rank]
                if rank not in self.answers:
                    os.kill(self.world.ranks[rank].process.pid, signal.SIGKILL)

    def _settled(self, found: errors.SimlibError) -> errors.SimlibError | None:
        """Return the verdict when all other ranks rest too. Then it always names the same ranks.

        This method waits at most `SETTLE_S` for computing ranks, because the verdict is already
        certain.
        """
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self.detector.all_wait:
            self._take_in(POLL_S)
            self.detector.look(self.running())
            found = self.verdict() or found
        return self.failure() if self.failed() else found

    def _let_others_settle(self) -> None:
        """Give the other ranks time to fail too, so that the verdict names all failing ranks.

        The time ends when each of the other ranks has answered or died, or waits for others and no
        longer moves.
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

    def _take_in(self, timeout_s: float) -> None:
        """Handle messages that have arrived. Waits up to ``timeout_s`` for the first message."""
        for key, _ in self.world.selector.select(timeout_s):
            sort, rank = key.data
            if sort == "output":
                self.read_output(rank)
            elif sort == "native":
                self.read_native(rank)
            elif sort == "answer" and rank.rank not in self.answers:
                self._read_answer(rank)
            elif sort == "answer" and self.profile_folder:  # it is done with that, or has died
                self._forget(rank.control)
                self._profiled.add(rank.rank)
            elif sort == "death" and rank.rank not in self.deaths:
                self._note_death(rank)

    def read_output(self, rank: RankProcess) -> bool:
        """Read a chunk of a rank's output. Returns False if there is nothing more to read now."""
        chunk = self._read(rank.stdout)
        if chunk:
            output = self.outputs[rank.rank]
            self._display.lines(rank.rank, output.add(chunk))
            self._display.bar(rank.rank, output.unfinished)
        return bool(chunk)

    def read_native(self, rank: RankProcess) -> bool:
        """Read a chunk of a rank's native stderr. Returns False if there is nothing more to read
        now."""
        chunk = self._read(rank.stderr)
        if chunk:
            text = self.native[rank.rank]
            text += chunk
            del text[:-CHUNK]
        return bool(chunk)

    def _read(self, fd: int) -> bytes:
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self._forget(fd)
        return chunk

    def _forget(self, source: Any) -> None:
        """Stop watching a connection that a rank has closed."""
        try:
            self.world.selector.unregister(source)
        except KeyError:
            pass

    def _read_answer(self, rank: RankProcess) -> None:
        try:
            answer = answer_of(rank.control)
        except (EOFError, OSError):
            self._forget(rank.control)
            return
        try:
            self.answers[rank.rank] = self.world.read(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it arrived, but cannot be rebuilt here
            report = f"{type(error).__name__}: {error}"
            self.answers[rank.rank] = "unpicklable", ("result", report)
        while self.read_output(rank):
            pass

    def _note_death(self, rank: RankProcess) -> None:
        while self.read_output(rank) or self.read_native(rank):
            pass
        self._forget(rank.process.sentinel)
        rank.process.join()
        if self.profile_folder:
            if rank.rank not in self.answers and rank.control.poll():  # both at one moment
                self._read_answer(rank)
            if rank.rank in self.answers:
                return  # what it did was over
        code = self.deaths[rank.rank] = rank.process.exitcode
        if rank.rank not in self.kill:
            why = why_killed(code, self._memory_kills, rank.process.pid)
            self.death_words[rank.rank] = failures.death_of(rank.rank, code, why)
        self.died_s[rank.rank] = time.perf_counter()

    def ask_for_stacks(self, ranks: list[int]) -> dict[int, list]:
        """Ask computing ranks for the learner's frames. `faulthandler` writes them on SIGUSR1."""
        for rank in ranks:
            self.native[rank].clear()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.world.ranks[rank].process.pid, signal.SIGUSR1)
        found: dict[int, list] = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                self.read_native(self.world.ranks[rank])
                found[rank] = failures.frames_in(self.native[rank], whole=True)
            time.sleep(0.005)
        return found
