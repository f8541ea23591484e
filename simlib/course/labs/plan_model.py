"""A transformer that is cut by data, tensor and pipeline parallelism: its step, and a whole run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, isclose

import numpy as np

from ...core.model.chance import check_mtbf
from ...core.model.cluster import Cluster, Device, Link, Topology
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.scale.checkpoints import time_with_failures
from ...core.scale.collective import time_of
from ...core.scale.pipeline_parallel import uneven_pipeline_ends

ITEMSIZE = 2  # bytes of a parameter, a gradient, an activation in half precision
LOGIT = 8  # bytes of a logit and of its gradient, both in single precision
OPTIMIZER = 12  # bytes of Adam for each parameter: its copy and two moments in single precision
AXES = ("tp", "dp", "pp")
ORDER = "tp dp pp"
PARTS = ("compute", "bubble", "tp", "pp", "dp")
ROLES = ("parameters", "gradients", "optimizer state", "activations")


@dataclass(frozen=True)
class Transformer:
    """The model to train, and the number of sequences in a step.

    **Source** for parameters and operations: Narayanan et al. 2021 (arXiv 2104.04473), equations 2
    and 3; for activations: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.
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
        """Number of parameters: 12 l h^2 + 13 l h + (V + s) h."""
        layers, h = self.layers, self.hidden
        return 12 * layers * h**2 + 13 * layers * h + (self.vocabulary + self.sequence) * h

    def flops(self, recompute):
        """Operations of the whole model's forward and of its backward, for one sequence."""
        return self.stage_flops((self.layers,), 0, recompute)

    def stage_flops(self, layers, stage, recompute):
        """Operations of a stage's forward and of its backward, for one sequence.

        The forward of a layer takes 24 s h^2 + 4 s^2 h. The logits take 2 s h V, on the last stage
        only. Backward takes twice as many. If layers are computed again, backward also includes
        their forward.
        """
        s, h = self.sequence, self.hidden
        in_layers = layers[stage] * (24 * s * h**2 + 4 * s**2 * h)
        is_last = stage == len(layers) - 1
        forward = in_layers + is_last * 2 * s * h * self.vocabulary
        return forward, 2 * forward + (in_layers if recompute else 0)

    def stage_parameters(self, layers, stage):
        """Parameters of a stage that has ``layers[stage]`` of the layers.

        The first stage has the embedding (V + s) h. The last stage needs its V h for the logits,
        too. If there are several stages, the last one has a copy.
        """
        h, is_last = self.hidden, stage == len(layers) - 1
        embedding = (self.vocabulary + self.sequence) * h if stage == 0 else 0
        copy = self.vocabulary * h if is_last and stage > 0 else 0
        return (12 * h**2 + 13 * h) * layers[stage] + embedding + copy

    def activation_bytes(self, sequences, tp, layers, in_flight, recompute):
        """Bytes of activations of ``in_flight`` micro-batches in the layers of a rank.

        A layer keeps s b h (10 + 24/t + 5 a s / (h t)). If activations are computed again, a layer
        keeps only its input, 2 s b h, and one layer at a time has all its activations.
        """
        s, h, a = self.sequence, self.hidden, self.heads
        whole = s * sequences * h * (10 + 24 / tp + 5 * a * s / (h * tp))
        if not recompute:
            return in_flight * layers * whole
        return in_flight * layers * ITEMSIZE * s * sequences * h + whole


GPT = {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "batch": 1024}
GPT["vocabulary"] = 51_200
"""GPT-3 6.7B of Brown et al. 2020 (arXiv 2005.14165), with 2 million tokens per step."""


@dataclass(frozen=True)
class Cut:
    """The division of ranks. ``order`` names the axes; neighbouring ranks differ on the first."""

    ranks: int
    tp: int
    pp: int
    num_microbatches: int
    zero: int
    recompute: bool
    order: str
    layers: tuple[int, ...] = ()
    """Number of layers of each stage; if empty, `balanced` finds them."""

    @property
    def dp(self):
        return self.ranks // (self.tp * self.pp)

    def size(self, axis):
        return getattr(self, axis)

    def stride(self, axis):
        """The distance of neighbours on an axis, in ranks."""
        far = 1
        for before in self.order.split()[: self.order.split().index(axis)]:
            far *= self.size(before)
        return far


@dataclass(frozen=True, eq=False)
class MeshStep:
    """One step: ``times_s`` by `PARTS`, and ``kept_bytes`` of the fullest rank by `ROLES`.

    ``times_s`` has the compute and tp of the slowest stage, and the bubble is the time in which
    that stage waits. ``layers`` has the number of layers of each stage. Activations include the
    logits.
    """

    times_s: dict
    kept_bytes: dict
    limit_bytes: float
    layers: tuple[int, ...]

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
    """Why this cut is impossible: a word for the map and a sentence. None if it is possible."""
    if cut.tp * cut.pp > cut.ranks:
        return "ranks", f"tp x pp = {cut.tp * cut.pp:,} is more than {cut.ranks:,} ranks"
    if model.heads % cut.tp:
        return "heads", f"{model.heads} heads cannot be divided by tp = {cut.tp}"
    if model.layers < cut.pp:
        return "layers", f"{model.layers} layers are too few for pp = {cut.pp} stages"
    pieces = cut.dp * cut.num_microbatches
    if model.batch % pieces:
        return "batch", (
            f"{model.batch:,} sequences cannot be divided by dp x micro-batches = "
            f"{cut.dp:,} x {cut.num_microbatches:,} = {pieces:,}"
        )
    return None


@dataclass(frozen=True)
class _Stages:
    """Values that all ways to divide the layers of a cut have in common."""

    model: Transformer
    cut: Cut
    cluster: Cluster

    @property
    def sequences(self):
        return self.model.batch // (self.cut.dp * self.cut.num_microbatches)

    @cached_property
    def message_bytes(self):
        return ITEMSIZE * self.sequences * self.model.sequence * self.model.hidden

    @cached_property
    def message_s(self):
        return _message_s(self.cut, self.message_bytes, self.cluster)

    @cached_property
    def reduced_s(self):
        return _seconds("all_reduce", self.cut, "tp", self.message_bytes, self.cluster)

    @cached_property
    def tied_s(self):
        """Seconds in which the first and last stage add the gradients of the embedding's copies."""
        if self.cut.pp == 1:
            return 0.0
        nodes = nodes_of(self.cut, "pp", self.cluster)
        nbytes = ITEMSIZE * self.model.vocabulary * self.model.hidden / self.cut.tp
        latency_s, s_per_byte = _line("all_reduce", (nodes[0], nodes[-1]), self.cluster)
        return latency_s + nbytes * s_per_byte

    @cached_property
    def dp_line(self):
        """Seconds of the reduction over dp, and seconds for each parameter of a rank."""
        alone_s, much_s = (_dp_s(self.cut, count, self.cluster) for count in (0, 1e9))
        return alone_s, (much_s - alone_s) / 1e9

    def compute_s(self, layers):
        """Seconds of a micro-batch's forward and of its backward in each stage, without tp."""
        share = self.sequences / self.cut.tp / self.cluster.device.flops_per_s
        flops = (
            self.model.stage_flops(layers, stage, self.cut.recompute)
            for stage in range(self.cut.pp)
        )
        return [(share * forward, share * backward) for forward, backward in flops]

    def tp_s(self, layers):
        """Seconds of tp: in each forward and backward, two blocks a layer end in an all_reduce."""
        forward = [2 * each * self.reduced_s for each in layers]
        return [(each, (1 + self.cut.recompute) * each) for each in forward]

    def times_s(self, layers):
        """Seconds of a micro-batch's forward in each stage, and seconds of its backward."""
        pairs = zip(self.compute_s(layers), self.tp_s(layers), strict=True)
        sums = [(compute[0] + tp[0], compute[1] + tp[1]) for compute, tp in pairs]
        return [forward for forward, _ in sums], [backward for _, backward in sums]

    def dp_s(self, layers):
        alone_s, each_s = self.dp_line
        share = each_s / self.cut.tp
        return [
            alone_s + share * self.model.stage_parameters(layers, stage)
            for stage in range(self.cut.pp)
        ]

    def ends_s(self, layers, message_s):
        forward_s, backward_s = map(tuple, self.times_s(layers))
        return _ends_s(self.cut.num_microbatches, forward_s, backward_s, message_s)

    def step_s(self, layers, ends_s):
        """Seconds until the gradients of all stages are summed."""
        ready_s = list(ends_s)
        ready_s[0] = ready_s[-1] = max(ready_s[0], ready_s[-1]) + self.tied_s
        return max(ready + dp for ready, dp in zip(ready_s, self.dp_s(layers), strict=True))

    def estimates_s(self, table):
        """Quick estimates of the step's seconds, for each row of layers.

        A pipeline takes the sum of its stages plus M - 1 times the slowest stage. This is exact if
        the last stage is the slowest and messages take no time.
        """
        forward_s, backward_s, dp_s = (
            one + (table - 1) * (two - one)
            for one, two in zip(self._values(1), self._values(2), strict=True)
        )
        turns_s = forward_s + backward_s
        ends_s = turns_s.sum(axis=1) + (self.cut.num_microbatches - 1) * turns_s.max(axis=1)
        before_s = np.cumsum(backward_s, axis=1) - backward_s
        ready_s = ends_s[:, None] - before_s + dp_s
        ready_s[:, [0, -1]] = ends_s[:, None] + self.tied_s + dp_s[:, [0, -1]]
        return ready_s.max(axis=1)

    def _values(self, layers):
        """Seconds of forward, backward and dp in each stage, if each had this number of layers."""
        all_alike = (layers,) * self.cut.pp
        return [np.array(each) for each in (*self.times_s(all_alike), self.dp_s(all_alike))]


@lru_cache(4096)
def _ends_s(count, forward_s, backward_s, message_s):
    times_s = {"forward_s": forward_s, "backward_s": backward_s, "message_s": message_s}
    return uneven_pipeline_ends(count, **times_s)


@lru_cache(64)
def ways(layers, stages):
    """Ways to divide layers: any number on the first and last stages, and the rest evenly."""
    if stages <= 2:
        return [(layers,)] if stages == 1 else [(k, layers - k) for k in range(1, layers)]
    most, found = -(-layers // stages) + 1, []
    for first, last in product(range(1, most + 1), repeat=2):
        each, more = divmod(layers - first - last, stages - 2)
        if each >= 1:
            middle = (each + 1,) * more + (each,) * (stages - 2 - more)
            found.append((first, *middle, last))
    return found


def balanced(stages):
    """The layers of each stage in the fastest of the `ways`: a tuple. An error if there is none."""
    model, cut = stages.model, stages.cut
    found = ways(model.layers, cut.pp)
    order = np.argsort(stages.estimates_s(np.array(found)), kind="stable")
    steps, refused = [], None
    for layers in (found[k] for k in order[:TRIED]):
        try:
            steps.append((stages.step_s(layers, stages.ends_s(layers, stages.message_s)), layers))
        except InvalidCallError as error:
            refused = refused or error
    if not steps:
        raise refused
    return min(steps)[1]


TRIED = 3
"""The number of quickly estimated ways that are then followed micro-batch by micro-batch."""


@lru_cache(4096)
def step_of(model, cut, cluster):
    """The step of a possible cut: a `MeshStep`, or a sentence if the model has no answer.

    Only the schedule of the pipeline, 1F1B, overlaps work. A stage's reduction over dp follows its
    last backward.
    """
    cluster = replace(cluster, nodes=max(1, -(-cut.ranks // cluster.ranks_per_node)))
    stages = _Stages(model, cut, cluster)
    try:
        layers = cut.layers or balanced(stages)
        ends_s, free_s = (stages.ends_s(layers, each) for each in (stages.message_s, 0.0))
    except InvalidCallError as refused:
        return str(refused).partition(";")[0]
    turns = zip(stages.compute_s(layers), stages.tp_s(layers), strict=True)
    compute_s, tp_s = max(((sum(one), sum(two)) for one, two in turns), key=sum)
    rounds, piped_s = cut.num_microbatches, max(ends_s) + stages.tied_s
    times_s = {
        "compute": rounds * compute_s,
        "bubble": _left_s(max(free_s), rounds * (compute_s + tp_s)),
        "tp": rounds * tp_s,
        "pp": _left_s(piped_s, max(free_s)),
        "dp": _left_s(stages.step_s(layers, ends_s), piped_s),
    }
    kept = [_kept_bytes(stages, layers, stage) for stage in range(cut.pp)]
    most = max(kept, key=lambda roles: sum(roles.values()))
    return MeshStep(times_s, most, cluster.device.memory_bytes, layers)


def _left_s(whole_s, part_s):
    """The rest of the whole; 0 if the two differ only by rounding."""
    return 0.0 if isclose(whole_s, part_s, rel_tol=1e-9) else whole_s - part_s


def outcome_of(model, cut, cluster):
    """The `MeshStep` of a cut, or a word and a sentence if there is none."""
    step = refusal(model, cut) or step_of(model, cut, cluster)
    return ("link", step) if isinstance(step, str) else step


def _dp_s(cut, parameters, cluster):
    """Seconds to sum a rank's gradients over dp and to gather parameters, for a stage of ZeRO.

    From stage 2 on, no rank has room for all its gradients, so the gradients of each micro-batch
    are reduce_scattered. In stage 3 each micro-batch gathers the parameters for forward and for
    backward.
    """
    nbytes = ITEMSIZE * parameters
    if cut.zero == 0:
        return _seconds("all_reduce", cut, "dp", nbytes, cluster)
    scatters = cut.num_microbatches if cut.zero >= 2 else 1
    gathers = 2 * cut.num_microbatches if cut.zero == 3 else 1
    return sum(
        times * _seconds(kind, cut, "dp", nbytes, cluster)
        for kind, times in (("reduce_scatter", scatters), ("all_gather", gathers))
    )


def _kept_bytes(stages, layers, stage):
    """Bytes of a rank of a stage. Rank 0 has most micro-batches in flight, the last has the logits.

    **Source** for 2 + 2 + 12 bytes per parameter and for the parts that each stage of ZeRO cuts:
    Rajbhandari et al. 2019 (arXiv 1910.02054), section 3.
    """
    model, cut, sequences = stages.model, stages.cut, stages.sequences
    parameters = model.stage_parameters(layers, stage) / cut.tp
    in_flight = min(cut.num_microbatches, cut.pp - stage)
    kept = model.activation_bytes(sequences, cut.tp, layers[stage], in_flight, cut.recompute)
    if stage == cut.pp - 1:
        kept += LOGIT * sequences * model.sequence * model.vocabulary / cut.tp
    return {
        "parameters": ITEMSIZE * parameters / (cut.dp if cut.zero >= 3 else 1),
        "gradients": ITEMSIZE * parameters / (cut.dp if cut.zero >= 2 else 1),
        "optimizer state": OPTIMIZER * parameters / (cut.dp if cut.zero >= 1 else 1),
        "activations": kept,
    }


def nodes_of(cut, axis, cluster):
    """The node of each rank of one group along an axis, counted from 0."""
    stride = cut.stride(axis)
    return [rank * stride // cluster.ranks_per_node for rank in range(cut.size(axis))]


def _seconds(kind, cut, axis, nbytes, cluster):
    """Seconds of a ring collective along an axis. All groups go at once, each on its own cards."""
    return axis_time(kind, nbytes, cut.size(axis), cut.stride(axis), cluster)


def axis_time(kind: str, nbytes: float, size: int, stride: int, cluster: Cluster) -> float:
    """Return how long a collective takes along an axis of a mesh, in seconds.

    All groups of the axis communicate at once, each on its own network cards. The time is the same
    as from `simlib.scale.time_of`, for bytes that the ranks of a group can divide evenly.

    Parameters
    ----------
    kind : str
        ``"all_reduce"``, ``"reduce_scatter"`` and ``"all_gather"`` use a ring. ``"broadcast"`` uses
        a tree. A tree of two ranks is one message.
    nbytes : float
        Bytes of the whole tensor, as for `simlib.scale.time_of`.
    size : int
        Ranks of a group. A group of one rank takes 0 seconds.
    stride : int
        The distance of neighbours in a group, in ranks.
    cluster : Cluster

    Returns
    -------
    float
    """
    if size == 1:
        return 0.0
    nodes = tuple(rank * stride // cluster.ranks_per_node for rank in range(size))
    latency_s, s_per_byte = _line(kind, nodes, cluster)
    return latency_s + nbytes * s_per_byte


@lru_cache(512)
def _line(kind, nodes, cluster):
    """A ring's time for bytes that ranks divide evenly: seconds, and seconds per byte."""
    names = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    cluster = replace(cluster, nodes=len(names))
    low = len(nodes) << 10
    algorithm = "binomial" if kind == "broadcast" else "ring"
    how = {"placement": [names[node] for node in nodes], "itemsize": ITEMSIZE}
    a_s, b_s = (
        time_of(kind, len(nodes), size, cluster, algorithm, **how) for size in (low, low << 12)
    )
    slope = (b_s - a_s) / ((low << 12) - low)
    return a_s - low * slope, slope


def _message_s(cut, nbytes, cluster):
    """Seconds of the slowest message between neighbouring stages."""
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
            f"card{'s' * (cluster.rails != 1)}: give each rank its own card, rails={per_node}"
        )
    if cluster.uplink is not None:
        raise InvalidCallError("a plan knows no leaf switches: leave out nodes_per_leaf and uplink")
    if not cluster.device.flops_per_s < float("inf"):
        raise InvalidCallError("the cluster's device computes in zero time: set its flops_per_s")
    return cluster


# -- a whole training run: steps of a cut, checkpoints, failures, hours and what they cost ---------

RUN_PARTS = ("steps", "checkpoints", "lost")


@dataclass(frozen=True)
class Training(Transformer):
    """A training job: a model, its data, its machine, and its limits.

    Attributes
    ----------
    layers, hidden, heads, sequence, batch, vocabulary : int
        Sizes of the transformer. ``batch`` counts sequences of a step, on all ranks together.
    tokens : float
        Tokens of the whole training.
    ranks : int
    cluster : Cluster
        A cluster with as many nodes as the ranks need. It must have a device.
    hours, price : float
        The hours that the run may take, and the price of one rank for one hour.
    mtbf_s : float
        Mean time between failures of one rank, in seconds.
    checkpoint_Bps : float
        Bytes per second at which all ranks together write checkpoints.
    restart_s : float
        Seconds from a failure until the work continues.
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
        """The number of steps that train on all tokens."""
        return ceil(self.tokens / (self.batch * self.sequence))

    @property
    def checkpoint_s(self):
        """Seconds to save a checkpoint of the parameters and the optimizer's state of all ranks."""
        return (ITEMSIZE + OPTIMIZER) * self.model.parameters / self.checkpoint_Bps


@dataclass(frozen=True, eq=False)
class Plan:
    """A planned run: ``times_s`` by `RUN_PARTS`, its costs, and its step."""

    step: MeshStep
    times_s: dict
    cost: float

    @property
    def time_s(self):
        return sum(self.times_s.values())


def cut_of(job, tp, pp, sequences, zero, recompute):
    """The `Cut` of a job into micro-batches of ``sequences`` sequences, or why there is none."""
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


def plan_of(
    job: Training,
    tp: int,
    pp: int,
    sequences: int,
    zero: int,
    recompute: bool,
    interval_s: float,
    layers: tuple[int, ...] = (),
) -> Plan | tuple[str, str]:
    """Plan the run of a job: its step, its hours and its costs.

    The time of a stage is the time of its own layers, and of the logits for the last stage. A
    pipeline has the pace of its slowest stage (`simlib.scale.uneven_pipeline_ends`).

    Parameters
    ----------
    job : Training
    tp, pp : int
        The number of ranks divided by ``tp * pp`` is dp.
    sequences : int
        Sequences of a micro-batch.
    zero : {0, 1, 2, 3}
        The stage of ZeRO over dp. 0 means no ZeRO.
    recompute : bool
        Whether activations are computed again in backward.
    interval_s : float
        Seconds of work from one checkpoint to the next.
    layers : tuple of int, optional
        Layers of each stage. The default is the division with the shortest step.

    Returns
    -------
    Plan or (str, str)
        The plan contains ``step``, with ``time_s``, ``nbytes``, ``fits``, ``layers`` and
        ``times_s`` by part. It also contains ``time_s`` and ``cost`` of the whole run. If the cut
        is impossible, the result is a word and a sentence.
    """
    cut = cut_of(job, tp, pp, sequences, zero, recompute)
    if isinstance(cut, tuple):
        return cut
    step = outcome_of(job.model, replace(cut, layers=layers), job.cluster)
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
    """Refuse jobs that are not a dict from names to `Training`."""
    if not jobs or not all(isinstance(job, Training) for job in jobs.values()):
        raise InvalidCallError(
            "jobs must be a dict from names to labs.Training, with at least one entry"
        )


def three_jobs() -> dict[str, Training]:
    """Return the three training runs that lesson 17 plans: on laptops, on Ethernet and on NVLink.

    Shapes are those of GPT-2 medium, BERT-Large and GPT-3. Shoeybi et al. 2019 (arXiv 1909.08053)
    measured the V100's 39 Tflop/s. The rates of the other devices are assumed. Prices, hours,
    failures and checkpoints are assumed, too. Change them by ``dataclasses.replace(job, ...)``.

    Returns
    -------
    dict of str to Training
        The jobs by name: ``"8 laptops"``, ``"64 GPUs on Ethernet"`` and ``"1,024 GPUs"``.
    """
    year_s, medium = 365 * 86_400, {"layers": 24, "hidden": 1024, "heads": 16}
    laptop, v100 = Device(0.4e12, 6e9), Device(39e12, 16e9)
    a100 = Device(312e12 / 2, 80e9)  # half of what its data sheet says
    laptops = Training(
        **medium, sequence=1024, batch=64, vocabulary=50_257, tokens=10e6, ranks=8,
        cluster=Cluster(8, 1, Link(50e-6, 1e9 / 8), device=laptop),
        hours=4, price=0.02, mtbf_s=year_s / 50, checkpoint_Bps=100e6, restart_s=600,
    )  # fmt: skip
    ethernet = Training(
        **medium, sequence=128, batch=1024, vocabulary=30_522, tokens=4e9, ranks=64,
        cluster=Cluster(16, 4, Link(30e-6, 10e9 / 8), Link(5e-6, 10e9), v100, rails=4),
        hours=4, price=2, mtbf_s=year_s / 2, checkpoint_Bps=1e9, restart_s=300,
    )  # fmt: skip
    nvlink = Training(
        layers=96, hidden=12_288, heads=96, sequence=2048, batch=1536, vocabulary=51_200,
        tokens=300e9, ranks=1024,
        cluster=Cluster(128, 8, Link(2e-6, 25e9), Link(5e-6, 300e9), a100, rails=8),
        hours=40 * 24, price=2, mtbf_s=2 * year_s, checkpoint_Bps=50e9, restart_s=600,
    )  # fmt: skip
    return {"8 laptops": laptops, "64 GPUs on Ethernet": ethernet, "1,024 GPUs": nvlink}
