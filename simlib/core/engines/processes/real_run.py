"""`run`: one rank function on real processes, watched from start to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...clockwork.simulation_options import ON_DEATH, check_choice, check_kill, check_slow
from ...diagnose import failures
from ...diagnose.findings import as_error
from ...draw.display import open_display, show_and_raise
from ...model import errors
from ...model.chance import Failures, Slow
from ...record.transports.backends import BACKENDS, check_for_processes
from ...results.run import Run, is_quiescent, make_run
from ..request import (
    ByRank,
    ExecutionContext,
    Options,
    cell_numbers,
    check_function,
    check_timeout,
    check_watch,
    check_world_size,
    name_of,
    new_cells,
    pack,
    refuse_within_ranks,
    script,
)
from ..restarts import Restart, check_restarts, remaining_kills, with_restarts
from ..run_outputs import MAX_PROCESSES
from ..torch_versions import warn_of_untested_torch
from ..workers.idle_timer import idle_timer
from .process_monitor import ProcessMonitor
from .rank_main import RunRequest
from .worlds import pool


def run(
    function: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    slow: Slow | None = None,
    kill: Mapping[int, float] | Failures | None = None,
    on_death: str = "end",
    restarts: int = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    timeout_s: float | None = 120,
    strict: bool = False,
    check: bool = True,
    fresh: bool = False,
    watch: bool | float = False,
    backend: str = "gloo",
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
    restarts : int
        How often the function is called again after ranks have died or raised, as torchrun does
        it: all are ended, new ones begin, with ``TORCHELASTIC_RESTART_COUNT`` in their environment.
        ``run.attempts`` has them all. Times of ``kill`` count from the first attempt's beginning,
        without what passes between two attempts.
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
    backend : {"gloo", "nccl"}
        What moves the data. ``nccl`` wants a GPU for each rank, which is then its current one;
        tensors on the CPU still go by Gloo. (``mpi4py`` is for `submit`.)

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
    spoken = check_for_processes(backend, size)
    per_rank_args = args.packed if isinstance(args, ByRank) else None
    payload = pack(function, () if per_rank_args else args, kwargs, size)
    options = Options(
        name_of(function),
        timeout_s,
        strict,
        check,
        kill=check_kill(kill, size),
        on_death=check_choice("on_death", on_death, ON_DEATH),
        watch_s=check_watch(watch),
    )
    slow = check_slow(slow, size)
    plan = check_restarts(restarts, min_ranks, on_restart, size)

    def attempt(size, begin_s, environ):
        return _run_payload(
            payload,
            size,
            replace(options, kill=remaining_kills(options.kill, size, begin_s)),
            fresh,
            argv=None,
            environ=environ,
            per_rank_args=per_rank_args,
            slow=slow,
            backend=spoken,
        )

    return with_restarts(attempt, size, plan)


def _check_world_size(world_size):
    why = (
        f"it must be a whole number from 1 to {MAX_PROCESSES}, the number of processes to start "
        "on this machine"
    )
    return check_world_size(world_size, MAX_PROCESSES, why)


def run_script(
    path,
    world_size,
    argv,
    *,
    timeout_s=120,
    strict=False,
    restarts=0,
    min_ranks=None,
    watch=False,
    backend="gloo",
):
    """Run a whole script on every rank, as ``__main__``; ``argv`` are its arguments."""
    size = _check_world_size(world_size)
    spoken = check_for_processes(backend, size)
    payload = pack(script, (os.path.abspath(path),), None, size)
    options = Options(os.path.basename(path), timeout_s, strict, watch_s=check_watch(watch))

    def attempt(size, begin_s, environ):
        return _run_payload(payload, size, options, False, [path, *argv], environ, backend=spoken)

    return with_restarts(attempt, size, check_restarts(restarts, min_ranks, None, size))


def _run_payload(
    payload,
    world_size,
    options,
    fresh,
    argv,
    environ=None,
    per_rank_args=None,
    slow=None,
    backend=BACKENDS["gloo"],  # noqa: B008 (an entry of a table)
):
    refuse_within_ranks("a run")
    warn_of_untested_torch()
    check_timeout(options.timeout_s)
    request = RunRequest(
        payload=payload,
        execution_context=ExecutionContext.here(argv, environ),
        per_rank_args=per_rank_args,
        check=options.check,
        survives=options.on_death == "continue",
        slow=slow or {},
    )
    cells = cell_numbers()
    display = open_display()
    outputs = ()
    try:
        with idle_timer().busy(pool()):
            world = _take_world(world_size, fresh, backend, display)
            monitor = ProcessMonitor(world, display, cells, options)
            outputs = monitor.outputs
            result, failure = _run_in(world, monitor, request, options)
    finally:
        display.close(outputs)
    return show_and_raise(display, result, failure)


def _run_in(world, monitor, request, options):
    """Run in this world and give it back; returns the `Run` and the error to raise, or None."""
    clean = False
    try:
        request.number = world.begin_run()
        request.segment = monitor.segment
        request.cells = new_cells(world, monitor.cells)
        failure = _watched(monitor, request)
        result = make_run(monitor)
        if failure is None:
            forged = world.complaint(result.trace)
            failure = errors.SimlibError(forged) if forged else None
        if failure is None and options.check:
            result.findings = monitor.detector.findings(monitor.deaths)
            if options.strict and result.findings:
                failure = as_error(result.findings[0])
        is_as_new = not monitor.deaths and not monitor.segment
        clean = failure is None and is_as_new and is_quiescent(result.trace)
    finally:
        pool().give_back(world, clean)
    return result, failure


def _watched(monitor, request):
    try:
        return monitor.until_the_end(request)
    except KeyboardInterrupt:
        return failures.interrupted(monitor)


def _take_world(world_size, fresh, backend, display):
    worlds = pool()
    if not worlds.has_server:
        display.status("starting the rank server, which imports torch (some 3 seconds) ...")
    try:
        return worlds.take(world_size, fresh, backend)
    except (OSError, EOFError) as error:
        raise errors.SimlibError(
            f"the {world_size} processes of this run could not be started: {error}. "
            "Close other kernels or programs, or run fewer ranks."
        ) from None
    finally:
        display.status("")
