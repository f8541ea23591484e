"""A sample of a grid of cases: another one for each seed, so that in time all are tried."""

from __future__ import annotations

import os

import numpy as np

SEED = int(os.environ["SEED"])


def sampled(*axes, times=1, count=None):
    """Cases for ``pytest.mark.parametrize``, in which each value of each axis occurs.

    Parameters
    ----------
    *axes : iterable
        The values of each parameter.
    times : int
        How often each value of the longest axis occurs.
    count : int, optional
        So many cases, even if they are fewer than the longest axis has values.

    Returns
    -------
    list of tuple
        As many as the longest axis has values, ``times`` over; or ``count``.
    """
    random = np.random.default_rng(SEED)
    axes = [list(axis) for axis in axes]
    count = count or times * max(map(len, axes))
    orders = [
        np.concatenate([random.permutation(len(axis)) for _ in range(count)]) for axis in axes
    ]
    return [
        tuple(axis[order[k]] for axis, order in zip(axes, orders, strict=True))
        for k in range(count)
    ]
