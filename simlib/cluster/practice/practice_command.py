"""The command ``python -m simlib practice`` starts a network or a cluster on this machine."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from contextlib import contextmanager

from ...core.model.errors import InvalidCallError
from . import daemon
from .enter import CANNOT
from .hosts import CPUS
from .practice_cluster import MAX_CLUSTER_NODES
from .practice_network import MAX_NODES, PracticeNetwork, run_on_nodes, why_not_here

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def add_command(commands):
    """Add ``practice`` with its actions to the subcommands of a parser."""
    practice = commands.add_parser(
        "practice",
        help="a practice cluster: hosts on this machine with ssh, slow links, and Slurm",
        description="Start and use a practice cluster of Linux namespaces. It needs root, iproute2 "
        "and openssh-server. Slurm also needs slurm-wlm and munge.",
    )
    actions = practice.add_subparsers(required=True, metavar="action")
    _add_up(actions)
    _add_exec(actions)
    status = actions.add_parser("status", help="say which cluster is up, or fail if none is")
    status.set_defaults(command=_status)
    down = actions.add_parser(
        "down", help="end the practice cluster, and clean up after killed processes"
    )
    down.set_defaults(command=_down)
    _add_run(actions)


def _add_up(actions):
    up = actions.add_parser(
        "up",
        help="start a practice cluster: login, node1, node2, ...",
        description="Start a practice cluster in the background. Its hosts reach each other by "
        "`ssh NAME` and see the files of this machine.",
    )
    up.add_argument(
        "nodes", type=int, metavar="N", help=f"nodes besides login, 1 to {MAX_CLUSTER_NODES}"
    )
    _add_links(up)
    up.add_argument("--slurm", action="store_true", help="with Slurm: sinfo, srun, sbatch")
    up.set_defaults(command=_up)


def _add_exec(actions):
    run = actions.add_parser(
        "exec",
        help="run a program on a host of the practice cluster",
        description="Run a program on a host, in this folder, with this environment. The exit "
        f"code is the program's. It is {CANNOT} if there is no cluster or no such host.",
        usage="simlib practice exec HOST -- program ...",
    )
    run.add_argument("host", metavar="HOST")
    run.add_argument("program", nargs=argparse.REMAINDER)
    run.set_defaults(command=_exec)


def _add_run(actions):
    run = actions.add_parser(
        "run",
        help="run a program on every node of a new network, then remove the network",
        description="Run a program on every node, one rank on each, with RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT in its environment. The command prints each line of "
        "output with the rank that wrote it.",
        usage="simlib practice run --nodes N [--rate RATE] [--delay TIME] -- program ...",
    )
    run.add_argument("--nodes", type=int, required=True, metavar="N", help=f"1 to {MAX_NODES}")
    _add_links(run)
    run.add_argument("program", nargs=argparse.REMAINDER)
    run.set_defaults(command=_run)


def _add_links(action):
    """Add the options for the rate and delay of links."""
    action.add_argument(
        "--rate", type=rate_bps, help="rate of each link in each direction, such as 100mbit"
    )
    action.add_argument("--delay", type=time_s, default=0.0, help="delay between hosts: 100us, 5ms")


def rate_bps(text):
    """Return the bits per second that a text such as ``100mbit`` names."""
    return _quantity(text, RATES)


def time_s(text):
    """Return the seconds that a text such as ``100us`` names."""
    return _quantity(text, TIMES)


def _quantity(text, units):
    match = re.fullmatch(rf"([0-9.]+)({'|'.join(units)})", text)
    try:
        return float(match[1]) * units[match[2]]
    except (TypeError, ValueError):
        wanted = ", ".join(units)
        raise argparse.ArgumentTypeError(f"{text!r}: give a number and a unit ({wanted})") from None


def _up(options):
    with _sigterm_as_exit():
        state = daemon.bring_up(options.nodes, options.rate, options.delay, options.slurm)
    print(_description(state))
    print("`simlib practice exec login -- hostname` runs the program hostname on the login host.")
    print("`simlib practice down` stops the cluster.")
    return 0


def _exec(options):
    argv = [*daemon.launcher(options.host), *_program(options)]
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _status(options):
    refuse = why_not_here()
    if refuse:
        raise InvalidCallError(refuse)
    state = daemon.state()
    if state is None:
        print("no practice cluster is up")
        return 1
    print(_description(state))
    answering = daemon.hosts_that_answer(state["addresses"])
    for host, address in state["addresses"].items():
        print(f"{host:8} {address:12} {'answers' if host in answering else 'does not answer'}")
    return 0 if answering == set(state["addresses"]) else 1


def _down(options):
    was_up, removed = daemon.bring_down()
    print("the practice cluster is down" if was_up else "no practice cluster was up")
    if removed:
        s = "s" * (len(removed) > 1)
        print(f"simlib removed {len(removed)} namespace{s} of killed processes")
    return 0


def _description(state):
    """Return one line that describes a cluster."""
    hosts = list(state["addresses"])
    named = ", ".join(hosts) if len(hosts) < 6 else f"login, node1 to {hosts[-1]}"
    parts = [f"practice cluster: {named}"]
    if state["rate_bps"]:
        parts.append(f"{state['rate_bps'] / 1e6:g} Mbit/s")
    if state["delay_s"]:
        parts.append(f"{state['delay_s'] * 1e3:g} ms of delay")
    if state["slurm"]:
        parts.append(f"Slurm with {CPUS} CPUs on each node")
    return "; ".join([*parts, f"owner: process {state['owner']}"])


def _run(options):
    program = _program(options)
    if not program:
        raise InvalidCallError("give the program to run after --")
    network = PracticeNetwork(options.nodes, options.rate, options.delay)
    with _sigterm_as_exit(), network:
        failed = run_on_nodes(network, program)
    for rank, code in failed.items():
        print(f"simlib: rank {rank} ended with exit code {code}", file=sys.stderr)
    return 1 if failed else 0


def _program(options):
    """Return the words after ``--``."""
    return options.program[1:] if options.program[:1] == ["--"] else options.program


@contextmanager
def _sigterm_as_exit():
    """Within the block, SIGTERM ends the program like Ctrl-C, so the program can clean up."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(signum, frame):
    raise SystemExit(128 + signum)
