"""all_gather: rank r has part r, every rank gets all."""

from __future__ import annotations

from itertools import chain

import numpy as np

from .schedules import Schedule, parts_of
from .steps import Folding, Moves, powers_below, ring_all_gather


def ring(n, nbytes, itemsize=1):
    """Each part goes round the ring: for long vectors.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    return Schedule.of("all_gather", "ring", n, parts_of(nbytes, n, itemsize), ring_all_gather(n))


def recursive_doubling(n, nbytes, itemsize=1):
    """Each exchanges all it has at distance 1, 2, 4, ...; twice as much every time.

    Where n is no power of two, folded ranks hand their part to a neighbour first and get all others
    from it at the end: their neighbours send most.

    **Cost** rounds `lg + 2 * folds`, messages `p * lg + 2 * extra`; where n is a power of two,
    bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1); folding: Rabenseifner 2004.
    """
    folding = Folding(n)
    moves = chain(
        folding.in_(folding.folded, adds=False),
        folding.doubling(folding.first),
        folding.out(folding.folded + 1, n - 1),  # all but the folded rank's own part
    )
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("all_gather", "recursive_doubling", n, chunks, moves)


def bruck(n, nbytes, itemsize=1):
    """Each gets from rank r + d all that has, for d = 1, 2, 4, ...: few rounds for any n.

    **Cost** rounds `lg_up`, messages `n * lg_up`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Bruck et al. 1997, IEEE TPDS 8(11); Thakur, Rabenseifner and Gropp 2005.
    """
    ranks = np.arange(n)
    # By now each has d parts, its own first; in the last round n - d are left to get.
    moves = (Moves(ranks, (ranks - d) % n, ranks, min(d, n - d)) for d in powers_below(n))
    return Schedule.of("all_gather", "bruck", n, parts_of(nbytes, n, itemsize), moves)
