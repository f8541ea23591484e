"""gather: rank r has part r, the root gets all."""

from __future__ import annotations

import numpy as np

from .schedules import Schedule, parts_of
from .steps import Moves, binomial_gather, in_turn


def flat(n, nbytes, itemsize=1, root=0):
    """One rank after the other sends its part to the root.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `(n > 1) * nbytes / n`.

    **Source** what one writes first.
    """
    moves = (Moves(other, np.array([root]), other) for other in in_turn(n, root))
    return Schedule.of("gather", "flat", n, parts_of(nbytes, n, itemsize), moves, root)


def spread(n, nbytes, itemsize=1, root=0):
    """All ranks send at once: one round, in which they share the root's link ("incast").

    **Cost** rounds `min(n - 1, 1)`, messages `n - 1`, bytes per rank `(n > 1) * nbytes / n`.

    **Source** grouped receives, as torch.distributed has NCCL do it.
    """
    others = np.delete(np.arange(n), root)
    moves = [Moves(others, np.full(n - 1, root), others)]
    return Schedule.of("gather", "spread", n, parts_of(nbytes, n, itemsize), moves, root)


def binomial(n, nbytes, itemsize=1, root=0):
    """Down a binomial tree: each hands on all it has got so far.

    **Cost** rounds `lg_up`, messages `n - 1`; where n is a power of two, bytes per rank
    `(n > 1) * p / 2 * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_gather(n, root)
    return Schedule.of("gather", "binomial", n, parts_of(nbytes, n, itemsize), moves, root)
