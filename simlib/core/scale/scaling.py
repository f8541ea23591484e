"""Strong and weak scaling: how much faster, or how much more, with more ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..draw.display import DisplayMixin
from ..model.errors import InvalidCallError, as_int, check_number
from ..model.words import aligned, seconds_text, short_bytes
from .training import step_time


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(DisplayMixin):
    """Times of the same training on different numbers of ranks.

    Attributes
    ----------
    kind : {"strong", "weak"}
        Whether the work of a step is the same for all, or for each rank.
    ranks : ndarray of int
    time_s : ndarray of float
        Seconds of a step.
    exposed_s : ndarray of float
        Of these, seconds of communication that no compute hides.
    base_ranks : int
        Speedup and efficiency are relative to so many ranks.
    base_s : float
        Seconds of a step on these.
    bucket_nbytes : ndarray of int
        Bytes of each bucket of gradients that is reduced on its own.
    """

    kind: str
    ranks: np.ndarray
    time_s: np.ndarray
    exposed_s: np.ndarray
    base_ranks: int
    base_s: float
    bucket_nbytes: np.ndarray

    @property
    def speedup(self):
        """How many times the work per second of ``base_ranks``: ndarray of float."""
        work = self.ranks / self.base_ranks if self.kind == "weak" else 1.0
        return work * self.base_s / self.time_s

    @property
    def efficiency(self):
        """Speedup over what so many times the ranks could give at best: ndarray of float."""
        return self.speedup * self.base_ranks / self.ranks

    def relative_to(self, ranks):
        """The same times; speedup and efficiency relative to one of these numbers of ranks."""
        (found,) = np.nonzero(self.ranks == ranks)
        if not len(found):
            there = ", ".join(map(str, self.ranks))
            raise InvalidCallError(f"no time on {ranks} ranks here: there are {there}")
        return replace(self, base_ranks=int(ranks), base_s=float(self.time_s[found[0]]))

    def table(self):
        """All numbers as plain text."""
        rows = [("ranks", "time", "exposed", "speedup", "efficiency")]
        columns = (self.ranks, self.time_s, self.exposed_s, self.speedup, self.efficiency)
        for n, time_s, exposed_s, speedup, efficiency in zip(*columns, strict=True):
            cells = seconds_text(time_s), seconds_text(exposed_s)
            rows.append((f"{n:,}", *cells, f"{speedup:,.2f}", f"{efficiency:.1%}"))
        base = f"{self.base_ranks:,} rank{'s' * (self.base_ranks != 1)}"
        title = f"{self.kind} scaling, {self._buckets_in_words()}, relative to {base}"
        return "\n".join([title, "", *aligned(rows)])

    def _buckets_in_words(self):
        count, most = len(self.bucket_nbytes), short_bytes(int(self.bucket_nbytes.max()))
        return f"{count} buckets of at most {most}" if count > 1 else f"one bucket of {most}"

    def __repr__(self):
        return self.table()

    def draw(self):
        """Draw time and efficiency over ranks. Returns a matplotlib Figure."""
        from .pictures import draw_scaling

        return draw_scaling(self)


def strong_scaling(ranks, model_bytes, cluster, *, forward_s, backward_s, **options):
    """The same work on more ranks: R ranks compute a part of 1/R each.

    Parameters
    ----------
    ranks : sequence of int
    model_bytes, cluster
        As for `step_time`.
    forward_s, backward_s : float
        Seconds of compute of the whole work on one rank.
    **options
        Further ones of `step_time`: ``overlap``, ``algorithm``, ``bucket_bytes``... Gradients go in
        buckets of 25 MiB where nothing else is said, each with its own latencies; with
        ``bucket_bytes=model_bytes`` in one.

    Returns
    -------
    Scaling
        Relative to one rank, which has nothing to communicate.

    Examples
    --------
    >>> import simlib
    >>> cluster = simlib.clusters.ethernet_10g(nodes=1024)
    >>> simlib.scale.strong_scaling(
    ...     [1, 4, 16, 64], 100e6, cluster, forward_s=0.4, backward_s=0.8, overlap=False
    ... )
    strong scaling, 4 buckets of at most 26.2 MB, relative to 1 rank
    <BLANKLINE>
    ranks    time  exposed  speedup  efficiency
        1   1.2 s      0 s     1.00      100.0%
        4  421 ms   121 ms     2.85       71.3%
       16  229 ms   154 ms     5.25       32.8%
       64  191 ms   173 ms     6.27        9.8%
    """
    return _scaling("strong", ranks, model_bytes, cluster, forward_s, backward_s, options)


def weak_scaling(ranks, model_bytes, cluster, *, forward_s, backward_s, **options):
    """The same work on each rank, so more of it on more ranks.

    Parameters
    ----------
    ranks : sequence of int
    model_bytes, cluster
        As for `step_time`.
    forward_s, backward_s : float
        Seconds of compute of each rank.
    **options
        Further ones of `step_time`: ``overlap``, ``algorithm``, ``bucket_bytes``... Gradients go in
        buckets of 25 MiB where nothing else is said, each with its own latencies; with
        ``bucket_bytes=model_bytes`` in one.

    Returns
    -------
    Scaling
        Relative to one rank, which has nothing to communicate.
    """
    return _scaling("weak", ranks, model_bytes, cluster, forward_s, backward_s, options)


def _scaling(kind, ranks, model_bytes, cluster, forward_s, backward_s, options):
    if np.ndim(ranks) != 1 or not len(ranks):
        raise InvalidCallError(f"ranks is {ranks!r}: give a list of numbers of ranks")
    for name, value in (("forward_s", forward_s), ("backward_s", backward_s)):
        check_number(name, value)
    ranks = np.array([as_int("ranks", n) for n in ranks])
    share = ranks if kind == "strong" else np.ones(len(ranks))
    steps = [
        step_time(
            model_bytes, n, cluster, forward_s=forward_s / k, backward_s=backward_s / k, **options
        )
        for n, k in zip(ranks.tolist(), share.tolist(), strict=True)
    ]
    return Scaling(
        kind=kind,
        ranks=ranks,
        time_s=np.array([step.time_s for step in steps]),
        exposed_s=np.array([step.exposed_s for step in steps]),
        base_ranks=1,
        base_s=float(forward_s + backward_s),
        bucket_nbytes=steps[0].bucket_nbytes,
    )
