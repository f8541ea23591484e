"""`simulate`: one rank function on a modelled cluster, under a virtual clock."""

from __future__ import annotations

import math
import numbers
import os
from dataclasses import dataclass, replace

from ... import clusters
from ...clockwork.simulation import Options
from ...collectives import ALGORITHMS, choose
from ...diagnose import failures, verdicts
from ...model import errors
from ...model.cluster import Cluster, Topology
from ..host import nesting
from ..host.display import SilentDisplay, open_display
from ..host.payload import ByRank, cell_numbers, new_cells, pack, surroundings
from ..processes.real_run import check_timeout, name_of, script, told
from . import reordering
from .process import simulators
from .simulation_monitor import SimulationWatch

MAX_RANKS = 4096
POLICIES = ("mpich", "nccl", "gloo")


def simulate(
    function,
    world_size,
    args=(),
    kwargs=None,
    *,
    cluster=None,
    placement="block",
    sends="rendezvous",
    eager_limit_bytes=None,
    algorithms="mpich",
    expand=False,
    compute="flops",
    memory=None,
    slow=None,
    kill=None,
    seed=None,
    timeout_s=120,
    strict=False,
    check=True,
    **algorithm_of,
):
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
        How collectives become messages: chosen by size as that library does.
    expand : bool
        True to keep the messages of collectives, in ``run.wire``.
    compute : {"flops", "measured", "free"}
        What computing takes: floating-point operations over the device's rate (nothing where the
        cluster has no device), the time it really takes here, or nothing.
    memory : bool, optional
        Whether to keep the ledger of each rank's memory in ``run.memory``; by default where the
        cluster has a device.
    slow : dict, optional
        ``{rank: factor}``: ranks that compute so much slower.
    kill : dict, optional
        ``{rank: seconds}``: ranks that die at this virtual time.
    seed : int, optional
        Another order of all that is not ordered: of ranks ready at the same moment, and of messages
        for a receive of any source. What comes out differently is a finding of the kind ``race``.
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
    if not callable(function):
        raise errors.InvalidCallError(
            f"simulate needs a function main(rank, world_size) to call, not {function!r}"
        )
    size = _check_world_size(world_size)
    cluster = _check_cluster(cluster, size)
    Topology(cluster, size, placement)
    check_timeout(timeout_s)
    options = SimulationOptions(
        name=name_of(function),
        timeout_s=timeout_s,
        strict=strict,
        check=check,
        eager_limit_bytes=_eager_limit(sends, eager_limit_bytes),
        policy=_check_choice("algorithms", algorithms, POLICIES),
        algorithms=_check_algorithms(algorithm_of),
        expand=expand,
        slow=_check_by_rank("slow", slow, size),
        kill=_check_by_rank("kill", kill, size),
        seed=_check_seed(seed),
        compute=_check_choice("compute", compute, ("flops", "measured", "free")),
        memory=cluster.device is not None if memory is None else bool(memory),
    )
    own = args.packed if isinstance(args, ByRank) else None
    payload = pack(function, () if own else args, kwargs, size)
    request = {"payload": payload, "own": own, "cluster": cluster, "placement": placement}
    request["world_size"] = size
    return _simulate(request, options, argv=None)


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Options):
    """How a simulation is run and watched; see `simulate`."""

    name: str
    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True


def _simulate(request, options, argv):
    nesting.refuse("a simulation")
    request |= surroundings(argv)
    display = open_display()
    outputs = ()
    try:
        result, failure, answers, outputs = _once(request, replace(options, seed=None), display)
        if options.seed is not None and failure is None:
            found = _other_order(request, options, result, answers)
            result.findings += [found] if found is not None else []
        if failure is None and options.strict and result.findings:
            failure = verdicts.as_error(result.findings[0])
    finally:
        display.close(outputs)
    return told(display, result, failure)


def _other_order(request, options, result, answers):
    """The race that shows in the order of the seed, or None.

    A program that comes out differently in the same order, too, is random and no race.
    """
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
    process = _take_process(display)
    request = request | {"options": options}
    watch = SimulationWatch(process, request["world_size"], display, cell_numbers(), options)
    result, failure = _watched(process, watch, request, options)
    return result, failure, watch.report["answers"] if watch.report else {}, watch.outputs


def _watched(process, watch, request, options):
    """Simulate and give the process back; returns the `Run` and the error to raise, or None."""
    clean = False
    try:
        request |= {"cells": new_cells(process, watch.cells), "cell_numbers": watch.cells}
        try:
            failure = watch.until_the_end(request)
        except KeyboardInterrupt:
            failure = failures.interrupted(watch)
        result = failures.make_run(watch)
        if failure is None and options.check:
            result.findings = watch.checker.findings()
        clean = watch.report is not None and not watch.running() and not watch.deaths
    finally:
        watch.close()
        simulators().give_back(process, clean)
    return result, failure


def _take_process(display):
    if not simulators().has_served:
        display.status(
            "starting the simulator: it imports torch, once per kernel (some 3 seconds) ..."
        )
    try:
        return simulators().take()
    except (OSError, EOFError) as error:
        raise errors.SimlibError(
            f"the simulation could not be started: {error}. Close other kernels or programs."
        ) from None
    finally:
        display.status("")


def _check_world_size(world_size):
    is_count = isinstance(world_size, numbers.Integral) and not isinstance(world_size, bool)
    if is_count and 1 <= world_size <= MAX_RANKS:
        return int(world_size)
    raise errors.InvalidCallError(
        f"world_size={world_size!r} is not possible: simulate takes 1 to {MAX_RANKS:,} ranks; "
        "for more, simlib.scale has the cost of communication without running anything"
    )


def _check_cluster(cluster, world_size):
    if cluster is None:
        return clusters.ethernet_10g(nodes=world_size, ranks_per_node=1)
    if not isinstance(cluster, Cluster):
        raise errors.InvalidCallError(
            f"cluster={cluster!r} must be a simlib.Cluster, for example "
            "simlib.clusters.ethernet_10g(nodes=4, ranks_per_node=2)"
        )
    return cluster


def _eager_limit(sends, eager_limit_bytes):
    _check_choice("sends", sends, ("rendezvous", "eager"))
    if eager_limit_bytes is None:
        return -1 if sends == "rendezvous" else math.inf
    is_count = isinstance(eager_limit_bytes, numbers.Integral) and eager_limit_bytes >= 0
    if not is_count or isinstance(eager_limit_bytes, bool):
        raise errors.InvalidCallError(
            f"eager_limit_bytes={eager_limit_bytes!r} must be a number of bytes, 0 or more"
        )
    return eager_limit_bytes


def _check_choice(name, value, known):
    if value not in known:
        raise errors.InvalidCallError(f"{name}={value!r} is none of {', '.join(map(repr, known))}")
    return value


def _check_algorithms(algorithm_of):
    for kind, name in algorithm_of.items():
        if kind not in ALGORITHMS:
            raise TypeError(f"simulate() got an unexpected keyword argument {kind!r}")
        choose(kind, 2, 8, name)
    return algorithm_of


def _check_seed(seed):
    if seed is not None and not isinstance(seed, numbers.Integral):
        raise errors.InvalidCallError(f"seed={seed!r} must be a whole number, or None")
    return seed


def _check_by_rank(name, values, world_size):
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise errors.InvalidCallError(f"{name}={values!r} must be a dict by rank: {{0: 1.5}}")
    for rank, value in values.items():
        if not (isinstance(rank, numbers.Integral) and 0 <= rank < world_size):
            raise errors.InvalidCallError(f"{name}: {rank!r} is no rank: 0 to {world_size - 1}")
        if not (isinstance(value, numbers.Real) and 0 <= value < math.inf):
            raise errors.InvalidCallError(f"{name}: {value!r} for rank {rank} must be 0 or more")
    return values


def replay_options(
    world_size,
    *,
    sends="rendezvous",
    eager_limit_bytes=None,
    algorithms="mpich",
    expand=False,
    slow=None,
    **algorithm_of,
):
    """The `Options` of a replay, checked."""
    return Options(
        eager_limit_bytes=_eager_limit(sends, eager_limit_bytes),
        policy=_check_choice("algorithms", algorithms, POLICIES),
        algorithms=_check_algorithms(algorithm_of),
        expand=expand,
        slow=_check_by_rank("slow", slow, world_size),
    )


def simulate_script(path, world_size, argv, **options):
    """Simulate a whole script on every rank, as ``__main__``; ``argv`` are its arguments."""
    size = _check_world_size(world_size)
    cluster = _check_cluster(options.pop("cluster", None), size)
    payload = pack(script, (os.path.abspath(path),), None, size)
    request = {"payload": payload, "own": None, "cluster": cluster, "placement": "block"}
    request["world_size"] = size
    return _simulate(
        request, SimulationOptions(name=os.path.basename(path), **options), argv=[path, *argv]
    )
