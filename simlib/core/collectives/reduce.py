"""reduce: every rank has a vector, and the root gets the sum."""

from __future__ import annotations

from itertools import chain as one_after_the_other
from typing import TYPE_CHECKING

import numpy as np

from .schedules import Schedule, chain_chunks, split, tree_chunks
from .steps import Folding, Moves, binomial_reduce, in_turn, two_tree_reduce

if TYPE_CHECKING:
    from ..model.cluster import Link


def flat(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """One rank after the other sends its vector to the root.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `nbytes`.

    **Source** the obvious first version.
    """
    moves = (Moves(other, np.array([root]), adds=True) for other in in_turn(n, root))
    return Schedule.of("reduce", "flat", n, split(nbytes, 1, itemsize), moves, root)


def binomial(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """Sums go down a binomial tree. Good for short vectors.

    **Cost** rounds `lg_up`, messages `n - 1`, bytes per rank `nbytes`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_reduce(n, root)
    return Schedule.of("reduce", "binomial", n, split(nbytes, 1, itemsize), moves, root)


def rabenseifner(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """A reduce-scatter by recursive halving, then a binomial gather. Good for long vectors.

    The algorithm cuts the vector into p chunks. As in `all_reduce.rabenseifner`, ranks send the
    largest halves to the neighbour at distance 1. Odd ranks are folded into the even ranks before
    them. If the root is a folded rank, it takes the place of rank 0 before the gather.

    **Cost** rounds `2 * lg + folds + root_folded`, messages
    `p * lg + extra + p - 1 + root_folded`; if n is a power of two, bytes per rank
    `(n - 1) * nbytes / n + (n > 1) * p / 2 * nbytes / n`.

    **Source** Rabenseifner 2004, ICCS, LNCS 3036; Thakur, Rabenseifner and Gropp 2005, IJHPCA
    19(1). Direction: MPICH, reduce_intra_reduce_scatter_gather.c; Open MPI, coll_base_reduce.c,
    ompi_coll_base_reduce_intra_redscat_gather. Folding: MPICH's (Open MPI swaps halves first).
    """
    folding = Folding(n, into_even=True)
    moves = list(
        one_after_the_other(
            folding.in_(count=folding.p),
            folding.halving_from_near(),  # participant j now has the sum of one chunk
        )
    )
    if root in folding.folded:
        moves.append(Moves(np.array([0]), np.array([root])))
        folding.rank_of = np.concatenate(([root], folding.rank_of[1:]))
    participant = int(np.flatnonzero(folding.rank_of == root)[0])
    moves += folding.gather_from_far(participant)
    chunks = split(nbytes, folding.p, itemsize)
    return Schedule.of("reduce", "rabenseifner", n, chunks, moves, root)


def chain(
    n: int,
    nbytes: int,
    itemsize: int = 1,
    root: int = 0,
    chunks: int | None = None,
    link: Link | None = None,
) -> Schedule:
    """The chain of `broadcast.chain` backwards: sums go towards the root in s chunks.

    **Cost** rounds `n + s - 2`, messages `(n - 1) * s`, bytes per rank `nbytes`.

    **Source** Patarasuk, Faraj and Yuan 2006, IPDPS, in reverse.
    """
    s = chain_chunks(n, nbytes, chunks, link)
    sizes = split(nbytes, s, itemsize)
    return Schedule.of("reduce", "chain", n, sizes, _chain_steps(n, root, s), root)


def _chain_steps(n, root, s):
    """In round k the rank at place w from the end of the chain sends chunk k - w towards the
    root."""
    for k in range(n + s - 2):
        w = np.arange(max(0, k - s + 1), min(k, n - 2) + 1)
        v = n - 1 - w
        yield Moves((v + root) % n, (v - 1 + root) % n, k - w, adds=True)


def double_tree(
    n: int,
    nbytes: int,
    itemsize: int = 1,
    root: int = 0,
    chunks: int | None = None,
    link: Link | None = None,
) -> Schedule:
    """`broadcast.double_tree` backwards: each of two trees sums half of the bytes towards the root.

    **Cost** rounds `2 * (lg_up + s - 1)`, messages `2 * s * (n - 1)`, bytes per rank `nbytes`.

    **Source** Sanders, Speck and Traeff 2009, Parallel Computing 35(12).
    """
    s = tree_chunks(n, nbytes, chunks, link)
    sizes = split(nbytes, 2 * s, itemsize)
    return Schedule.of("reduce", "double_tree", n, sizes, two_tree_reduce(n, root, s), root)
