"""`run`: one rank function on real processes, watched from start to end."""

from __future__ import annotations

import numbers
import os
from dataclasses import dataclass

from ...diagnose import failures, verdicts
from ...model import errors
from ..host import nesting
from ..host.display import open_display
from ..host.payload import ByRank, cell_numbers, new_cells, pack, surroundings
from .pool import pool
from .process_monitor import Watch

MAX_RANKS = 64


def run(
    function,
    world_size,
    args=(),
    kwargs=None,
    *,
    timeout_s=120,
    strict=False,
    check=True,
    fresh=False,
):
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
    timeout_s : float or None
        Seconds since any rank's last op or line of output after which the run is ended; None
        switches it off. Deadlocks are told without it.
    strict : bool
        True to raise findings (a message never received, a buffer touched too early) as errors.
    check : bool
        False to record only: nothing is diagnosed but errors, deaths and ``timeout_s``. For timing.
    fresh : bool
        True for processes that have served no run before.

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
    if not callable(function):
        raise errors.InvalidCallError(
            f"run needs a function main(rank, world_size) to call, not {function!r}"
        )
    size = _check_world_size(world_size)
    own = args.packed if isinstance(args, ByRank) else None
    payload = pack(function, () if own else args, kwargs, size)
    options = Options(name_of(function), timeout_s, strict, check)
    return _run_payload(payload, size, options, fresh, argv=None, own=own)


@dataclass(frozen=True)
class Options:
    """How a run is watched; see `run`."""

    name: str
    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True


def run_script(path, world_size, argv, *, timeout_s=120, strict=False):
    """Run a whole script on every rank, as ``__main__``; ``argv`` are its arguments."""
    size = _check_world_size(world_size)
    payload = pack(script, (os.path.abspath(path),), None, size)
    options = Options(os.path.basename(path), timeout_s, strict)
    return _run_payload(payload, size, options, False, argv=[path, *argv])


def script(rank, world_size, path):
    import runpy
    import sys

    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def name_of(function):
    """What a rank function is called."""
    return getattr(function, "__name__", type(function).__name__)


def _check_world_size(world_size):
    is_count = isinstance(world_size, numbers.Integral) and not isinstance(world_size, bool)
    if is_count and 1 <= world_size <= MAX_RANKS:
        return int(world_size)
    raise errors.InvalidCallError(
        f"world_size={world_size!r} is not possible: it must be a whole number from 1 to "
        f"{MAX_RANKS}, the number of processes to start on this machine"
    )


def _run_payload(payload, world_size, options, fresh, argv, own=None):
    nesting.refuse("a run")
    check_timeout(options.timeout_s)
    cells = cell_numbers()
    where = surroundings(argv)
    display = open_display()
    outputs = ()
    try:
        world = _take_world(world_size, fresh, display)
        watch = Watch(world, display, cells, options)
        outputs = watch.outputs
        result, failure = _run_in(world, watch, {"payload": payload, "own": own, **where}, options)
    finally:
        display.close(outputs)
    return told(display, result, failure)


def told(display, result, failure):
    """Show what a run has found, or the picture of how it failed; returns the `Run`, or raises."""
    if failure is None:
        display.findings(result.findings)
        return result
    failure.run = result
    if getattr(failure, "graph", None) is not None:
        display.picture(failure.graph)
    raise failure


def _run_in(world, watch, request, options):
    """Run in this world and give it back; returns the `Run` and the error to raise, or None."""
    clean = False
    try:
        world.meetings.clear()
        world.runs += 1
        request |= {"check": options.check, "number": world.runs}
        failure = _watched(watch, request | {"cells": new_cells(world, watch.cells)})
        result = watch.result()
        if failure is None and options.check:
            result.findings = watch.checker.findings()
            if options.strict and result.findings:
                failure = verdicts.as_error(result.findings[0])
        clean = failure is None and failures.left_nothing_over(result.trace)
    finally:
        pool().give_back(world, clean)
    return result, failure


def check_timeout(timeout_s):
    """Refuse what is no limit in seconds; None is one that never comes."""
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        raise errors.InvalidCallError(
            f"timeout_s={timeout_s!r} must be a positive number of seconds, or None for no limit"
        )


def _watched(watch, request):
    try:
        return watch.until_the_end(request)
    except KeyboardInterrupt:
        return failures.interrupted(watch)


def _take_world(world_size, fresh, display):
    worlds = pool()
    if not worlds.has_server:
        display.status(
            "starting the rank server: it imports torch, once per kernel (some 3 seconds) ..."
        )
    try:
        return worlds.take(world_size, fresh)
    except (OSError, EOFError) as error:
        raise errors.SimlibError(
            f"the {world_size} processes of this run could not be started: {error}. "
            "Close other kernels or programs, or run fewer ranks."
        ) from None
    finally:
        display.status("")
