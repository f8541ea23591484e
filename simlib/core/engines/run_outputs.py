"""Options of commands that run a script: its limits, and the files for its `Run`."""

from __future__ import annotations

import os
from argparse import REMAINDER, ArgumentParser, Namespace
from typing import Any

from ..draw.display import bar
from ..model.errors import InvalidCallError

MAX_PROCESSES = 64
MAX_SIMULATED = 4096
"""The largest world of each engine. The command line needs the numbers before torch is loaded."""


def add_limits(command: ArgumentParser) -> None:
    """Add ``--timeout``, ``--restarts`` and ``--min-ranks`` to a parser."""
    command.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="seconds without progress (120)"
    )
    command.add_argument(
        "--restarts",
        "--max-restarts",
        "--max_restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart up to N times after deaths",
    )
    command.add_argument(
        "--min-ranks", type=int, metavar="N", help="restart if at least N ranks are left"
    )


def add_script_arguments(command: ArgumentParser) -> None:
    """Add ``args``, the arguments of a script, to a parser. A script needs none."""
    rest = command.add_argument("args", nargs=REMAINDER, help="arguments of the script")
    rest.required = False  # else a usage error would name them


def add_options(command: ArgumentParser) -> None:
    """Add ``--trace``, ``--picture``, ``--html``, ``--quiet`` and ``--json`` to a parser."""
    command.add_argument("--trace", metavar="FILE", help="save the trace for Perfetto, as JSON")
    command.add_argument("--picture", metavar="FILE", help="save the timeline as a picture")
    command.add_argument(
        "--html", metavar="FILE", help="save the run as a page that plays in any browser"
    )
    command.add_argument("--quiet", action="store_true", help="print no table")
    add_json(command)


def add_json(command: ArgumentParser) -> None:
    """Add ``--json`` to a parser. `simlib.cli.main` prints the document."""
    command.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document on stdout, and everything else on stderr",
    )


def refuse_wrong_files(options: Namespace) -> None:
    """Refuse wrong file names in a call, before the run."""
    for path in filter(None, (options.trace, options.picture, options.html)):
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise InvalidCallError(f"there is no folder for {path}")
    if options.html and not options.html.lower().endswith((".html", ".htm")):
        raise InvalidCallError(
            f"--html {options.html} is not a page: name a file that ends in .html"
        )


def save(run: Any, options: Namespace) -> None:
    """Write the requested files, even if the run has failed."""
    if run is None:
        return
    for path, write in (
        (options.trace, run.save),
        (options.picture, lambda path: run.timeline().savefig(path)),
        (options.html, run.to_html),
    ):
        if path:
            with bar(None, f"writing {os.path.basename(path)}"):
                write(path)
