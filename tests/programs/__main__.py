"""``python -m tests.programs NAME...``: what simlib says of these programs; no name lists all."""

import sys

import simlib

from . import RIGHT, WRONG


def show(program):
    """Run one program and print the verdict a learner would read."""
    print(f"== {program.name}: {program.kind or 'right'}, {program.blamed}")
    try:
        run = simlib.run(program.function, program.ranks, timeout_s=program.timeout_s)
    except simlib.SimlibError as error:
        print(f"{error.kind}: {error}")
        for rank, site in error.sites.items():
            print(f"   sites[{rank}]: {site}   {site.line_text}")
    else:
        print("no error; findings:", *run.findings or ["none"], sep="\n   ")


if __name__ == "__main__":
    everything = {**WRONG, **RIGHT}
    if len(sys.argv) == 1:
        print(*everything, sep="\n")
    for name in sys.argv[1:]:
        show(everything[name])
