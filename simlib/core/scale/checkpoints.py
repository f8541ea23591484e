"""Failures and checkpoints: how often to save, and how much useful work time remains."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..model.chance import check_mtbf
from ..model.errors import InvalidCallError, check_number
from .case import Counts, Seconds, count_of

FORMULAS = ("young", "daly", "exact")


def checkpoint_interval(
    checkpoint_s: float,
    mtbf_s: float,
    ranks: Counts = 1,
    *,
    formula: str = "daly",
) -> Any:
    """Return the best number of seconds of work from one checkpoint's end to the next checkpoint.

    With a shorter interval, you lose more time by saving than you gain after failures. With a
    longer interval, each failure loses more work. The machine fails when any of its ranks fails.
    The times between failures are exponential, with mean M = ``mtbf_s / ranks``. C is
    ``checkpoint_s``.

    Parameters
    ----------
    checkpoint_s : float
        Seconds that saving takes. Ranks compute nothing in this time.
    mtbf_s : float
        Mean time between failures of one rank, in seconds.
    ranks : int or sequence of int
    formula : {"young", "daly", "exact"}
        ``"young"`` computes sqrt(2 C M), the approximation of first order. This interval is too
        long by a share of about sqrt(2 C / M) / 3. ``"daly"`` computes the approximation of higher
        order. It is within 1 % of the best interval if C is at most M / 2. ``"exact"`` finds the
        interval with the largest `goodput` numerically. None of the three depends on the time of a
        restart.

    Returns
    -------
    float, or ndarray of float if ``ranks`` is a sequence

    Examples -------- Each rank fails once in five years, and a checkpoint takes a minute. The
    example prints the interval in minutes:

    >>> import numpy as np
    >>> year_s = 365 * 86_400
    >>> ranks = [8, 128, 1_024, 10_000]
    >>> for formula in ("young", "daly", "exact"):
    ...     found = checkpoint_interval(60, 5 * year_s, ranks, formula=formula)
    ...     print(f"{formula:6}", np.round(found / 60, 1))
    young  [810.6 202.6  71.6  22.9]
    daly   [809.9 202.   71.   22.3]
    exact  [809.9 202.   71.   22.3]

    **Source** Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly
    2006, "A higher order estimate of the optimum checkpoint interval for restart dumps". The exact
    interval solves (1 - t / M) exp((t + C) / M) = 1.
    """
    check_number("checkpoint_s", checkpoint_s, above=True)
    if formula not in FORMULAS:
        raise InvalidCallError(f"formula is {formula!r}: give one of {', '.join(FORMULAS)}")
    machine_s = _machine_mtbf(mtbf_s, ranks)
    share = checkpoint_s / machine_s
    if formula == "young":
        found = np.sqrt(2 * share)
    elif formula == "daly":
        half = np.sqrt(share / 2)
        found = np.where(share < 2, np.sqrt(2 * share) * (1 + half / 3 + half**2 / 9) - share, 1.0)
    else:
        found = _best_share(share)
    return _like(ranks, found * machine_s)


def _best_share(share):
    """The t / M at which log(1 - t / M) + t / M + C / M is 0, by bisection."""
    low, high = np.zeros_like(share), np.ones_like(share)
    for _ in range(100):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            is_left = np.log1p(-middle) + middle + share > 0
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return low


def goodput(
    interval_s: Seconds,
    checkpoint_s: float,
    mtbf_s: float,
    ranks: Counts = 1,
    *,
    restart_s: float = 0.0,
) -> Any:
    """Return the share of a long run's time in which ranks do work that no failure destroys.

    The share is ``interval_s`` divided by the expected time until that work is done and saved. This
    time includes saving, failures, repeated work, and restarts. A failure during saving loses the
    interval's work. After a failure during a restart, the restart begins again.

    Parameters
    ----------
    interval_s : float or array of float
        Seconds of work from one checkpoint to the next.
    checkpoint_s, mtbf_s
        As for `checkpoint_interval`.
    ranks : int or sequence of int
        The number of ranks. If ``interval_s`` is an array, pass one number, one number for each
        interval, or a shape that numpy can broadcast with it.
    restart_s : float
        Seconds from a failure until the work continues. In this time the ranks notice the failure,
        start again and load the checkpoint.

    Returns
    -------
    float, or ndarray of float if ``interval_s`` or ``ranks`` is a sequence

    Examples
    --------
    Each of 10,000 ranks fails once in five years. A checkpoint takes one minute. A restart takes
    five minutes:

    >>> import numpy as np
    >>> minutes = np.array([5, 10, 22.3, 60, 120])
    >>> goodput(60 * minutes, 60, 5 * 365 * 86_400, 10_000, restart_s=300).round(3).tolist()
    [0.808, 0.873, 0.898, 0.857, 0.766]

    **Cost** O(1).

    **Source** Daly 2006, as for `checkpoint_interval`: t seconds of work take
    M exp(D / M) (exp((t + C) / M) - 1) seconds on average. C is ``checkpoint_s``, D is
    ``restart_s``, and M is the mean time between failures of any rank.
    """
    work_s = _checked("interval_s", interval_s)
    passing_s = _until_saved(work_s, checkpoint_s, mtbf_s, ranks, restart_s)
    return _like(work_s * np.ones_like(passing_s), work_s / passing_s)


def time_with_failures(
    work_s: float,
    interval_s: Seconds,
    checkpoint_s: float,
    mtbf_s: float,
    ranks: Counts = 1,
    *,
    restart_s: float = 0.0,
) -> Any:
    """Return the expected seconds of a whole run, with checkpoints, failures and restarts.

    A checkpoint follows each ``interval_s`` of work. The last piece of work may be shorter.

    Parameters
    ----------
    work_s : float
        Seconds that the work would take without failures and checkpoints.
    interval_s, checkpoint_s, mtbf_s, ranks, restart_s
        As for `goodput`.

    Returns
    -------
    float, or ndarray of float if ``interval_s`` or ``ranks`` is a sequence

    Examples -------- 10,000 ranks do a day of work. The results are in hours. The first run saves a
    checkpoint every hour. The second run saves only one checkpoint, at the end:

    >>> machine = {"checkpoint_s": 60, "mtbf_s": 5 * 365 * 86_400, "ranks": 10_000}
    >>> round(time_with_failures(86_400, 3_600, **machine, restart_s=300) / 3600, 1)
    28.0
    >>> round(time_with_failures(86_400, 86_400, **machine, restart_s=300) / 3600, 1)
    1069.7

    **Cost** O(1).

    **Source** as for `goodput`.
    """
    check_number("work_s", work_s)
    piece_s = _checked("interval_s", interval_s)
    pieces = np.floor(work_s / piece_s)
    rest_s = work_s - pieces * piece_s
    machine = checkpoint_s, mtbf_s, ranks, restart_s
    found = pieces * _until_saved(piece_s, *machine)
    found = found + np.where(rest_s > 1e-9 * piece_s, _until_saved(rest_s, *machine), 0.0)
    return _like(found, found)


def _until_saved(work_s, checkpoint_s, mtbf_s, ranks, restart_s):
    """Expected seconds until ``work_s`` of work is done and saved."""
    check_number("checkpoint_s", checkpoint_s)
    check_number("restart_s", restart_s)
    machine_s = _machine_mtbf(mtbf_s, ranks)
    with np.errstate(over="ignore"):  # it never comes to that
        pieces = np.expm1((work_s + checkpoint_s) / machine_s)
        return machine_s * np.exp(restart_s / machine_s) * pieces


def _machine_mtbf(mtbf_s, ranks):
    """Mean time between failures of any of ``ranks`` ranks."""
    check_mtbf(mtbf_s)
    counts = [count_of("ranks", count) for count in np.atleast_1d(ranks).tolist()]
    return mtbf_s / np.array(counts, dtype=float).reshape(np.shape(ranks))


def _checked(name, value):
    found = np.array(value, dtype=float)
    if not (found > 0).all():
        raise InvalidCallError(f"{name} is {value!r}: give seconds, all above 0")
    return found


def _like(given, found):
    """A float if the caller passed a single number, else an array."""
    return float(found) if np.ndim(given) == 0 else np.asarray(found)
