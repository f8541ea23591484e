"""Which rank dies when, as ``kill=`` says it: given, or drawn from a mean time between failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from .errors import InvalidCallError, as_int, check_count, check_number
from .jitter import FAILURES, generator


@dataclass(frozen=True)
class Failures:
    """Failures of ranks, drawn: for ``kill=`` of `simulate`, `run` and `submit`.

    Each rank fails after an exponential time, and after another one once it has been replaced: a
    run with ``restarts=`` loses ranks again and again. (What falls into the time of a restart does
    not happen; in `scale.goodput` a restart may fail, too.) A rank's times depend on ``mtbf_s``,
    seed and rank alone, so the same seed gives the same run, and more ranks only add failures.

    Parameters
    ----------
    mtbf_s : float
        Mean time between failures of one rank, in seconds.
    seed : int

    Examples
    --------
    >>> failures = Failures(mtbf_s=100, seed=1)
    >>> {rank: round(s, 1) for rank, s in failures.next(4).items()}
    {0: 21.5, 1: 88.9, 2: 436.3, 3: 268.6}
    >>> {rank: round(s, 1) for rank, s in failures.next(4, after_s=70).items()}
    {0: 181.3, 1: 88.9, 2: 436.3, 3: 268.6}
    """

    mtbf_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_mtbf(self.mtbf_s)
        check_count("seed", self.seed, low=0)

    def next(self, ranks: int, after_s: float = 0.0) -> dict[int, float]:
        """When each of the first ranks fails for the first time after a moment.

        Parameters
        ----------
        ranks : int
        after_s : float

        Returns
        -------
        dict of int to float
            ``{rank: seconds}``, counted from 0 as ``after_s`` is.
        """
        ranks = as_int("ranks", ranks)
        check_count("ranks", ranks)
        check_number("after_s", after_s)
        if not after_s < inf:
            raise InvalidCallError(f"after_s is {after_s}: give a number of seconds")
        return {rank: self._next_of(rank, after_s) for rank in range(ranks)}

    def _next_of(self, rank: int, after_s: float) -> float:
        random, time_s = generator(self.seed, FAILURES, rank), 0.0
        while time_s <= after_s:
            time_s += self.mtbf_s * float(random.standard_exponential())
        return time_s


def check_mtbf(mtbf_s: float) -> None:
    """Refuse a mean time between failures that is none."""
    check_number("mtbf_s", mtbf_s, above=True)
    if mtbf_s == inf:
        raise InvalidCallError("mtbf_s is inf: give a number of seconds")


def deaths_after(
    kill: Mapping[int, float] | Failures, begin_s: float, world_size: int
) -> dict[int, float]:
    """Who dies when in an attempt that begins at this moment: ``{rank: seconds}``, from 0 on.

    What was given for a moment before it has happened in an earlier attempt.
    """
    if isinstance(kill, Failures):
        return kill.next(world_size, begin_s)
    return {
        rank: time_s
        for rank, time_s in kill.items()
        if rank < world_size and (time_s > begin_s or not begin_s)
    }
