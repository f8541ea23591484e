"""Steps of ranks whose compute varies from step to step: drawn by a seed, then timed exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.chance import Jitter, check_kind, check_spread, draw
from ..model.errors import InvalidCallError, as_int, check_count, check_number
from ..model.words import aligned, seconds_text
from .buckets import BUCKET_BYTES, bucket_sizes
from .collective import ends_of
from .training import one_step, ready_times, seconds_of_each_rank, share_of_backward


@dataclass(frozen=True, eq=False, repr=False)
class JitteredSteps:
    """Training steps, one after the other, of ranks whose compute varies.

    Attributes
    ----------
    ranks : int
    factors : ndarray of float, shape (steps, ranks)
        What each rank's compute was multiplied by in each step.
    end_s : ndarray of float, shape (steps, ranks)
        When each rank has done each step; the first begins at 0.
    steady_s : float
        Seconds of a step, on average over as many, where no compute varies.
    """

    ranks: int
    factors: np.ndarray
    end_s: np.ndarray
    steady_s: float

    @property
    def time_s(self):
        """When the last rank is done with all steps."""
        return float(self.end_s.max())

    @property
    def times_s(self):
        """Seconds of each step, from last rank to last rank: ndarray of float, shape (steps,)."""
        return np.diff(self.end_s.max(axis=1), prepend=0.0)

    @property
    def step_s(self):
        """Seconds of a step, on average."""
        return self.time_s / len(self.end_s)

    @property
    def slowdown(self):
        """How much longer a step takes on average than one in which no compute varies."""
        return self.step_s / self.steady_s if self.steady_s else 1.0

    def table(self):
        """The steps as plain text."""
        times_s = self.times_s
        rows = [
            ("mean", "shortest", "median", "longest", "without jitter"),
            tuple(
                seconds_text(float(value))
                for value in (
                    self.step_s,
                    times_s.min(),
                    np.median(times_s),
                    times_s.max(),
                    self.steady_s,
                )
            ),
        ]
        title = (
            f"{len(times_s):,} steps on {self.ranks:,} rank{'s' * (self.ranks != 1)}: "
            f"{self.slowdown - 1:+.1%} by jitter"
        )
        return "\n".join([title, "", *aligned(rows)])

    def __repr__(self):
        return self.table()


def jittered_time(
    model_bytes,
    ranks,
    cluster,
    *,
    forward_s,
    backward_s,
    jitter="normal",
    spread=0.1,
    seed=0,
    steps=100,
    ready_s=None,
    bucket_bytes=BUCKET_BYTES,
    overlap=True,
    algorithm="ring",
    placement="block",
    itemsize=4,
):
    """Steps of data-parallel training in which each rank's compute varies, one after the other.

    Each step is that of `step_time`, but that forward, backward and the moments of ``ready_s`` are
    multiplied by a factor of the step and the rank, and that a rank begins its next step as soon as
    it has computed all and has all sums. All ranks wait for the slowest, so the mean of a step
    grows with the number of ranks although the mean of each rank's compute does not.

    Parameters
    ----------
    model_bytes, ranks, cluster, forward_s, backward_s, ready_s
        As for `step_time`.
    jitter, spread, seed, steps
        As for `jitter_factors`.
    bucket_bytes, overlap, algorithm, placement, itemsize
        As for `step_time`.

    Returns
    -------
    JitteredSteps

    Examples
    --------
    Steps of 0.1 s that vary by a tenth, on more and more ranks, with nothing to send to speak of.
    The largest of 64 normal values lies 2.4 spreads above the mean, of 512 it is 3.0:

    >>> import simlib
    >>> cluster = simlib.clusters.infiniband_hdr(nodes=512)
    >>> times = {"forward_s": 0.04, "backward_s": 0.06, "spread": 0.1, "seed": 1, "steps": 50}
    >>> for ranks in (1, 8, 64, 512):
    ...     found = simlib.scale.jittered_time(4, ranks, cluster, algorithm="binomial", **times)
    ...     print(f"{ranks:4} {found.slowdown:.2f}")
       1 1.00
       8 1.12
      64 1.24
     512 1.31

    **Cost** 2 * ``steps`` times that of `step_time` with a time for each rank.
    """
    ranks = as_int("ranks", ranks)
    check_count("ranks", ranks)
    factors = jitter_factors(jitter, steps, ranks, spread=spread, seed=seed)
    buckets = bucket_sizes(model_bytes, bucket_bytes, itemsize)
    forward = seconds_of_each_rank("forward_s", forward_s, ranks)
    backward = seconds_of_each_rank("backward_s", backward_s, ranks)
    overlap = share_of_backward(overlap)
    ready = ready_times(ready_s, buckets, forward, backward)

    def reduced(bucket, starts):
        return ends_of(
            "all_reduce", ranks, buckets[bucket], cluster, algorithm,
            starts=starts, placement=placement, itemsize=itemsize,
        )  # fmt: skip

    def ends(begins, factor):
        compute = forward * factor, backward * factor, lambda bucket: ready(bucket) * factor
        # Counted from the first rank on: closed forms keep their digits after many steps.
        first = begins.min()
        return first + one_step(begins - first, compute, len(buckets), overlap, reduced)[0]

    def ends_of_all(factors):
        end_s = [np.zeros(ranks)]
        for factor in factors:
            end_s.append(ends(end_s[-1], factor))
        return np.array(end_s[1:])

    steady_s = float(ends_of_all(np.ones_like(factors))[-1].max()) / len(factors)
    return JitteredSteps(ranks, factors, ends_of_all(factors), steady_s)


def jitter_factors(jitter, steps, ranks, *, spread=0.1, seed=0):
    """Factors by which compute varies, one for each step and rank: of mean 1, the same each time.

    Parameters
    ----------
    jitter : {"normal", "lognormal", "exponential"}, Jitter or callable
        The distribution. ``"normal"``: below 0 counts as 0. ``"lognormal"``: never below 0, with a
        longer tail above. ``"exponential"``: at least ``1 - spread``, and an exponential time of
        mean ``spread`` more; with a spread of 1 nothing but that. Or a `Jitter`: the factors that
        a simulation with ``slow=jitter`` gives each rank's first pieces. Or
        ``jitter(random, (steps, ranks))``, which draws the factors from a `numpy.random.Generator`.
    steps, ranks : int
    spread : float
        Standard deviation. Of no account where ``jitter`` is a function, or a `Jitter`.
    seed : int
        Of no account where ``jitter`` is a `Jitter`, which has its own.
        The same seed gives the same factors, and more steps the same first ones.

    Returns
    -------
    ndarray of float, shape (steps, ranks)

    Examples
    --------
    >>> jitter_factors("normal", 2, 3, spread=0.1, seed=1).round(3).tolist()
    [[1.035, 1.082, 1.033], [0.87, 1.091, 1.045]]

    One rank in a hundred takes twice as long:

    >>> def hiccup(random, shape):
    ...     return 1.0 + (random.random(shape) < 0.01)
    >>> float(jitter_factors(hiccup, 1000, 8, seed=1).mean().round(3))
    1.01

    `parameter_server_time` takes them, too: ``forward_s=0.1 * factors``.
    """
    if isinstance(jitter, Jitter):
        return jitter.factors(steps, ranks)
    steps, ranks, seed = as_int("steps", steps), as_int("ranks", ranks), as_int("seed", seed)
    check_count("steps", steps)
    check_count("ranks", ranks)
    check_count("seed", seed, low=0)
    random, shape = np.random.default_rng(seed), (steps, ranks)
    if callable(jitter):
        return _checked(jitter(random, shape), shape)
    check_kind("jitter", jitter, "or a function of a random generator and a shape, or a Jitter")
    check_number("spread", spread)
    check_spread(jitter, spread)
    return draw(jitter, spread, random, shape)


def _checked(factors, shape):
    factors = np.array(factors, dtype=float)
    if factors.shape != shape or not (np.isfinite(factors) & (factors >= 0)).all():
        raise InvalidCallError(
            f"jitter gave factors of shape {factors.shape}: give {shape}, one for each step and "
            "rank, none below 0"
        )
    return factors
