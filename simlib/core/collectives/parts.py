"""Collectives of parts, one for each rank.

scatter: the root has n parts, and rank r gets part r. gather: rank r has part r, and the root gets
all parts. all_gather: rank r has part r, and every rank gets all parts. reduce_scatter: every rank
has n parts, and rank r gets the sum of all parts r. all_to_all: every rank has n parts, and part j
goes to rank j.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from .schedules import Bytes, Schedule, parts_of, split
from .steps import (
    Folding,
    Moves,
    binomial_gather,
    binomial_scatter,
    in_turn,
    powers_below,
    ring_all_gather,
    ring_reduce_scatter,
)

# -- scatter ---------------------------------------------------------------------------------------


def scatter_flat(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """The root sends one part after the other.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** the obvious first version.
    """
    moves = (Moves(np.array([root]), other, other) for other in in_turn(n, root))
    return Schedule.of("scatter", "flat", n, parts_of(nbytes, n, itemsize), moves, root)


def scatter_spread(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """The root sends all parts at once: one round, in which the messages share its link.

    **Cost** rounds `min(n - 1, 1)`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** grouped sends, as in torch.distributed with NCCL.
    """
    others = np.delete(np.arange(n), root)
    moves = [Moves(np.full(n - 1, root), others, others)]
    return Schedule.of("scatter", "spread", n, parts_of(nbytes, n, itemsize), moves, root)


def scatter_binomial(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """Parts go down a binomial tree. Each rank passes on the parts of the ranks below it.

    **Cost** rounds `lg_up`, messages `n - 1`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_scatter(n, root)
    return Schedule.of("scatter", "binomial", n, parts_of(nbytes, n, itemsize), moves, root)


# -- gather ----------------------------------------------------------------------------------------


def gather_flat(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """One rank after the other sends its part to the root.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `(n > 1) * nbytes / n`.

    **Source** the obvious first version.
    """
    moves = (Moves(other, np.array([root]), other) for other in in_turn(n, root))
    return Schedule.of("gather", "flat", n, parts_of(nbytes, n, itemsize), moves, root)


def gather_spread(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """All ranks send at once: one round, in which the messages share the root's link ("incast").

    **Cost** rounds `min(n - 1, 1)`, messages `n - 1`, bytes per rank `(n > 1) * nbytes / n`.

    **Source** grouped receives, as in torch.distributed with NCCL.
    """
    others = np.delete(np.arange(n), root)
    moves = [Moves(others, np.full(n - 1, root), others)]
    return Schedule.of("gather", "spread", n, parts_of(nbytes, n, itemsize), moves, root)


def gather_binomial(n: int, nbytes: Bytes, itemsize: int = 1, root: int = 0) -> Schedule:
    """Parts go down a binomial tree to the root. Each rank passes on all parts that it has so far.

    **Cost** rounds `lg_up`, messages `n - 1`; if n is a power of two, bytes per rank
    `(n > 1) * p / 2 * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_gather(n, root)
    return Schedule.of("gather", "binomial", n, parts_of(nbytes, n, itemsize), moves, root)


# -- all_gather ------------------------------------------------------------------------------------


def all_gather_ring(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """Each part travels round the ring. Good for long vectors.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    return Schedule.of("all_gather", "ring", n, parts_of(nbytes, n, itemsize), ring_all_gather(n))


def all_gather_recursive_doubling(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """Ranks at distance 1, 2, 4, ... exchange all their parts, twice as many in every round.

    If n is not a power of two, folded ranks first send their part to a neighbour. At the end, they
    get all other parts from this neighbour. These neighbours send the most bytes.

    **Cost** rounds `lg + 2 * folds`, messages `p * lg + 2 * extra`; if n is a power of two,
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


def all_gather_bruck(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """Rank r gets all parts of rank r + d, for d = 1, 2, 4, ... It takes few rounds for any n.

    **Cost** rounds `lg_up`, messages `n * lg_up`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Bruck et al. 1997, IEEE TPDS 8(11); Thakur, Rabenseifner and Gropp 2005.
    """
    ranks = np.arange(n)
    # By now each has d parts, its own first; in the last round n - d are left to get.
    moves = (Moves(ranks, (ranks - d) % n, ranks, min(d, n - d)) for d in powers_below(n))
    return Schedule.of("all_gather", "bruck", n, parts_of(nbytes, n, itemsize), moves)


# -- reduce_scatter --------------------------------------------------------------------------------


def reduce_scatter_ring(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """Each part travels round the ring, and every rank adds its own data to it.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Patarasuk and Yuan 2009, JPDC 69(2).
    """
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "ring", n, chunks, ring_reduce_scatter(n))


def reduce_scatter_recursive_halving(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """At distance p/2, p/4, ..., 1 each rank sends the half that it will not keep.

    **Cost** rounds `lg + 2 * folds`, messages `p * lg + 2 * extra`; if n is a power of two,
    bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    folding = Folding(n)
    moves = chain(folding.in_(count=n), folding.halving(folding.first), folding.out(folding.folded))
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "recursive_halving", n, chunks, moves)


def reduce_scatter_pairwise(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """In round k each rank r sends to rank r + k the part of that rank. So no data travel twice.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    ranks = np.arange(n)
    others = ((ranks + k) % n for k in range(1, n))
    moves = (Moves(ranks, other, other, adds=True) for other in others)
    chunks = parts_of(nbytes, n, itemsize)
    return Schedule.of("reduce_scatter", "pairwise", n, chunks, moves)


# -- all_to_all ------------------------------------------------------------------------------------
#
# ``nbytes`` is the bytes of one rank's parts, or an array of shape (n, n): the bytes from i to j.


def all_to_all_pairwise(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """In round k each rank r sends to rank r + k and receives from rank r - k.

    **Cost** rounds `n - 1`, messages `n * (n - 1)`, bytes per rank `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    ranks = np.arange(n)
    others = ((ranks + k) % n for k in range(1, n))
    moves = (Moves(ranks, other, ranks * n + other) for other in others)
    return Schedule.of("all_to_all", "pairwise", n, _parts(n, nbytes, itemsize), moves)


def all_to_all_spread(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """All ranks send all parts at once, in one round. The messages of a rank share its link.

    **Cost** rounds `min(n - 1, 1)`, messages `n * (n - 1)`, bytes per rank
    `(n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1): post all sends and receives, then
    wait for them.
    """
    ranks = np.arange(n)
    shift = np.arange(1, n)[:, None]
    src, dst = np.broadcast_arrays(ranks, (ranks + shift) % n)
    src, dst = src.ravel(), dst.ravel()
    moves = [Moves(src, dst, src * n + dst)]
    return Schedule.of("all_to_all", "spread", n, _parts(n, nbytes, itemsize), moves)


def all_to_all_bruck(n: int, nbytes: Bytes, itemsize: int = 1) -> Schedule:
    """Parts travel by the bits of their distance, in few rounds with more bytes. For short parts.

    Consider a part that must travel o ranks. In the round with distance d = 1, 2, 4, ..., this part
    moves on by d ranks if o contains the bit d. A rank sends all parts that move in a round as one
    message.

    **Cost** rounds `lg_up`, messages `n * lg_up`; if n is a power of two, bytes per rank
    `lg_up * nbytes / 2`.

    **Source** Bruck et al. 1997, IEEE TPDS 8(11); Thakur, Rabenseifner and Gropp 2005, IJHPCA
    19(1).
    """
    return Schedule.of("all_to_all", "bruck", n, _parts(n, nbytes, itemsize), _by_bits(n))


def _by_bits(n):
    """In the round of distance d rank r sends all parts with bit d that it received or owns."""
    ranks = np.arange(n)
    for d in powers_below(n):
        far = ranks[ranks & d > 0]
        owner = (ranks[:, None] - far % d) % n  # has moved by the bits below d so far
        order = owner * n + (owner + far) % n
        first = ranks * len(far)
        yield Moves(ranks, (ranks + d) % n, first, len(far), order=order.ravel())


def bruck_in_bulk(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """`all_to_all_bruck` with one chunk for each message. It needs n lg n sizes instead of n * n.

    Messages and bytes are the same, but the schedule does not say which parts a message carries.
    """
    sizes = split(nbytes, n, itemsize)
    ranks, rounds, found = np.arange(n), powers_below(n), []
    for d in rounds:
        # Of far = d, 3d, 5d, ... and up to d - 1 more: each goes to rank + (far without the more).
        times = np.zeros(n, dtype=np.int64)
        times[d :: 2 * d] = np.minimum(d, n - ranks[d :: 2 * d])
        found.append(_larger_met(sizes, times))
    chunks = np.concatenate(found) if found else sizes
    moves = (Moves(ranks, (ranks + d) % n, k * n + ranks) for k, d in enumerate(rounds))
    return Schedule.of("all_to_all", "bruck", n, chunks, moves)


def _larger_met(sizes, times):
    """The sum over x of ``times[x] * sizes[(r + x) % n]``, for each r. Larger sizes come first."""
    n, larger = len(sizes), int((sizes > sizes[-1]).sum())
    before = np.concatenate(([0], np.cumsum(np.concatenate((times, times)))))
    begin = (-np.arange(n)) % n  # there r + x comes round to 0
    met = before[begin + larger] - before[begin]
    return times.sum() * sizes[-1] + met * (sizes[0] - sizes[-1])


def _parts(n, nbytes, itemsize):
    """The bytes of each chunk ``i * n + j``, from rank i to rank j."""
    if np.ndim(nbytes) == 0:
        return np.tile(split(nbytes, n, itemsize), n)
    return parts_of(nbytes, n * n)
