"""Data-parallel training on any number of ranks: a step, the step's buckets, and scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..draw.display import DisplayMixin
from ..model.cluster import Cluster
from ..model.errors import InvalidCallError, as_int, check_count, check_number
from ..model.words import seconds_text, short_bytes
from .case import Placement, Seconds, Tabled, count_of, seconds_of_each_rank, table_text
from .collective import ends_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# -- buckets: their bytes, and when they are ready in a run ----------------------------------------

BUCKET_BYTES = 25 * 2**20


def measured_buckets(
    run: Any, begin_s: float = 0.0, end_s: float = inf
) -> tuple[list[int], np.ndarray]:
    """Read the bytes and ready times of the buckets of one step from a recorded run.

    A bucket counts as ready when its async all_reduce was posted. `DistributedDataParallel` posts
    it as soon as the bucket's gradients are ready.

    Parameters
    ----------
    run : Run
    begin_s, end_s : float
        Start and end of the step, on the clock of the run. The default is the whole run.

    Returns
    -------
    nbytes : list of int
        Bytes of each bucket, in order of posting. Pass this list to `step_time` as ``model_bytes``.
    ready_s : ndarray of float, shape (ranks, buckets)
        When each bucket was ready, in seconds since ``begin_s``. Pass this array to `step_time` as
        ``ready_s``.
    """
    posted = [
        [
            (op.nbytes, op.post_s - begin_s)
            for op in run.trace.of_rank(rank)
            if op.kind == "all_reduce" and op.async_op and begin_s <= op.post_s <= end_s
        ]
        for rank in range(run.world_size)
    ]
    sizes = {tuple(nbytes for nbytes, _ in buckets) for buckets in posted}
    if len(sizes) > 1 or not posted[0]:
        raise InvalidCallError(
            f"from {begin_s:g} s to {end_s:g} s ranks posted {sorted(map(len, posted))} async "
            "all_reduces: give begin_s and end_s of one step, in which all ranks post the same "
            "number"
        )
    return list(*sizes), np.array([[moment for _, moment in buckets] for buckets in posted])


def bucket_sizes(
    model_bytes: float | Sequence[int] | np.ndarray,
    bucket_bytes: float = BUCKET_BYTES,
    itemsize: int = 4,
) -> np.ndarray:
    """Return the bytes of each bucket: full buckets and a smaller last one, or the given sizes.

    Examples
    --------
    >>> bucket_sizes(100, 40).tolist()
    [40, 40, 20]
    """
    if np.ndim(model_bytes):
        sizes = [as_int("a bucket", size) for size in list(model_bytes)]  # type: ignore[arg-type]
    else:
        total, most = as_int("model_bytes", model_bytes), as_int("bucket_bytes", bucket_bytes)
        most = most // itemsize * itemsize
        check_count("bucket_bytes", most, low=itemsize)
        check_count("model_bytes", total)
        sizes = [most] * (total // most) + [total % most] * (total % most > 0)
    if not sizes or min(sizes) < 1:
        raise InvalidCallError(f"buckets of {sizes} bytes: give at least one, none of them empty")
    return np.array(sizes, dtype=np.int64)


# -- one step: compute, buckets, overlap -----------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Step(Tabled, DisplayMixin):
    """One training step: forward, backward, and the all_reduces of the gradients.

    Attributes
    ----------
    ranks : int
    algorithm : str
    overlap : float
        The share of backward during which all_reduces could run. 0 means no overlap, and 1 means
        all of backward.
    forward_s, backward_s : float
        Seconds of compute of the slowest rank.
    bucket_nbytes : ndarray of int
        Bytes of each bucket, in the order in which they become ready.
    ready_s, start_s, end_s : ndarray of float
        Three moments for each bucket: its gradients are ready, its all_reduce starts, and its
        all_reduce ends. Each moment is the moment of the last rank. The step begins at 0.
    time_s : float
        The second at which the last rank has computed everything and has received all sums.
    compute_s : float
        Seconds of the step without communication.
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
    def sync_s(self) -> float:
        """Seconds that all all_reduces take, added up."""
        return float((self.end_s - self.start_s).sum())

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that no compute hides."""
        return max(0.0, self.time_s - self.compute_s)

    def table(self) -> str:
        """Return the step as plain text, with a row for each bucket, but at most 20 rows."""
        rows: list[tuple[str, ...]] = [("bucket", "bytes", "ready", "starts", "ends")]
        columns = (self.bucket_nbytes, self.ready_s, self.start_s, self.end_s)
        for i, (nbytes, *moments) in enumerate(zip(*columns, strict=True)):
            rows.append((str(i), short_bytes(int(nbytes)), *map(seconds_text, moments)))
        lines = [
            f"step on {self.ranks:,} rank{'s' * (self.ranks != 1)}, {self.algorithm} all_reduce, "
            f"{_overlap_text(self.overlap)}: {seconds_text(self.time_s)}",
            f"compute {seconds_text(self.compute_s)}, communication {seconds_text(self.sync_s)}, "
            f"exposed communication {seconds_text(self.exposed_s)}",
        ]
        return table_text(lines, rows)

    def draw(self) -> Figure:
        """Draw compute above communication. Returns a matplotlib Figure."""
        from .pictures import draw_step

        return draw_step(self)


def _overlap_text(overlap):
    if overlap in (0, 1):
        return f"{'with' if overlap else 'without'} overlap"
    return f"overlap in the last {overlap:.0%} of backward"


def step_time(
    model_bytes: float | Sequence[int] | np.ndarray,
    ranks: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    ready_s: Sequence | np.ndarray | None = None,
    bucket_bytes: float = BUCKET_BYTES,
    overlap: bool | float = True,
    algorithm: str = "ring",
    placement: Placement = "block",
    itemsize: int = 4,
) -> Step:
    """Time a step of data-parallel training, and the parts of this step.

    Backward fills the buckets one after the other. The time to fill a bucket is proportional to the
    bucket's bytes, or you set it with ``ready_s``. The all_reduce of a bucket starts when the
    bucket is full and the all_reduce of the bucket before it has ended. With ``overlap`` the
    all_reduces run during backward, as in `DistributedDataParallel`. Without ``overlap`` they run
    after backward.

    Parameters
    ----------
    model_bytes : int or sequence of int
        Bytes of all gradients, or bytes of each bucket, in the order in which they become full.
    ranks : int
    cluster : Cluster
    forward_s, backward_s : float or sequence of float
        Seconds of compute. Pass one number for all ranks, or one number for each rank.
    ready_s : array of float, shape (buckets,) or (ranks, buckets), optional
        The seconds from the step's start until the gradients of each bucket are ready. Pass one row
        for all ranks, or one row for each rank. Each of them must lie within backward.
        `measured_buckets` reads them from a run.
    bucket_bytes : int
        The size of the buckets that collect the gradients. The default is 25 MiB, as in torch.
        Torch's first bucket has only 1 MiB. To model that bucket, give the size of each bucket as
        ``model_bytes``.
    overlap : bool or float
        The share of backward, counted from its end, during which communication can run. The first
        all_reduce can start when a share ``1 - overlap`` of backward is done. True or 1 means all
        of backward, False or 0 means none of it.
    algorithm, placement, itemsize
        Options of the all_reduces. See `time_of`.

    Returns
    -------
    Step

    Examples -------- ResNet-50 has about 25 million parameters. Goyal et al. 2017 (arXiv
    1706.02677) ran it on servers of 8 GPUs with 50 Gbit/s each. Backward took 120 ms. They reduced
    in three phases: first within each server, then across servers, then within each server again.
    An iteration took 12 % longer on 352 GPUs than on 8. The model predicts 5 % more time with full
    overlap, 17 % more with an overlap of 0.3, and 21 % more with no overlap. It assumes that
    forward takes half as long as backward, and that a link in the server carries 20 GB/s:

    >>> import simlib
    >>> servers = simlib.Cluster(44, 8, simlib.Link(30e-6, 50e9 / 8), simlib.Link(5e-6, 20e9))
    >>> def seconds(ranks, overlap):
    ...     return simlib.scale.step_time(
    ...         100e6, ranks, servers, forward_s=0.06, backward_s=0.12, overlap=overlap,
    ...         algorithm="leader",
    ...     ).time_s
    >>> [f"{seconds(352, overlap) / seconds(8, overlap) - 1:.0%}" for overlap in (True, 0.3, False)]
    ['5%', '17%', '21%']

    **Cost** one `time_of` for each bucket.
    """
    reduction = Reduction(ready_s, bucket_bytes, overlap, algorithm, placement, itemsize)
    training = Training(model_bytes, ranks, cluster, forward_s, backward_s, reduction)
    ends, moments = training.step(np.zeros(training.ranks))
    ready, start, end = np.array(moments).T
    return Step(
        ranks=training.ranks,
        algorithm=algorithm,
        overlap=training.overlap,
        forward_s=float(training.forward.max()),
        backward_s=float(training.backward.max()),
        bucket_nbytes=training.buckets,
        ready_s=ready,
        start_s=start,
        end_s=end,
        time_s=float(ends.max()),
        compute_s=float((training.forward + training.backward).max()),
    )


@dataclass(frozen=True, eq=False)
class Reduction:
    """When and how ranks reduce gradients. The fields are keywords of `step_time`."""

    ready_s: np.ndarray | Sequence | None = None
    bucket_bytes: float = BUCKET_BYTES
    overlap: bool | float = True
    algorithm: str = "ring"
    placement: Placement = "block"
    itemsize: int = 4


class Training:
    """Data-parallel training, with checked parameters as for `step_time`."""

    def __init__(
        self,
        model_bytes: float | Sequence[int] | np.ndarray,
        ranks: int,
        cluster: Cluster,
        forward_s: Seconds,
        backward_s: Seconds,
        reduction: Reduction,
    ) -> None:
        self.ranks = count_of("ranks", ranks)
        self.buckets = bucket_sizes(model_bytes, reduction.bucket_bytes, reduction.itemsize)
        self.forward = seconds_of_each_rank("forward_s", forward_s, self.ranks)
        self.backward = seconds_of_each_rank("backward_s", backward_s, self.ranks)
        self.overlap = share_of_backward(reduction.overlap)
        self._ready = ready_times(reduction.ready_s, self.buckets, self.forward, self.backward)
        self._cluster, self._reduction = cluster, reduction

    def step(
        self, begins: np.ndarray, factor: float | np.ndarray = 1.0
    ) -> tuple[np.ndarray, list[tuple[float, float, float]]]:
        """A step of all ranks. Each rank begins at its own moment.

        Parameters
        ----------
        begins : ndarray of float, shape (ranks,)
        factor : float or ndarray of float, shape (ranks,)
            Compute takes this many times longer.

        Returns
        -------
        ends : ndarray of float, shape (ranks,)
            When each rank has computed everything and has received all sums.
        moments : list of tuple of float
            For each bucket, on the last rank: when it is ready, starts, and ends.
        """
        forward, backward = self.forward * factor, self.backward * factor
        through = begins + forward + (1 - self.overlap) * backward
        moments = []
        for bucket, nbytes in enumerate(self.buckets):
            full = begins + self._ready(bucket) * factor
            starts = np.maximum(through, full)
            through = self._all_reduce(nbytes, starts)
            moments.append((full.max(), starts.max(), through.max()))
        return np.maximum(through, begins + forward + backward), moments

    def _all_reduce(self, nbytes, starts):
        how = self._reduction
        return ends_of(
            "all_reduce", self.ranks, nbytes, self._cluster, how.algorithm,
            starts=starts, placement=how.placement, itemsize=how.itemsize,
        )  # fmt: skip


def share_of_backward(overlap: object) -> bool | float:
    """The value of ``overlap`` as a share, or an error that refuses it."""
    if not isinstance(overlap, Real) or not 0 <= float(overlap) <= 1:
        raise InvalidCallError(
            f"overlap is {overlap!r}: give True, False, or the share of backward, from 0 to 1"
        )
    return overlap if isinstance(overlap, bool) else float(overlap)


def ready_times(
    ready_s: Sequence | np.ndarray | None,
    buckets: np.ndarray,
    forward: np.ndarray,
    backward: np.ndarray,
) -> Callable[[int], np.ndarray]:
    """A function ``ready(bucket)``: when the gradients of the bucket are ready, on each rank."""
    if ready_s is None:
        filled = np.cumsum(buckets) / max(1, buckets.sum())
        return lambda bucket: forward + backward * filled[bucket]
    ready_s = np.array(ready_s, dtype=float)
    shapes = (len(buckets),), (len(forward), len(buckets))
    if ready_s.shape not in shapes:
        raise InvalidCallError(
            f"ready_s has shape {ready_s.shape}: give a moment for each of {len(buckets)} buckets, "
            f"either once for all ranks or for each of {len(forward)} ranks"
        )
    ready_s = np.broadcast_to(ready_s, shapes[1])
    ends = forward + backward
    within = (ready_s >= forward[:, None]) & (ready_s <= ends[:, None] * (1 + 1e-9))
    if not within.all():
        rank, bucket = np.argwhere(~within)[0]
        raise InvalidCallError(
            f"bucket {bucket} of rank {rank} is ready at {ready_s[rank, bucket]:g} s, but backward "
            f"lasts from {forward[rank]:g} s to {ends[rank]:g} s: give moments within backward, "
            "counted from the start of the step"
        )
    return lambda bucket: ready_s[:, bucket]


# -- strong and weak scaling: how much faster, or how much more, with more ranks -------------------


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Tabled, DisplayMixin):
    """Times of the same training on different numbers of ranks.

    Attributes
    ----------
    kind : {"strong", "weak"}
        With "strong", the total work of a step is the same for any number of ranks. With "weak",
        the work of each rank is the same.
    ranks : ndarray of int
    time_s : ndarray of float
        Seconds of a step.
    exposed_s : ndarray of float
        The seconds of communication in a step that no compute hides.
    base_ranks : int
        Speedup and efficiency are relative to this number of ranks.
    base_s : float
        Seconds of a step on ``base_ranks`` ranks.
    bucket_nbytes : ndarray of int
        Bytes of each bucket of gradients.
    """

    kind: str
    ranks: np.ndarray
    time_s: np.ndarray
    exposed_s: np.ndarray
    base_ranks: int
    base_s: float
    bucket_nbytes: np.ndarray

    @property
    def speedup(self) -> np.ndarray:
        """Work per second, relative to ``base_ranks`` ranks: ndarray of float."""
        work = self.ranks / self.base_ranks if self.kind == "weak" else 1.0
        return work * self.base_s / self.time_s

    @property
    def efficiency(self) -> np.ndarray:
        """Speedup divided by the best possible speedup, which is the ratio of ranks."""
        return self.speedup * self.base_ranks / self.ranks

    def relative_to(self, ranks: int) -> Scaling:
        """The same times, but with speedup and efficiency relative to another entry of
        ``ranks``."""
        (found,) = np.nonzero(self.ranks == ranks)
        if not len(found):
            there = ", ".join(map(str, self.ranks))
            raise InvalidCallError(
                f"there is no time for {ranks} ranks: there are times for {there}"
            )
        return replace(self, base_ranks=int(ranks), base_s=float(self.time_s[found[0]]))

    def table(self) -> str:
        """All numbers as plain text."""
        rows = [("ranks", "time", "exposed", "speedup", "efficiency")]
        columns = (self.ranks, self.time_s, self.exposed_s, self.speedup, self.efficiency)
        for n, time_s, exposed_s, speedup, efficiency in zip(*columns, strict=True):
            cells = seconds_text(time_s), seconds_text(exposed_s)
            rows.append((f"{n:,}", *cells, f"{speedup:,.2f}", f"{efficiency:.1%}"))
        base = f"{self.base_ranks:,} rank{'s' * (self.base_ranks != 1)}"
        title = f"{self.kind} scaling, {self._buckets_in_words()}, relative to {base}"
        return table_text([title], rows, most=None)

    def _buckets_in_words(self):
        count, most = len(self.bucket_nbytes), short_bytes(int(self.bucket_nbytes.max()))
        return f"{count} buckets of at most {most}" if count > 1 else f"one bucket of {most}"

    def draw(self) -> Figure:
        """Draw time and efficiency over ranks. Returns a matplotlib Figure."""
        from .pictures import draw_scaling

        return draw_scaling(self)


def strong_scaling(
    ranks: Sequence[int],
    model_bytes: float | Sequence[int] | np.ndarray,
    cluster: Cluster,
    *,
    forward_s: float,
    backward_s: float,
    **options: Any,
) -> Scaling:
    """Time the same work on more ranks. Each of R ranks computes 1/R of the work.

    Parameters
    ----------
    ranks : sequence of int
    model_bytes, cluster
        As for `step_time`.
    forward_s, backward_s : float
        Seconds that the whole work takes on one rank.
    **options
        Other parameters of `step_time`: ``overlap``, ``algorithm``, ``bucket_bytes``... By default
        gradients travel in buckets of 25 MiB, and each bucket adds its own latencies. With
        ``bucket_bytes=model_bytes``, all gradients are in one bucket.

    Returns
    -------
    Scaling
        Times with speedup and efficiency relative to one rank. A single rank does not communicate.

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
    return _scaling("strong", ranks, model_bytes, cluster, (forward_s, backward_s), options)


def weak_scaling(
    ranks: Sequence[int],
    model_bytes: float | Sequence[int] | np.ndarray,
    cluster: Cluster,
    *,
    forward_s: float,
    backward_s: float,
    **options: Any,
) -> Scaling:
    """Time the same work on each rank, so that more ranks do more work.

    The parameters are the same as for `strong_scaling`, but ``forward_s`` and ``backward_s`` are
    seconds that each rank computes.
    """
    return _scaling("weak", ranks, model_bytes, cluster, (forward_s, backward_s), options)


def _scaling(kind, ranks, model_bytes, cluster, compute_s, options):
    forward_s, backward_s = compute_s
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
