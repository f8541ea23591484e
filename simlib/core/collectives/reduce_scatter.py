"""reduce_scatter: every rank brings n parts, rank r gets the sum of all parts r."""

from __future__ import annotations

from itertools import chain

import numpy as np

from .schedules import Schedule, parts_of
from .steps import Folding, Moves, ring_reduce_scatter


def ring(n, nbytes, itemsize=1):
    """Each part goes round the ring and grows.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Patarasuk and Yuan 2009, JPDC 69(2).
    """
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "ring", n, chunks, ring_reduce_scatter(n))


def recursive_halving(n, nbytes, itemsize=1):
    """At distance p/2, p/4, ..., 1 each sends the half it will not keep.

    **Cost** rounds `lg + 2 * folds`, messages `p * lg + 2 * extra`; where n is a power of two,
    bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    folding = Folding(n)
    moves = chain(folding.in_(count=n), folding.halving(folding.first), folding.out(folding.folded))
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "recursive_halving", n, chunks, moves)


def pairwise(n, nbytes, itemsize=1):
    """In round k each sends rank r + k its part: nothing travels twice.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    ranks = np.arange(n)
    others = ((ranks + k) % n for k in range(1, n))
    moves = (Moves(ranks, other, other, adds=True) for other in others)
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "pairwise", n, chunks, moves)
