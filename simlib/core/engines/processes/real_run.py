"""`run`: one rank function on real processes, watched from start to end."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
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
"""How often the kernel looks at the ranks while none of them has anything to say."""
PROFILES_S, PROFILES_OF_FAILED_S = 600.0, 10.0
"""How long ranks may take to read what their profilers saw: after a run, and after a failed one."""
SETTLE_S = 1.5
"""How long, after a first failure, ranks that still compute may take to fail on their own.

Shorter, and on a busy machine some of those who fail alike would not be named.
"""
CHUNK = 1 << 16
SEES_NO_GPU = (
    'Ranks of run see no GPU, unless it is called with gpus=True or backend="nccl": ask for GPUs, '
    "or keep tensors on the CPU."
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
        Called on every rank as ``function(rank, world_size, *args, **kwargs)``, with the default
        process group in place. It and what it uses travel by value: each rank has its own copy.
    world_size : int
        Number of ranks, 1 to 64.
    args, kwargs : sequence, dict
        Further arguments, the same on every rank.
    kill : dict or Failures, optional
        ``{rank: seconds}``: ranks whose process is killed (SIGKILL) so long after it has entered
        the function. Or such deaths, drawn: `simlib.scale.Failures`.
    on_death : {"end", "continue"}
        Whether the death of a rank's process ends the run, or the others go on, as plain Gloo lets
        them: what needs the dead rank raises in them, what does not goes on. The dead rank's
        result is None. A rank that waits for a survivor which has raised waits as long as the
        group's ``timeout=`` says (of `init_process_group`, `new_group`); without one the run ends,
        and says who waits for whom.
    restarts : int or Restarts
        How often the function is called again after ranks have died or raised, as torchrun does
        it: all are ended, new ones begin, with ``TORCHELASTIC_RESTART_COUNT`` in their environment.
        ``run.attempts`` has them all. Times of ``kill`` count from the first attempt's beginning,
        without what passes between two attempts. A `Restarts` says
        the next two as well.
    min_ranks : int, optional
        Go on with those that are left, as long as there are so many; None: with as many as before.
    on_restart : callable, optional
        Called here with a `Restart`, before ranks begin again.
    slow : dict, Jitter or callable, optional
        As for `simulate`: ranks that compute slower, or with noise. Calls of `simlib.compute` take
        the factor longer, or shorter. What a rank really computes takes longer: before its next op
        or wait it sleeps ``factor - 1`` times the processor's time that its own thread took. A
        factor below 1 changes nothing there, as no processor can be made faster.
    timeout_s : float or None
        Seconds since any rank's last op or line of output after which the run is ended; None
        switches it off. Deadlocks are told without it.
    strict : bool
        True to raise findings (a message never received, a buffer touched too early) as errors.
    check : bool
        False to record only: nothing is diagnosed but errors, deaths and ``timeout_s``. For timing.
    fresh : bool
        True for processes that have served no run before.
    watch : bool or float
        For runs of hours: True, or seconds from one line to the next, to hear every minute how many
        ops there were and who waits. Memory is bounded: the last ops are kept, some 900,000 of all
        ranks; sums and findings are of the whole run. Ranks may print without end.
    faults : Faults, optional
        ``slow``, ``kill`` and ``on_death`` as one object.
    diagnosis : Diagnosis, optional
        ``timeout_s``, ``strict``, ``check`` and ``watch`` as one object.
    backend : {"gloo", "nccl"}
        What moves the data. ``nccl`` wants a GPU for each rank, which is then its current one;
        tensors on the CPU still go by Gloo. (``mpi4py`` is for `submit`.)
    gpus : bool
        Whether ranks see the GPUs that this process sees. Without it, and without
        ``backend="nccl"``, they see none, so that a program does the same with a GPU as without.
        Rank r takes GPU r as its current one, so that ``x.cuda()`` of different ranks is on
        different GPUs; where there are fewer, ranks share them (r modulo their number).
    seed : int, "same" or "new"
        What random numbers of torch, numpy and `random` begin with. Each rank has a seed of its
        own, as each process of torchrun has: it is drawn from this number, so that a run can be
        repeated. ``"new"`` draws the number too, and ``run.seed`` says which it was. ``"same"``
        gives every rank the same random numbers.
    profile : bool
        True to take torch's profiler along on each rank: ``run.profile`` says by rank what its GPU
        did, and pictures and ``run.states`` show it. Of a rank that used no GPU it is the operators
        that the rank called. It costs time and memory: of a long training, profile a few steps.

    Returns
    -------
    Run

    Raises
    ------
    InvalidCallError
        An argument, or a call of a rank, that can never be right.
    RankError
        A rank raised an exception, or returned what cannot be sent back.
    RankDiedError
        A rank's process ended before the function did.
    DeadlockError
        Ranks wait for each other or for a rank that has finished; or ``timeout_s`` went by with
        every rank waiting.
    MismatchError
        Ops that meet disagree.
    StuckError
        ``timeout_s`` went by and a rank computes; or a rank prints without end.
    UnfinishedError, RaceError
        With ``strict=True``, the first finding.
    RunInterrupted
        The Stop button was pressed, or Ctrl-C.
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

    Ranks see the GPUs that torchrun's would see, and take one only with ``backend="nccl"``.
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
    why = (
        f"it must be a whole number from 1 to {MAX_PROCESSES}, the number of processes to start "
        "on this machine"
    )
    return check_world_size(world_size, MAX_PROCESSES, why)


def _check_backend(name: Any, world_size: int) -> Backend:
    return BACKENDS["gloo"] if name == "gloo" else check_for_processes(name, world_size)


def _check_profile(profile: Any) -> bool:
    if not isinstance(profile, bool):
        raise errors.InvalidCallError(f"profile={profile!r} must be True or False")
    if profile and not are_ranks_trusted():
        raise errors.InvalidCallError(
            "profile=True is not there in a graded run, whose ranks write no files: leave it out"
        )
    return profile


def _check_gpus(asked: Any, backend: Backend) -> Gpus:
    """What ranks are to see; refused where there is no GPU, or ranks are graded."""
    if not isinstance(asked, bool):
        raise errors.InvalidCallError(f"gpus={asked!r} must be True or False")
    if not (asked or backend.needs_gpus):
        return NO_GPU
    if not are_ranks_trusted():
        raise errors.InvalidCallError("graded ranks see no GPU: leave out gpus= and backend=")
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
    """Run, and again after a failure as a `Restarts` says."""

    def attempt(size: int, begin_s: float, environ: Mapping[str, str]) -> Run:
        kill = remaining_kills(engine.faults.kill, size, begin_s)
        return perform(replace(engine, world_size=size, kill=kill, environ=environ))

    warn_of_untested_torch()
    if engine.faults is NO_FAULTS and not plan.most:
        return perform(engine)
    return with_restarts(attempt, engine.world_size, plan)


@dataclass(frozen=True, kw_only=True)
class ProcessEngine(Engine):
    """Runs a program once on real processes of this machine.

    Attributes
    ----------
    kill : dict of int to float
        The ranks that are killed, and when, in seconds since they began.
    gpus : Gpus
        The GPUs that ranks see.
    fresh : bool
        Whether the processes may have served no run before.
    are_unlike : bool
        Whether sets have another order on every second rank.
    environ : dict of str to str
        What ranks find in their environment beside the kernel's.
    profile : bool
        Whether ranks take a profiler along.
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
        """Take a world; returns the monitor that will watch it."""
        worlds = pool()
        if not worlds.has_server:
            display.status("starting the rank server, which imports torch (some 3 seconds) ...")
        try:
            world = worlds.take(
                self.world_size, self.fresh, self.backend, self.are_unlike, self.gpus
            )
        except (OSError, EOFError) as error:
            raise errors.SimlibError(
                f"the {self.world_size} processes of this run could not be started: {error}. "
                "Close other kernels or programs, or run fewer ranks."
            ) from None
        finally:
            display.status("")
        return ProcessMonitor(self, world, display)

    def execute(self, monitor: ProcessMonitor) -> Failure | None:
        """Run to the end; returns the error that it ends in, or None."""
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
        """The `Run` of what the monitor knows now."""
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
        """The error of a run in which ranks have not recorded what they sent."""
        forged = monitor.world.complaint(run.trace) if failure is None else None
        return errors.SimlibError(forged) if forged else failure

    def close(
        self,
        monitor: ProcessMonitor,
        run: Run | None,
        failure: Failure | None,
    ) -> None:
        """Give the world back; it serves again where nothing of this run is left in it."""
        changed = monitor.deaths or monitor.segment or self.profile  # torch keeps a profiler's part
        is_as_new = failure is None and not changed
        clean = is_as_new and run is not None and is_quiescent(run.trace)
        pool().give_back(monitor.world, clean)
        if self.profile:  # ranks that might still write there have ended
            shutil.rmtree(monitor.profile_folder, ignore_errors=True)


class ProcessMonitor(RunMonitor):
    """Takes in what the processes of a world say, print and die of, until all is told."""

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
        self._take_in(0)
        return self.failure()

    def await_profiles(self, most_s: float) -> None:
        """Let ranks that have answered read what their profilers saw, for at most so long."""
        until_s = time.monotonic() + most_s
        self._display.status("ranks read what their profilers saw ...")
        while self.answers.keys() - self._profiled and time.monotonic() < until_s:
            self._take_in(POLL_S)
        self._display.status("")

    def _keep_watch(self) -> bool:
        """Of a run that is watched, keep up with the logs; returns whether ops disagree."""
        disagree = self.detector.keep_up()
        assert self._watcher is not None
        self._watcher.look()
        return disagree

    def memory_bytes(self) -> tuple[list[int], int]:
        """Bytes of memory that each rank that runs holds, and this process."""
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
        """Kill the ranks whose time has come."""
        for rank, seconds in list(self._to_kill.items()):
            entered_s = self.logs[rank].entered_s
            if entered_s is not None and time.perf_counter() >= entered_s + seconds:
                del self._to_kill[rank]
                if rank not in self.answers:
                    os.kill(self.world.ranks[rank].process.pid, signal.SIGKILL)

    def _settled(self, found: errors.SimlibError) -> errors.SimlibError | None:
        """The verdict when all other ranks have come to rest too, so that it names the same always.

        Ranks that compute are not waited for longer than `SETTLE_S`: the verdict stands already.
        """
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self.detector.all_wait:
            self._take_in(POLL_S)
            self.detector.look(self.running())
            found = self.verdict() or found
        return self.failure() if self.failed() else found

    def _let_others_settle(self) -> None:
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

    def _take_in(self, timeout_s: float) -> None:
        """Handle what has arrived; waits up to ``timeout_s`` for the first of it."""
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
        """Take in a chunk of what a rank printed; False when there is nothing more for now."""
        chunk = self._read(rank.stdout)
        if chunk:
            output = self.outputs[rank.rank]
            self._display.lines(rank.rank, output.add(chunk))
            self._display.bar(rank.rank, output.unfinished)
        return bool(chunk)

    def read_native(self, rank: RankProcess) -> bool:
        """Take in a chunk of a rank's native stderr; False when there is nothing more for now."""
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
        """Watch a closed end no more."""
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
        """The learner's frames of ranks that compute: `faulthandler` writes them on SIGUSR1."""
        for rank in ranks:
            self.native[rank].clear()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.world.ranks[rank].process.pid, signal.SIGUSR1)
        found: dict[int, list] = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                self.read_native(self.world.ranks[rank])
                found[rank] = failures.frames_in(self.native[rank])
            time.sleep(0.005)
        return found
