"""Runs that continue after a failure: simlib calls the function again, as torchrun does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..model.chance import Failures, deaths_after
from ..model.errors import RankDiedError, RankError
from .options import Restart, Restarts

if TYPE_CHECKING:
    from ..results.run import Run


def with_restarts(
    attempt: Callable[[int, float, dict[str, str]], Run], world_size: int, plan: Restarts
) -> Run:
    """Make at most ``plan.most + 1`` attempts. Returns the `Run` of the first without an error.

    ``attempt(world_size, begin_s, environ)`` makes one attempt. It begins at ``begin_s`` on the
    clock of the whole run, with ``environ`` added to the ranks' environment. A new attempt follows
    if a rank died or raised. No attempt follows a deadlock, because it would happen again.
    """
    begin_s = 0.0
    attempts: list[Run] = []
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
    """Which ranks an attempt on real ranks must kill, in seconds from its own beginning."""
    deaths = deaths_after(kill, begin_s, world_size)
    return {rank: time_s - begin_s for rank, time_s in deaths.items()}


def tell(run: Run, attempts: list[Run], begin_s: float) -> Run:
    """Store in a run when it began and the attempts so far; adds the run to the attempts."""
    run.began_s = begin_s
    attempts.append(run)
    run.attempts = list(attempts)
    return run
