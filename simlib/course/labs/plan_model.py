"""A transformer cut by data, tensor and pipeline parallelism: its step, and a whole run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from ...core.model.chance import check_mtbf
from ...core.model.cluster import Cluster, Topology
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.scale.checkpoints import time_with_failures
from ...core.scale.collective import time_of
from ...core.scale.pipeline_parallel import even_pipeline_time

ITEMSIZE = 2  # bytes of a parameter, a gradient, an activation in half precision
OPTIMIZER = 12  # bytes of Adam for each parameter: its copy and two moments in single precision
AXES = ("tp", "dp", "pp")
ORDER = "tp dp pp"
PARTS = ("compute", "bubble", "tp", "pp", "dp")
ROLES = ("parameters", "gradients", "optimizer state", "activations")


@dataclass(frozen=True)
class Transformer:
    """What is trained, and on how many sequences a step.

    **Source** for parameters and operations Narayanan et al. 2021 (arXiv 2104.04473), equations 2
    and 3; for activations Korthikanti et al. 2022 (arXiv 2205.05198), section 4.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int

    def __post_init__(self):
        for name in Transformer.__dataclass_fields__:
            check_count(name, getattr(self, name))

    @property
    def parameters(self):
        """12 l h^2 + 13 l h + (V + s) h."""
        layers, h = self.layers, self.hidden
        return 12 * layers * h**2 + 13 * layers * h + (self.vocabulary + self.sequence) * h

    def flops(self, recompute):
        """Operations of forward and of backward for one sequence.

        Forward of the layers 24 s h^2 + 4 s^2 h each, of the logits 2 s h V; backward is twice
        that, and the layers once more where they are computed again.
        """
        s, h = self.sequence, self.hidden
        in_layers = self.layers * (24 * s * h**2 + 4 * s**2 * h)
        forward = in_layers + 2 * s * h * self.vocabulary
        return forward, 2 * forward + (in_layers if recompute else 0)

    def activation_bytes(self, sequences, tp, layers, in_flight, recompute):
        """Of ``in_flight`` micro-batches in so many layers of a rank.

        A layer keeps s b h (10 + 24/t + 5 a s / (h t)); computed again 2 s b h, its input, and the
        whole of one layer at a time.
        """
        s, h, a = self.sequence, self.hidden, self.heads
        whole = s * sequences * h * (10 + 24 / tp + 5 * a * s / (h * tp))
        if not recompute:
            return in_flight * layers * whole
        return in_flight * layers * ITEMSIZE * s * sequences * h + whole


GPT = {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "batch": 1024}
GPT["vocabulary"] = 51_200
"""GPT-3 6.7B of Brown et al. 2020 (arXiv 2005.14165), with 2 million tokens a step."""


@dataclass(frozen=True)
class Cut:
    """How ranks are divided: ``order`` names the axes, that of neighbouring ranks first."""

    ranks: int
    tp: int
    pp: int
    num_microbatches: int
    zero: int
    recompute: bool
    order: str

    @property
    def dp(self):
        return self.ranks // (self.tp * self.pp)

    def size(self, axis):
        return getattr(self, axis)

    def stride(self, axis):
        """How far apart neighbours on an axis are, in ranks."""
        far = 1
        for before in self.order.split()[: self.order.split().index(axis)]:
            far *= self.size(before)
        return far


@dataclass(frozen=True, eq=False)
class MeshStep:
    """One step: ``times_s`` by `PARTS`, ``kept_bytes`` of the rank with most by `ROLES`."""

    times_s: dict
    kept_bytes: dict
    limit_bytes: float

    @property
    def time_s(self):
        return sum(self.times_s.values())

    @property
    def nbytes(self):
        return sum(self.kept_bytes.values())

    @property
    def fits(self):
        return self.nbytes <= self.limit_bytes


def refusal(model, cut):
    """Why a model cannot be cut so: a word for the map and a sentence; None where it can."""
    if cut.tp * cut.pp > cut.ranks:
        return "ranks", f"tp x pp = {cut.tp * cut.pp:,} is more than {cut.ranks:,} ranks"
    if model.heads % cut.tp:
        return "heads", f"{model.heads} heads cannot be divided by tp = {cut.tp}"
    if model.layers % cut.pp:
        return "layers", f"{model.layers} layers cannot be divided by pp = {cut.pp}"
    pieces = cut.dp * cut.num_microbatches
    if model.batch % pieces:
        return "batch", (
            f"{model.batch:,} sequences cannot be divided by dp x micro-batches = "
            f"{cut.dp:,} x {cut.num_microbatches:,} = {pieces:,}"
        )
    return None


@lru_cache(4096)
def step_of(model, cut, cluster):
    """The step of a cut that is possible: a `MeshStep`; a sentence where the model has no answer.

    Nothing overlaps but what the schedule of the pipeline, 1F1B, overlaps: the reduction over dp
    follows the last backward.
    """
    sequences = model.batch // (cut.dp * cut.num_microbatches)
    cluster = replace(cluster, nodes=max(1, -(-cut.ranks // cluster.ranks_per_node)))
    computes = [
        flops * sequences / (cut.tp * cut.pp) / cluster.device.flops_per_s
        for flops in model.flops(cut.recompute)
    ]
    message_bytes = ITEMSIZE * sequences * model.sequence * model.hidden
    # Two blocks a layer end in an all_reduce: forward, forward once more, and backward.
    blocks = 2 * model.layers // cut.pp
    reduced_s = _seconds("all_reduce", cut, "tp", message_bytes, cluster)
    talks = [blocks * reduced_s, (1 + cut.recompute) * blocks * reduced_s]
    forward_s, backward_s = (sum(pair) for pair in zip(computes, talks, strict=True))
    try:
        times = {"forward_s": forward_s, "backward_s": backward_s}
        whole_s, free_s = (
            even_pipeline_time(cut.pp, cut.num_microbatches, message_s=message_s, **times)
            for message_s in (_message_s(cut, message_bytes, cluster), 0.0)
        )
    except InvalidCallError as refused:
        return str(refused).partition(";")[0]
    rounds = cut.num_microbatches
    times_s = {
        "compute": rounds * sum(computes),
        "bubble": free_s - rounds * (forward_s + backward_s),
        "tp": rounds * sum(talks),
        "pp": whole_s - free_s,
        "dp": _dp_s(model, cut, cluster),
    }
    return MeshStep(times_s, _kept_bytes(model, cut, sequences), cluster.device.memory_bytes)


def outcome_of(model, cut, cluster):
    """The `MeshStep` of a cut; a word and a sentence where there is none."""
    step = refusal(model, cut) or step_of(model, cut, cluster)
    return ("link", step) if isinstance(step, str) else step


def _dp_s(model, cut, cluster):
    """Gradients summed over dp, and parameters gathered: after ZeRO's stage.

    From stage 2 on no rank has room for all its gradients, so each micro-batch's are
    reduce_scattered; in stage 3 each gathers the parameters for forward and for backward.
    """
    nbytes = ITEMSIZE * model.parameters / (cut.tp * cut.pp)
    if cut.zero == 0:
        return _seconds("all_reduce", cut, "dp", nbytes, cluster)
    scatters = cut.num_microbatches if cut.zero >= 2 else 1
    gathers = 2 * cut.num_microbatches if cut.zero == 3 else 1
    return sum(
        times * _seconds(kind, cut, "dp", nbytes, cluster)
        for kind, times in (("reduce_scatter", scatters), ("all_gather", gathers))
    )


def _kept_bytes(model, cut, sequences):
    """Bytes of rank 0, which has most micro-batches in flight.

    **Source** for 2 + 2 + 12 bytes a parameter and what each stage cuts: Rajbhandari et al. 2019
    (arXiv 1910.02054), section 3.
    """
    parameters = model.parameters / (cut.tp * cut.pp)
    in_flight = min(cut.num_microbatches, cut.pp)
    layers = model.layers // cut.pp
    return {
        "parameters": ITEMSIZE * parameters / (cut.dp if cut.zero >= 3 else 1),
        "gradients": ITEMSIZE * parameters / (cut.dp if cut.zero >= 2 else 1),
        "optimizer state": OPTIMIZER * parameters / (cut.dp if cut.zero >= 1 else 1),
        "activations": model.activation_bytes(sequences, cut.tp, layers, in_flight, cut.recompute),
    }


def nodes_of(cut, axis, cluster):
    """The node of each rank of one group along an axis, counted from 0."""
    stride = cut.stride(axis)
    return [rank * stride // cluster.ranks_per_node for rank in range(cut.size(axis))]


def _seconds(kind, cut, axis, nbytes, cluster):
    """Seconds of a ring collective along an axis. All groups go at once, each on its own cards."""
    size = cut.size(axis)
    if size == 1:
        return 0.0
    latency_s, s_per_byte = _line(kind, tuple(nodes_of(cut, axis, cluster)), cluster)
    return latency_s + nbytes * s_per_byte


@lru_cache(512)
def _line(kind, nodes, cluster):
    """A ring's time of bytes that ranks divide evenly: seconds, and seconds a byte."""
    names = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    cluster = replace(cluster, nodes=len(names))
    low = len(nodes) << 10
    how = {"placement": [names[node] for node in nodes], "itemsize": ITEMSIZE}
    a_s, b_s = (
        time_of(kind, len(nodes), size, cluster, "ring", **how) for size in (low, low << 12)
    )
    slope = (b_s - a_s) / ((low << 12) - low)
    return a_s - low * slope, slope


def _message_s(cut, nbytes, cluster):
    """Seconds of a message between neighbouring stages, the slowest of them."""
    if cut.pp == 1:
        return 0.0
    across = nodes_of(cut, "pp", cluster)[-1] > 0
    pair = Topology(replace(cluster, nodes=2), 2, [0, int(across)])
    return pair.latency_s(0, 1) + nbytes / pair.bandwidth_Bps(0, 1)


def check_cluster(cluster):
    """Refuse a cluster whose ranks have no device, or share a network card."""
    if not isinstance(cluster, Cluster) or cluster.device is None:
        raise InvalidCallError(
            "cluster has no device: give simlib.Cluster(..., device=Device(...))"
        )
    per_node = cluster.ranks_per_node
    if per_node & (per_node - 1):
        raise InvalidCallError(f"ranks_per_node is {per_node}: give a power of two")
    if cluster.rails % per_node:
        raise InvalidCallError(
            f"{per_node} ranks of a node share {cluster.rails} network "
            f"card{'s' * (cluster.rails != 1)}: give each its own, rails={per_node}"
        )
    if not cluster.device.flops_per_s < float("inf"):
        raise InvalidCallError("cluster's device computes in no time: give it flops_per_s")
    return cluster


# -- a whole training run: steps of a cut, checkpoints, failures, hours and what they cost ---------

RUN_PARTS = ("steps", "checkpoints", "lost")


@dataclass(frozen=True)
class Training(Transformer):
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

    tokens: float
    ranks: int
    cluster: Cluster
    hours: float
    price: float
    mtbf_s: float
    checkpoint_Bps: float
    restart_s: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_count("ranks", self.ranks)
        for name in ("tokens", "hours", "checkpoint_Bps"):
            check_number(name, getattr(self, name), above=True)
        for name in ("price", "restart_s"):
            check_number(name, getattr(self, name))
        check_mtbf(self.mtbf_s)
        check_cluster(self.cluster)

    @property
    def model(self):
        """The transformer."""
        return Transformer(*(getattr(self, name) for name in Transformer.__dataclass_fields__))

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
    step = outcome_of(job.model, cut, job.cluster)
    if isinstance(step, tuple):
        return step
    work_s = job.steps * step.time_s
    saving_s = work_s / interval_s * job.checkpoint_s
    whole_s = time_with_failures(
        work_s, interval_s, job.checkpoint_s, job.mtbf_s, job.ranks, restart_s=job.restart_s
    )
    times_s = work_s, saving_s, max(0.0, whole_s - work_s - saving_s)
    cost = job.price * job.ranks * sum(times_s) / 3600
    return Plan(step, dict(zip(RUN_PARTS, times_s, strict=True)), cost)


def check_jobs(jobs):
    """Refuse what are no jobs by their names."""
    if not jobs or not all(isinstance(job, Training) for job in jobs.values()):
        raise InvalidCallError(
            "jobs must be a dict of labs.Training by their names, with one at least"
        )
