"""A sample of a grid of cases: another one for each seed, so that in time all are tried."""

from __future__ import annotations

import os

import numpy as np

SEED = int(os.environ["SEED"])


def sampled(*axes, times=1):
    """Cases for ``pytest.mark.parametrize``, in which each value of each axis occurs.

    Parameters
    ----------
    *axes : iterable
        The values of each parameter.
    times : int
        How often each value of the longest axis occurs.

    Returns
    -------
    list of tuple
        As many as the longest axis has values, ``times`` over.
    """
    random = np.random.default_rng(SEED)
    axes = [list(axis) for axis in axes]
    count = times * max(map(len, axes))
    orders = [
        np.concatenate([random.permutation(len(axis)) for _ in range(count)]) for axis in axes
    ]
    return [
        tuple(axis[order[k]] for axis, order in zip(axes, orders, strict=True))
        for k in range(count)
    ]
