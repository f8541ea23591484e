"""``python -m simlib practice``: a slow network on this machine, from the command line."""

from __future__ import annotations

import argparse
import re
import signal
import sys

from ..errors import InvalidCallError
from .launch import run_on_nodes
from .network import MAX_NODES, PracticeNetwork
from .system import remove_leftovers

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def add_command(commands):
    """Add ``practice run`` and ``practice down`` to the subcommands of a parser."""
    practice = commands.add_parser(
        "practice",
        help="a practice network: nodes on this machine with slow links between them",
        description="A practice network of Linux network namespaces. It needs root and iproute2.",
    )
    actions = practice.add_subparsers(required=True, metavar="action")
    run = actions.add_parser(
        "run",
        help="run a program on every node of a new network, then remove the network",
        description="Run a program on every node, one rank on each, with RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT in its environment. Prints each line with its rank.",
        usage="simlib practice run --nodes N [--rate RATE] [--delay TIME] -- program ...",
    )
    run.add_argument("--nodes", type=int, required=True, metavar="N", help=f"1 to {MAX_NODES}")
    run.add_argument("--rate", type=rate_bps, help="of each link and direction: 100mbit, 1gbit")
    run.add_argument("--delay", type=time_s, default=0.0, help="from node to node: 100us, 5ms")
    run.add_argument("program", nargs=argparse.REMAINDER)
    run.set_defaults(command=_run)
    down = actions.add_parser("down", help="remove networks whose process was killed")
    down.set_defaults(command=_down)


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
    ended = signal.signal(signal.SIGTERM, _leave)  # as by Ctrl-C: the network has to be removed
    try:
        with PracticeNetwork(options.nodes, options.rate, options.delay) as network:
            failed = run_on_nodes(network, program)
    except InvalidCallError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, ended)
    for rank, code in failed.items():
        print(f"simlib: rank {rank} ended with exit code {code}", file=sys.stderr)
    return 1 if failed else 0


def _leave(signum, frame):
    raise SystemExit(128 + signum)


def _down(options):
    try:
        removed = remove_leftovers()
    except InvalidCallError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    print(f"{len(removed)} namespaces removed")
    return 0
