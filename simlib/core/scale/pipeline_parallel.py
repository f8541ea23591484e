"""One step of a pipeline: GPipe, 1F1B, and 1F1B with interleaved stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..draw.display import DisplayMixin
from ..model.cluster import Cluster, Topology
from ..model.errors import InvalidCallError, as_int, check_number
from ..model.words import seconds_text, short_bytes
from .case import Placement, Seconds, Tabled, count_of, table_text
from .programs import Machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULES = ("gpipe", "1f1b", "interleaved")
Unit: TypeAlias = tuple[str, int, int]
"""One unit of compute: "F" or "B", the stage, and the micro-batch."""

MAX_UNITS = 200_000


@dataclass(frozen=True, eq=False, repr=False)
class PipelineStep(Tabled, DisplayMixin):
    """One training step of a pipeline.

    Attributes
    ----------
    schedule : {"gpipe", "1f1b", "interleaved"}
    ranks, num_microbatches : int
    stages_per_rank : int
        Stage s is on rank ``s % ranks``.
    time_s : float
        The second at which the last rank is done. The step begins at 0.
    compute_s : ndarray of float, shape (ranks,)
        Seconds that each rank computes.
    peak_microbatches : ndarray of int, shape (ranks,)
        The most activations that each rank keeps at the same time. The activations of one
        micro-batch in one stage count as 1.
    peak_activation_bytes : ndarray of int, shape (ranks,)
    units : list of tuple
        Each unit of compute as ``(rank, "F" or "B", stage, microbatch, start_s, end_s)``.
    """

    schedule: str
    ranks: int
    num_microbatches: int
    stages_per_rank: int
    time_s: float
    compute_s: np.ndarray
    peak_microbatches: np.ndarray
    peak_activation_bytes: np.ndarray
    units: list

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which the ranks do not compute."""
        return float(1 - self.compute_s.sum() / (self.ranks * self.time_s)) if self.time_s else 0.0

    @property
    def even_bubble(self) -> float:
        """The bubble with equal stages and messages that take no time: (K - 1) / (V M + K - 1)."""
        return (self.ranks - 1) / (self.stages_per_rank * self.num_microbatches + self.ranks - 1)

    def held(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return how many activations a rank keeps at each moment.

        The rank keeps an activation from the start of the forward to the end of the backward of its
        micro-batch.

        Parameters
        ----------
        rank : int

        Returns
        -------
        times_s : ndarray of float
            The moments at which the number changes: a forward starts, or a backward ends.
        counts : ndarray of int
            The number of activations from each moment on. The largest number is
            ``peak_microbatches[rank]``.
        """
        kinds, starts_s, ends_s = (
            np.array([unit[column] for unit in self.units if unit[0] == rank])
            for column in (1, 4, 5)
        )
        forward = kinds == "F"
        return np.where(forward, starts_s, ends_s), np.cumsum(np.where(forward, 1, -1))

    def table(self) -> str:
        """The step as plain text: a row for each rank, at most 20."""
        rows = [("rank", "computes", "bubble", "micro-batches held", "activations")]
        columns = self.compute_s, self.peak_microbatches, self.peak_activation_bytes
        for rank, (busy_s, held, nbytes) in enumerate(zip(*columns, strict=True)):
            share = 1 - busy_s / self.time_s if self.time_s else 0.0
            cells = str(rank), seconds_text(busy_s), f"{share:.1%}", str(held)
            rows.append((*cells, short_bytes(int(nbytes))))
        title = (
            f"{self.schedule} on {self.ranks:,} ranks, {self.num_microbatches:,} micro-batches: "
            f"{seconds_text(self.time_s)}, bubble {self.bubble:.1%}"
        )
        return table_text([title], rows)

    def draw(self) -> Figure:
        """Draw each rank's units of compute over time. Returns a matplotlib Figure."""
        from .pictures import draw_pipeline

        return draw_pipeline(self)


def pipeline_time(
    ranks: int,
    num_microbatches: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    message_bytes: float,
    activation_bytes: float | None = None,
    schedule: str = "1f1b",
    stages_per_rank: int = 1,
    placement: Placement = "block",
) -> PipelineStep:
    """Time a step of a pipeline, and find its bubble and the activations that each rank keeps.

    Messages travel while ranks compute. A rank posts all its receives at the start of the step,
    sends its results by `isend`, and waits for its sends at the end. Messages share links as in
    `simulate`.

    Parameters
    ----------
    ranks, num_microbatches : int
    cluster : Cluster
    forward_s, backward_s : float or sequence of float
        Seconds that one micro-batch takes in a stage. Pass one number for all stages, or one number
        for each stage.
    message_bytes : int
        Bytes of activations that a stage sends to the next stage for one micro-batch. The next
        stage sends back gradients of the same size.
    activation_bytes : int, optional
        Bytes that a stage keeps for one micro-batch until its backward. The default is
        ``message_bytes``, the size of the stage's input. This is right for programs that recompute
        activations.
    schedule : {"gpipe", "1f1b", "interleaved"}
        With ``"gpipe"`` a rank computes all forwards, and then all backwards, beginning with the
        last micro-batch. With ``"1f1b"`` a rank first computes some forwards, and then alternates
        between one forward and one backward. ``"interleaved"`` is like ``"1f1b"``, but with
        ``stages_per_rank`` stages on each rank, and micro-batches go through each stage in groups
        of ``ranks``.
    stages_per_rank : int
        The number of stages on each rank. It is 1 except for ``"interleaved"``.
    placement
        As in `Topology`.

    Returns
    -------
    PipelineStep

    Examples
    --------
    If all stages are equal and messages take no time, the bubble is (K - 1) / (M + K - 1):

    >>> import simlib
    >>> cluster = simlib.Cluster(4, 1, simlib.Link(0.0, float("inf")))
    >>> times = {"forward_s": 0.01, "backward_s": 0.02, "message_bytes": 1_000_000}
    >>> simlib.scale.pipeline_time(4, 8, cluster, **times)
    1f1b on 4 ranks, 8 micro-batches: 330 ms, bubble 27.3%
    <BLANKLINE>
    rank  computes  bubble  micro-batches held  activations
       0    240 ms   27.3%                   4         4 MB
       1    240 ms   27.3%                   3         3 MB
       2    240 ms   27.3%                   2         2 MB
       3    240 ms   27.3%                   1         1 MB

    **Cost** O(ranks * micro-batches * stages per rank), about 50 us for each micro-batch in each
    stage.

    **Source** Huang et al. 2019 (GPipe, arXiv 1811.06965); Narayanan et al. 2021 (1F1B and its
    interleaved form, arXiv 2104.04473).
    """
    ranks, count = count_of("ranks", ranks), count_of("num_microbatches", num_microbatches)
    per_rank = count_of("stages_per_rank", stages_per_rank)
    _check(ranks, count, per_rank, schedule)
    stages = ranks * per_rank
    message_bytes = as_int("message_bytes", message_bytes)
    kept_bytes = (
        message_bytes if activation_bytes is None else as_int("activation_bytes", activation_bytes)
    )
    seconds = {
        "F": _of_each_stage("forward_s", forward_s, stages),
        "B": _of_each_stage("backward_s", backward_s, stages),
    }
    orders = [order_of(schedule, rank, ranks, count, per_rank) for rank in range(ranks)]
    machine = Machine(Topology(cluster, ranks, placement))
    pipeline = _Pipeline(machine, ranks, stages, seconds, message_bytes)
    units: list[tuple] = []
    machine.run(_program(pipeline, rank, order, units) for rank, order in enumerate(orders))
    held = np.array([most_held(order) for order in orders])
    compute_s = np.zeros(ranks)
    np.add.at(compute_s, [unit[0] for unit in units], [unit[5] - unit[4] for unit in units])
    return PipelineStep(
        schedule=schedule,
        ranks=ranks,
        num_microbatches=count,
        stages_per_rank=per_rank,
        time_s=max(machine.clocks),
        compute_s=compute_s,
        peak_microbatches=held,
        peak_activation_bytes=held * kept_bytes,
        units=units,
    )


def _check(ranks, count, per_rank, schedule):
    if schedule not in SCHEDULES:
        raise InvalidCallError(f"schedule is {schedule!r}: give one of {', '.join(SCHEDULES)}")
    if schedule != "interleaved" and per_rank > 1:
        raise InvalidCallError(
            f"{schedule} has one stage on each rank, not {per_rank}: give schedule='interleaved'"
        )
    if schedule == "interleaved" and count % ranks:
        raise InvalidCallError(
            f"{count} micro-batches do not fit: interleaved stages take as many micro-batches at a "
            f"time as there are ranks. Give a multiple of {ranks} micro-batches"
        )
    if 2 * ranks * count * per_rank > MAX_UNITS:
        raise InvalidCallError(
            f"{2 * ranks * count * per_rank:,} units of work are too many to follow one by one: "
            f"the limit is {MAX_UNITS:,}. With K ranks, V equal stages on each, M micro-batches "
            "and hidden messages, the bubble is (K - 1) / (V M + K - 1)"
        )


def _of_each_stage(name, value, stages):
    if np.ndim(value) == 0:
        check_number(name, value)
        return [float(value)] * stages
    if np.shape(value) != (stages,):
        raise InvalidCallError(
            f"{name} has shape {np.shape(value)}: give one number of seconds, or {stages} numbers"
        )
    for each in value:
        check_number(name, each)
    return [float(each) for each in value]


@dataclass(frozen=True)
class _Pipeline:
    """The values that all ranks of a pipeline share."""

    machine: Machine
    ranks: int
    stages: int
    seconds: dict
    message_bytes: int


def _program(pipeline, rank, order, units):
    """The program of one rank for the step. A message's tag is the unit that needs it."""
    machine, ranks, stages = pipeline.machine, pipeline.ranks, pipeline.stages
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    count = 1 + max(microbatch for _, _, microbatch in order)

    def tag(kind, stage, microbatch):
        return (2 * stage + (kind == "B")) * count + microbatch

    inputs, sent = {}, []
    for unit in order:
        kind, stage, _ = unit
        src = before if kind == "F" else after
        has_input = stage > 0 if kind == "F" else stage < stages - 1
        if has_input and ranks > 1:
            inputs[unit] = machine.irecv(rank, src, tag(*unit))
    for unit in order:
        kind, stage, microbatch = unit
        if unit in inputs:
            yield [inputs[unit]]
        start_s = machine.clocks[rank]
        yield pipeline.seconds[kind][stage]
        units.append((rank, *unit, start_s, machine.clocks[rank]))
        step, dst = (1, after) if kind == "F" else (-1, before)
        if 0 <= stage + step < stages and ranks > 1:
            sends_to = tag(kind, stage + step, microbatch)
            sent.append(machine.isend(rank, dst, pipeline.message_bytes, sends_to))
    yield sent


# -- in which order a rank computes ----------------------------------------------------------------


def order_of(schedule: str, rank: int, ranks: int, count: int, per_rank: int) -> list[Unit]:
    """The units that a rank computes, in order: ``("F" or "B", stage, microbatch)``."""
    forward, backward = _forward_and_backward(schedule, rank, ranks, count, per_rank)
    if schedule == "gpipe":
        ahead = count
    elif schedule == "1f1b":
        ahead = ranks - rank - 1
    else:
        ahead = 2 * (ranks - rank - 1) + (per_rank - 1) * ranks
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for one_forward, one_backward in zip(forward[ahead:], backward, strict=False):
        order += [one_forward, one_backward]
    return order + backward[len(forward) - ahead :]


def _forward_and_backward(schedule, rank, ranks, count, per_rank):
    """All forward units of a rank, and all backward units, each in order."""
    if schedule != "interleaved":
        microbatches = range(count)
        back = reversed(microbatches) if schedule == "gpipe" else microbatches
        return [("F", rank, m) for m in microbatches], [("B", rank, m) for m in back]
    groups = [range(first, first + ranks) for first in range(0, count, ranks)]
    stages = [rank + ranks * part for part in range(per_rank)]
    return (
        [("F", stage, m) for group in groups for stage in stages for m in group],
        [("B", stage, m) for group in groups for stage in reversed(stages) for m in group],
    )


def most_held(order: list[Unit]) -> int:
    """The most activations that a rank keeps at the same time."""
    changes = [1 if kind == "F" else -1 for kind, _, _ in order]
    return int(np.cumsum(changes).max())


# -- equal stages, in closed form ------------------------------------------------------------------


def even_pipeline_time(
    ranks: int,
    num_microbatches: int,
    *,
    forward_s: float,
    backward_s: float,
    message_s: float = 0.0,
) -> float:
    """Return the seconds of a 1F1B step with equal stages, by a formula.

    The result is the same as from `pipeline_time`. Rank 0 computes its first K forwards at once.
    Every later forward of rank 0 waits for a backward of the last rank, so compute does not hide
    the messages. If messages take no time, a step takes (M + K - 1) (forward + backward). A step
    has N = M + K - 2 rounds. In N - floor(N / K) of these rounds, a rank also waits for one message
    to its neighbour and one message back.

    Parameters
    ----------
    ranks, num_microbatches : int
        K ranks and M micro-batches.
    forward_s, backward_s : float
        Seconds that one micro-batch takes in a stage.
    message_s : float
        Seconds that a message to a neighbour takes when it is alone on its link.

    Returns
    -------
    float

    Raises
    ------
    InvalidCallError
        A message takes longer than a forward, so messages would wait for other messages.

    Examples
    --------
    >>> import simlib
    >>> even = {"forward_s": 0.01, "backward_s": 0.02}
    >>> round(simlib.scale.even_pipeline_time(4, 8, **even), 3)
    0.33
    >>> round(simlib.scale.even_pipeline_time(4, 8, **even, message_s=0.001), 3)
    0.346

    **Cost** O(1).
    """
    ranks, count = count_of("ranks", ranks), count_of("num_microbatches", num_microbatches)
    times_s = {"forward_s": forward_s, "backward_s": backward_s, "message_s": message_s}
    for name, value in times_s.items():
        check_number(name, value)
    if ranks > 1 and message_s > forward_s:
        raise InvalidCallError(
            f"a message takes {seconds_text(message_s)}, but a forward {seconds_text(forward_s)}, "
            "so messages would queue: use pipeline_time, which follows each message"
        )
    rounds = count + ranks - 2
    waits = rounds - rounds // ranks if ranks > 1 else 0
    return (count + ranks - 1) * (forward_s + backward_s) + 2 * waits * message_s


# -- unequal stages, quickly -----------------------------------------------------------------------


def uneven_pipeline_ends(
    num_microbatches: int,
    *,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_s: float = 0.0,
) -> list[float]:
    """Return when each stage of 1F1B ends its last backward. Stages may take different times.

    The order of units is the same as in `pipeline_time`. When the last backward of a stage ends,
    the stage's gradients are complete, and their all_reduce over the data-parallel ranks may begin.
    The time of the whole pipeline is the largest of these ends.

    Parameters
    ----------
    num_microbatches : int
        The number M of micro-batches.
    forward_s, backward_s : sequence of float
        Seconds that one micro-batch takes in each of the K stages.
    message_s : float
        Seconds of a message to a neighbour. Messages from a stage to the same neighbour travel one
        by one. A stage may send or receive two messages at a time, one on each side. In
        `pipeline_time` these two messages share the link of the stage. In this function they do not
        slow each other.

    Returns
    -------
    list of float
        The second at which each stage ends, counted from the start of the step.

    Raises
    ------
    InvalidCallError
        A message takes longer than a stage needs for a micro-batch. Messages would then determine
        the time.

    Examples -------- In the second call, the last of four stages takes twice as long as the others.
    It determines the time of the step:

    >>> import simlib
    >>> even, last = [0.01] * 4, [0.01, 0.01, 0.01, 0.02]
    >>> ends_s = simlib.scale.uneven_pipeline_ends(8, forward_s=even, backward_s=even)
    >>> round(max(ends_s), 3)
    0.22
    >>> ends_s = simlib.scale.uneven_pipeline_ends(8, forward_s=last, backward_s=last)
    >>> round(max(ends_s), 3)
    0.38

    **Cost** O(K M), about 0.2 us for each micro-batch in each stage.
    """
    count, stages = count_of("num_microbatches", num_microbatches), len(forward_s)
    forward = _of_each_stage("forward_s", list(forward_s), stages)
    backward = _of_each_stage("backward_s", list(backward_s), stages)
    check_number("message_s", message_s)
    for stage, turn_s in enumerate(map(sum, zip(forward, backward, strict=True))):
        sends = (stage > 0) + (stage < stages - 1)
        if sends * message_s > turn_s:
            raise InvalidCallError(
                f"stage {stage} needs {seconds_text(turn_s)} for a micro-batch and "
                f"{seconds_text(sends * message_s)} to send, so messages would queue: use "
                "pipeline_time, which follows each message"
            )
    ends_s, came_s = [0.0] * stages, [0.0] * stages  # of the last forward's input in each stage
    back_s = [0.0] * stages
    for wave in range(count + stages - 1):
        # Stage s takes the forward of micro-batch wave - s, then the backward of wave - K + 1.
        for stage in reversed(range(max(0, wave - count + 1), min(stages, wave + 1))):
            ends_s[stage] = max(ends_s[stage], came_s[stage]) + forward[stage]
            if stage + 1 < stages:
                came_s[stage + 1] = max(ends_s[stage], came_s[stage + 1]) + message_s
        if wave >= stages - 1:
            for stage in reversed(range(stages)):
                ends_s[stage] = max(ends_s[stage], back_s[stage]) + backward[stage]
                if stage:
                    back_s[stage - 1] = max(ends_s[stage], back_s[stage - 1]) + message_s
    return ends_s
