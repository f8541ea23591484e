"""`simulate`: one rank function on a modelled cluster, under a virtual clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import clusters
from ...clockwork.simulation_options import (
    ON_DEATH,
    POLICIES,
    Options,
    check_algorithms,
    check_choice,
    check_detection,
    check_kill,
    check_seed,
    check_slow,
    eager_limit,
)
from ...diagnose import failures
from ...diagnose.findings import as_error
from ...draw.display import SilentDisplay, open_display, show_and_raise
from ...model import errors
from ...model.chance import Failures, Slow, deaths_after
from ...model.cluster import Cluster, Topology
from ...results.run import Run, make_run
from ..request import (
    ByRank,
    ExecutionContext,
    cell_numbers,
    check_function,
    check_timeout,
    check_world_size,
    name_of,
    new_cells,
    pack,
    refuse_within_ranks,
    script,
)
from ..restarts import Restart, check_restarts, with_restarts
from ..run_outputs import MAX_SIMULATED
from ..torch_versions import refuse_untested_torch
from ..workers.idle_timer import idle_timer
from . import reordering
from .process import simulators
from .ranks import SimulationRequest
from .simulation_monitor import SimulationMonitor


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
    slow: Slow | None = None,
    kill: Mapping[int | str, float] | Failures | None = None,
    on_death: str = "end",
    detection_s: float = 0.0,
    restarts: int = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    restart_s: float = 0.0,
    seed: int | None = None,
    timeout_s: float | None = 120,
    strict: bool = False,
    check: bool = True,
    **algorithm_of: str,
) -> Run:
    """Run a rank function on a modelled cluster, under a virtual clock.

    The function is the same as for `run`, and so is what comes back. Times are virtual: they
    belong to ``cluster``, and are the same to the bit in every repeat.

    Parameters
    ----------
    function : callable
        Called on every rank as ``function(rank, world_size, *args, **kwargs)``.
    world_size : int
        Number of ranks, 1 to 4,096.
    args, kwargs : sequence, dict
        Further arguments, the same on every rank.
    cluster : Cluster, optional
        The network and the devices; by default one rank on each node of a 10 Gbit Ethernet.
    placement : {"block", "round_robin"} or list of int
        Which node each rank lives on, see `Topology`.
    sends : {"rendezvous", "eager"}
        Whether a send is over when its message has arrived (as Gloo does it), or at once.
    eager_limit_bytes : int, optional
        Sends of at most this many bytes are eager.
    algorithms : {"mpich", "nccl", "gloo"}
        How collectives become messages: chosen by size as that library does. MPICH looks at the
        nodes, too: where ranks share one, short vectors go in two levels.
    expand : bool
        True to keep the messages of collectives, in ``run.wire``.
    compute : {"flops", "measured", "free"}
        What computing takes: floating-point operations over the device's rate (nothing where the
        cluster has no device), the time it really takes here, or nothing.
    memory : bool, optional
        Whether to keep the ledger of each rank's memory in ``run.memory``; by default where the
        cluster has a device.
    slow : dict, Jitter or callable, optional
        ``{rank: factor}``: ranks that compute so much slower. A `simlib.scale.Jitter`, or a
        function ``slow(rank, k, random)``, in place of a factor or of the whole dict: noise, drawn
        anew for each call of `simlib.compute` (k counts them), and for what a rank computes
        otherwise before each op of torch.distributed (k counts the ops). The same seed of the
        jitter gives the same run. Sleeping and communication take as long as before.
    kill : dict or Failures, optional
        ``{rank: seconds}``: ranks that die at this virtual time; ``{"node1": seconds}``: all ranks
        of node 1, counted from 0. `simlib.scale.Failures` draws deaths: the same seed gives the
        same run. Ranks that wait for ever wait for no death: that is a deadlock.
    on_death : {"end", "continue"}
        Whether a rank's death ends the run, or the others go on: what needs the dead rank raises
        in them what Gloo raises there, and what does not goes on. The dead rank's result is None.
        A rank that waits for a survivor which has raised waits as long as the group's ``timeout=``
        says (of `init_process_group`, `new_group`), if that is less than torch's 30 minutes.
    detection_s : float
        Virtual seconds after which survivors see a death of ``kill``: 0 where a process dies, whose
        connections its host closes; more where a host vanishes, and something has to miss it.
    restarts, min_ranks, on_restart
        As for `run`. Virtual time goes on counting, and times of ``kill`` are on that clock.
    restart_s : float
        Virtual seconds from a failure to the moment at which ranks begin again.
    seed : int, optional
        Another order of all that is not ordered: of ranks ready at the same moment, and of messages
        for a receive of any source. What comes out differently is a finding of the kind ``race``.
        It changes no time and is no model of noise: that is ``slow``.
    timeout_s : float or None
        Seconds of the machine's time without any op or output after which it is ended.
    strict, check : bool
        As for `run`.
    **algorithm_of
        The algorithm of one kind of collective by its name: ``all_reduce="ring"``.

    Returns
    -------
    Run

    Raises
    ------
    SimlibError
        As `run` does.

    Notes
    -----
    Ranks are threads of one process. Each has globals, random numbers, environment, output and
    clock of its own; imported modules, and what they hold, and the working folder are shared.
    """
    check_function(function, "simulate")
    size = _check_world_size(world_size)
    cluster = _check_cluster(cluster, size)
    Topology(cluster, size, placement)
    check_timeout(timeout_s)
    options = SimulationOptions(
        name=name_of(function),
        timeout_s=timeout_s,
        strict=strict,
        check=check,
        eager_limit_bytes=eager_limit(sends, eager_limit_bytes),
        policy=check_choice("algorithms", algorithms, POLICIES),
        algorithms=check_algorithms(algorithm_of),
        expand=expand,
        kill=check_kill(kill, size, Topology(cluster, size, placement)),
        on_death=check_choice("on_death", on_death, ON_DEATH),
        detection_s=check_detection(detection_s, on_death),
        slow=check_slow(slow, size),
        seed=check_seed(seed),
        compute=check_choice("compute", compute, ("flops", "measured", "free")),
        memory=cluster.device is not None if memory is None else bool(memory),
    )
    plan = check_restarts(restarts, min_ranks, on_restart, size, restart_s)
    per_rank_args = args.packed if isinstance(args, ByRank) else None
    payload = pack(function, () if per_rank_args else args, kwargs, size)
    return _attempts(
        plan,
        size,
        options,
        placement,
        payload=payload,
        cluster=cluster,
        per_rank_args=per_rank_args,
    )


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Options):
    """How a simulation is run and watched; see `simulate`."""

    name: str
    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True


def _attempts(plan, size, options, placement, argv=None, **asked):
    """Simulate, and again after a failure as `Restarts` says; ``asked`` stays the same."""

    def attempt(size, begin_s, environ):
        kill = deaths_after(options.kill, begin_s, size)
        request = SimulationRequest(
            execution_context=ExecutionContext.here(argv, environ),
            world_size=size,
            placement=placement if isinstance(placement, str) else placement[:size],
            options=replace(options, kill=kill, begin_s=begin_s, is_restarted=plan.most > 0),
            **asked,
        )
        return _simulate(request)

    return with_restarts(attempt, size, plan)


def _simulate(request):
    refuse_within_ranks("a simulation")
    refuse_untested_torch()
    options = request.options
    display = open_display()
    outputs = ()
    try:
        result, failure, answers, outputs = _once(request, replace(options, seed=None), display)
        if options.seed is not None and failure is None:
            found = _other_order(request, result, answers)
            result.findings += [found] if found is not None else []
        if failure is None and options.strict and result.findings:
            failure = as_error(result.findings[0])
    finally:
        display.close(outputs)
    return show_and_raise(display, result, failure)


def _other_order(request, result, answers):
    """The race that shows in the order of the seed, or None.

    A program that comes out differently in the same order, too, is random and no race.
    """
    options = request.options
    other, failure, other_answers, _ = _once(request, options, SilentDisplay())
    if failure is not None and failure.kind not in reordering.VERDICTS:
        raise failure
    found = reordering.race(result, other, failure, options.seed, answers, other_answers)
    if found is None:
        return None
    usual = replace(options, seed=None)
    again, failure, same_answers, _ = _once(request, usual, SilentDisplay())
    is_repeatable = failure is None and reordering.are_same(result, again, answers, same_answers)
    return found if is_repeatable else None


def _once(request, options, display):
    """One simulation: the `Run`, the error to raise, the ranks' answers, what they printed."""
    with idle_timer().busy(simulators()):
        process = _take_process(display)
        monitor = SimulationMonitor(process, request.world_size, display, cell_numbers(), options)
        result, failure = _watched(process, monitor, replace(request, options=options))
    return result, failure, monitor.report["answers"] if monitor.report else {}, monitor.outputs


def _watched(process, monitor, request):
    """Simulate and give the process back; returns the `Run` and the error to raise, or None."""
    clean = False
    try:
        request.cells = new_cells(process, monitor.cells)
        request.cell_numbers = monitor.cells
        try:
            failure = monitor.until_the_end(request)
        except KeyboardInterrupt:
            failure = failures.interrupted(monitor)
        result = make_run(monitor)
        result.took_place_on(request.cluster, request.placement, request.options)
        result.repeats = request.options.compute != "measured"
        if failure is None and monitor.check:
            result.findings = monitor.detector.findings(monitor.deaths)
        clean = monitor.report is not None and not monitor.running() and not monitor.deaths
    finally:
        monitor.close()
        simulators().give_back(process, clean)
    return result, failure


def _take_process(display):
    if not simulators().has_served:
        display.status("starting the simulator, which imports torch (some 3 seconds) ...")
    try:
        return simulators().take()
    except (OSError, EOFError) as error:
        raise errors.SimlibError(
            f"the simulation could not be started: {error}. Close other kernels or programs."
        ) from None
    finally:
        display.status("")


def _check_world_size(world_size):
    why = (
        f"simulate takes 1 to {MAX_SIMULATED:,} ranks; for more, simlib.scale has the cost of "
        "communication without running anything"
    )
    return check_world_size(world_size, MAX_SIMULATED, why)


def _check_cluster(cluster, world_size):
    if cluster is None:
        return clusters.ethernet_10g(nodes=world_size, ranks_per_node=1)
    if not isinstance(cluster, Cluster):
        raise errors.InvalidCallError(
            f"cluster={cluster!r} must be a simlib.Cluster, for example "
            "simlib.clusters.ethernet_10g(nodes=4, ranks_per_node=2)"
        )
    return cluster


def simulate_script(path, world_size, argv, **options):
    """Simulate a whole script on every rank, as ``__main__``; ``argv`` are its arguments."""
    size = _check_world_size(world_size)
    cluster = _check_cluster(options.pop("cluster", None), size)
    plan = check_restarts(options.pop("restarts", 0), options.pop("min_ranks", None), None, size)
    options = SimulationOptions(name=os.path.basename(path), **options)
    payload = pack(script, (os.path.abspath(path),), None, size)
    argv = [path, *argv]
    return _attempts(plan, size, options, "block", argv, payload=payload, cluster=cluster)
