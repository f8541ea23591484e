"""The command line: ``python -m simlib run -n 4 script.py [args]``, and all other commands.

A command imports its modules when it is called. So a wrong call does not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pkgutil import resolve_name

from . import _ctrl_c, classroom, cluster, course
from .core.engines import run_outputs
from .core.engines.run_outputs import MAX_PROCESSES, MAX_SIMULATED
from .core.environment import VERSION, MissingExtra
from .core.model.errors import InvalidCallError, RunInterrupted, SimlibError


def main(argv=None):
    """Run a command; returns the exit code.

    It is 0, or 1 for a program that failed, 2 for a wrong call, 130 after Ctrl-C.
    """
    options = _parser().parse_args(argv)
    if options.command not in (_run, _simulate):  # which import torch first
        _ctrl_c.is_raised()
    try:
        return options.command(options)
    except (MissingExtra, InvalidCallError) as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(_ctrl_c.WORDS, file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _ctrl_c.ends_at_once()


class _Command(argparse.ArgumentParser):
    """A command that refuses unknown options itself, with its own usage."""

    def parse_known_args(self, args=None, namespace=None):
        """As in argparse, but no argument may be left over."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, []


def _parser():
    parser = argparse.ArgumentParser(prog="simlib", description="One program on many ranks.")
    parser.add_argument("--version", action="version", version=f"simlib {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=_Command)
    run = commands.add_parser(
        "run",
        help="run a script on real ranks: processes of this machine",
        description="Run a script on real ranks, as mpiexec or torchrun would: every rank runs "
        "the whole script, with RANK and WORLD_SIZE in its environment. Prints each "
        "line with its rank, then a table of who sent what to whom.",
    )
    _add_arguments(run, MAX_PROCESSES)
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
    run.set_defaults(command=_run)
    simulate = commands.add_parser(
        "simulate",
        help="run a script on simulated ranks, with a modelled cluster and a virtual clock",
        description="Run a script on a modelled cluster. Prints each line with its rank, then a "
        "table of who sent what to whom, and the virtual time.",
    )
    _add_arguments(simulate, MAX_SIMULATED)
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
    simulate.set_defaults(command=_simulate)
    card = commands.add_parser(
        "card",
        help="measure this machine's device, for simlib.Device.measured",
        description="Measure single operations on the GPU of this machine, or on its CPU, and "
        "write a file for simlib.Device.measured. Nothing else should run meanwhile.",
    )
    card.add_argument("--out", default="card.json", metavar="FILE", help="output (card.json)")
    card.add_argument("--device", choices=("cuda", "cpu"), help="device (cuda if there is a GPU)")
    card.add_argument("--time", type=float, default=110, metavar="S", help="seconds to use (110)")
    card.set_defaults(command=_card)
    diagnose = commands.add_parser(
        "diagnose",
        help="say why a job hangs, from the dumps that its ranks left",
        description="Read the dumps of torch's flight recorder that the ranks of a job have left "
        "in a folder, and say who waits for whom, who is absent, and at which line. Logs of "
        "NCCL in the folder are read too. With --job, simlib asks the ranks of a job that runs on "
        "this machine for dumps, and writes the dumps into FOLDER. Then FOLDER must be new or "
        "empty, and comes before --job. The exit code is 0 if no rank waits, 1 if something is "
        "wrong, and 2 if the dumps do not suffice.",
    )
    diagnose.add_argument("folder", metavar="FOLDER", nargs="?")
    diagnose.add_argument(
        "--job",
        nargs="?",
        type=_pid,
        const=0,
        metavar="PID",
        help="a job of torchrun on this host. If several jobs run, give a process of one of them",
    )
    diagnose.add_argument("--html", metavar="FILE", help="write a page with the waits and calls")
    diagnose.add_argument("--json", action="store_true", help="print the verdict as JSON")
    diagnose.set_defaults(command=_diagnose)
    for part in (cluster, classroom, course):
        for name in part.COMMANDS:
            resolve_name(f"{part.__name__}.{name}")(commands)
    return parser


class _Networks:
    """The names of the presets of `simlib.clusters`. They need numpy, so they are imported late."""

    def __iter__(self):
        from .core.clusters import __all__ as names

        return iter(names)


def _add_arguments(command, most):
    command.add_argument("-n", type=int, required=True, metavar="N", help=f"ranks, 1 to {most}")
    run_outputs.add_limits(command)
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
    command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")


def _seed(text):
    return int(text) if text.isdecimal() else text


def _pid(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not the number of a process; write the folder before --job: simlib "
            f"diagnose {text} --job"
        )
    return int(text)


def _run(options):
    from .core.engines.options import Diagnosis, Restarts
    from .core.engines.processes.real_run import run_script

    if options.every is not None and not options.watch:
        print(f"simlib: --every {options.every:g} needs --watch", file=sys.stderr)
        return 2

    def run():
        every_s = 60.0 if options.every is None else options.every
        watched = Diagnosis(timeout_s=options.timeout, watch=options.watch and every_s)
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
    from .core import clusters
    from .core.engines.options import Diagnosis, Restarts
    from .core.engines.virtual.simulated_run import simulate_script

    def run():
        per_node = max(1, options.ranks_per_node or 1)
        nodes = -(-options.n // per_node)
        cluster = getattr(clusters, options.network)(nodes=nodes, ranks_per_node=per_node)
        return simulate_script(
            options.script,
            options.n,
            options.args,
            cluster=cluster,
            local_size=options.ranks_per_node and per_node,
            restarts=Restarts(options.restarts, options.min_ranks),
            diagnosis=Diagnosis(timeout_s=options.timeout),
            seed=options.seed,
            is_module=options.is_module,
        )

    return _perform(options, run)


def _card(options):
    if not os.path.isdir(os.path.dirname(options.out) or "."):
        print(f"simlib: there is no folder for {options.out}", file=sys.stderr)
        return 2
    if not options.time > 0:
        print(f"simlib: --time {options.time:g}: give seconds above 0", file=sys.stderr)
        return 2
    import torch

    from .core.devices.measuring import measure

    card = measure(options.device or ("cuda" if torch.cuda.is_available() else "cpu"), options.time)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(card.text())
    print(f"{card.name} is measured. Use it as simlib.Device.measured({options.out!r})")
    return 0


def _diagnose(options):
    import json

    if options.folder is None and options.job is None:
        print("simlib: diagnose needs a folder of dumps, or --job", file=sys.stderr)
        return 2
    from .core.results.job_diagnosis import diagnose, diagnose_job

    try:
        if options.job is None:
            found = diagnose(options.folder)
        else:
            found = diagnose_job(options.job or None, options.folder)
        if options.html:
            found.to_html(options.html)
    except (ValueError, OSError) as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_record(), indent=1) if options.json else found)
    return 0 if found.kind == "healthy" else 1


def _perform(options, run):
    """Run the program, save the requested files, and print the table; returns the exit code."""
    wrong = _wrong_paths(options)
    if wrong:
        print(f"simlib: {wrong}", file=sys.stderr)
        return 2
    _ctrl_c.is_raised()
    try:
        run = run()
    except (SimlibError, RunInterrupted) as error:
        print(f"simlib: {error}", file=sys.stderr)
        run_outputs.save(error.run, options)
        _print_seed(options, error.run)
        if isinstance(error, RunInterrupted):
            return 130
        return 2 if error.run is None else 1
    run_outputs.save(run, options)
    _print_seed(options, run)
    if not options.quiet:
        from .core.draw.lanes import unit_of

        print(run.table())
        if run.engine == "simulated":
            unit, scale = unit_of(run.time_s)
            print(f"\nvirtual time: {run.time_s * scale:.9g} {unit}")
    return 0


def _print_seed(options, run):
    if options.seed == "new" and run is not None:
        print(f"simlib: --seed {run.seed} repeats the random numbers of this run", file=sys.stderr)


def _wrong_paths(options):
    """A sentence on wrong paths of a call, before anything runs; or None."""
    if not options.is_module and not os.path.isfile(options.script):
        return f"there is no file {options.script}"
    return run_outputs.wrong_files(options)
