"""One step of a pipeline: GPipe, 1F1B, and 1F1B with interleaved stages."""

from __future__ import annotations

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
"""What is computed in one go: "F" or "B", stage, micro-batch."""

MAX_UNITS = 200_000


@dataclass(frozen=True, eq=False, repr=False)
class PipelineStep(Tabled, DisplayMixin):
    """One training step of a pipeline.

    Attributes
    ----------
    schedule : {"gpipe", "1f1b", "interleaved"}
    ranks, num_microbatches : int
    stages_per_rank : int
        Stage s lives on rank ``s % ranks``.
    time_s : float
        When the last rank is done; the step begins at 0.
    compute_s : ndarray of float, shape (ranks,)
        Seconds in which each rank computes.
    peak_microbatches : ndarray of int, shape (ranks,)
        Most activations that a rank holds at a time: of one micro-batch in one of its stages each.
    peak_activation_bytes : ndarray of int, shape (ranks,)
    units : list of tuple
        ``(rank, "F" or "B", stage, microbatch, start_s, end_s)`` of all that is computed.
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
        """Share of the ranks' time in which they do not compute."""
        return float(1 - self.compute_s.sum() / (self.ranks * self.time_s)) if self.time_s else 0.0

    @property
    def even_bubble(self) -> float:
        """The bubble of equal stages and free messages: (K - 1) / (V M + K - 1)."""
        return (self.ranks - 1) / (self.stages_per_rank * self.num_microbatches + self.ranks - 1)

    def held(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """How many activations a rank holds over time, each from its forward to its backward's end.

        Parameters
        ----------
        rank : int

        Returns
        -------
        times_s : ndarray of float
            When that changes: a forward starts, or a backward has ended.
        counts : ndarray of int
            How many are held from then on; the most is ``peak_microbatches[rank]``.
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
        """Draw what each rank computes when. Returns a matplotlib Figure."""
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
    """A step of a pipeline: `PipelineStep.time_s`, the bubble, and the activations held.

    Messages travel while ranks compute: a rank posts all its receives when the step begins, sends
    by `isend` what it has computed, and waits for its sends at the end. What shares a link shares
    it as in `simulate`.

    Parameters
    ----------
    ranks, num_microbatches : int
    cluster : Cluster
    forward_s, backward_s : float or sequence of float
        Seconds that one micro-batch takes in a stage: of all stages, or of each.
    message_bytes : int
        Activations that a stage sends to the next for one micro-batch; as many gradients come back.
    activation_bytes : int, optional
        What a stage keeps of one micro-batch until its backward; by default ``message_bytes``, its
        input, as where activations are computed again.
    schedule : {"gpipe", "1f1b", "interleaved"}
        All forward and then all backward, the last micro-batch first; after the first ones one
        forward, one backward in turn; the same with ``stages_per_rank`` stages on each rank, where
        micro-batches go through each of them in groups of as many as there are ranks.
    stages_per_rank : int
        1 but for ``"interleaved"``.
    placement
        As in `Topology`.

    Returns
    -------
    PipelineStep

    Examples
    --------
    With equal stages and free messages the bubble is (K - 1) / (M + K - 1):

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

    **Cost** O(ranks * micro-batches * stages per rank), about 50 us each.

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
            f"{count} micro-batches on {ranks} ranks: interleaved stages take them in groups of as "
            "many as there are ranks, so give a multiple of that"
        )
    if 2 * ranks * count * per_rank > MAX_UNITS:
        raise InvalidCallError(
            f"{2 * ranks * count * per_rank:,} units of work would have to be followed one by one: "
            f"at most {MAX_UNITS:,} are. Of a pipeline of equal stages whose messages are hidden "
            "the bubble is (K - 1) / (V M + K - 1), of K ranks, V stages on each, M micro-batches"
        )


def _of_each_stage(name, value, stages):
    if np.ndim(value) == 0:
        check_number(name, value)
        return [float(value)] * stages
    if np.shape(value) != (stages,) or not (np.asarray(value) >= 0).all():
        raise InvalidCallError(
            f"{name} is of shape {np.shape(value)}: give seconds, one or {stages}"
        )
    return [float(each) for each in value]


@dataclass(frozen=True)
class _Pipeline:
    """What all ranks of a pipeline share."""

    machine: Machine
    ranks: int
    stages: int
    seconds: dict
    message_bytes: int


def _program(pipeline, rank, order, units):
    """What one rank does in the step; a message's tag says which unit it is for."""
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
    """What a rank computes, in order: ``("F" or "B", stage, microbatch)``."""
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
    """Most activations that a rank holds at a time."""
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
    """A step of 1F1B with equal stages, in closed form: seconds, as `pipeline_time` finds them.

    Every forward of rank 0 but the first K waits for a backward of the last rank, so messages are
    not hidden: with free ones a step takes (M + K - 1) (forward + backward), and of N = M + K - 2
    rounds N - floor(N / K) wait for a message there and one back.

    Parameters
    ----------
    ranks, num_microbatches : int
        K and M.
    forward_s, backward_s : float
        Seconds that one micro-batch takes in a stage.
    message_s : float
        Of a message to a neighbour that is alone on its link.

    Returns
    -------
    float

    Raises
    ------
    InvalidCallError
        Messages that take longer than a forward: they would wait for one another.

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
            f"a message takes {seconds_text(message_s)} and a forward {seconds_text(forward_s)}: "
            "messages would wait for one another; pipeline_time follows them one by one"
        )
    rounds = count + ranks - 2
    waits = rounds - rounds // ranks if ranks > 1 else 0
    return (count + ranks - 1) * (forward_s + backward_s) + 2 * waits * message_s
