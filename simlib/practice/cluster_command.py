"""``simlib practice up``, ``exec``, ``status`` and ``down``: the practice cluster that stays."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from ..model.errors import InvalidCallError
from . import daemon, slurm_daemons
from .enter import CANNOT
from .practice_cluster import MOST_NODES
from .system import why_not_here


def add_actions(actions, add_links):
    """Add the actions to those of ``practice``; ``add_links`` adds ``--rate`` and ``--delay``."""
    up = actions.add_parser(
        "up",
        help="start a practice cluster: login, node1, node2, ...",
        description="Start a practice cluster in the background. Its hosts reach each other by "
        "`ssh NAME` and see the files of this machine.",
    )
    up.add_argument("nodes", type=int, metavar="N", help=f"nodes beside login, 1 to {MOST_NODES}")
    add_links(up)
    up.add_argument("--slurm", action="store_true", help="with Slurm: sinfo, srun, sbatch")
    up.set_defaults(command=_up)
    run = actions.add_parser(
        "exec",
        help="run a program on a host of the practice cluster",
        description="Run a program on a host, in this folder, with this environment. Returns its "
        f"exit code; {CANNOT} when it could not be started for want of a cluster or host.",
        usage="simlib practice exec HOST -- program ...",
    )
    run.add_argument("host", metavar="HOST")
    run.add_argument("program", nargs=argparse.REMAINDER)
    run.set_defaults(command=_exec)
    status = actions.add_parser("status", help="say which practice cluster is up; 1 if none is")
    status.set_defaults(command=_status)
    down = actions.add_parser(
        "down", help="end the practice cluster, remove what killed processes left"
    )
    down.set_defaults(command=_down)


@contextmanager
def sigterm_as_exit():
    """Within it, SIGTERM ends the program as Ctrl-C does: what was made is removed."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(signum, frame):
    raise SystemExit(128 + signum)


def _up(options):
    try:
        with sigterm_as_exit():
            state = daemon.bring_up(options.nodes, options.rate, options.delay, options.slurm)
    except InvalidCallError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return 130
    print(_description(state))
    print("`simlib practice exec login -- hostname` runs a program on it; `... down` ends it")
    return 0


def _exec(options):
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    argv = [*daemon.launcher(options.host), *program]
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _status(options):
    refuse = why_not_here()
    if refuse:
        return _refused(refuse)
    state = daemon.state()
    if state is None:
        print("no practice cluster is up")
        return 1
    print(_description(state))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(daemon.host_answers, state["addresses"]))
    for (host, address), answer in zip(state["addresses"].items(), answers, strict=True):
        print(f"{host:8} {address:12} {'answers' if answer else 'does not answer'}")
    return 0 if all(answers) else 1


def _down(options):
    try:
        was_up, removed = daemon.bring_down()
    except InvalidCallError as error:
        return _refused(error)
    print("the practice cluster is down" if was_up else "no practice cluster was up")
    if removed:
        print(f"{len(removed)} namespaces of killed processes removed")
    return 0


def _description(state):
    """One line about a cluster."""
    hosts = list(state["addresses"])
    named = ", ".join(hosts) if len(hosts) < 6 else f"login, node1 to {hosts[-1]}"
    parts = [f"practice cluster: {named}"]
    if state["rate_bps"]:
        parts.append(f"{state['rate_bps'] / 1e6:g} Mbit/s")
    if state["delay_s"]:
        parts.append(f"{state['delay_s'] * 1e3:g} ms of delay")
    if state["slurm"]:
        parts.append(f"Slurm with {slurm_daemons.CPUS} CPUs on each node")
    return "; ".join([*parts, f"owner: process {state['owner']}"])


def _refused(why):
    print(f"simlib: {why}", file=sys.stderr)
    return 2
