"""A ring of any size, in closed form: when each rank has done its part.

In round k rank r passes a chunk on to rank r + 1, as `collectives.steps` has it. Let e be the end
of that message; then

    e(k, r) = step(k, r) + max(e(k-1, r-1), e(k-1, r), e(k-1, r+1)),

since each end of a message waits for what it sent and for what it received. So e is the largest sum
of steps over all walks of k rounds that stay, go to the next rank or to the one before. Where all
steps last as long, that is k steps after the latest start in reach. Where some links are slow, the
best walk goes straight to a slow link, stays there, and goes straight on (`two_sorts`). Where some
chunks are one element larger, it follows a large chunk round the ring.

Whatever is not covered is worked out round by round, for as many ranks as that is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from . import two_sorts
from .case import common_step_s, shares_a_link

MAX_STEPS_BY_ROUNDS = 2 * 8192**2


@dataclass(frozen=True, eq=False)
class Ring:
    """What a ring has to do.

    Attributes
    ----------
    starts : ndarray of float, shape (n,)
    latency_s, bandwidth_Bps : ndarray of float, shape (n,)
        Of the link from each rank to the next one.
    sizes : ndarray of int, shape (n,)
        Bytes of each chunk.
    rounds : int
    lag : int
        In round k rank r passes chunk ``r - k - 1 + lag`` on.
    adding : int
        In so many first rounds the receiver adds what comes.
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
    def n(self):
        """Number of ranks."""
        return len(self.starts)

    @cached_property
    def begins(self):
        """When each rank's first message starts: both its ends are there."""
        return np.maximum(self.starts, np.roll(self.starts, -1))

    @property
    def start_together(self):
        """Whether all ranks start at the same moment."""
        return bool((self.starts == self.starts[0]).all())

    @cached_property
    def larger(self):
        """How many chunks come first that are larger than the others, which are alike.

        0 where all are alike, None where sizes are otherwise.
        """
        large, small = self.sizes.max(), self.sizes.min()
        count = int((self.sizes > small).sum())
        return count if (self.sizes[:count] == large).all() else None

    @property
    def heavy_s(self):
        """Seconds of a step with the largest chunk, by link."""
        return self.step_s(self.sizes.max())

    @property
    def light_s(self):
        """Seconds of a step with the smallest chunk, by link."""
        return self.step_s(self.sizes.min())

    def step_s(self, nbytes):
        """Seconds of a message of so many bytes on each link."""
        return self.latency_s + (nbytes + self.envelope_bytes) / self.bandwidth_Bps

    @staticmethod
    def of(kind, **fields):
        """The ring of an all_reduce, a reduce_scatter or an all_gather."""
        n = len(fields["starts"])
        rounds, lag, adding = {
            "all_reduce": (2 * n - 2, 0, n - 1),
            "reduce_scatter": (n - 1, 0, n - 1),
            "all_gather": (n - 1, 1, 0),
        }[kind]
        return Ring(rounds=rounds, lag=lag, adding=adding, **fields)


def ring_of_ranks(case, kind, ranks, sizes, starts, last_only=False, times=1, share=1):
    """When some ranks have done their part of a ring; None where unknown.

    Parameters
    ----------
    case : Case
    kind : {"all_reduce", "reduce_scatter", "all_gather"}
    ranks, sizes, starts : ndarray
        Of the ring: who is in it, bytes of the chunks, when each begins.
    last_only, share
        As for `ends_of_ring`.
    times : int
        All its rounds so often, one after the other.
    """
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
        # As if each were alone on a link that is slower by so much.
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


def ends_of_ring(ring, last_only=False, share=1):
    """When each rank has done its part: ndarray of float, shape (n,); None where unknown.

    With ``last_only`` only the largest of them needs to be right. ``share``: this is one of so many
    rings that may take as long as one together.
    """
    if ring.n == 1:
        return ring.starts.copy()
    ends = in_closed_form(ring, last_only)
    if ends is None and ring.n * ring.rounds * share <= MAX_STEPS_BY_ROUNDS:
        ends = by_rounds(ring)
    return ends


def in_closed_form(ring, last_only=False):
    """As `ends_of_ring`, without its last resort."""
    larger = ring.larger
    if larger is None:
        return None
    is_one_sort = _all_alike(ring.heavy_s) and _all_alike(ring.light_s)
    if larger == 0:
        adding_s = ring.adding * (ring.sizes[0] / ring.reduce_Bps)
        messages = _after_the_latest(ring) if is_one_sort else two_sorts.even_chunks(ring)
        return None if messages is None else _ranks_of(messages) + adding_s
    if is_one_sort:
        messages = _following_large_chunks(ring)
    else:
        messages = two_sorts.uneven_chunks(ring, last_only)
    return None if messages is None else _ranks_of(messages)


def _all_alike(values):
    return bool((values == values[0]).all())


def _ranks_of(messages):
    """A rank is done when the last message it sent and the last it received are done."""
    return np.maximum(messages, np.roll(messages, 1))


def _after_the_latest(ring):
    """All steps last as long, and n - 1 rounds reach everybody."""
    return np.full(ring.n, ring.starts.max() + ring.rounds * ring.light_s[0])


def _following_large_chunks(ring):
    """One sort of link; the first ``m`` chunks are larger. Ends of the last messages.

    Seen from a chunk, a walk goes 0, 1 or 2 chunks down in every round. It loses something on every
    small chunk, and nothing as long as it stays among the large ones. A walk from the last small
    chunk down to the large ones and on to the first small one just fits into n - 1 rounds.
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


def by_rounds(ring):
    """Any ring, round by round.

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
