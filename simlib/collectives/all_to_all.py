"""all_to_all: rank i has n parts, part j goes to rank j.

``nbytes`` is what one rank brings; or the bytes from i to j, as an array of shape (n, n).
"""

from __future__ import annotations

import numpy as np

from .schedules import Schedule, parts_of, split
from .steps import Moves


def pairwise(n, nbytes, itemsize=1):
    """In round k each sends to rank r + k and receives from rank r - k.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    ranks = np.arange(n)
    others = ((ranks + k) % n for k in range(1, n))
    moves = (Moves(ranks, other, ranks * n + other) for other in others)
    return Schedule.of("all_to_all", "pairwise", n, _parts(n, nbytes, itemsize), moves)


def spread(n, nbytes, itemsize=1):
    """All at once: one round, in which the messages of a rank share its link.

    **Cost** rounds `min(n - 1, 1)`, messages `n * (n - 1)`, bytes per rank
    `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1): all sends and receives posted,
    then waited for.
    """
    ranks = np.arange(n)
    shift = np.arange(1, n)[:, None]
    src, dst = np.broadcast_arrays(ranks, (ranks + shift) % n)
    src, dst = src.ravel(), dst.ravel()
    moves = [Moves(src, dst, src * n + dst)]
    return Schedule.of("all_to_all", "spread", n, _parts(n, nbytes, itemsize), moves)


def _parts(n, nbytes, itemsize):
    """Bytes of chunk ``i * n + j``."""
    if np.ndim(nbytes) == 0:
        return np.tile(split(nbytes, n, itemsize), n)
    return parts_of(nbytes, n * n)
