"""broadcast: every rank gets the root's vector."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as one_after_the_other
from typing import TYPE_CHECKING

import numpy as np

from .schedules import Schedule, chain_chunks, split, tree_chunks
from .steps import (
    Folding,
    Moves,
    binomial_broadcast,
    binomial_scatter,
    in_turn,
    ring_all_gather,
    two_tree_broadcast,
)

if TYPE_CHECKING:
    from ..model.cluster import Link


def flat(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """The root sends to one rank after the other.

    **Cost** rounds `n - 1`, messages `n - 1`, bytes per rank `(n - 1) * nbytes`.

    **Source** the obvious first version.
    """
    moves = (Moves(np.array([root]), other) for other in in_turn(n, root))
    return Schedule.of("broadcast", "flat", n, split(nbytes, 1, itemsize), moves, root)


def spread(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """The root sends to all ranks at once: one round, in which the messages share its link.

    **Cost** rounds `min(n - 1, 1)`, messages `n - 1`, bytes per rank `(n - 1) * nbytes`.

    **Source** the obvious first version with ``isend``.
    """
    others = np.delete(np.arange(n), root)
    moves = [Moves(np.full(n - 1, root), others)]
    return Schedule.of("broadcast", "spread", n, split(nbytes, 1, itemsize), moves, root)


def binomial(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """Ranks with the data send the data on. So the number of ranks with data doubles each round.

    **Cost** rounds `lg_up`, messages `n - 1`, bytes per rank `lg_up * nbytes`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = binomial_broadcast(n, root)
    return Schedule.of("broadcast", "binomial", n, split(nbytes, 1, itemsize), moves, root)


def scatter_all_gather(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """A binomial scatter of n chunks, then an all_gather round a ring. Good for long vectors.

    **Cost** rounds `lg_up + n - 1`, messages `n - 1 + n * (n - 1)`; if n is a power of two,
    bytes per rank `2 * (n - 1) * nbytes / n`.

    **Source** van de Geijn's algorithm, in Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = one_after_the_other(
        binomial_scatter(n, root),  # rank r now has chunk r
        ring_all_gather(n),
    )
    chunks = split(nbytes, n, itemsize)
    return Schedule.of("broadcast", "scatter_all_gather", n, chunks, moves, root)


def scatter_doubling(n: int, nbytes: int, itemsize: int = 1, root: int = 0) -> Schedule:
    """A binomial scatter of n chunks, then an all_gather by recursive doubling. For middle sizes.

    **Cost** rounds `lg_up + lg + 2 * folds`, messages `n - 1 + p * lg + 2 * extra`; if n is a
    power of two, bytes per rank `2 * (n - 1) * nbytes / n`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    folding = Folding(n)
    moves = one_after_the_other(
        binomial_scatter(n, root),  # rank r now has chunk r
        folding.in_(folding.folded, adds=False),
        folding.doubling(folding.first),
        folding.out(folding.folded + 1, n - 1),  # all but the folded rank's own chunk
    )
    chunks = split(nbytes, n, itemsize)
    return Schedule.of("broadcast", "scatter_doubling", n, chunks, moves, root)


def chain(
    n: int,
    nbytes: int,
    itemsize: int = 1,
    root: int = 0,
    chunks: int | None = None,
    link: Link | None = None,
) -> Schedule:
    """Data go from rank to rank in s chunks. A rank passes on a chunk while it receives the next.

    Parameters
    ----------
    chunks : int, optional
        Number of chunks, s.
    link : Link, optional
        Without ``chunks``, s is the best number for this link. Without both, a chunk has 64 KiB.

    **Cost** rounds `n + s - 2`, messages `(n - 1) * s`, bytes per rank `nbytes`.

    **Source** Patarasuk, Faraj and Yuan 2006, IPDPS; `best_chunks` computes the best number of
    chunks.
    """
    s = chain_chunks(n, nbytes, chunks, link)
    sizes = split(nbytes, s, itemsize)
    return Schedule.of("broadcast", "chain", n, sizes, chain_steps(n, root, s), root)


def chain_steps(n: int, root: int, s: int) -> Iterator[Moves]:
    """In round k the rank at distance v sends chunk k - v to the next rank."""
    for k in range(n + s - 2):
        v = np.arange(max(0, k - s + 1), min(k, n - 2) + 1)
        yield Moves((v + root) % n, (v + 1 + root) % n, k - v)


def double_tree(
    n: int,
    nbytes: int,
    itemsize: int = 1,
    root: int = 0,
    chunks: int | None = None,
    link: Link | None = None,
) -> Schedule:
    """Each of two binary trees carries half of the bytes, in s chunks: see `steps`.

    A rank that passes chunks on in one tree is a leaf of the other tree. So a long vector takes
    hardly longer than with `chain`, and the last rank gets its first chunk as early as in a tree.

    Parameters
    ----------
    chunks : int, optional
        Number of chunks of each tree, s.
    link : Link, optional
        Without ``chunks``, s is the best number for this link. Without both, a chunk has 64 KiB.

    **Cost** rounds `2 * (lg_up + s - 1)`, messages `2 * s * (n - 1)`, bytes per rank `nbytes`.

    **Source** Sanders, Speck and Traeff 2009, Parallel Computing 35(12).
    """
    s = tree_chunks(n, nbytes, chunks, link)
    sizes = split(nbytes, 2 * s, itemsize)
    moves = two_tree_broadcast(n, root, s)
    return Schedule.of("broadcast", "double_tree", n, sizes, moves, root)
