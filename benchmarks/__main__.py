"""``python -m benchmarks [--rounds N] [name ...]``; the names are those of its tables."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys

import torch

TABLES = (
    *("starting", "recording", "diagnosing", "collectives", "ddp", "simulating", "loopback"),
    *("network", "paying", "scale", "grading", "testing", "watching", "gpu", "dataless", "card"),
    "real_jobs",
    "eager",
)
"""Modules; each has a function of the same name, which prints its tables."""


def main():
    from simlib.core.engines.workers.server import server_context

    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", metavar="name")
    options = parser.parse_args()
    if unknown := set(options.names) - set(TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}: there are {', '.join(TABLES)}")
    server_context()  # one server for our ranks and for those by hand
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}, torch {torch.__version__}; "
        f"medians (smallest to largest), {options.rounds} rounds"
    )
    for name in options.names or TABLES:
        module = importlib.import_module(f".{name}", __package__)
        getattr(module, name)(options.rounds)


if __name__ == "__main__":
    main()
