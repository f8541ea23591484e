"""The options of a simulation, and their allowed values; for `simulate` and `Run.replay`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..collectives.choice import ALGORITHMS, choose, schedule
from ..collectives.schedules import Bytes, Schedule
from ..model.chance import Failures, check_slow
from ..model.errors import InvalidCallError, check_choice
from .alike import Classes

POLICIES = ("mpich", "nccl", "gloo")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a simulation; see `simulate`."""

    eager_limit_bytes: float = -1
    policy: str = "mpich"
    algorithms: Mapping[str, str] = field(default_factory=dict)
    expand: bool = False
    slow: dict = field(default_factory=dict)
    kill: dict | Failures = field(default_factory=dict)
    on_death: str = "end"
    detection_s: float = 0.0
    begin_s: float = 0.0
    is_restarted: bool = False
    seed: int | None = None
    compute: str = "flops"
    memory: bool = False
    data: bool = True
    classes: Classes | None = None

    def schedule(self, kind: str, n: int, nbytes: Bytes, **about: Any) -> Schedule:
        """The messages of a collective of this simulation; see `collectives.schedule`."""
        return schedule(kind, n, nbytes, self.algorithms.get(kind, self.policy), **about)


def eager_limit(sends: str, eager_limit_bytes: Any) -> float:
    """The number of bytes up to which sends are eager. -1 if no send is eager."""
    check_choice("sends", sends, ("rendezvous", "eager"))
    if eager_limit_bytes is None:
        return -1 if sends == "rendezvous" else math.inf
    is_count = isinstance(eager_limit_bytes, numbers.Integral) and int(eager_limit_bytes) >= 0
    if not is_count or isinstance(eager_limit_bytes, bool):
        raise InvalidCallError(
            f"eager_limit_bytes={eager_limit_bytes!r} must be a number of bytes, 0 or more"
        )
    return eager_limit_bytes


def check_algorithms(algorithm_of: Any) -> Any:
    """Refuse a collective that does not exist, or an algorithm that the collective does not
    have."""
    for kind, name in algorithm_of.items():
        if kind == "profile":
            raise InvalidCallError(
                "profile= is for simlib.run: a simulation has a virtual clock, but a profiler "
                "reads a real clock. See run.states and run.flops for what simulated ranks "
                "computed"
            )
        if kind == "gpus":
            raise InvalidCallError("gpus= is for simlib.run: a simulated rank has no GPU")
        if kind not in ALGORITHMS:
            raise TypeError(f"simulate() got an unexpected keyword argument {kind!r}")
        choose(kind, 2, 8, name)
    return algorithm_of


def replay_options(
    world_size: int,
    *,
    sends: str = "rendezvous",
    eager_limit_bytes: int | None = None,
    algorithms: str = "mpich",
    expand: bool = False,
    slow: Any = None,
    **algorithm_of: str,
) -> Options:
    """The `Options` of a replay, checked."""
    return Options(
        eager_limit_bytes=eager_limit(sends, eager_limit_bytes),
        policy=check_choice("algorithms", algorithms, POLICIES),
        algorithms=check_algorithms(algorithm_of),
        expand=expand,
        slow=check_slow(slow, world_size),
    )
