"""all_to_all: rank i has n parts, part j goes to rank j.

``nbytes`` is what one rank brings; or the bytes from i to j, as an array of shape (n, n).
"""

from __future__ import annotations

import numpy as np

from .schedules import Schedule, parts_of, split
from .steps import Moves, powers_below


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


def bruck(n, nbytes, itemsize=1):
    """Parts travel by the bits of how far they go: few rounds, more bytes, for short parts.

    A part that is to go o ranks on moves d ranks on in the round of distance d = 1, 2, 4, ...,
    where o has that bit; a rank sends all parts that move in a round as one message.

    **Cost** rounds `lg_up`, messages `n * lg_up`; where n is a power of two, bytes per rank
    `lg_up * nbytes / 2`.

    **Source** Bruck et al. 1997, IEEE TPDS 8(11); Thakur, Rabenseifner and Gropp 2005, IJHPCA
    19(1).
    """
    return Schedule.of("all_to_all", "bruck", n, _parts(n, nbytes, itemsize), _by_bits(n))


def _by_bits(n):
    """In the round of distance d rank r sends what has come to it, or is its own, and has bit d."""
    ranks = np.arange(n)
    for d in powers_below(n):
        far = ranks[ranks & d > 0]
        owner = (ranks[:, None] - far % d) % n  # has moved by the bits below d so far
        order = owner * n + (owner + far) % n
        first = ranks * len(far)
        yield Moves(ranks, (ranks + d) % n, first, len(far), order=order.ravel())


def bruck_in_bulk(n, nbytes, itemsize=1):
    """`bruck` with each message as a chunk of its own: n lg n sizes, not those of n * n parts.

    The same messages and bytes; what they carry is not said.
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
    """Sum over x of ``times[x] * sizes[(r + x) % n]`` for each r; the larger sizes come first."""
    n, larger = len(sizes), int((sizes > sizes[-1]).sum())
    before = np.concatenate(([0], np.cumsum(np.concatenate((times, times)))))
    begin = (-np.arange(n)) % n  # there r + x comes round to 0
    met = before[begin + larger] - before[begin]
    return times.sum() * sizes[-1] + met * (sizes[0] - sizes[-1])


def _parts(n, nbytes, itemsize):
    """Bytes of chunk ``i * n + j``."""
    if np.ndim(nbytes) == 0:
        return np.tile(split(nbytes, n, itemsize), n)
    return parts_of(nbytes, n * n)
