"""barrier: no rank leaves before all have come. Messages of no bytes; "to add" is to hear of."""

from __future__ import annotations

from itertools import chain

import numpy as np

from .schedules import Schedule
from .steps import Moves, binomial_broadcast, binomial_reduce, in_turn, powers_below

NOTHING = np.array([0])


def dissemination(n):
    """In round k each tells rank r + 2^k whom it has heard of: ceil(lg n) rounds for any n.

    **Cost** rounds `lg_up`, messages `n * lg_up`, bytes per rank `0`.

    **Source** Hensgen, Finkel and Manber 1988, International Journal of Parallel Programming 17(1).
    """
    ranks = np.arange(n)
    moves = (Moves(ranks, (ranks + d) % n, adds=True) for d in powers_below(n))
    return Schedule.of("barrier", "dissemination", n, NOTHING, moves)


def binomial(n):
    """Word that all have come runs down a binomial tree to rank 0, and back up.

    **Cost** rounds `2 * lg_up`, messages `2 * (n - 1)`, bytes per rank `0`.

    **Source** Mellor-Crummey and Scott 1991, ACM TOCS 9(1), on tree barriers.
    """
    moves = chain(binomial_reduce(n, 0), binomial_broadcast(n, 0))
    return Schedule.of("barrier", "binomial", n, NOTHING, moves)


def flat(n):
    """Every rank tells rank 0, one after the other, and is told likewise.

    **Cost** rounds `2 * (n - 1)`, messages `2 * (n - 1)`, bytes per rank `0`.

    **Source** what one writes first.
    """
    moves = chain(
        (Moves(other, NOTHING, adds=True) for other in in_turn(n, 0)),
        (Moves(NOTHING, other) for other in in_turn(n, 0)),
    )
    return Schedule.of("barrier", "flat", n, NOTHING, moves)
