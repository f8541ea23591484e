"""Into how many chunks a pipeline cuts its vector."""

from __future__ import annotations

import functools
from math import isinf, sqrt

from ..model.errors import check_count

SEGMENT_BYTES = 65536
RING_SEGMENT_BYTES = 1 << 20


def _unless_given(best):
    """A function of n, nbytes, chunks and link: the chunks if given, else the best number."""

    @functools.wraps(best)
    def chunks_of(n, nbytes, chunks, link=None):
        if chunks is None:
            return best(n, nbytes, link)
        check_count("chunks", chunks)
        return chunks

    return chunks_of


@_unless_given
def chain_chunks(n, nbytes, link):
    """The number of chunks of a chain; see `broadcast.chain`."""
    if link is not None:
        return best_chunks(n, nbytes, link)
    return max(1, -(-nbytes // SEGMENT_BYTES))


@_unless_given
def ring_chunks(n, nbytes, link):
    """The number of chunks of each block of a ring; see `all_reduce.ring_segmented`."""
    return max(1, -(-nbytes // (n * RING_SEGMENT_BYTES)))


@_unless_given
def tree_chunks(n, nbytes, link):
    """The number of chunks of each of two trees; see `broadcast.double_tree`."""
    if link is not None:
        return best_tree_chunks(n, nbytes, link)
    return max(1, -(-nbytes // (2 * SEGMENT_BYTES)))


def best_chunks(n, nbytes, link):
    """The number of chunks s that makes (n + s - 2) (latency + nbytes / s / bandwidth) least.

    That is sqrt(nbytes / bandwidth (n - 2) / latency), rounded; at least 1, at most one for each
    byte.
    """
    return _best(n - 2, nbytes, link)


def best_tree_chunks(n, nbytes, link):
    """The s that makes (ceil(lg n) + s - 1) (latency + nbytes / (2 s) / bandwidth) least.

    As `best_chunks`: each tree has half of the bytes.
    """
    return _best((n - 1).bit_length() - 1, (nbytes + 1) // 2, link)


def _best(fill, nbytes, link):
    """Where it takes ``fill`` rounds until the last rank has something to do."""
    if fill <= 0 or nbytes == 0 or isinf(link.bandwidth_Bps):
        return 1
    if link.latency_s == 0:
        return nbytes
    best = sqrt(nbytes / link.bandwidth_Bps * fill / link.latency_s)
    return int(min(max(1, round(best)), nbytes))


CHUNKS = {"chain": chain_chunks, "ring_segmented": ring_chunks, "double_tree": tree_chunks}
"""Of each algorithm that takes ``chunks``: how many where they are given or not, as a function."""
