"""``simlib run`` and ``simlib simulate``: a script on real or on simulated ranks."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from importlib.machinery import PathFinder

from .. import _ctrl_c
from ..core.draw.display import bar
from ..core.engines import run_outputs
from ..core.engines.run_outputs import MAX_PROCESSES, MAX_SIMULATED
from ..core.engines.workers.server import start_other_server, start_server, stop_server
from ..core.environment import are_ranks_trusted, without_collector
from ..core.model.errors import InvalidCallError, RunInterrupted, SimlibError
from ..core.model.outcome import CODES


def add_commands(commands):
    """Add ``run`` and ``simulate`` to the subcommands of a parser."""
    run = commands.add_parser(
        "run",
        help="run a script on real ranks: processes of this machine",
        description="Run a script on real ranks, as mpiexec or torchrun would: every rank runs "
        "the whole script, with RANK and WORLD_SIZE in its environment. Prints each "
        "line with its rank, then a table of who sent what to whom. "
        f"{CODES}",
    )
    _add_arguments(run, MAX_PROCESSES, "1: simlib submit runs a script on several hosts")
    run.add_argument(
        "--watch",
        action="store_true",
        help="for runs of hours: keep only the last ops, and print a line with the number of ops "
        "and the waiting ranks every S seconds",
    )
    run.add_argument("--every", type=float, metavar="S", help="seconds between these lines (60)")
    run.add_argument(
        "--backend", default="gloo", metavar="NAME", help="gloo or nccl, to move the data (gloo)"
    )
    run.add_argument(
        "--profile",
        action="store_true",
        help="use torch's profiler: the pictures show what each rank's GPU did",
    )
    run.set_defaults(command=_run, imports_first=True)
    simulate = commands.add_parser(
        "simulate",
        help="run a script on simulated ranks, with a modelled cluster and a virtual clock",
        description="Run a script on a modelled cluster. Prints each line with its rank, then a "
        f"table of who sent what to whom, and the virtual time. {CODES}",
    )
    _add_arguments(simulate, MAX_SIMULATED, "nodes; then N is the number of ranks on each of them")
    simulate.add_argument(
        "--network",
        default="ethernet_10g",
        choices=_Networks(),
        metavar="NAME",
        help="a preset of simlib.clusters (ethernet_10g)",
    )
    simulate.add_argument(
        "--ranks-per-node",
        type=int,
        metavar="K",
        help="ranks on each node (1, but LOCAL_RANK counts all ranks, as on one host)",
    )
    _add_model(simulate)
    # Ctrl-C ends the command at once while it imports torch.
    simulate.set_defaults(command=_simulate, imports_first=True)


def _add_model(simulate):
    """Add the options for the modelled devices and faults."""
    simulate.add_argument(
        "--device",
        metavar="NAME",
        help="the device of each rank: a preset of simlib.devices, such as a100, or the file that "
        "simlib card wrote (none: computing takes no time)",
    )
    simulate.add_argument(
        "--compute",
        default="flops",
        choices=("flops", "measured", "free"),
        help="time of computing: by the device (flops), as measured on this machine, or none",
    )
    simulate.add_argument(
        "--slow",
        action="append",
        type=_by_rank,
        metavar="RANK=FACTOR",
        help="computing takes FACTOR times longer on this rank; may be repeated",
    )
    simulate.add_argument(
        "--kill",
        action="append",
        type=_by_rank,
        metavar="RANK=S",
        help="kill this rank, or all ranks of node1, after S virtual seconds; may be repeated",
    )
    simulate.add_argument(
        "--memory", action="store_true", help="print how much memory each rank needs at its peak"
    )


def _by_rank(text):
    """A rank or the name of a node, and a number: ``0=1.5`` or ``node1=2``."""
    who, _, number = text.partition("=")
    try:
        return (int(who) if who.isdecimal() else who), float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must have the form 0=1.5") from None


class _Networks:
    """The names of the presets of `simlib.clusters`. They need numpy, so they are imported late."""

    def __iter__(self):
        from ..core.clusters import __all__ as names

        return iter(names)


def _add_arguments(command, most, nodes):
    command.add_argument(
        "-n",
        "--nproc-per-node",
        "--nproc_per_node",
        dest="n",
        type=_ranks,
        required=True,
        metavar="N",
        help=f"ranks, 1 to {most}. As for torchrun, cpu, gpu and auto count those of this machine",
    )
    command.add_argument("--nnodes", type=_nodes, metavar="M", help=nodes)
    command.add_argument(
        "--standalone", action="store_true", help="no effect: torchrun has this option"
    )
    for name in ("backend", "endpoint", "id", "conf"):  # on one host, ranks meet without them
        command.add_argument(f"--rdzv-{name}", f"--rdzv_{name}", help=argparse.SUPPRESS)
    run_outputs.add_limits(command)
    command.add_argument(
        "--strict", action="store_true", help="a finding, for example a race, is a failure"
    )
    run_outputs.add_options(command)
    command.add_argument(
        "--seed",
        type=_seed,
        metavar="SEED",
        help="seed of the ranks' random numbers (0); same: all ranks have the same numbers; new: "
        "each run has other numbers, and prints its seed",
    )
    command.add_argument(
        "-m", dest="is_module", action="store_true", help="script is a module: -m package.module"
    )
    command.add_argument("script")
    run_outputs.add_script_arguments(command)


def _ranks(text):
    """The number of ranks; ``cpu``, ``gpu`` and ``auto`` have the same meaning as for torchrun."""
    if text not in ("cpu", "gpu", "auto"):
        if not text.isdecimal():
            words = "must be a number of ranks, or cpu, gpu or auto"
            raise argparse.ArgumentTypeError(f"{text} {words}")
        return int(text)
    gpus = 0
    if text != "cpu":
        import torch

        gpus = torch.cuda.device_count()
    return gpus if gpus or text == "gpu" else os.cpu_count()


def _nodes(text):
    """The number of nodes. torchrun also accepts the form ``MIN:MAX``."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or most not in ("", least):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of 1 or more")
    return int(least)


def _seed(text):
    return int(text) if text.isdecimal() else text


@contextlib.contextmanager
def _much_imported():
    """Use it around imports of torch. Python's collector would look through all objects of torch,
    during the import and again when the command ends. A terminal shows the elapsed time."""
    with without_collector(), bar(None, "importing torch"):
        yield
        gc.freeze()


def _refuse_wrong_paths(options):
    if options.is_module and not _has_module(options.script):
        raise InvalidCallError(f"there is no module {options.script} here or on Python's path")
    if not options.is_module and not os.path.isfile(options.script):
        raise InvalidCallError(f"there is no file {options.script}")
    run_outputs.refuse_wrong_files(options)


def _has_module(name):
    """Whether Python finds a module. The packages above it are not imported for that."""
    if name.endswith(".py"):
        return True  # refused later, with what to write
    folders, spec = ["", *sys.path], None
    for end in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:end]), folders)
        if spec is None:
            return False
        folders = spec.submodule_search_locations or []
    return True


def _run(options):
    if options.nnodes not in (None, 1):
        raise InvalidCallError(
            f"--nnodes {options.nnodes}: run starts ranks on this machine only. simlib submit runs "
            "a script on several hosts, and simlib simulate on modelled nodes"
        )
    if options.every is not None and not options.watch:
        raise InvalidCallError(f"--every {options.every:g} needs --watch")
    _refuse_wrong_paths(options)
    start_server()
    if options.n > 1 and are_ranks_trusted():
        start_other_server()
    with _much_imported():
        from ..core.engines.options import Diagnosis, Restarts
        from ..core.engines.processes.real_run import run_script

    def run():
        every_s = 60.0 if options.every is None else options.every
        watch = options.watch and every_s
        watched = Diagnosis(timeout_s=options.timeout, strict=options.strict, watch=watch)
        return run_script(
            options.script,
            options.n,
            options.args,
            restarts=Restarts(options.restarts, options.min_ranks),
            diagnosis=watched,
            backend=options.backend,
            seed=options.seed,
            is_module=options.is_module,
            profile=options.profile,
        )

    return _perform(options, run)


def _simulate(options):
    _refuse_wrong_paths(options)
    start_server()
    with _much_imported():
        from ..core import clusters
        from ..core.engines.options import Diagnosis, Faults, Measurement, Restarts
        from ..core.engines.virtual.simulated_run import simulate_script

    def run():
        size, per_node = options.n, options.ranks_per_node
        if options.nnodes is not None:
            size, per_node = options.nnodes * options.n, options.n
        nodes = -(-size // max(1, per_node or 1))
        more = {"device": _device(options.device)} if options.device else {}
        cluster = getattr(clusters, options.network)(nodes, max(1, per_node or 1), **more)
        options.has_device = cluster.device is not None
        return simulate_script(
            options.script,
            size,
            options.args,
            cluster=cluster,
            local_size=per_node and max(1, per_node),
            restarts=Restarts(options.restarts, options.min_ranks),
            diagnosis=Diagnosis(timeout_s=options.timeout, strict=options.strict),
            faults=Faults(slow=_dict(options.slow), kill=_dict(options.kill)),
            measurement=Measurement(
                compute=options.compute, memory=options.memory or None, seed=options.seed
            ),
            is_module=options.is_module,
        )

    return _perform(options, run)


def _dict(pairs):
    return dict(pairs) if pairs else None


def _device(name):
    """The device of ``--device``."""
    from ..core import devices
    from ..core.model.cluster import Device

    if name in devices.__all__:
        return getattr(devices, name)()
    if not os.path.isfile(name):
        known = ", ".join(devices.__all__)
        raise InvalidCallError(f"--device {name} is not a file, and not one of {known}")
    return Device.measured(name)


def _perform(options, run):
    """Run the program, save the requested files, and print the table; returns the `Outcome`."""
    _ctrl_c.is_raised()
    failure = None
    try:
        run = run()
    except (SimlibError, RunInterrupted) as error:
        print(f"simlib: {error}", file=sys.stderr)
        failure, run = error, error.run
        if run is None and _ctrl_c.is_command():  # no rank has begun; servers may still import
            stop_server()
    run_outputs.save(run, options)
    _print_seed(options, run)
    if failure is None and not (options.quiet or options.json):
        _print_run(run, options)
    from ..core.results.document import outcome_of

    return outcome_of(run, failure, options.json)


def _print_run(run, options):
    print(run.table())
    if run.engine == "simulated":
        from ..core.draw.lanes import unit_of

        if options.memory:
            print("\n" + _memory_table(run.memory))
        if not run.repeats:  # then the table above has no times
            print("\n" + run.states.table())
        elif options.compute == "flops" and not (options.has_device or any(run.states.computing_s)):
            print(f"\n{NO_DEVICE}")
        unit, scale = unit_of(run.time_s)
        print(f"\nvirtual time: {run.time_s * scale:.9g} {unit}")


NO_DEVICE = (
    "computed 0 s: the cluster has no device, so computing takes no virtual time. With --device "
    "a100, computing takes as long as on this device. With --compute measured, it takes as long "
    "as on this machine"
)


def _memory_table(ledgers):
    """A row for each rank, at most 20, with the memory at its peak."""
    from ..core.model.ledger import CATEGORIES
    from ..core.model.words import aligned, short_bytes

    rows = [("rank", "memory at the peak", *CATEGORIES)]
    for ledger in ledgers[:20]:
        parts = (ledger.peak_bytes, *map(ledger.peak.get, CATEGORIES))
        rows.append((str(ledger.rank), *map(short_bytes, parts)))
    more = [f"... and {len(ledgers) - 20:,} more ranks"] if len(ledgers) > 20 else []
    return "\n".join([*aligned(rows), *more])


def _print_seed(options, run):
    if options.seed == "new" and run is not None:
        print(f"simlib: --seed {run.seed} repeats the random numbers of this run", file=sys.stderr)
