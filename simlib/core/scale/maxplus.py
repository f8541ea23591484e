"""Largest sums over many ways at once: the arithmetic of "wait for the later of the two".

A rank that waits takes a maximum, a message adds its time. So a moment in a collective is the
largest sum over all chains of messages that lead to it, and where a chain of messages walks round a
ring, that is a running maximum over prefix sums (Baccelli et al. 1992, Synchronization and
Linearity).
"""

from __future__ import annotations

import numpy as np


def in_turn(first_s, others_s, steps_s):
    """Ends of steps that follow each other, where each also waits for somebody else.

    Parameters
    ----------
    first_s : float
        When the first step may begin.
    others_s : ndarray of float
        When the other one that each step waits for is ready.
    steps_s : ndarray of float
        How long each step takes.

    Returns
    -------
    ndarray of float
        ``end[i] = max(end[i - 1], others_s[i]) + steps_s[i]``.
    """
    ends_s = np.cumsum(steps_s)
    latest = np.maximum.accumulate(others_s - (ends_s - steps_s))
    return ends_s + np.maximum(first_s, latest)


def sweep(values, costs, reach):
    """The best value that comes to each place of a ring, walking straight from either side.

    Parameters
    ----------
    values : ndarray of float, shape (n,)
        What one has at each place before one walks.
    costs : ndarray of float, shape (n,)
        What one loses on entering each place; not negative.
    reach : int
        The longest walk, in steps.

    Returns
    -------
    ndarray of float, shape (n,)
    """
    up = _sweep_up(values, costs, reach)
    down = _sweep_up(values[::-1], costs[::-1], reach)[::-1]
    return np.maximum(up, down)


def _sweep_up(values, costs, reach):
    n = len(values)
    paid = np.cumsum(np.concatenate((costs, costs)))
    best = trailing_max(np.concatenate((values, values)) + paid, min(reach, n) + 1)
    return (best - paid)[n:]


def trailing_max(values, width):
    """At each place, the largest of the last ``width`` values: ndarray of the same shape."""
    best = values
    span = 1
    while span < width:
        step = min(span, width - span)
        best = np.concatenate((best[:step], np.maximum(best[step:], best[:-step])))
        span += step
    return best
