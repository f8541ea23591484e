"""Options of commands that end with a `Run`: the files that it is saved in, and its table."""

from __future__ import annotations

import os


def add_options(command):
    """Add ``--trace``, ``--picture`` and ``--quiet`` to a parser."""
    command.add_argument("--trace", metavar="FILE", help="save the trace: JSON that Perfetto opens")
    command.add_argument("--picture", metavar="FILE", help="save the timeline as a picture")
    command.add_argument("--quiet", action="store_true", help="print no table")


def no_folder_for(options):
    """What is wrong with the files of a call, told before anything runs; or None."""
    for path in filter(None, (options.trace, options.picture)):
        if not os.path.isdir(os.path.dirname(path) or "."):
            return f"there is no folder for {path}"
    return None


def save(run, options):
    """Write what was asked for, also of a run that failed."""
    if run is None:
        return
    if options.trace:
        run.save(options.trace)
    if options.picture:
        run.timeline().savefig(options.picture)
