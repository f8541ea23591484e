"""Runs that go on after a failure: the function is called again, as torchrun does it."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clockwork.simulation_options import check_seconds
from ..model.chance import Failures, deaths_after
from ..model.errors import InvalidCallError, RankDiedError, RankError, SimlibError

if TYPE_CHECKING:
    from ..results.run import Run


@dataclass(frozen=True)
class Restart:
    """What is known when a run begins anew; ``on_restart`` is called with one.

    Attributes
    ----------
    count : int
        1 for the first restart; in the ranks' environment as ``TORCHELASTIC_RESTART_COUNT``.
    world_size : int
        Ranks from now on.
    time_s : float
        When the failure ended the attempt before, in seconds since the first attempt began.
    run : Run
        The attempt that failed.
    error : SimlibError
        What it ended with.
    """

    count: int
    world_size: int
    time_s: float
    run: Run
    error: SimlibError


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often, and with how many ranks, a run goes on after a failure; see `run`."""

    most: int = 0
    min_ranks: int | None = None
    on_restart: Callable[[Restart], Any] | None = None
    restart_s: float = 0.0


def check_restarts(
    restarts: Any, min_ranks: Any, on_restart: Any, world_size: int, restart_s: Any = 0.0
) -> Restarts:
    """The `Restarts` asked for; refused where they make no sense."""
    if not _is_count(restarts, 0):
        raise InvalidCallError(f"restarts={restarts!r} must be a whole number, 0 or more")
    if min_ranks is not None and not (_is_count(min_ranks, 1) and min_ranks <= world_size):
        raise InvalidCallError(
            f"min_ranks={min_ranks!r} must be a whole number from 1 to {world_size}, or None: "
            "as many ranks as before"
        )
    if on_restart is not None and not callable(on_restart):
        raise InvalidCallError(f"on_restart={on_restart!r} must be a function of a Restart")
    return Restarts(
        most=restarts,
        min_ranks=min_ranks,
        on_restart=on_restart,
        restart_s=check_seconds("restart_s", restart_s),
    )


def _is_count(value: Any, least: int) -> bool:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and value >= least


def with_restarts(
    attempt: Callable[[int, float, dict[str, str]], Run], world_size: int, plan: Restarts
) -> Run:
    """The `Run` of the first attempt that ends well, of at most ``plan.most + 1``.

    ``attempt(world_size, begin_s, environ)`` runs once: from this moment of the whole run's clock,
    with these further variables in the ranks' environment. What dies or raises is tried again;
    ranks that wait for each other would do so again.
    """
    begin_s, attempts = 0.0, []
    for count in range(plan.most + 1):
        environ = {}
        if plan.most:
            environ["TORCHELASTIC_RESTART_COUNT"] = str(count)
            environ["TORCHELASTIC_MAX_RESTARTS"] = str(plan.most)
        try:
            run = attempt(world_size, begin_s, environ)
            return tell(run, attempts, begin_s)
        except (RankDiedError, RankError) as error:
            run = error.run
            tell(run, attempts, begin_s)
            survivors = world_size - len(run.deaths)
            if plan.min_ranks is not None:
                world_size = survivors
            if count == plan.most or world_size < (plan.min_ranks or 1):
                raise
            ended_s = begin_s + run.trace.end_s
            if plan.on_restart is not None:
                plan.on_restart(Restart(count + 1, world_size, ended_s, run, error))
            begin_s = ended_s + plan.restart_s
    raise AssertionError("the last attempt returns or raises")


def remaining_kills(
    kill: Mapping[int, float] | Failures, world_size: int, begin_s: float
) -> dict[int, float]:
    """Whom an attempt on real ranks has to kill, and when, from its own beginning."""
    deaths = deaths_after(kill, begin_s, world_size)
    return {rank: time_s - begin_s for rank, time_s in deaths.items()}


def tell(run: Run, attempts: list[Run], begin_s: float) -> Run:
    """Let a run know when it began, and the attempts before it, to which it is added."""
    run.began_s = begin_s
    attempts.append(run)
    run.attempts = list(attempts)
    return run
