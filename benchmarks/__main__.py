"""``python -m benchmarks [--rounds N] [name ...]``; the names are those of its tables."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import torch


def main():
    from simlib.core.engines.workers.server import server_context

    from .browsing import browsing
    from .collectives import collectives
    from .ddp import ddp
    from .diagnosing import diagnosing
    from .families import families
    from .grading import grading
    from .labs import redrawing
    from .loopback import loopback
    from .mpi import mpi
    from .network import network
    from .pairs import pairs
    from .paying import paying
    from .practice import practice
    from .recording import recording
    from .scale import cost_model
    from .simulating import simulating
    from .starting import memory, starting
    from .testing import testing
    from .watching import watching

    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", metavar="name")
    options = parser.parse_args()
    server_context()  # one server for our ranks and for those by hand
    tables = {
        "starting": lambda: starting(options.rounds),
        "memory": memory,
        "recording": lambda: recording(options.rounds),
        "diagnosing": lambda: diagnosing(options.rounds),
        "collectives": lambda: collectives(options.rounds),
        "ddp": lambda: ddp(options.rounds),
        "simulating": lambda: simulating(options.rounds),
        "families": families,
        "loopback": loopback,
        "network": lambda: network(options.rounds),
        "pairs": lambda: pairs(options.rounds),
        "mpi": lambda: mpi(options.rounds),
        "paying": lambda: paying(options.rounds),
        "practice": lambda: practice(options.rounds),
        "scale": lambda: cost_model(options.rounds),
        "labs": redrawing,
        "grading": lambda: grading(options.rounds),
        "testing": lambda: testing(options.rounds),
        "browsing": lambda: browsing(options.rounds),
        "watching": lambda: watching(options.rounds),
    }
    unknown = set(options.names) - set(tables)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}: there are {', '.join(tables)}")
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}, torch {torch.__version__}; "
        f"medians (smallest to largest), {options.rounds} rounds"
    )
    for name in options.names or tables:
        tables[name]()


if __name__ == "__main__":
    main()
