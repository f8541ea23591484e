"""Rings with two sorts of links, those in a node and those between nodes, in closed form.

See `rings`: a moment is the largest sum of steps over all walks of so many rounds. S and F are the
seconds of a step on a slow and on a fast link. A walk of K rounds has K S, less S - F for every
round on a fast link; so it goes to a slow link, stays, and leaves it as late as it can.
"""

from __future__ import annotations

from math import inf

import numpy as np

from .maxplus import sweep


def even_chunks(ring):
    """All chunks alike: ends of the last messages, ndarray of shape (n,); None where unknown.

    A walk to a slow link and on to its end must not take more rounds than there are. Two answers
    are found: one allows walks that are too long, one only short ones. Where they agree they are
    right.
    """
    step_s = ring.light_s
    slow = step_s == step_s.max()
    losses = step_s.max() - step_s
    to_a_slow_one = min(ring.n // 2, _longest_run_of_false(slow) + 1)

    def best(there, back):
        at_slow = sweep(ring.begins - losses, losses, there)
        return sweep(np.where(slow, at_slow, -inf), losses, back)

    most = best(ring.n - 1, ring.n - 1)
    least = best(to_a_slow_one, ring.rounds - 1 - to_a_slow_one)
    all_slow_s = ring.rounds * step_s.max()
    tolerance_s = 1e-12 * (np.abs(most).max() + all_slow_s)
    return all_slow_s + least if (most - least <= tolerance_s).all() else None


def _longest_run_of_false(flags):
    """On a ring with at least one True."""
    places = np.flatnonzero(flags)
    return int(np.diff(places, append=places[0] + len(flags)).max()) - 1


def uneven_chunks(ring, last_only=False):
    """The first chunks are larger than the others: ends of the last messages; None where unknown.

    Let a step with a large chunk last longer by at most a. As chunks move by one rank a round, a
    walk that changes from one slow link to the next meets at most one large chunk more for each
    step than one that stays. So where S - F is large enough against a, walks never change: they go
    straight to the next slow link, stay and leave it straight.

    That holds for the last of all ends whatever the starts (``last_only``); for every single one
    where no start is so late that its walk reaches beyond the next slow link.
    """
    light, heavy = ring.light_s, ring.heavy_s
    slow = light > light.min()
    if ring.reduce_Bps < inf or not slow.any():
        return None
    S, F = light.max(), light.min()
    more_slow, more_fast = (heavy - light)[slow][0], (heavy - light)[~slow][0]
    more = max(more_slow, more_fast)
    loss = S - F - max(0.0, more_fast - more_slow)
    ways = _Ways(slow)
    fewest, most = ways.between.min(), ways.between.max()
    if not fewest or loss < 2 * more * most or ring.rounds < 2 * most + 1:
        return None  # a change might pay

    n, K, lag, place = ring.n, ring.rounds, ring.lag, np.arange(ring.n)
    chunks = _Chunks(n, ring.larger)

    def stays(links, rounds):
        """Seconds on a slow link, in so many first rounds."""
        return rounds * S + more_slow * chunks.in_turn(links - 1 + lag, rounds)

    def rides(chunk, rounds):
        """Seconds on the way to the next rank: always with the same chunk."""
        return rounds * (F + more_fast * chunks.is_large[chunk % n])

    def meets(chunk, rounds):
        """Seconds on the way to the rank before: every second chunk, beginning with this one."""
        return rounds * F + more_fast * chunks.every_second(chunk, rounds)

    # What the best start gives a walk that stays on each slow link, as if it had begun there.
    first_chunk, to_left, to_right = place - 1 + lag, ways.to_left, ways.to_right
    by_right = ring.begins + rides(first_chunk, to_right) - stays(ways.right, to_right)
    by_left = ring.begins + meets(first_chunk, to_left) - stays(ways.left, to_left)
    given = np.full(len(ways.slow), -inf)
    np.maximum.at(given, ways.right_number, by_right)
    np.maximum.at(given, ways.left_number, by_left)
    reaches = np.abs(np.diff(given, append=given[0]))
    if not last_only and (reaches > loss * ways.between - more * (ways.between + 1)).any():
        return None

    last_chunk, first_back = place - K + lag, ways.right - 2 - K + to_right + lag
    from_left = stays(ways.left, K - to_left) + rides(last_chunk, to_left)
    from_right = stays(ways.right, K - to_right) + meets(first_back, to_right)
    return np.maximum(given[ways.left_number] + from_left, given[ways.right_number] + from_right)


class _Ways:
    """From each link of a ring to the slow links next to it.

    Attributes
    ----------
    slow : ndarray of int
        The slow links.
    between : ndarray of int
        Fast links between each slow one and the next.
    left, right : ndarray of int, shape (n,)
        The nearest slow link on each side; a slow one itself.
    left_number, right_number : ndarray of int, shape (n,)
        Their places in ``slow``.
    to_left, to_right : ndarray of int, shape (n,)
        Steps to them.
    """

    def __init__(self, is_slow):
        n, place = len(is_slow), np.arange(len(is_slow))
        self.slow = np.flatnonzero(is_slow)
        self.between = np.diff(self.slow, append=self.slow[0] + n) - 1
        count = len(self.slow)
        self.left_number = (np.searchsorted(self.slow, place, side="right") - 1) % count
        self.right_number = np.searchsorted(self.slow, place, side="left") % count
        self.left, self.right = self.slow[self.left_number], self.slow[self.right_number]
        self.to_left, self.to_right = (place - self.left) % n, (self.right - place) % n


class _Chunks:
    """Counts of large chunks, of which there are ``m`` at the beginning of ``n``."""

    def __init__(self, n, m):
        self._n, self._m = n, m
        self.is_large = np.arange(n) < m
        thrice = np.tile(self.is_large, 3)
        self._every_second = np.empty(3 * n, dtype=np.int64)
        for parity in (0, 1):
            self._every_second[parity::2] = np.cumsum(thrice[parity::2])

    def in_turn(self, first, count):
        """Of the chunks first, first - 1, ...: ``count`` of them, round the ring."""
        return self._below(first + 1) - self._below(first + 1 - count)

    def _below(self, chunk):
        """Large ones among 0 .. chunk - 1, where the ring is unrolled."""
        return chunk // self._n * self._m + np.minimum(chunk % self._n, self._m)

    def every_second(self, first, count):
        """Of the chunks first, first - 2, ...: ``count`` of them, fewer than n."""
        top = first % self._n + 2 * self._n
        return self._every_second[top] - self._every_second[top - 2 * count]
