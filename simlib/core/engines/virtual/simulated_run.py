"""`simulate`: one rank function on a modelled cluster, under a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ... import clusters
from ...clockwork.alike import Classes
from ...clockwork.replay import transfers_of
from ...clockwork.simulation_options import POLICIES, Options, check_algorithms, eager_limit
from ...diagnose.findings import Finding
from ...environment import NO_GPUS, are_ranks_trusted
from ...model import errors
from ...model.chance import Failures, Slow, deaths_after
from ...model.cluster import Cluster, Topology
from ...model.errors import check_choice
from ...model.profile import COMMUNICATION, COMPUTE, DeviceSpan, Profile
from ...results.run import Run, make_run, origin_of
from ..options import (
    Diagnosis,
    Faults,
    Measurement,
    Network,
    Program,
    Restart,
    Restarts,
    check_function,
    check_timeout,
    check_world_size,
    checked_faults,
    checked_measurement,
    either,
    program_of_function,
    program_of_script,
    refuse_foreign,
    restarts_of,
)
from ..restarts import with_restarts
from ..run_outputs import MAX_SIMULATED
from ..session import Engine, Failure, Session, SilentDisplay, context_here, new_cells, perform
from ..torch_versions import refuse_untested_torch
from .child import child_main
from .process import simulators
from .ranks import SimulationRequest
from .simulation_monitor import SimulationMonitor

MAX_ALIKE = 1 << 16
"""`simulate` accepts at most this many ranks with ``alike=``."""
VERDICTS = frozenset({"deadlock", "mismatch", "invalid", "rank_error", "rank_died"})
"""Kinds of failures whose cause is the program, and not the machine or the observer."""


def simulate(
    function: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | None = None,
    placement: str | list[int] = "block",
    sends: str = "rendezvous",
    eager_limit_bytes: int | None = None,
    algorithms: str = "mpich",
    expand: bool = False,
    compute: str = "flops",
    memory: bool | None = None,
    data: bool = True,
    alike: str | Callable[[int], Any] | None = None,
    slow: Slow | None = None,
    kill: Mapping[int | str, float] | Failures | None = None,
    on_death: str = "end",
    detection_s: float = 0.0,
    restarts: int | Restarts = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    restart_s: float = 0.0,
    seed: int | str | None = None,
    timeout_s: float | None = 120,
    strict: bool = False,
    check: bool = True,
    network: Network | None = None,
    measurement: Measurement | None = None,
    faults: Faults | None = None,
    diagnosis: Diagnosis | None = None,
    **algorithm_of: str,
) -> Run:
    """Run a rank function on a modelled cluster, under a virtual clock.

    `simulate` takes the same function as `run`, and returns the same kind of result. Times are
    virtual: simlib computes them from ``cluster``. Every repeat gives exactly the same times.

    Parameters
    ----------
    function : callable
        Each rank calls it as ``function(rank, world_size, *args, **kwargs)``.
    world_size : int
        Number of ranks, 1 to 4,096.
    args, kwargs : sequence, dict
        Further arguments, the same on every rank.
    cluster : Cluster, optional
        The network and the devices. The default is a 10 Gbit Ethernet with one rank on each node.
    placement : {"block", "round_robin"} or list of int
        The node of each rank. See `Topology`.
    sends : {"rendezvous", "eager"}
        When a send completes. With ``"rendezvous"`` a send completes when its message has arrived,
        as with Gloo. With ``"eager"`` a send completes at once.
    eager_limit_bytes : int, optional
        Sends of at most this many bytes are eager.
    algorithms : {"mpich", "nccl", "gloo"}
        The library whose algorithms simlib uses for collectives. simlib chooses an algorithm by the
        size of the data, as that library does. If ranks share a node, MPICH's all_reduce, reduce,
        barrier and short broadcast work in two levels: within nodes, and between nodes.
    expand : bool
        True to keep the messages of collectives. ``run.wire`` contains them.
    compute : {"flops", "measured", "free"}
        How long computing takes. With ``"flops"`` an operation takes the time that the device needs
        (see `Device`). If the cluster has no device, operations take no time. With ``"measured"``
        computing takes as long as on this machine. With ``"free"`` computing takes no time.
    memory : bool, optional
        Whether ``run.memory`` contains the ledger of each rank's memory. The default is True if the
        cluster has a device.
    data : bool
        False to simulate without data, for models that do not fit into this machine. Tensors have
        shapes and dtypes and count in the ledger, but they have no values. If the program asks for
        a floating-point number, it gets NaN. If it asks for a whole number or a truth value, simlib
        raises an error. Small tensors that the program itself fills keep their values, for example
        lengths, indices and orders of samples.
    alike : "auto" or callable, optional
        Some ranks do the same work. simlib puts such ranks into one class, runs only two ranks of
        each class, and compares the two. All other ranks of the class get the times of the first.
        This option needs ``data=False``. ``"auto"`` assumes that all ranks do the same work, except
        ranks that send to each other within a group. simlib distinguishes those ranks by their
        places in the group. A function ``alike(rank)`` returns the class of a rank. The times are
        the same as if all ranks ran. If the two ranks of a class differ, simlib raises an error
        that names the first difference. ``run.classes`` lists the classes. The trace contains only
        the ops of the ranks that ran.
    slow : dict, Jitter or callable, optional
        ``{rank: factor}``. Computing takes ``factor`` times longer on these ranks. A
        `simlib.scale.Jitter`, or a function ``slow(rank, k, random)``, adds noise, for one rank or
        for all. The noise draws a new factor for each call of `simlib.compute`, where k counts the
        calls. For other computing, it draws a new factor before each op of torch.distributed, where
        k counts the ops. The same seed of the jitter gives the same run. The factor does not change
        sleeping and communication.
    kill : dict or Failures, optional
        ``{rank: seconds}`` kills each of these ranks at its virtual time. ``{"node1": seconds}``
        kills all ranks of node 1. Nodes count from 0. `simlib.scale.Failures` draws deaths, and the
        same seed gives the same run. If all ranks wait forever before a death, the run is a
        deadlock.
    on_death : {"end", "continue"}
        With ``"end"`` the death of a rank ends the run. With ``"continue"`` the other ranks
        continue. An op that needs the dead rank raises an error in the other ranks, the same error
        as with Gloo. All other ops continue. The result of the dead rank is None. A rank may also
        wait for a survivor that has raised. Such a wait ends after the group's ``timeout=`` (of
        `init_process_group` or `new_group`), if that is less than torch's 30 minutes.
    detection_s : float
        Virtual seconds from a death by ``kill`` until the other ranks notice it. Use 0 for the
        death of a process, because its host closes its connections at once. Use more for the loss
        of a host, because the other ranks notice the loss only when the host does not answer.
    restarts, min_ranks, on_restart
        As for `run`. Virtual time continues during restarts, and times of ``kill`` use that clock.
    restart_s : float
        Virtual seconds from a failure to the start of the next attempt.
    seed : int, "same" or "new", optional
        The seed of random numbers, as for `run`. A number also changes the order of events that
        have no fixed order. Such events are ranks that are ready at the same moment, and messages
        for a receive from any source. If a result depends on the order, the run has a finding of
        the kind ``race``. The order does not change times. To simulate noise, use ``slow``.
    timeout_s : float or None
        simlib ends the simulation if no rank makes an op or prints a line for this many real
        seconds.
    strict, check : bool
        As for `run`.
    network : Network, optional
        ``cluster``, ``placement``, ``sends``, ``eager_limit_bytes``, ``algorithms`` and the
        algorithms of single collectives, as one object.
    measurement : Measurement, optional
        ``expand``, ``compute``, ``memory``, ``data`` and ``seed`` as one object.
    faults : Faults, optional
        ``slow``, ``kill``, ``on_death`` and ``detection_s`` as one object.
    diagnosis : Diagnosis, optional
        ``timeout_s``, ``strict`` and ``check`` as one object.
    **algorithm_of
        The algorithm of one collective by its name: ``all_reduce="ring"``.

    Returns
    -------
    Run

    Raises
    ------
    SimlibError
        As for `run`.

    Notes
    -----
    Ranks are threads of one process. Each rank has its own modules, random numbers, environment,
    output and clock. All ranks share Python's own modules, torch, numpy and packages with C
    extensions.
    """
    check_function(function, "simulate")
    most = MAX_SIMULATED if (measurement or Measurement(alike=alike)).alike is None else MAX_ALIKE
    size = _check_world_size(world_size, most)
    by_keyword = Network(
        cluster=cluster,
        placement=placement,
        sends=sends,
        eager_limit_bytes=eager_limit_bytes,
        algorithms=algorithms,
        algorithm_of=algorithm_of,
    )
    on = either("network", network, by_keyword)
    topology = Topology(_check_cluster(on.cluster, size), size, on.placement)
    watched = Diagnosis(timeout_s=timeout_s, strict=strict, check=check)
    faulty = Faults(slow=slow, kill=kill, on_death=on_death, detection_s=detection_s)
    measured = Measurement(
        expand=expand, compute=compute, memory=memory, data=data, alike=alike, seed=seed
    )
    plan = Restarts(min_ranks=min_ranks, on_restart=on_restart, restart_s=restart_s)
    asked = either("diagnosis", diagnosis, watched)
    check_timeout(asked.timeout_s)
    refuse_foreign("simulate", asked, watch="run")
    faulty = either("faults", faults, faulty)
    measured = either("measurement", measurement, measured)
    options, seed = _options(on, topology, faulty, measured)
    plan = restarts_of(restarts, plan, size)
    hint = SimulationMonitor.without_gpus
    program = program_of_function(function, args, kwargs, size, measured.seed, hint)
    engine = SimulationEngine(
        program=program,
        world_size=size,
        cluster=topology.cluster,
        local_size=size if on.cluster is None else topology.cluster.ranks_per_node,
        placement=on.placement,
        options=options,
        diagnosis=asked,
        seed=seed,
    )
    return _attempts(engine, plan)


def simulate_script(
    path: str,
    world_size: int,
    argv: Sequence[str],
    *,
    cluster: Cluster | None = None,
    local_size: int | None = None,
    restarts: Restarts | int = 0,
    diagnosis: Diagnosis | None = None,
    faults: Faults | None = None,
    measurement: Measurement | None = None,
    is_module: bool = False,
) -> Run:
    """Simulate a whole script, or a module by its name; ``argv`` are its arguments.

    ``local_size`` is the number of ranks of one host in the environment. By default one host has
    all ranks. The objects have the same meaning as for `simulate`.
    """
    size = _check_world_size(world_size)
    measured = measurement or Measurement()
    topology = Topology(_check_cluster(cluster, size), size, "block")
    options, seed = _options(Network(cluster=cluster), topology, faults or Faults(), measured)
    engine = SimulationEngine(
        cluster=topology.cluster,
        world_size=size,
        local_size=size if local_size is None else local_size,
        program=program_of_script(path, argv, size, measured.seed, is_module),
        options=options,
        diagnosis=diagnosis or Diagnosis(),
        seed=seed,
    )
    return _attempts(engine, restarts_of(restarts, Restarts(), size))


def _check_world_size(world_size: Any, most: int = MAX_SIMULATED) -> int:
    why = (
        f"simulate accepts 1 to {most:,} ranks. For more ranks, simlib.scale computes the cost of "
        "communication without a run"
    )
    return check_world_size(world_size, most, why)


def _check_cluster(cluster: Any, world_size: int) -> Cluster:
    if cluster is None:
        return clusters.ethernet_10g(nodes=world_size, ranks_per_node=1)
    if not isinstance(cluster, Cluster):
        raise errors.InvalidCallError(
            f"cluster={cluster!r} must be a simlib.Cluster, for example "
            "simlib.clusters.ethernet_10g(nodes=4, ranks_per_node=2)"
        )
    return cluster


def _options(
    network: Network, topology: Topology, faults: Faults, measurement: Measurement
) -> tuple[Options, int | None]:
    """The settings of the simulated machine, and the seed of the second order to compare with."""
    limit = eager_limit(network.sends, network.eager_limit_bytes)
    policy = check_choice("algorithms", network.algorithms, POLICIES)
    algorithms = check_algorithms(network.algorithm_of)
    wrong = checked_faults(faults, topology.world_size, topology)
    kept = checked_measurement(measurement, topology.cluster)
    classes = _classes_of(kept, faults, topology.world_size)
    if topology.cluster.device is not None and topology.cluster.device.asynchronous:
        _check_asynchronous(wrong.on_death, kept.compute)
    options = Options(
        eager_limit_bytes=limit,
        policy=policy,
        algorithms=algorithms,
        expand=kept.expand,
        kill=wrong.kill,
        on_death=wrong.on_death,
        detection_s=wrong.detection_s,
        slow=wrong.slow,
        compute=kept.compute,
        memory=bool(kept.memory),
        data=kept.data,
        classes=classes,
    )
    return options, None if isinstance(kept.seed, str) else kept.seed


def _classes_of(asked: Measurement, faults: Faults, world_size: int) -> Classes | None:
    """The first guess at the classes of equal ranks. Refuse options with which no ranks are
    equal."""
    if asked.alike is None:
        return None
    others = {
        "data=True": asked.data,
        "expand=True": asked.expand,
        "a number as seed=": asked.seed is not None and not isinstance(asked.seed, str),
        "slow= or kill=": faults != Faults(),
    }
    wrong = [words for words, is_so in others.items() if is_so]
    if wrong:
        raise errors.InvalidCallError(
            f"with alike=, one rank represents other ranks. This is not possible with {wrong[0]}: "
            "leave one of the two out" + (", or give data=False" if asked.data else "")
        )
    if callable(asked.alike):
        numbers: dict[Any, int] = {}
        keys = map(asked.alike, range(world_size))
        return Classes(tuple(numbers.setdefault(key, len(numbers)) for key in keys))
    if asked.alike != "auto":
        raise errors.InvalidCallError(
            f'alike={asked.alike!r} must be "auto", or a function that returns the class of a rank'
        )
    return Classes((0,) * world_size)


def _check_asynchronous(on_death: str, compute: str) -> None:
    """Refuse options that simlib does not simulate on asynchronous devices."""
    if on_death == "continue":
        raise errors.InvalidCallError(
            "an asynchronous device uses NCCL, and NCCL ends all ranks after a death. "
            'So leave out on_death="continue", or give the cluster a synchronous device'
        )
    if compute == "measured":
        raise errors.InvalidCallError(
            'compute="measured" times the rank on this machine, which says nothing about an '
            "asynchronous device: leave compute= out, so that the device model gives the time, or "
            'use compute="free"'
        )


def _attempts(engine: SimulationEngine, plan: Restarts) -> Run:
    """Simulate, and simulate again after a failure, as a `Restarts` says."""
    options, placement = engine.options, engine.placement

    def attempt(size: int, begin_s: float, environ: Mapping[str, str]) -> Run:
        kill = deaths_after(options.kill, begin_s, size)
        left = placement if isinstance(placement, str) else placement[:size]
        return perform(
            replace(
                engine,
                world_size=size,
                placement=left,
                options=replace(options, kill=kill, begin_s=begin_s, is_restarted=plan.most > 0),
                environ=environ,
            )
        )

    refuse_untested_torch()
    return with_restarts(attempt, engine.world_size, plan)


@dataclass(frozen=True, kw_only=True)
class SimulationEngine(Engine):
    """Simulates a program once.

    Attributes
    ----------
    local_size : int
        The number of ranks of one host, as their environment says. If the caller named no cluster,
        all ranks are on one host, as in `run`.
    seed : int, optional
        The seed of a second order of events. simlib simulates a run that ended well once more in
        this order.
    is_unlike : bool
        Whether sets of strings have another order than in other simulations.
    environ : dict of str to str
        Variables of the ranks in addition to the kernel's.
    """

    program: Program
    world_size: int
    cluster: Cluster
    local_size: int
    placement: str | list[int] = "block"
    options: Options = Options()
    diagnosis: Diagnosis = Diagnosis()
    seed: int | None = None
    is_unlike: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    sort = "a simulation"
    resting = property(lambda self: simulators())

    def open(self, display: SilentDisplay) -> SimulationMonitor:
        """Reserve a process. Returns the monitor that will watch the process."""
        if not simulators().has_served:
            display.waiting("starting the simulator, which imports torch (about 3 seconds) ...")
        try:
            found = simulators()
            process = (found.take_unlike if self.is_unlike else found.take)(child_main)
        except (OSError, EOFError) as error:
            raise errors.SimlibError(
                f"the simulation could not be started: {error}. Close other kernels or programs."
            ) from None
        finally:
            display.waiting("")
        return SimulationMonitor(self, process, display)

    def execute(self, monitor: SimulationMonitor) -> Failure | None:
        """Simulate to the end; returns the error that ended it, or None."""
        request = SimulationRequest(
            payload=self.program.payload,
            execution_context=context_here(self.program.argv, {**self.environ, **NO_GPUS}),
            per_rank_args=self.program.per_rank_args,
            cells=new_cells(monitor.process, monitor.cells),
            cell_numbers=dict(monitor.cells),
            seeds=self.program.seeds,
            timeout_s=self.diagnosis.timeout_s,
            world_size=self.world_size,
            cluster=self.cluster,
            local_size=min(self.local_size, self.world_size),
            placement=self.placement,
            options=self.options,
        )
        return monitor.until_the_end(request)

    def make_run(self, monitor: SimulationMonitor) -> Run:
        """The `Run` from the present facts of the monitor."""
        run = make_run(monitor)
        if self.options.classes is not None:
            run.classes = list(self.options.classes.members.values())
            run.ran = [rank for rank, span in enumerate(run.trace.spans) if span[0] is not None]
            run.trace.spans = self._spans(monitor, run.trace.spans)
            first = self.options.classes.first
            run.work = run.work and [run.work[first(rank)] for rank in range(self.world_size)]
        if monitor.report and monitor.report["streams"]:
            run.profile = profiles_of(monitor.report["streams"], monitor)
        return run

    def _spans(self, monitor: SimulationMonitor, spans: list) -> list:
        """The spans of all ranks. Ranks that did not run have no log, so their spans come from the
        ranks that represent them."""
        left = monitor.report and monitor.report.get("left_s")
        if not left:
            return spans
        begin_s = origin_of(monitor)
        return [
            span if None not in span else (0.0, left_s - begin_s)
            for span, left_s in zip(spans, left, strict=True)
        ]

    def complete(
        self, monitor: SimulationMonitor, run: Run, failure: Failure | None
    ) -> Failure | None:
        """Add the exact transfers to the run, and store whether its times repeat."""
        exact = partial(transfers_of, run.trace, self.cluster, self.placement, self.options)
        run.transfers_by(exact)
        run.repeats = self.options.compute != "measured"
        return failure

    def once_more(self, monitor: SimulationMonitor) -> SimulationEngine | None:
        """Return an engine with finer classes, if ranks of one class have different parts."""
        classes = self.options.classes
        if classes is None or monitor.report is None or monitor.report["unlike"] is None:
            return None
        finer = classes.split(monitor.report["unlike"])
        assert len(finer.members) > len(classes.members), "two of a class have different places"
        return replace(self, options=replace(self.options, classes=finer))

    def close(
        self,
        monitor: SimulationMonitor,
        run: Run | None,
        failure: Failure | None,
    ) -> None:
        """Give the process back. Later runs use it again if nothing of this run is left in it."""
        is_over = run is not None and monitor.report is not None
        clean = is_over and not monitor.running() and not monitor.deaths
        monitor.close()
        if self.is_unlike:
            monitor.process.close()
        else:
            simulators().give_back(monitor.process, clean)

    def compare(self, run: Run, monitor: SimulationMonitor) -> list[Finding]:
        """Find differences to a run in the order of the seed, or with another order of sets.

        Some programs give different results even in the same order, because they are random. Such a
        difference is not a finding.
        """
        if self.seed is None:
            return []
        return self._race(run, monitor) or self._order_of_sets(run)

    def _order_of_sets(self, run: Run) -> list[Finding]:
        """Return a finding if a rank calls collectives in the order of a set of strings."""
        if not are_ranks_trusted():
            return []
        try:
            unlike, failure, _ = Session(replace(self, is_unlike=True), SilentDisplay()).once()
        except errors.SimlibError:  # there is no room for another server
            return []
        if failure is not None and failure.kind not in VERDICTS:
            raise failure
        parted = _first_other_call(run, unlike)
        if parted is None:
            return []
        again, failure, _ = Session(self, SilentDisplay()).once()
        if failure is not None and failure.kind not in VERDICTS:
            raise failure
        if _first_other_call(run, again) is not None:
            return []
        one, other = parted
        words = (
            f"the order of rank {one.rank}'s calls depends on Python's hash seed: with one seed "
            f"the rank calls {one.site.op} ({one.site.place}), with another seed {other.site.op} "
            f"({other.site.place}). The order comes from a set, and each process may order the set "
            "differently. Sort the set: `sorted(names)`"
        )
        return [Finding("race", words, {one.rank: one.site}, unlike)]

    def _race(self, run: Run, monitor: SimulationMonitor) -> list[Finding]:
        answers = _answers(monitor)
        other_order = replace(self, options=replace(self.options, seed=self.seed))
        other, failure, other_monitor = Session(other_order, SilentDisplay()).once()
        if failure is not None and failure.kind not in VERDICTS:
            raise failure
        other_answers = _answers(other_monitor)
        found = _race(run, other, failure, self.seed, answers, other_answers)
        if found is None:
            return []
        again, failure, monitor = Session(self, SilentDisplay()).once()
        same = failure is None and _are_same(run, again, answers, _answers(monitor))
        return [found] if same else []


def profiles_of(streams: list, monitor: SimulationMonitor) -> list[Profile | None]:
    """The work of each rank's modelled device, by rank and stream."""
    origin_s = origin_of(monitor)
    found: list[Profile | None] = []
    for log, own in zip(monitor.logs, streams, strict=True):
        spans = []
        for number, (kernels, ops) in enumerate(own):
            for start_s, end_s in kernels:
                spans.append(DeviceSpan(0, number, "kernels", COMPUTE, start_s, end_s))
            for kind, start_s, end_s in ops:
                spans.append(DeviceSpan(0, number, kind, COMMUNICATION, start_s, end_s))
        if log.entered_s is None:
            found.append(None)
            continue
        last_s = max((span.end_s for span in spans), default=log.entered_s)
        left_s = last_s if log.left_s is None else log.left_s
        found.append(Profile.of("gpu", spans, log.entered_s, left_s).since(origin_s))
    return found


def _answers(monitor: SimulationMonitor) -> dict:
    return monitor.report["answers"] if monitor.report else {}


# Another admissible order of the same program: does anything else come out?


def _race(run, other, other_failure, seed, answers, other_answers):
    """Return a finding if a run in another order ends differently, else None.

    Parameters
    ----------
    run, other : Run
        The runs in the usual order, and in the order of the seed.
    other_failure : SimlibError or None
        The error that ended the other run.
    seed : int
    answers, other_answers : dict
        rank -> its function's result or exception, as bytes.
    """
    if other_failure is not None:
        first = str(other_failure).partition("\n")[0]
        what = f"the program fails in another possible order of events: {first}"
    else:
        ranks = _where_they_differ(run, other, answers, other_answers)
        if not ranks:
            return None
        what = (
            f"rank {ranks[0]} returns {_short(other.results[ranks[0]])} in another possible order "
            f"of events, and {_short(run.results[ranks[0]])} in the usual order"
        )
    sites = _where_they_part(run, other)
    where = "".join(f"; there {site} received another message" for site in [*sites.values()][:1])
    return Finding("race", f"{what}{where} (simulate with seed={seed} shows it)", sites, other)


def _first_other_call(run, other):
    """Return the first collective of a rank that differs between two runs, from both runs, or
    None."""
    for rank in range(run.world_size):
        calls = [[op for op in one.trace.of_rank(rank) if not op.is_p2p] for one in (run, other)]
        for one, two in zip(*calls, strict=False):
            if (one.kind, one.group, one.shapes) != (two.kind, two.group, two.shapes):
                return one, two
    return None


def _are_same(run, other, answers, other_answers):
    """Whether two runs that ended well returned the same results."""
    return not _where_they_differ(run, other, answers, other_answers)


def _where_they_differ(run, other, answers, other_answers):
    return [
        rank
        for rank in sorted(answers)
        if answers[rank] != other_answers[rank]
        and not _same(run.results[rank], other.results[rank])
    ]


def _same(one, other):
    """Whether two results are equal. Compare tensors by value, and dicts and sets without order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except Exception:  # not to be compared: their bytes differ
        return False


def _short(value):
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _where_they_part(run, other):
    """By rank, the first receive from any source that took different messages in the two runs."""
    sites = {}
    for rank in range(run.world_size):
        pairs = zip(run.trace.of_rank(rank), other.trace.of_rank(rank), strict=False)
        for one, two in pairs:
            if one.any_source and one.peer != two.peer:
                sites[rank] = one.site
                break
    return sites
