"""Ranks whose compute varies: random steps, and the mean time of the slowest rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import cosh, erfc, exp, fsum, isfinite, log, pi, sinh, sqrt
from numbers import Real
from typing import Any

import numpy as np

from ..model.chance import Jitter, check_kind, check_spread, draw
from ..model.cluster import Cluster
from ..model.errors import InvalidCallError, check_number
from ..model.words import seconds_text
from .case import Counts, Seconds, Tabled, count_of, table_text
from .data_parallel import Reduction, Training


@dataclass(frozen=True, eq=False, repr=False)
class JitteredSteps(Tabled):
    """Training steps, one after the other, of ranks whose compute varies.

    Attributes
    ----------
    ranks : int
    factors : ndarray of float, shape (steps, ranks)
        In each step, each rank's compute took this many times longer.
    end_s : ndarray of float, shape (steps, ranks)
        The second at which each rank has done each step. The first step begins at 0.
    steady_s : float
        Mean seconds of a step if compute does not vary, over the same number of steps.
    """

    ranks: int
    factors: np.ndarray
    end_s: np.ndarray
    steady_s: float

    @property
    def time_s(self) -> float:
        """The second at which the last rank is done with all steps."""
        return float(self.end_s.max())

    @property
    def times_s(self) -> np.ndarray:
        """Seconds of each step: from the last rank's end of the step before to its end of this
        step."""
        return np.diff(self.end_s.max(axis=1), prepend=0.0)

    @property
    def step_s(self) -> float:
        """Seconds of a step, on average."""
        return self.time_s / len(self.end_s)

    @property
    def slowdown(self) -> float:
        """The time of an average step, divided by the time of a step without variation."""
        return self.step_s / self.steady_s if self.steady_s else 1.0

    def table(self) -> str:
        """The steps as plain text."""
        times_s = self.times_s
        steps = times_s.min(), np.median(times_s), times_s.max()
        names = ("mean", "shortest", "median", "longest", "without jitter")
        values = (self.step_s, *map(float, steps), self.steady_s)
        title = (
            f"{len(times_s):,} steps on {self.ranks:,} rank{'s' * (self.ranks != 1)}: "
            f"{self.slowdown - 1:+.1%} by jitter"
        )
        return table_text([title], [names, tuple(map(seconds_text, values))])


def jittered_time(
    model_bytes: float | Sequence[int] | np.ndarray,
    ranks: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    jitter: str | Jitter | Callable = "normal",
    spread: float = 0.1,
    seed: int = 0,
    steps: int = 100,
    **reduction: Any,
) -> JitteredSteps:
    """Time consecutive steps of data-parallel training in which each rank's compute varies.

    Each step is as in `step_time`, with two differences. A factor that depends on the step and the
    rank multiplies forward, backward and the moments of ``ready_s``. A rank begins its next step as
    soon as it has computed everything and has received all sums. All ranks wait for the slowest
    rank. So the mean time of a step grows with the number of ranks, although the mean compute of
    each rank stays the same.

    Parameters
    ----------
    model_bytes, ranks, cluster, forward_s, backward_s
        As for `step_time`.
    jitter, spread, seed, steps
        As for `jitter_factors`.
    **reduction
        Other parameters of `step_time`: ``ready_s``, ``bucket_bytes``, ``overlap``,
        ``algorithm``, ``placement``, ``itemsize``.

    Returns
    -------
    JitteredSteps

    Examples
    --------
    Steps take 0.1 s and vary by a tenth. The number of ranks grows, and the ranks send almost
    nothing. The largest of 64 normal values is on average 2.4 spreads above the mean, and the
    largest of 512 is 3.0 spreads above it:

    >>> import simlib
    >>> cluster = simlib.clusters.infiniband_hdr(nodes=512)
    >>> times = {"forward_s": 0.04, "backward_s": 0.06, "spread": 0.1, "seed": 1, "steps": 50}
    >>> for ranks in (1, 8, 64, 512):
    ...     found = simlib.scale.jittered_time(4, ranks, cluster, algorithm="binomial", **times)
    ...     print(f"{ranks:4} {found.slowdown:.2f}")
       1 1.00
       8 1.12
      64 1.24
     512 1.31

    **Cost** 2 * ``steps`` times the cost of `step_time` with a time for each rank.
    """
    how = Reduction(**reduction)
    training = Training(model_bytes, ranks, cluster, forward_s, backward_s, how)
    factors = jitter_factors(jitter, steps, training.ranks, spread=spread, seed=seed)

    def ends_of_all(factors):
        end_s = [np.zeros(training.ranks)]
        for factor in factors:
            # Counted from the first rank on: closed forms keep their digits after many steps.
            first = end_s[-1].min()
            end_s.append(first + training.step(end_s[-1] - first, factor)[0])
        return np.array(end_s[1:])

    steady_s = float(ends_of_all(np.ones_like(factors))[-1].max()) / len(factors)
    return JitteredSteps(training.ranks, factors, ends_of_all(factors), steady_s)


def jitter_factors(
    jitter: str | Jitter | Callable, steps: int, ranks: int, *, spread: float = 0.1, seed: int = 0
) -> np.ndarray:
    """Return random factors for the compute of each step and rank. Their mean is 1.

    Parameters
    ----------
    jitter : {"normal", "lognormal", "exponential"}, Jitter or callable
        The distribution. With ``"normal"``, a value below 0 counts as 0. With ``"lognormal"``,
        values are never below 0, and large values are more frequent. An ``"exponential"`` value is
        ``1 - spread`` plus an exponential time with mean ``spread``. If the spread is 1, the value
        is only the exponential time. With a `Jitter`, the factors are those that a simulation with
        ``slow=jitter`` applies to each rank's first pieces of computing. A function
        ``jitter(random, (steps, ranks))`` draws the factors from a `numpy.random.Generator`.
    steps, ranks : int
    spread : float
        Standard deviation of the factors. It has no effect if ``jitter`` is a function or a
        `Jitter`.
    seed : int
        The same seed gives the same factors. If you ask for more steps, the factors of the first
        steps stay the same. The seed has no effect if ``jitter`` is a `Jitter`, which has its own
        seed.

    Returns
    -------
    ndarray of float, shape (steps, ranks)

    Examples
    --------
    >>> jitter_factors("normal", 2, 3, spread=0.1, seed=1).round(3).tolist()
    [[1.035, 1.082, 1.033], [0.87, 1.091, 1.045]]

    One rank in a hundred takes twice as long:

    >>> def hiccup(random, shape):
    ...     return 1.0 + (random.random(shape) < 0.01)
    >>> float(jitter_factors(hiccup, 1000, 8, seed=1).mean().round(3))
    1.01

    You can also use the factors with `parameter_server_time`: ``forward_s=0.1 * factors``.
    """
    if isinstance(jitter, Jitter):
        return jitter.factors(steps, ranks)
    shape = count_of("steps", steps), count_of("ranks", ranks)
    random = np.random.default_rng(count_of("seed", seed, low=0))
    if callable(jitter):
        return _checked(jitter(random, shape), shape)
    check_kind("jitter", jitter, "or a function(random, shape), or a Jitter")
    check_number("spread", spread)
    check_spread(jitter, spread)
    return draw(jitter, spread, random, shape)


def _checked(factors, shape):
    factors = np.array(factors, dtype=float)
    if factors.shape != shape or not (np.isfinite(factors) & (factors >= 0)).all():
        raise InvalidCallError(
            f"jitter returned factors of shape {factors.shape}: return shape {shape}, a factor for "
            "each step and rank. Each must be finite and at least 0"
        )
    return factors


# -- how long the slowest of many ranks takes: the expected maximum of R draws ---------------------

FAR = 40.0
"""Integrate normal values up to this many deviations. The rest is too small for a float."""
HALVINGS = 50


def expected_max(
    ranks: Counts,
    times: str | Jitter | Callable[[float], float] | Sequence[float] | np.ndarray = "lognormal",
    *,
    mean_s: float = 1.0,
    spread: float = 0.1,
) -> Any:
    """Return E[max]: the expected seconds until the last of R ranks is done, if times vary.

    If ranks wait for each other in every step, an average step takes E[max]. E[max] grows with R,
    although the mean time of each rank stays the same.

    Parameters
    ----------
    ranks : int or sequence of int
        R. The ranks' times are independent and have the same distribution.
    times : {"normal", "lognormal", "exponential"}, Jitter, callable or array of float
        The name of a distribution, as for `jitter_factors`, or a `Jitter`, a quantile function or
        measured seconds. A quantile function ``times(u)``, for 0 < u < 1, returns the seconds that
        a rank exceeds with probability 1 - u. If you pass measured seconds, all values are equally
        likely, and no rank takes longer than the largest value. If rare long times matter, pass
        many more values than R.
    mean_s : float
        Mean of one rank's seconds. It has no effect if ``times`` is a function or an array. A
        `Jitter` multiplies these seconds by its factors.
    spread : float
        Standard deviation divided by the mean. It has an effect only if ``times`` is the name of a
        distribution.

    Returns
    -------
    float, or ndarray of float if ``ranks`` is a sequence

    Examples
    --------
    Steps take 0.1 s and vary by a tenth. In the first call they are normally distributed, and in
    the second call they have a long tail:

    >>> expected_max([1, 8, 64, 512, 10_000], "normal", mean_s=0.1).round(4).tolist()
    [0.1, 0.1142, 0.1234, 0.1304, 0.1385]
    >>> expected_max([1, 8, 64, 512, 10_000], "exponential", mean_s=0.1).round(4).tolist()
    [0.1, 0.1172, 0.1374, 0.1582, 0.1879]

    One rank in a hundred takes twice as long:

    >>> expected_max([1, 8, 64, 512], lambda u: 0.1 if u < 0.99 else 0.2).round(4).tolist()
    [0.101, 0.1077, 0.1474, 0.1994]

    **Cost** The function takes one millisecond for each R, and calls a quantile function a few
    hundred times.

    **Source** order statistics: the largest of R independent values is at most x with probability
    F(x)^R. For exponential times, E[max] is the mean times 1 + 1/2 + ... + 1/R.
    """
    expected = _expectation(times, mean_s, spread)
    found = [expected(count_of("ranks", count)) for count in np.atleast_1d(ranks).tolist()]
    return found[0] if np.ndim(ranks) == 0 else np.array(found)


def _expectation(times, mean_s, spread):
    """The function ``expected(ranks)`` for the kind of distribution that was given."""
    check_number("mean_s", mean_s)
    if isinstance(times, Jitter):
        if not isinstance(times.kind, str):
            raise InvalidCallError(
                "there is no formula for a Jitter with a function: give values of this Jitter, "
                "such as jitter.factors(1000, 8).ravel()"
            )
        return _of_name(times.kind, mean_s * times.mean, times.spread)
    if callable(times):
        return lambda ranks: _of_quantiles(times, ranks)
    if isinstance(times, str):
        return _of_name(times, mean_s, spread)
    values = np.sort(np.array(times, dtype=float), axis=None)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidCallError("times is empty, or contains nan or inf: give numbers of seconds")
    return lambda ranks: _of_values(values, ranks)


def _of_name(kind, mean_s, spread):
    check_kind("times", kind, "a Jitter, a quantile function, or measured seconds")
    check_number("spread", spread)
    check_spread(kind, spread)
    return lambda ranks: mean_s * _FACTOR[kind](ranks, spread)


# Distributions of mean 1


def _normal(ranks, spread):
    """E[max(0, 1 + spread Z)] for the largest Z, an integral over its probabilities above 0."""
    if not spread:
        return 1.0
    low = max(-1 / spread, -FAR)
    nodes, weights = _gauss(low, FAR)
    with np.errstate(divide="ignore"):
        above = -np.expm1(ranks * np.log1p(-_tail(nodes)))
    return float(1 + spread * low + spread * (weights @ above))


def _lognormal(ranks, spread):
    variance = log(1 + spread**2)
    nodes, weights = _gauss(-FAR, FAR)
    with np.errstate(divide="ignore"):
        others_below = (ranks - 1) * np.log1p(-_tail(nodes)) if ranks > 1 else 0.0
    exponent = others_below - nodes**2 / 2 + sqrt(variance) * nodes - variance / 2
    return float(ranks / sqrt(2 * pi) * (weights @ np.exp(exponent)))


def _exponential(ranks, spread):
    return 1 - spread + spread * _harmonic(ranks)


_FACTOR = {"normal": _normal, "lognormal": _lognormal, "exponential": _exponential}


def _harmonic(n):
    """1 + 1/2 + ... + 1/n."""
    if n < 1000:
        return fsum(1 / k for k in range(1, n + 1))
    return log(n) + float(np.euler_gamma) + 1 / (2 * n) - 1 / (12 * n**2)


def _tail(z):
    """The probability that a standard normal value is above z, for each z."""
    return np.array([erfc(value / sqrt(2)) / 2 for value in z.tolist()])


@cache
def _gauss(low, high):
    """Nodes and weights of an integral over smooth functions, with 16 nodes in pieces of 0.5."""
    at, weight = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(low, high, int(np.ceil((high - low) / 0.5)) + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + at)).ravel(), (half * weight).ravel()


# Distributions that are given


def _of_values(values, ranks):
    """The largest of R draws is at most the i-th of n values with probability (i / n)^R."""
    at_most = (np.arange(len(values) + 1) / len(values)) ** ranks
    return float(np.diff(at_most) @ values)


def _of_quantiles(quantile, ranks):
    """The integral of quantile(v^(1/R)) over v from 0 to 1, with both ends stretched far out."""

    def integrand(t):
        to_end = exp(-pi * abs(sinh(t)))  # of v, from the nearer end
        near, far = to_end / (1 + to_end), 1 / (1 + to_end)
        log_v = log(near if t < 0 else far)
        u = min(max(exp(log_v / ranks), 1e-300), 1 - 2**-53)
        value = quantile(u)
        if not isinstance(value, Real) or not isfinite(value):
            raise InvalidCallError(f"times({u:g}) returned {value!r}: return a number of seconds")
        return float(value) * pi * cosh(t) * near * far

    return _integral(integrand, np.linspace(-4.0, 4.0, 9).tolist())


def _integral(function, edges):
    """The integral of a function that may bend and jump. Pieces are halved at such places."""
    at, weight = np.polynomial.legendre.leggauss(10)

    def over(low, high):
        half = (high - low) / 2
        return half * fsum(weight * [function(low + half * (1 + x)) for x in at])

    def refined(low, high, known, halvings):
        middle = (low + high) / 2
        left, right = over(low, middle), over(middle, high)
        if not halvings or abs(left + right - known) <= 1e-12 * scale:
            return left + right
        left = refined(low, middle, left, halvings - 1)
        return left + refined(middle, high, right, halvings - 1)

    pieces = [(low, high, over(low, high)) for low, high in pairwise(edges)]
    scale = fsum(abs(known) for _, _, known in pieces) or 1.0
    return fsum(refined(*piece, HALVINGS) for piece in pieces)
