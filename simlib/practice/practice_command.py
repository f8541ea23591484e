"""``python -m simlib practice``: a network or a cluster on this machine, from the command line."""

from __future__ import annotations

import argparse
import re
import sys

from ..model.errors import InvalidCallError
from . import cluster_command
from .practice_network import MAX_NODES, PracticeNetwork
from .run_on_nodes import run_on_nodes

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def add_command(commands):
    """Add ``practice`` with its actions to the subcommands of a parser."""
    practice = commands.add_parser(
        "practice",
        help="a practice cluster: hosts on this machine with ssh, slow links, and Slurm",
        description="A practice cluster of Linux namespaces. It needs root, iproute2 and "
        "openssh-server; for Slurm, slurm-wlm and munge.",
    )
    actions = practice.add_subparsers(required=True, metavar="action")
    cluster_command.add_actions(actions, _add_links)
    run = actions.add_parser(
        "run",
        help="run a program on every node of a new network, then remove the network",
        description="Run a program on every node, one rank on each, with RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT in its environment. Prints each line with its rank.",
        usage="simlib practice run --nodes N [--rate RATE] [--delay TIME] -- program ...",
    )
    run.add_argument("--nodes", type=int, required=True, metavar="N", help=f"1 to {MAX_NODES}")
    _add_links(run)
    run.add_argument("program", nargs=argparse.REMAINDER)
    run.set_defaults(command=_run)


def _add_links(action):
    """Add the options that say what the links are like."""
    action.add_argument("--rate", type=rate_bps, help="of each link and direction: 100mbit, 1gbit")
    action.add_argument("--delay", type=time_s, default=0.0, help="from host to host: 100us, 5ms")


def rate_bps(text):
    """Bits per second of a text such as ``100mbit``."""
    return _quantity(text, RATES)


def time_s(text):
    """Seconds of a text such as ``100us``."""
    return _quantity(text, TIMES)


def _quantity(text, units):
    match = re.fullmatch(rf"([0-9.]+)({'|'.join(units)})", text)
    try:
        return float(match[1]) * units[match[2]]
    except (TypeError, ValueError):
        wanted = ", ".join(units)
        raise argparse.ArgumentTypeError(f"{text!r}: give a number and a unit ({wanted})") from None


def _run(options):
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        print("simlib: give the program to run after --", file=sys.stderr)
        return 2
    try:
        with (
            cluster_command.sigterm_as_exit(),
            PracticeNetwork(options.nodes, options.rate, options.delay) as network,
        ):
            failed = run_on_nodes(network, program)
    except InvalidCallError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for rank, code in failed.items():
        print(f"simlib: rank {rank} ended with exit code {code}", file=sys.stderr)
    return 1 if failed else 0
