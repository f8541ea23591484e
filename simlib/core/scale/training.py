"""One step of data-parallel training on any number of ranks: compute, buckets, overlap."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np

from ..draw.display import DisplayMixin
from ..model.errors import InvalidCallError, as_int, check_count, check_number
from ..model.words import aligned, seconds_text, short_bytes
from .buckets import BUCKET_BYTES, bucket_sizes
from .collective import ends_of, time_of


@dataclass(frozen=True, eq=False, repr=False)
class Step(DisplayMixin):
    """One training step: forward, backward, and the all_reduces of the gradients.

    Attributes
    ----------
    ranks : int
    algorithm : str
    overlap : float
        Beside which share of backward buckets could be reduced: 0 none, 1 all of it.
    forward_s, backward_s : float
        Compute of the slowest rank.
    bucket_nbytes : ndarray of int
        Bytes of each bucket, the first that is ready first.
    ready_s, start_s, end_s : ndarray of float
        Of each bucket: when its gradients are there, when its all_reduce starts, when it has ended;
        on the last rank each time. The step begins at 0.
    time_s : float
        When the last rank has computed all and has all sums.
    compute_s : float
        The same without communication.
    """

    ranks: int
    algorithm: str
    overlap: float
    forward_s: float
    backward_s: float
    bucket_nbytes: np.ndarray
    ready_s: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    time_s: float
    compute_s: float

    @property
    def sync_s(self):
        """Seconds that all all_reduces take together."""
        return float((self.end_s - self.start_s).sum())

    @property
    def exposed_s(self):
        """Seconds of communication that no compute hides."""
        return max(0.0, self.time_s - self.compute_s)

    def table(self):
        """The step as plain text: a row for each bucket, at most 20."""
        rows = [("bucket", "bytes", "ready", "starts", "ends")]
        columns = (self.bucket_nbytes, self.ready_s, self.start_s, self.end_s)
        for i, (nbytes, *moments) in enumerate(zip(*columns, strict=True)):
            rows.append((str(i), short_bytes(int(nbytes)), *map(seconds_text, moments)))
        left_out = len(rows) - 21
        lines = [
            f"step on {self.ranks:,} rank{'s' * (self.ranks != 1)}, {self.algorithm} all_reduce, "
            f"{_overlap_text(self.overlap)}: {seconds_text(self.time_s)}",
            f"compute {seconds_text(self.compute_s)}, communication {seconds_text(self.sync_s)}, "
            f"of it exposed {seconds_text(self.exposed_s)}",
            "",
            *aligned(rows[:21]),
        ]
        return "\n".join(lines + [f"... and {left_out:,} more"] * (left_out > 0))

    def __repr__(self):
        return self.table()

    def draw(self):
        """Draw compute and communication one above the other. Returns a matplotlib Figure."""
        from .pictures import draw_step

        return draw_step(self)


def _overlap_text(overlap):
    if overlap in (0, 1):
        return f"{'with' if overlap else 'without'} overlap"
    return f"overlap in the last {overlap:.0%} of backward"


def step_time(
    model_bytes,
    ranks,
    cluster,
    *,
    forward_s,
    backward_s,
    ready_s=None,
    bucket_bytes=BUCKET_BYTES,
    overlap=True,
    algorithm="ring",
    placement="block",
    itemsize=4,
):
    """A step of data-parallel training: `Step.time_s` and what it is made of.

    Backward fills the buckets one after the other, in time that is proportional to their bytes, or
    at the moments of ``ready_s``. A bucket is all_reduced when it is full and the one before is
    through: while backward goes on (``overlap``, as `DistributedDataParallel` does it), or after
    it.

    Parameters
    ----------
    model_bytes : int or sequence of int
        Bytes of all gradients; or of each bucket, the first to be full first.
    ranks : int
    cluster : Cluster
    forward_s, backward_s : float or sequence of float
        Seconds of compute, of all ranks or of each.
    ready_s : array of float, shape (buckets,) or (ranks, buckets), optional
        When the gradients of each bucket are there, on all ranks or on each, in seconds since the
        step began: within backward. `measured_buckets` has them from a run.
    bucket_bytes : int
        Gradients are gathered into buckets of so many bytes (the default is torch's, but for its
        first bucket of 1 MiB: give the sizes of the buckets for that).
    overlap : bool or float
        The share of backward, counted from its end, beside which communication can go on. No
        all_reduce starts before the first ``1 - overlap`` of backward is over: True or 1 is all
        of it, False or 0 is none.
    algorithm, placement, itemsize
        Of the all_reduces, as for `time_of`.

    Returns
    -------
    Step

    Examples
    --------
    ResNet-50 has about 25 million parameters; Goyal et al. 2017 (arXiv 1706.02677) ran it on
    servers of 8 GPUs with 50 Gbit/s each, backward 120 ms, and reduced in three phases: in the
    server, across servers, in the server. From 8 to 352 GPUs an iteration took 12 % longer. The
    model gives the two bounds, with all that can overlap and with nothing, and a value between
    (forward is taken as half of backward, a link in the server as 20 GB/s):

    >>> import simlib
    >>> servers = simlib.Cluster(44, 8, simlib.Link(30e-6, 50e9 / 8), simlib.Link(5e-6, 20e9))
    >>> def seconds(ranks, overlap):
    ...     return simlib.scale.step_time(
    ...         100e6, ranks, servers, forward_s=0.06, backward_s=0.12, overlap=overlap,
    ...         algorithm="leader",
    ...     ).time_s
    >>> [f"{seconds(352, overlap) / seconds(8, overlap) - 1:.0%}" for overlap in (True, 0.3, False)]
    ['5%', '17%', '21%']

    **Cost** that of `time_of` for each bucket.
    """
    ranks = as_int("ranks", ranks)
    check_count("ranks", ranks)
    buckets = bucket_sizes(model_bytes, bucket_bytes, itemsize)
    forward, backward = (
        seconds_of_each_rank(name, value, ranks)
        for name, value in (("forward_s", forward_s), ("backward_s", backward_s))
    )
    overlap = share_of_backward(overlap)
    ready = ready_times(ready_s, buckets, forward, backward)
    more = {"placement": placement, "itemsize": itemsize}

    def reduced(bucket, starts):
        nbytes = buckets[bucket]
        return ends_of("all_reduce", ranks, nbytes, cluster, algorithm, starts=starts, **more)

    compute = forward, backward, ready
    ends, moments = one_step(np.zeros(ranks), compute, len(buckets), overlap, reduced)
    ready_s, start_s, end_s = np.array(moments).T
    return Step(
        ranks=ranks,
        algorithm=algorithm,
        overlap=overlap,
        forward_s=float(forward.max()),
        backward_s=float(backward.max()),
        bucket_nbytes=buckets,
        ready_s=ready_s,
        start_s=start_s,
        end_s=end_s,
        time_s=float(ends.max()),
        compute_s=float((forward + backward).max()),
    )


def one_step(begins, compute, count, overlap, reduced):
    """A step of all ranks, each from its own moment on.

    Parameters
    ----------
    begins : ndarray of float, shape (ranks,)
    compute : tuple
        ``forward`` and ``backward``, seconds of each rank, and ``ready(bucket)``, seconds until the
        bucket is full on each.
    count : int
        Of buckets.
    overlap : float
    reduced : callable
        ``reduced(bucket, starts)``: when each rank has the bucket's sums.

    Returns
    -------
    ends : ndarray of float, shape (ranks,)
        When each rank has computed all and has all sums.
    moments : list of tuple of float
        Of each bucket, on the last rank: when it is ready, starts, and has ended.
    """
    forward, backward, ready = compute
    through = begins + forward + (1 - overlap) * backward
    moments = []
    for bucket in range(count):
        full = begins + ready(bucket)
        starts = np.maximum(through, full)
        through = reduced(bucket, starts)
        moments.append((full.max(), starts.max(), through.max()))
    return np.maximum(through, begins + forward + backward), moments


def share_of_backward(overlap):
    """What was given as ``overlap``, or the sentence that refuses it."""
    if not isinstance(overlap, Real) or not 0 <= overlap <= 1:
        raise InvalidCallError(
            f"overlap is {overlap!r}: give True, False, or the share of backward, from 0 to 1"
        )
    return overlap if isinstance(overlap, bool) else float(overlap)


def ready_times(ready_s, buckets, forward, backward):
    """``ready(bucket)``: when its gradients are there, on each rank."""
    if ready_s is None:
        filled = np.cumsum(buckets) / max(1, buckets.sum())
        return lambda bucket: forward + backward * filled[bucket]
    ready_s = np.array(ready_s, dtype=float)
    shapes = (len(buckets),), (len(forward), len(buckets))
    if ready_s.shape not in shapes:
        raise InvalidCallError(
            f"ready_s is of shape {ready_s.shape}: give a moment for each of {len(buckets)} "
            f"buckets, on all ranks or on each of {len(forward)}"
        )
    ready_s = np.broadcast_to(ready_s, shapes[1])
    ends = forward + backward
    within = (ready_s >= forward[:, None]) & (ready_s <= ends[:, None] * (1 + 1e-9))
    if not within.all():
        rank, bucket = np.argwhere(~within)[0]
        raise InvalidCallError(
            f"bucket {bucket} of rank {rank} is ready at {ready_s[rank, bucket]:g} s, and backward "
            f"is from {forward[rank]:g} s to {ends[rank]:g} s: give moments within it, "
            "counted since the step began"
        )
    return lambda bucket: ready_s[:, bucket]


def seconds_of_each_rank(name, value, ranks):
    """Seconds of each rank, as given for all or for each: ndarray of float, shape (ranks,)."""
    if np.ndim(value) == 0:
        check_number(name, value)
        value = np.full(ranks, float(value))
    value = np.array(value, dtype=float)
    if value.shape != (ranks,) or not (np.isfinite(value) & (value >= 0)).all():
        raise InvalidCallError(
            f"{name} is of shape {value.shape}: give seconds, one or {ranks}, none below 0 or "
            "infinite"
        )
    return value


def sync_time(ranks, nbytes, cluster, *, algorithm="ring", placement="block", itemsize=4):
    """T_sync(R): seconds to all_reduce gradients of so many bytes on R ranks.

    Parameters
    ----------
    ranks : int or sequence of int
    nbytes : int
    cluster : Cluster
    algorithm, placement, itemsize
        As for `time_of`.

    Returns
    -------
    float, or ndarray of float where ``ranks`` is a sequence

    Examples
    --------
    The time of a ring hardly grows with the ranks where bytes count, and in proportion where rounds
    do:

    >>> import simlib
    >>> cluster = simlib.clusters.infiniband_hdr(nodes=100_000)
    >>> simlib.scale.sync_time([10, 100, 1_000, 100_000], 400_000_000, cluster).round(4).tolist()
    [0.0288, 0.0321, 0.036, 0.432]
    """
    more = {"placement": placement, "itemsize": itemsize}
    return time_of("all_reduce", ranks, nbytes, cluster, algorithm, **more)
