"""A chain of any length: chunk after chunk along a line of ranks.

Chunk j crosses from place v to place v + 1 when that chunk has come to v, when the chunk before has
crossed, and when place v + 1 has passed the chunk before that one on. So for each chunk the ends
along the line are a running maximum over prefix sums.
"""

from __future__ import annotations

from math import inf

import numpy as np

MAX_STEPS = 200_000_000


def ends_of_chain(starts, step_s, sizes, reduce_Bps=inf):
    """When each place of the line has done its part; None where that takes too long.

    Parameters
    ----------
    starts : ndarray of float, shape (n,)
        By place.
    step_s : callable
        ``step_s(nbytes)``: seconds of a message of so many bytes, from each place to the next.
    sizes : ndarray of int
        Bytes of each chunk.
    reduce_Bps : float
        At which each place adds what comes.

    **Cost** O(n) for chunks that are alike on links that are alike, with equal starts; else
    O(n * chunks).
    """
    if reduce_Bps == inf and (starts == starts[0]).all():
        heavy_s, light_s = step_s(sizes.max()), step_s(sizes.min())
        if (heavy_s == heavy_s[0]).all() and (light_s == light_s[0]).all():
            larger = int((sizes > sizes.min()).sum())
            return starts + _even_links(len(starts), len(sizes), larger, heavy_s[0], light_s[0])
    if len(starts) * len(sizes) > MAX_STEPS:
        return None
    return _chunk_by_chunk(starts, step_s, sizes, reduce_Bps)


def _even_links(n, chunks, larger, heavy_s, light_s):
    """All steps are alike but for the size of the chunk; the first ones are larger.

    Place v has sent all after v + chunks steps. The slowest sequence of steps meets the fewest
    small chunks: it skips every second one, where there are places ahead that it can come back
    from.
    """
    if not larger:
        larger = chunks
    place = np.minimum(np.arange(n), n - 2)  # the last place is done with the one before
    small = chunks - larger
    met = np.maximum((small + 1) // 2, small - (n - 2 - place))
    return (place + chunks) * heavy_s - met * (heavy_s - light_s)


def _chunk_by_chunk(starts, step_s, sizes, reduce_Bps):
    steps = len(starts) - 1
    place = np.arange(steps)
    before = np.full(steps, -inf)  # ends of the chunk before, and of the one before that
    two_before = np.full(steps, -inf)
    adding_before_s = 0.0
    allowed = np.maximum(starts[:-1], starts[1:])
    seconds = {nbytes: step_s(nbytes) for nbytes in set(sizes.tolist())}
    for nbytes in sizes.tolist():
        adding_s = nbytes / reduce_Bps
        message_s = seconds[nbytes]
        total_s = np.cumsum(message_s) + place * adding_s
        end = total_s + np.maximum.accumulate(allowed - (total_s - message_s))
        two_before, before, adding_before_s = before, end, adding_s
        # What place v and place v + 1 have to do before the next chunk crosses between them.
        allowed = before + adding_before_s
        allowed[:-1] = np.maximum(allowed[:-1], two_before[1:] + adding_before_s)
    return np.append(before, before[-1] + adding_before_s)
