"""Steps in which each rank keeps a part of the model: ZeRO 1 to 3, and tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.cluster import Cluster
from ..model.errors import InvalidCallError, as_int
from ..model.words import seconds_text, short_bytes
from .case import Seconds, Tabled, count_of, seconds_of_each_rank, table_text
from .collective import Placement, ends_of
from .data_parallel import BUCKET_BYTES, bucket_sizes


@dataclass(frozen=True, eq=False, repr=False)
class ShardedStep(Tabled):
    """One training step in which each rank keeps a part of the model.

    Attributes
    ----------
    name : str
        ``"ZeRO-2"``, ``"tensor parallel"``.
    ranks : int
    algorithm : str
    time_s : float
        The second at which the last rank is done. The step begins at 0.
    compute_s : float
        Seconds of the step without communication.
    parameter_bytes, gradient_bytes, optimizer_bytes : float
        Bytes that each rank keeps during the whole step. Data that the rank gathers and then frees
        do not count.
    """

    name: str
    ranks: int
    algorithm: str
    time_s: float
    compute_s: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that no compute hides."""
        return max(0.0, self.time_s - self.compute_s)

    @property
    def bytes_per_rank(self) -> float:
        """Bytes of parameters, gradients and optimizer state together."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def table(self) -> str:
        """Return the step as plain text."""
        kept = self.parameter_bytes, self.gradient_bytes, self.optimizer_bytes, self.bytes_per_rank
        rows = [
            ("parameters", "gradients", "optimizer", "together"),
            tuple(short_bytes(nbytes) for nbytes in kept),
        ]
        lines = [
            f"{self.name} on {self.ranks:,} rank{'s' * (self.ranks != 1)}, {self.algorithm}: "
            f"{seconds_text(self.time_s)}",
            f"compute {seconds_text(self.compute_s)}, exposed {seconds_text(self.exposed_s)}; "
            "each rank keeps",
        ]
        return table_text(lines, rows)


def zero_time(
    stage: int,
    model_bytes: float | Sequence[int] | np.ndarray,
    ranks: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    optimizer_bytes: float | None = None,
    update_s: Seconds = 0.0,
    bucket_bytes: float = BUCKET_BYTES,
    algorithm: str = "ring",
    placement: Placement = "block",
    itemsize: int = 4,
) -> ShardedStep:
    """Time a step of data parallelism with ZeRO, which gives each rank a part of the state.

    simlib cuts the model into buckets, and pads each bucket to a multiple of ``ranks * itemsize``
    bytes. The time of forward and backward for a bucket is proportional to the bucket's bytes.
    Collectives run during compute, one after the other, in the order in which they are posted.

    In stages 1 and 2, ranks reduce_scatter a bucket of gradients when it is full. When all buckets
    are done, each rank updates its part, and the ranks all_gather the buckets of parameters. Stages
    1 and 2 differ only in the bytes that a rank keeps. In stage 3, both in forward and in backward,
    a rank waits for the all_gather of a bucket before it computes the layers of this bucket. Then
    it posts the all_gather of the next bucket. Backward begins with the last bucket of forward,
    which the rank has not freed. Ranks reduce_scatter each bucket of gradients when it is full. The
    step ends with the update.

    Parameters
    ----------
    stage : {1, 2, 3}
        Stage 1 divides the optimizer's state among the ranks. Stage 2 also divides the gradients,
        and stage 3 also the parameters.
    model_bytes : int or sequence of int
        Bytes of all parameters, or bytes of each bucket, in the order in which buckets become full
        in backward. The gradients have the same number of bytes.
    ranks : int
    cluster : Cluster
    forward_s, backward_s, update_s : float or sequence of float
        Seconds of compute. Pass one number for all ranks, or one number for each rank. ``update_s``
        is the time in which a rank updates its part.
    optimizer_bytes : int, optional
        Bytes of the optimizer's state for the whole model. The default is twice ``model_bytes``, as
        for Adam. For mixed precision, pass six times ``model_bytes``, because each parameter of 2
        bytes has 12 bytes of state.
    bucket_bytes, algorithm, placement, itemsize
        As for `step_time`. ``algorithm`` applies to all collectives of the step.

    Returns
    -------
    ShardedStep

    Examples -------- With 7.5 billion parameters in mixed precision, each of 64 ranks needs 31.4 GB
    in stage 1, 16.6 GB in stage 2 and 1.9 GB in stage 3. Without ZeRO, a rank needs 120 GB
    (Rajbhandari et al. 2019, arXiv 1910.02054):

    >>> import simlib
    >>> cluster = simlib.clusters.nvlink_nodes(nodes=8)
    >>> for stage in (1, 2, 3):
    ...     step = simlib.scale.zero_time(
    ...         stage, 15e9, 64, cluster, forward_s=1.0, backward_s=2.0,
    ...         optimizer_bytes=90e9, bucket_bytes=1e9, itemsize=2,
    ...     )
    ...     print(f"{step.bytes_per_rank / 1e9:.1f} GB")
    31.4 GB
    16.6 GB
    1.9 GB

    **Cost** one `time_of` for each collective.

    **Source** Rajbhandari et al. 2019 (arXiv 1910.02054).
    """
    ranks = count_of("ranks", ranks)
    if stage not in (1, 2, 3):
        raise InvalidCallError(f"stage is {stage!r}: ZeRO has stages 1, 2 and 3")
    buckets = bucket_sizes(model_bytes, bucket_bytes, itemsize)
    total = int(buckets.sum())
    state = 2 * total if optimizer_bytes is None else as_int("optimizer_bytes", optimizer_bytes)
    asked = {"forward_s": forward_s, "backward_s": backward_s, "update_s": update_s}
    times = [seconds_of_each_rank(name, value, ranks) for name, value in asked.items()]
    padded = -(-buckets // (ranks * itemsize)) * (ranks * itemsize)

    def through(kind, bucket, starts):
        return ends_of(
            kind, ranks, int(padded[bucket]), cluster, algorithm,
            starts=starts, placement=placement, itemsize=itemsize,
        )  # fmt: skip

    way = _whole_parameters if stage < 3 else _parameters_in_parts
    ends = way(buckets / total, times, through)
    return ShardedStep(
        name=f"ZeRO-{stage}",
        ranks=ranks,
        algorithm=algorithm,
        time_s=float(ends.max()),
        compute_s=float(np.sum(times, axis=0).max()),
        parameter_bytes=total / ranks if stage == 3 else total,
        gradient_bytes=total / ranks if stage >= 2 else total,
        optimizer_bytes=state / ranks,
    )


def _whole_parameters(shares, times, through):
    """Ends of the ranks in ZeRO-1 and 2."""
    forward, backward, update = times
    computed, lane = forward, np.zeros(len(forward))
    for bucket, share in enumerate(shares):
        computed = computed + share * backward
        lane = through("reduce_scatter", bucket, np.maximum(lane, computed))
    now = np.maximum(computed, lane) + update
    for bucket in range(len(shares)):
        now = through("all_gather", bucket, now)
    return now


def _parameters_in_parts(shares, times, through):
    """Ends of the ranks in ZeRO-3. ``lane``: when each rank has done the collectives so far."""
    forward, backward, update = times
    count = len(shares)
    now = np.zeros(len(forward))
    there = lane = through("all_gather", count - 1, now)
    for bucket in reversed(range(count)):
        now = np.maximum(now, there)
        if bucket:
            there = lane = through("all_gather", bucket - 1, np.maximum(lane, now))
        now = now + shares[bucket] * forward
    for bucket in range(count):
        now = np.maximum(now, there)
        if bucket + 1 < count:
            there = lane = through("all_gather", bucket + 1, np.maximum(lane, now))
        now = now + shares[bucket] * backward
        lane = through("reduce_scatter", bucket, np.maximum(lane, now))
    return np.maximum(now, lane) + update


def tensor_parallel_time(
    blocks: int,
    activation_bytes: float,
    ranks: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    model_bytes: float = 0,
    optimizer_bytes: float | None = None,
    algorithm: str = "ring",
    placement: Placement = "block",
    itemsize: int = 4,
) -> ShardedStep:
    """Time a step of tensor parallelism. In a block, ranks cut one layer by columns, one by rows.

    A block's forward ends with an all_reduce of the activations, and its backward ends with an
    all_reduce of their gradients. The rank waits for each of these two all_reduces. A transformer
    layer has two blocks.

    Parameters
    ----------
    blocks : int
    activation_bytes : int
        Bytes that each all_reduce sums. These are the activations between blocks. Each rank keeps
        all of these activations.
    ranks : int
    cluster : Cluster
    forward_s, backward_s : float or sequence of float
        Seconds in which a rank computes its part of all blocks. Pass one number for all ranks, or
        one number for each rank.
    model_bytes, optimizer_bytes : int
        Bytes of all parameters, and bytes of the optimizer's state. By default the state has twice
        as many bytes as the parameters. These two numbers only determine the bytes that each rank
        keeps.
    algorithm, placement, itemsize
        Options of the all_reduces, as for `time_of`.

    Returns
    -------
    ShardedStep

    Examples
    --------
    >>> import simlib
    >>> cluster = simlib.clusters.nvlink_nodes(nodes=1)
    >>> step = simlib.scale.tensor_parallel_time(
    ...     48, 25_000_000, 8, cluster, forward_s=0.05, backward_s=0.1
    ... )
    >>> round(step.compute_s / step.time_s, 2)
    0.81

    **Cost** one `time_of` for each all_reduce.

    **Source** Shoeybi et al. 2019 (arXiv 1909.08053).
    """
    ranks, blocks = count_of("ranks", ranks), count_of("blocks", blocks)
    forward = seconds_of_each_rank("forward_s", forward_s, ranks)
    backward = seconds_of_each_rank("backward_s", backward_s, ranks)
    total = as_int("model_bytes", model_bytes)
    state = 2 * total if optimizer_bytes is None else as_int("optimizer_bytes", optimizer_bytes)
    now = np.zeros(ranks)
    for part in [forward / blocks] * blocks + [backward / blocks] * blocks:
        now = ends_of(
            "all_reduce", ranks, activation_bytes, cluster, algorithm,
            starts=now + part, placement=placement, itemsize=itemsize,
        )  # fmt: skip
    return ShardedStep(
        name="tensor parallel",
        ranks=ranks,
        algorithm=algorithm,
        time_s=float(now.max()),
        compute_s=float((forward + backward).max()),
        parameter_bytes=total / ranks,
        gradient_bytes=total / ranks,
        optimizer_bytes=state / ranks,
    )
