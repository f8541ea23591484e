"""How long the slowest of many ranks takes, on average: the expected maximum of R draws."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import cosh, erfc, exp, fsum, isfinite, log, pi, sinh, sqrt
from numbers import Real

import numpy as np

from ..model.chance import Jitter, check_kind, check_spread
from ..model.errors import InvalidCallError, as_int, check_count, check_number

FAR = 40.0
"""Normal values are integrated to so many deviations: beyond is less than a float can hold."""
HALVINGS = 50


def expected_max(ranks, times="lognormal", *, mean_s=1.0, spread=0.1):
    """E[max]: seconds until the last of R ranks is done, where each takes a time of its own.

    Ranks that wait for each other in every step take this time for a step, on average: it grows
    with R although no rank's own mean does.

    Parameters
    ----------
    ranks : int or sequence of int
        R. The ranks' times are independent of one another, and of one distribution.
    times : {"normal", "lognormal", "exponential"}, Jitter, callable or array of float
        The distribution, as for `jitter_factors`; a `Jitter`; a quantile function ``times(u)``, the
        seconds that a rank exceeds with probability 1 - u, for 0 < u < 1; or seconds that were
        measured, each as likely as the others (of R ranks many more than there are values, none
        takes longer than the largest of them: give R times as many where the tail counts).
    mean_s : float
        Mean of one rank's seconds; of no account with a function or values. With a `Jitter`, of
        what it makes longer.
    spread : float
        Standard deviation over the mean; counts with a distribution's name alone.

    Returns
    -------
    float, or ndarray of float where ``ranks`` is a sequence

    Examples
    --------
    Steps of 0.1 s that vary by a tenth, normally and with a long tail:

    >>> expected_max([1, 8, 64, 512, 10_000], "normal", mean_s=0.1).round(4).tolist()
    [0.1, 0.1142, 0.1234, 0.1304, 0.1385]
    >>> expected_max([1, 8, 64, 512, 10_000], "exponential", mean_s=0.1).round(4).tolist()
    [0.1, 0.1172, 0.1374, 0.1582, 0.1879]

    One rank in a hundred takes twice as long:

    >>> expected_max([1, 8, 64, 512], lambda u: 0.1 if u < 0.99 else 0.2).round(4).tolist()
    [0.101, 0.1077, 0.1474, 0.1994]

    **Cost** a millisecond for each R; some hundred calls of a function.

    **Source** order statistics: the largest of R independent values is at most x with probability
    F(x)^R. Of exponential times, E[max] is the mean times 1 + 1/2 + ... + 1/R.
    """
    expected = _expectation(times, mean_s, spread)
    counts = [as_int("ranks", count) for count in np.atleast_1d(ranks).tolist()]
    for count in counts:
        check_count("ranks", count)
    found = [expected(count) for count in counts]
    return found[0] if np.ndim(ranks) == 0 else np.array(found)


def _expectation(times, mean_s, spread):
    """``expected(ranks)``, by the sort of distribution that was given."""
    check_number("mean_s", mean_s)
    if isinstance(times, Jitter):
        if not isinstance(times.kind, str):
            raise InvalidCallError(
                "a Jitter with a function has no closed form: give values of it, "
                "jitter.factors(1000, 8).ravel()"
            )
        return _of_name(times.kind, mean_s * times.mean, times.spread)
    if callable(times):
        return lambda ranks: _of_quantiles(times, ranks)
    if isinstance(times, str):
        return _of_name(times, mean_s, spread)
    values = np.sort(np.array(times, dtype=float), axis=None)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidCallError("times has no values, or some that are no numbers: give seconds")
    return lambda ranks: _of_values(values, ranks)


def _of_name(kind, mean_s, spread):
    check_kind("times", kind, "a Jitter, a quantile function, or seconds that were measured")
    check_number("spread", spread)
    check_spread(kind, spread)
    return lambda ranks: mean_s * _FACTOR[kind](ranks, spread)


# Distributions of mean 1


def _normal(ranks, spread):
    """E[max(0, 1 + spread Z)] of the largest Z: 0 and what lies above it, by its probability."""
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
    """Probability that a standard normal value is above each of these."""
    return np.array([erfc(value / sqrt(2)) / 2 for value in z.tolist()])


@cache
def _gauss(low, high):
    """Nodes and weights of an integral over smooth functions: pieces of 0.5, 16 nodes in each."""
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
    """The integral of quantile(v^(1/R)) over v from 0 to 1, with both ends drawn far away."""

    def integrand(t):
        to_end = exp(-pi * abs(sinh(t)))  # of v, from the nearer end
        near, far = to_end / (1 + to_end), 1 / (1 + to_end)
        log_v = log(near if t < 0 else far)
        u = min(max(exp(log_v / ranks), 1e-300), 1 - 2**-53)
        value = quantile(u)
        if not isinstance(value, Real) or not isfinite(value):
            raise InvalidCallError(f"times({u:g}) gave {value!r}: give a number of seconds")
        return float(value) * pi * cosh(t) * near * far

    return _integral(integrand, np.linspace(-4.0, 4.0, 9).tolist())


def _integral(function, edges):
    """Of a function of one number, that may bend and jump: there pieces are halved."""
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
