"""Compute when each rank of a ring has done its part, in closed form for rings of any size.

In round k rank r passes a chunk on to rank r + 1, as in `collectives.steps`. Let e be the end of
that message. Then

    e(k, r) = step(k, r) + max(e(k-1, r-1), e(k-1, r), e(k-1, r+1)),

because both ranks of a message wait for the messages that they sent and received before. So e is
the largest sum of steps over all walks of k rounds. In each round, a walk stays at its rank, goes
to the next rank, or goes to the rank before. If all steps take equally long, e is k steps after the
latest start within k ranks. If some links are slow, the walk with the largest sum goes straight to
a slow link, stays there, and leaves it straight. If some chunks are one element larger, this walk
follows a large chunk round the ring.

In all other cases simlib computes round by round, if the number of ranks is small enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from .case import Case, common_step_s, shares_a_link

MAX_STEPS_BY_ROUNDS = 2 * 8192**2


@dataclass(frozen=True, eq=False)
class Ring:
    """The work of a ring.

    Attributes
    ----------
    starts : ndarray of float, shape (n,)
    latency_s, bandwidth_Bps : ndarray of float, shape (n,)
        Latency and bandwidth of the link from each rank to the next one.
    sizes : ndarray of int, shape (n,)
        Bytes of each chunk.
    rounds : int
    lag : int
        In round k rank r passes chunk ``r - k - 1 + lag`` on.
    adding : int
        The number of first rounds in which the receiver adds the data.
    envelope_bytes : int
    reduce_Bps : float
    """

    starts: np.ndarray
    latency_s: np.ndarray
    bandwidth_Bps: np.ndarray
    sizes: np.ndarray
    rounds: int
    lag: int
    adding: int
    envelope_bytes: int = 0
    reduce_Bps: float = inf

    @property
    def n(self) -> int:
        """Number of ranks."""
        return len(self.starts)

    @cached_property
    def begins(self) -> np.ndarray:
        """When each rank's first message starts, with both its ends ready."""
        return np.maximum(self.starts, np.roll(self.starts, -1))

    @property
    def start_together(self) -> bool:
        """Whether all ranks start at the same moment."""
        return bool((self.starts == self.starts[0]).all())

    @cached_property
    def larger(self) -> int | None:
        """The number of first chunks that are larger than the other chunks, if those are all alike.

        It is 0 if all chunks are alike, and None if the sizes have another pattern.
        """
        large, small = self.sizes.max(), self.sizes.min()
        count = int((self.sizes > small).sum())
        return count if (self.sizes[:count] == large).all() else None

    @property
    def heavy_s(self) -> np.ndarray:
        """Seconds of a step with the largest chunk, by link."""
        return self.step_s(self.sizes.max())

    @property
    def light_s(self) -> np.ndarray:
        """Seconds of a step with the smallest chunk, by link."""
        return self.step_s(self.sizes.min())

    def step_s(self, nbytes: int | np.ndarray) -> np.ndarray:
        """Seconds of a message of ``nbytes`` bytes on each link."""
        return self.latency_s + (nbytes + self.envelope_bytes) / self.bandwidth_Bps

    @staticmethod
    def of(kind: str, **fields: Any) -> Ring:
        """The ring of an all_reduce, a reduce_scatter or an all_gather."""
        n = len(fields["starts"])
        rounds, lag, adding = {
            "all_reduce": (2 * n - 2, 0, n - 1),
            "reduce_scatter": (n - 1, 0, n - 1),
            "all_gather": (n - 1, 1, 0),
        }[kind]
        return Ring(rounds=rounds, lag=lag, adding=adding, **fields)


@dataclass(frozen=True, eq=False)
class Members:
    """The ranks of a ring, the bytes of their chunks, and when each rank begins, as arrays."""

    ranks: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray


def ring_of_ranks(
    case: Case,
    kind: str,
    members: Members,
    last_only: bool = False,
    times: int = 1,
    share: int = 1,
) -> np.ndarray | None:
    """Compute when some ranks have done their part of a ring. None if the function does not know.

    Parameters
    ----------
    case : Case
    kind : {"all_reduce", "reduce_scatter", "all_gather"}
    members : Members
    last_only, share
        As for `ends_of_ring`.
    times : int
        How many times the ranks do all rounds, one time after the other.
    """
    ranks, sizes, starts = members.ranks, members.sizes, members.starts
    after = np.roll(ranks, -1)
    topology = case.topology
    if len(ranks) == 1:
        return starts.copy()
    latency_s, bandwidth_Bps = (
        topology.latencies_s(ranks, after),
        topology.bandwidths_Bps(ranks, after),
    )
    if shares_a_link(topology, ranks, after):
        step_s = common_step_s(case, ranks, after, int(sizes[0]))
        if step_s is None or (starts != starts[0]).any() or (sizes != sizes[0]).any():
            return None
        # The same times as if each message were alone on a slower link.
        latency_s, bandwidth_Bps = np.full(len(ranks), step_s), np.full(len(ranks), inf)
    spec = Ring.of(
        kind,
        starts=starts,
        latency_s=latency_s,
        bandwidth_Bps=bandwidth_Bps,
        sizes=sizes,
        envelope_bytes=case.envelope_bytes,
        reduce_Bps=case.reduce_Bps,
    )
    spec = replace(spec, rounds=times * spec.rounds, adding=times * spec.adding)
    return ends_of_ring(spec, last_only, share)


def ends_of_ring(ring: Ring, last_only: bool = False, share: int = 1) -> np.ndarray | None:
    """When each rank has done its part: ndarray of float, shape (n,). None if not known.

    With ``last_only`` only the largest value must be right. The caller computes ``share`` rings.
    All of them together may take as long to compute as one ring otherwise.
    """
    if ring.n == 1:
        return ring.starts.copy()
    ends = in_closed_form(ring, last_only)
    if ends is None and ring.n * ring.rounds * share <= MAX_STEPS_BY_ROUNDS:
        ends = by_rounds(ring)
    return ends


def in_closed_form(ring: Ring, last_only: bool = False) -> np.ndarray | None:
    """Like `ends_of_ring`, but never compute round by round."""
    larger = ring.larger
    if larger is None:
        return None
    is_one_sort = _all_alike(ring.heavy_s) and _all_alike(ring.light_s)
    if larger == 0:
        adding_s = ring.adding * (ring.sizes[0] / ring.reduce_Bps)
        messages = _after_the_latest(ring) if is_one_sort else even_chunks(ring)
        return None if messages is None else _ranks_of(messages) + adding_s
    if is_one_sort:
        messages = _following_large_chunks(ring)
    else:
        messages = uneven_chunks(ring, last_only)
    return None if messages is None else _ranks_of(messages)


def _all_alike(values):
    return bool((values == values[0]).all())


def _ranks_of(messages):
    """When each rank is done. A rank is done when its last send and its last receive are done."""
    return np.maximum(messages, np.roll(messages, 1))


def _after_the_latest(ring):
    """The ends if all steps take equally long, since n - 1 rounds reach every rank."""
    return np.full(ring.n, ring.starts.max() + ring.rounds * ring.light_s[0])


def _following_large_chunks(ring):
    """Ends of the last messages, if links are alike and the first ``m`` chunks are larger.

    Seen from a chunk, a walk goes 0, 1 or 2 chunks down in every round. A walk loses time on every
    small chunk, and loses no time on large chunks. A walk from the last small chunk down to the
    large chunks and on to the first small chunk just fits into n - 1 rounds.
    """
    n, m, rounds = ring.n, ring.larger, ring.rounds
    if ring.reduce_Bps < inf and not (ring.start_together and ring.adding < rounds):
        return None
    heavy_s, loss_s = ring.heavy_s[0], ring.heavy_s[0] - ring.light_s[0]
    chunk = np.arange(n)
    begin = ring.begins[(chunk + 1 - ring.lag) % n]  # by the chunk of the first message
    large, small = begin[:m], begin[m:]
    # Small chunks that a walk meets: before the first large one, after the last, and all between.
    before, after, between = (chunk[m:] - m + 2) // 2, (n - chunk[m:] + 1) // 2, (n - m) // 2
    from_small = (small - loss_s * before).max()
    from_above = np.maximum.accumulate(large[::-1])[::-1]
    all_round = large.max() - loss_s * between
    at_large = np.maximum(from_above, max(from_small, all_round))
    at_small = max(large.max(), from_small) - loss_s * after
    best = np.concatenate((at_large, at_small))
    adding_s = ring.adding * (ring.sizes[0] / ring.reduce_Bps)
    return rounds * heavy_s + adding_s + best[(chunk - rounds + ring.lag) % n]


def by_rounds(ring: Ring) -> np.ndarray:
    """Ends of any ring, computed round by round.

    **Cost** O(n) operations for each round.
    """
    n = ring.n
    twice = np.concatenate((ring.sizes, ring.sizes))
    ready = ring.starts.copy()
    for k in range(ring.rounds):
        first = (ring.lag - k - 1) % n
        nbytes = twice[first : first + n]
        end = np.maximum(ready, np.roll(ready, -1)) + ring.step_s(nbytes)
        ready = _ranks_of(end)
        if k < ring.adding and ring.reduce_Bps < inf:
            ready += np.roll(nbytes, 1) / ring.reduce_Bps
    return ready


# -- two kinds of links: those in a node and those between nodes -----------------------------------
#
# A time after K rounds is the largest sum of steps over all walks of K rounds. S and F are the
# seconds of a step on a slow and on a fast link. A walk of K rounds takes K S, less S - F for every
# round on a fast link. So the best walk goes to a slow link, stays, and leaves as late as it can.


def even_chunks(ring: Ring) -> np.ndarray | None:
    """Ends of the last messages, if chunks are alike: ndarray of shape (n,). None if unknown.

    A walk that goes to a slow link and then to its end may use only the rounds that the ring has.
    The function computes two results. One result also allows walks that are too long, and the other
    result allows only short walks. If both results are equal, they are right.
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
    """The longest run of False on a ring with at least one True."""
    places = np.flatnonzero(flags)
    return int(np.diff(places, append=places[0] + len(flags)).max()) - 1


def uneven_chunks(ring: Ring, last_only: bool = False) -> np.ndarray | None:
    """Ends of the last messages, if the first chunks are larger than the rest. None if unknown.

    Assume that a step with a large chunk takes longer by at most a. Chunks move by one rank a
    round. So a walk that changes from one slow link to the next meets, for each step, at most one
    large chunk more than a walk that stays. If S - F is large enough compared with a, walks never
    change: they go straight to the next slow link, stay there, and leave it straight.

    For the last of all ends (``last_only``), this is true with any starts. For every single end, it
    is true if no start is so late that its walk goes beyond the next slow link.
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
        """Seconds on a slow link, in the first ``rounds`` rounds."""
        return rounds * S + more_slow * chunks.in_turn(links - 1 + lag, rounds)

    def rides(chunk, rounds):
        """Seconds on the way to the next rank: always with the same chunk."""
        return rounds * (F + more_fast * chunks.is_large[chunk % n])

    def meets(chunk, rounds):
        """Seconds on the way to the rank before: every second chunk, beginning with this one."""
        return rounds * F + more_fast * chunks.every_second(chunk, rounds)

    # For each slow link, the best start of a walk that stays there, as if it had begun there.
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
        The number of fast links between each slow link and the next slow link.
    left, right : ndarray of int, shape (n,)
        The nearest slow link on each side. For a slow link, this is the link itself.
    left_number, right_number : ndarray of int, shape (n,)
        The places of these links in ``slow``.
    to_left, to_right : ndarray of int, shape (n,)
        Steps to these links.
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
    """Counts of large chunks: the first ``m`` of ``n`` chunks are large."""

    def __init__(self, n, m):
        self._n, self._m = n, m
        self.is_large = np.arange(n) < m
        thrice = np.tile(self.is_large, 3)
        self._every_second = np.empty(3 * n, dtype=np.int64)
        for parity in (0, 1):
            self._every_second[parity::2] = np.cumsum(thrice[parity::2])

    def in_turn(self, first, count):
        """The number of large chunks among ``count`` chunks first, first - 1, ... round the
        ring."""
        return self._below(first + 1) - self._below(first + 1 - count)

    def _below(self, chunk):
        """The number of large chunks among chunks 0 .. chunk - 1 of the unrolled ring."""
        return chunk // self._n * self._m + np.minimum(chunk % self._n, self._m)

    def every_second(self, first, count):
        """The number of large chunks among ``count`` (below n) chunks first, first - 2, ..."""
        top = first % self._n + 2 * self._n
        return self._every_second[top] - self._every_second[top - 2 * count]


# -- largest sums over many ways at once -----------------------------------------------------------
#
# Waiting of a rank is a maximum, and a message adds its time. So a time in a collective is the
# largest sum over all chains of messages that lead to it. If a chain of messages walks round a
# ring, this is a running maximum over prefix sums (Baccelli et al. 1992, Synchronization and
# Linearity).


def in_turn(first_s: float, others_s: np.ndarray, steps_s: np.ndarray) -> np.ndarray:
    """Ends of consecutive steps. Each step also waits for another rank.

    Parameters
    ----------
    first_s : float
        When the first step may begin.
    others_s : ndarray of float
        When the other rank for which each step waits is ready.
    steps_s : ndarray of float
        How long each step takes.

    Returns
    -------
    ndarray of float
        ``end[i] = max(end[i - 1], others_s[i]) + steps_s[i]``.
    """
    ends_s = np.cumsum(steps_s)
    latest = np.maximum.accumulate(others_s - (ends_s - steps_s))
    return ends_s + np.maximum(first_s, latest)


def sweep(values: np.ndarray, costs: np.ndarray, reach: int) -> np.ndarray:
    """For each place of a ring, the best value of a straight walk to it from either side.

    Parameters
    ----------
    values : ndarray of float, shape (n,)
        The value at each place, where a walk may begin.
    costs : ndarray of float, shape (n,)
        What a walk loses when it enters a place. Not negative.
    reach : int
        The longest walk, in steps.

    Returns
    -------
    ndarray of float, shape (n,)
    """
    up = _sweep_up(values, costs, reach)
    down = _sweep_up(values[::-1], costs[::-1], reach)[::-1]
    return np.maximum(up, down)


def _sweep_up(values, costs, reach):
    n = len(values)
    paid = np.cumsum(np.concatenate((costs, costs)))
    best = trailing_max(np.concatenate((values, values)) + paid, min(reach, n) + 1)
    return (best - paid)[n:]


def trailing_max(values: np.ndarray, width: int) -> np.ndarray:
    """At each place, the largest of the last ``width`` values: ndarray of the same shape."""
    best = values
    span = 1
    while span < width:
        step = min(span, width - span)
        best = np.concatenate((best[:step], np.maximum(best[step:], best[:-step])))
        span += step
    return best
