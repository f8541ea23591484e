"""``simlib doctor [--hosts a,b]``: the doctor, from the command line."""

from __future__ import annotations

import sys

from ..core.model.errors import InvalidCallError


def add_command(commands):
    """Add ``doctor`` to the subcommands of a parser."""
    parser = commands.add_parser(
        "doctor",
        help="check what a cluster needs, and say how to mend what is wrong",
        description="Check whether jobs can run on hosts: ssh, Python, MPI, files, clocks, "
        "network. Prints one line for each check. Exit code 0 if all is well, 1 if something is "
        "wrong.",
    )
    parser.add_argument("--hosts", metavar="A,B", help="names of the hosts; none: this machine")
    parser.add_argument(
        "--launcher", metavar="CMD", help="stands for mpiexec (the one beside this Python)"
    )
    parser.add_argument(
        "--folder", default=".", metavar="F", help="one that all hosts should share (this one)"
    )
    parser.set_defaults(command=_doctor)


def _doctor(options):
    from .doctor import doctor

    hosts = None if options.hosts is None else options.hosts.split(",")
    try:
        report = doctor(hosts, launcher=options.launcher, folder=options.folder)
    except InvalidCallError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(report)
    return 0 if report.ok else 1
