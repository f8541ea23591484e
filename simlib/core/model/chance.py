"""Random numbers for a run, from a seed: noise on computing (``slow=``), failures (``kill=``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, log, sqrt
from numbers import Real
from typing import Any

import cloudpickle
import numpy as np

from .errors import InvalidCallError, as_int, check_by_rank, check_count, check_number

KINDS = ("normal", "lognormal", "exponential")
BLOCK = 64
"""simlib draws this many factors of a rank together. A generator for each would take 15 us."""
COMPUTING, FAILURES, BEGINNINGS = range(3)
"""The purposes of random numbers. For one seed, each purpose gets different numbers."""

Factor = Callable[[int, int, np.random.Generator], float]


@dataclass(frozen=True)
class Seeds:
    """The seeds of the random numbers of a run's ranks.

    Attributes
    ----------
    seed : int
        simlib derives each rank's seed from this number.
    same : bool
        Whether all ranks have the same seed, as after the same ``torch.manual_seed`` on each.
    """

    seed: int = 0
    same: bool = False

    def of_rank(self, rank: int) -> int:
        """The seed of a rank. torch and `random` use all 64 bits, and numpy uses the last 32
        bits."""
        place = (BEGINNINGS, 0 if self.same else rank)
        sequence = np.random.SeedSequence(self.seed % (1 << 64), spawn_key=place)
        return int(sequence.generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class Jitter:
    """Noise on computing. Pass it as ``slow=`` to `simulate`, `run` or `Run.replay`.

    A factor multiplies the time of each piece of a rank's computing. The factor of a rank's k-th
    piece depends only on seed, rank and k. It does not depend on other ranks, on the network, or on
    random numbers that the program draws. So the same seed gives the same run.

    Parameters
    ----------
    kind : {"normal", "lognormal", "exponential"} or callable
        The distribution, as for `jitter_factors`. You can also give a function ``kind(rank, k,
        random)`` that returns the factor of the rank's k-th piece. The function draws its random
        numbers from ``random``, a `numpy.random.Generator` that belongs to this seed, rank and k.
    spread : float
        Standard deviation of the factors, divided by their mean. It has no effect if ``kind`` is a
        function.
    mean : float
        Mean of the factors. A mean of 2 makes the rank half as fast on average. The mean has no
        effect if ``kind`` is a function.
    seed : int

    Notes
    -----
    If ``kind`` is ``"normal"``, a factor below 0 counts as 0. So with a spread of more than 0.3 the
    mean of these factors is a little larger than ``mean``.

    Examples
    --------
    >>> Jitter("lognormal", spread=0.1, seed=7).factors(2, 3).round(3).tolist()
    [[0.984, 1.097, 1.078], [1.051, 1.025, 1.192]]

    In this example, rank 2 takes twice as long from piece 100 on. Rank 5 takes ten times as long
    for about one piece in a hundred:

    >>> def worn(rank, k, random):
    ...     return 2.0 if k >= 100 else 1.0
    >>> def hiccup(rank, k, random):
    ...     return 1.0 + 9.0 * (random.random() < 0.01)
    >>> slow = {2: worn, 5: Jitter(hiccup, seed=3)}
    """

    kind: str | Factor = "lognormal"
    spread: float = 0.1
    mean: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("seed", self.seed, low=0)
        if isinstance(self.kind, _Travelling):
            return
        if callable(self.kind):
            _check_function(self.kind)
            return
        check_kind("kind", self.kind, "or a function(rank, k, random)")
        for name in ("spread", "mean"):
            check_number(name, getattr(self, name))
            if getattr(self, name) == inf:
                raise InvalidCallError(f"{name} is inf: give a finite number")
        check_spread(self.kind, self.spread)

    def factors(self, steps: int, ranks: int) -> np.ndarray:
        """The factors of the first pieces of the first ranks.

        Parameters
        ----------
        steps, ranks : int

        Returns
        -------
        ndarray of float, shape (steps, ranks)
        """
        steps, ranks = as_int("steps", steps), as_int("ranks", ranks)
        check_count("steps", steps)
        check_count("ranks", ranks)
        paces = [Pace(self, rank) for rank in range(ranks)]
        return np.array([[pace.factor(k) for pace in paces] for k in range(steps)])

    @property
    def block_size(self) -> int:
        """How many factors of a rank simlib draws together."""
        return BLOCK if isinstance(self.kind, str) else 1

    def block(self, rank: int, number: int) -> list[float]:
        """The factors of ``block_size`` pieces of a rank, from piece ``number * block_size`` on."""
        random = generator(self.seed, COMPUTING, rank, number)
        if isinstance(self.kind, str):
            return (self.mean * draw(self.kind, self.spread, random, BLOCK)).tolist()
        value = self._function(rank, number, random)
        if not isinstance(value, Real) or not 0 <= value < inf:
            raise InvalidCallError(
                f"slow: {_name(self._function)} returned {value!r} for piece {number} of rank "
                f"{rank}: give a factor of at least 0"
            )
        return [float(value)]

    @cached_property
    def _function(self) -> Factor:
        # Made here and not on arrival: only now does this process import from the kernel's folders.
        kind: Any = self.kind
        return cloudpickle.loads(kind.payload) if isinstance(kind, _Travelling) else kind

    def travelling(self) -> Jitter:
        """The jitter in a form that other processes can receive. Raise an error if this is
        impossible."""
        if isinstance(self.kind, (str, _Travelling)):
            return self
        try:
            payload = cloudpickle.dumps(self.kind, protocol=5)
        except Exception as error:
            raise InvalidCallError(
                f"slow: {_name(self.kind)} cannot be sent to the ranks, which are other processes "
                f"({type(error).__name__}: {error})"
            ) from None
        return Jitter(_Travelling(payload), self.spread, self.mean, self.seed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Travelling:
    """A function in the form of bytes."""

    payload: bytes


class Pace:
    """The factors of one rank: each multiplies the time of one piece of its computing.

    Parameters
    ----------
    slow : float or Jitter
    rank : int
    """

    def __init__(self, slow: Any, rank: int) -> None:
        self._slow = slow
        self._rank = rank
        self._blocks: dict[int, list[float]] = {}

    def factor(self, k: int) -> float:
        """The factor of the rank's k-th piece."""
        slow, blocks = self._slow, self._blocks
        if not isinstance(slow, Jitter):
            return slow
        number, place = divmod(k, slow.block_size)
        if number not in blocks:
            if len(blocks) == 2:  # calls of `compute` are counted for themselves
                del blocks[next(iter(blocks))]
            blocks[number] = slow.block(self._rank, number)
        return blocks[number][place]


Slow = Mapping[int, "float | Jitter | Factor"] | Jitter | Factor
"""The values that ``slow=`` takes."""


def check_slow(slow: Any, world_size: int) -> dict[int, Any]:
    """A value of ``slow=`` as a dict from ranks to numbers of at least 0 and `Jitter`."""
    if _is_noise(slow):
        return dict.fromkeys(range(world_size), _jitter(slow))
    if slow is not None and not isinstance(slow, dict):
        raise InvalidCallError(
            f"slow={slow!r} must be a dict by rank, such as {{0: 1.5}}, or a simlib.scale.Jitter, "
            "or a function(rank, k, random)"
        )
    slow = slow or {}
    noisy = {rank: _jitter(value) for rank, value in slow.items() if _is_noise(value)}
    check_by_rank("slow", {rank: 0 if rank in noisy else slow[rank] for rank in slow}, world_size)
    return slow | noisy


def _is_noise(value: Any) -> bool:
    return isinstance(value, Jitter) or callable(value)


def _jitter(value: Any) -> Jitter:
    return (value if isinstance(value, Jitter) else Jitter(value)).travelling()


def generator(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """A generator of random numbers for a seed and, for example, a rank and a number."""
    # A list as the seed would not do: numpy fills it up with zeros, so [7, 3] is [7, 3, 0].
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, *place)))


def draw(kind: str, spread: float, random: np.random.Generator, shape: Any) -> np.ndarray:
    """Random factors of mean 1 of a distribution, as `Jitter` and `jitter_factors` describe it."""
    if kind == "normal":
        return np.maximum(0.0, 1 + spread * random.standard_normal(shape))
    if kind == "lognormal":
        variance = log(1 + spread**2)
        return np.exp(sqrt(variance) * random.standard_normal(shape) - variance / 2)
    return 1 - spread + spread * random.standard_exponential(shape)


def check_kind(name: str, kind: Any, otherwise: str) -> None:
    """Refuse a value that is not the name of a distribution."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidCallError(f"{name} is {kind!r}: give one of {', '.join(KINDS)}, {otherwise}")


def check_spread(kind: str, spread: float) -> None:
    """Refuse a spread that the distribution cannot have."""
    if kind == "exponential" and spread > 1:
        raise InvalidCallError(f"spread is {spread!r}: give at most 1 for an exponential jitter")


def _check_function(function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # built in: it may say nothing of its arguments
        return
    try:
        signature.bind(0, 0, None)
    except TypeError:
        raise InvalidCallError(
            f"slow: {_name(function)} is called as {_name(function)}(rank, k, random), but takes "
            f"{signature}"
        ) from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


@dataclass(frozen=True)
class Failures:
    """Random failures of ranks. Pass the object as ``kill=`` to `simulate`, `run` or `submit`.

    Each rank fails after an exponentially distributed time. The rank that replaces it also fails
    after such a time. So a run with ``restarts=`` loses ranks again and again. simlib leaves out
    failures that fall into a restart, but `scale.goodput` includes such failures. The times of a
    rank depend only on ``mtbf_s``, seed and rank. So the same seed gives the same run, and more
    ranks only add failures.

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
        """Return when each of the first ``ranks`` ranks fails for the first time after ``after_s``.

        Parameters
        ----------
        ranks : int
        after_s : float

        Returns
        -------
        dict of int to float
            ``{rank: seconds}``. The seconds count from the same zero as ``after_s``.
        """
        ranks = as_int("ranks", ranks)
        check_count("ranks", ranks)
        check_number("after_s", after_s)
        if not after_s < inf:
            raise InvalidCallError(f"after_s is {after_s}: give a finite number of seconds")
        return {rank: self._next_of(rank, after_s) for rank in range(ranks)}

    def _next_of(self, rank: int, after_s: float) -> float:
        random, time_s = generator(self.seed, FAILURES, rank), 0.0
        while time_s <= after_s:
            time_s += self.mtbf_s * float(random.standard_exponential())
        return time_s


def check_mtbf(mtbf_s: float) -> None:
    """Refuse a value that cannot be a mean time between failures."""
    check_number("mtbf_s", mtbf_s, above=True)
    if mtbf_s == inf:
        raise InvalidCallError("mtbf_s is inf: give a finite number of seconds")


def deaths_after(
    kill: Mapping[int, float] | Failures, begin_s: float, world_size: int
) -> dict[int, float]:
    """Deaths in an attempt that begins at ``begin_s``: ``{rank: seconds}``, counted from 0.

    The dict leaves out earlier deaths, because these happened in an earlier attempt.
    """
    if isinstance(kill, Failures):
        return kill.next(world_size, begin_s)
    return {
        rank: time_s
        for rank, time_s in kill.items()
        if rank < world_size and (time_s > begin_s or not begin_s)
    }
