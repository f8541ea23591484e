"""A whole training run: steps of a cut, checkpoints, failures, hours and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ...core.model.chance import check_mtbf
from ...core.model.cluster import Cluster
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.scale.failures import time_with_failures
from .mesh_model import (
    ITEMSIZE,
    OPTIMIZER,
    Cut,
    MeshStep,
    Transformer,
    check_cluster,
    refusal,
    step_of,
)

ORDER = "tp dp pp"
RUN_PARTS = ("steps", "checkpoints", "lost")


@dataclass(frozen=True)
class Training:
    """A model, what it is trained on, and what there is to train it with.

    Attributes
    ----------
    layers, hidden, heads, sequence, batch, vocabulary : int
        Of the transformer; ``batch`` counts sequences of a step, on all ranks together.
    tokens : float
        Of the whole training.
    ranks : int
    cluster : Cluster
        Its nodes are as many as the ranks need. It has a device.
    hours, price : float
        What the run may take, and what a rank costs in an hour.
    mtbf_s : float
        Mean time between failures of one rank.
    checkpoint_Bps : float
        Bytes per second of all ranks together to where checkpoints are kept.
    restart_s : float
        From a failure until the work goes on.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int
    tokens: float
    ranks: int
    cluster: Cluster
    hours: float
    price: float
    mtbf_s: float
    checkpoint_Bps: float
    restart_s: float = 0.0

    def __post_init__(self):
        counts = "layers", "hidden", "heads", "sequence", "batch", "vocabulary", "ranks"
        for name in counts:
            check_count(name, getattr(self, name))
        for name in ("tokens", "hours", "checkpoint_Bps"):
            check_number(name, getattr(self, name), above=True)
        for name in ("price", "restart_s"):
            check_number(name, getattr(self, name))
        check_mtbf(self.mtbf_s)
        check_cluster(self.cluster)

    @property
    def model(self):
        """The transformer."""
        return Transformer(
            self.layers, self.hidden, self.heads, self.sequence, self.batch, self.vocabulary
        )

    @property
    def steps(self):
        """How many steps the tokens are."""
        return ceil(self.tokens / (self.batch * self.sequence))

    @property
    def checkpoint_s(self):
        """Seconds of a checkpoint: parameters and the optimizer's state, of all ranks together."""
        return (ITEMSIZE + OPTIMIZER) * self.model.parameters / self.checkpoint_Bps


@dataclass(frozen=True, eq=False)
class Plan:
    """A run as planned: ``times_s`` by `RUN_PARTS`, what it costs, and its step."""

    step: MeshStep
    times_s: dict
    cost: float

    @property
    def time_s(self):
        return sum(self.times_s.values())


def cut_of(job, tp, pp, sequences, zero, recompute):
    """The `Cut` of a job into micro-batches of so many sequences; or why there is none."""
    cut = Cut(job.ranks, tp, pp, 1, zero, recompute, ORDER)
    if tp * pp <= job.ranks:
        if job.ranks % (tp * pp):
            return "ranks", f"{job.ranks:,} ranks cannot be divided by tp x pp = {tp * pp}"
        if job.batch % (cut.dp * sequences):
            return "batch", (
                f"{job.batch:,} sequences cannot be divided by dp x sequences = "
                f"{cut.dp:,} x {sequences} = {cut.dp * sequences:,}"
            )
        cut = replace(cut, num_microbatches=job.batch // (cut.dp * sequences))
    return refusal(job.model, cut) or cut


def plan_of(job, tp, pp, sequences, zero, recompute, interval_s):
    """The `Plan` of a choice; a word and a sentence where there is none."""
    cut = cut_of(job, tp, pp, sequences, zero, recompute)
    if isinstance(cut, tuple):
        return cut
    step = step_of(job.model, cut, job.cluster)
    if isinstance(step, str):
        return "link", step
    work_s = job.steps * step.time_s
    saving_s = work_s / interval_s * job.checkpoint_s
    whole_s = time_with_failures(
        work_s, interval_s, job.checkpoint_s, job.mtbf_s, job.ranks, restart_s=job.restart_s
    )
    times_s = work_s, saving_s, max(0.0, whole_s - work_s - saving_s)
    return Plan(
        step,
        dict(zip(RUN_PARTS, times_s, strict=True)),
        job.price * job.ranks * sum(times_s) / 3600,
    )


def check_jobs(jobs):
    """Refuse what are no jobs by their names."""
    if not jobs or not all(isinstance(job, Training) for job in jobs.values()):
        raise InvalidCallError(
            "jobs must be a dict of labs.Training by their names, with one at least"
        )
