"""scatter: the root has n parts, rank r gets part r."""

from __future__ import annotations

import numpy as np

from .schedules import Schedule, parts_of
from .steps import Moves, binomial_scatter, in_turn


def flat(n, nbytes, itemsize=1, root=0):
    """The root sends one part after the other.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** what one writes first.
    """
    moves = (Moves(np.array([root]), other, other) for other in in_turn(n, root))
    return Schedule.of("scatter", "flat", n, parts_of(nbytes, n, itemsize), moves, root)


def spread(n, nbytes, itemsize=1, root=0):
    """The root sends all parts at once: one round, in which they share its link.

    **Cost** rounds `min(n - 1, 1)`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** grouped sends, as torch.distributed has NCCL do it.
    """
    others = np.delete(np.arange(n), root)
    moves = [Moves(np.full(n - 1, root), others, others)]
    return Schedule.of("scatter", "spread", n, parts_of(nbytes, n, itemsize), moves, root)


def binomial(n, nbytes, itemsize=1, root=0):
    """Down a binomial tree: each hands on the parts of those farther off.

    **Cost** rounds `lg_up`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_scatter(n, root)
    return Schedule.of("scatter", "binomial", n, parts_of(nbytes, n, itemsize), moves, root)
