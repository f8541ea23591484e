"""The classroom: grade a folder of notebooks, check one's own, hand exercises out.

`source` and `exercise` read what was handed out, `collect` and `notebook_file` what came back;
`late` says what of it came late.
`merge_answers` puts the answers of one into the other. `session` runs the result by nbval, in the
kernel that `sandbox` shuts in: there `examiner` and `graded_checks` examine, and `shell` runs the
student's cells in a process of its own. `grade` and `score` make points of it, `whole_class` grades
many, `reports`, `comments` and `pages` write them down, into an `own_folder`.

The package itself adds ``simlib grade``, ``check``, ``progress`` and ``handout`` to the command
line.
What they do is imported when they are called.
"""

from __future__ import annotations

import os
import sys

from ...core.environment import need
from .notebook_file import Unreadable, read_bytes
from .source import EXERCISES


def add_commands(commands):
    """Add the classroom's commands to the subcommands of a parser."""
    add_grade(commands)
    parser = commands.add_parser(
        "check",
        help="check your own notebook: what is right, wrong, not written yet",
        description="Run the answers of a notebook as it is saved, and the public checks of the "
        "exercise. Exit code 0 if all is right, 1 if not, 2 if it cannot be checked.",
    )
    parser.add_argument(
        "notebooks", nargs="+", help="exercises/NN_name.ipynb, or a folder of exercises"
    )
    parser.set_defaults(command=check)
    parser = commands.add_parser(
        "progress",
        help="all your exercises in one table: right, wrong, not written yet",
        description="Run the public checks of all exercises in a folder and print one table. It is "
        "for you alone: nothing is sent anywhere. A notebook that has not changed since is not run "
        "again. Exit code 0 if all is right, 1 if not, 2 if a notebook cannot be checked.",
    )
    parser.add_argument(
        "folder", nargs="?", default="exercises", help="the folder of exercises (exercises)"
    )
    parser.add_argument(
        "--certificate", metavar="FILE", help="write the table as an HTML page, too"
    )
    parser.add_argument("--name", default="", help="a name to stand on that page")
    parser.set_defaults(command=own("progress"))
    parser = commands.add_parser(
        "handout",
        help="make the folder or zip that students get",
        description="Write exercises, lessons, simlib and what is needed to install it: without "
        "solutions and hidden tests.",
    )
    parser.add_argument("--out", default="handout", metavar="F", help="folder, or a .zip (handout)")
    parser.set_defaults(command=command("hand_out"))


def add_grade(commands):
    """Add ``grade`` to the subcommands of a parser."""
    parser = commands.add_parser(
        "grade",
        help="grade a class's notebooks: points, reasons, feedback",
        description="Grade what students handed in. Their code runs in a sandbox. Writes tables, "
        "files to import into Canvas and Moodle, and a page for each student. Exit code 0 if "
        "every notebook was graded, 1 if one could not be, 2 for a wrong call, 130 after Ctrl-C.",
    )
    parser.add_argument(
        "submissions", help="a folder with a folder per student, a folder of files, or a zip"
    )
    parser.add_argument("--out", metavar="F", help="folder to write to (report)")
    parser.add_argument("--roster", metavar="CSV", help="the class: who handed in nothing gets 0")
    parser.add_argument(
        "--overrides",
        metavar="CSV",
        help="points and comments by hand: student, exercise, question, points, comment",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at a time (2)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="STUDENT",
        help="grade this student anew, though nothing changed",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="as 2026-11-30T18:00: later is late; kept for later calls, 'none' takes it away",
    )
    parser.add_argument(
        "--late-costs",
        metavar="PERCENT",
        help="10: late costs 10 %% of the points reached; 10/day: for each day begun; kept as the "
        "deadline is, 'none' takes it away",
    )
    parser.add_argument(
        "--counts",
        choices=["in-time", "last"],
        help="which of several files of a student counts: the last one in time, and only without "
        "one the last late one (in-time), or the last one (last); kept as the deadline is",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of hidden tests: 0 to 2**64 - 1 (drawn)"
    )
    parser.add_argument(
        "--exercise", action="append", metavar="NN", help="grade these exercises only"
    )
    parser.add_argument(
        "--exercises", default=str(EXERCISES), metavar="F", help="folder of their sources"
    )
    parser.add_argument(
        "--time",
        type=float,
        metavar="S",
        help="seconds for a notebook (240); cells get more with it",
    )
    parser.add_argument("--memory", type=int, metavar="MB", help="memory for a notebook (4096)")
    parser.add_argument(
        "--sandbox",
        choices=["bubblewrap", "podman", "docker"],
        help="what to isolate by (the first of these that is installed)",
    )
    parser.add_argument(
        "--no-sandbox", action="store_true", help="run what students wrote with your own rights"
    )
    parser.set_defaults(command=command("grade"))


def check(options):
    """Check notebooks; where none of them exists that is said at once."""
    if any(os.path.lexists(path) for path in options.notebooks):
        return own("check")(options)
    for path in options.notebooks:
        try:
            read_bytes(path)
        except Unreadable as error:
            print(f"simlib: {path}: {error}", file=sys.stderr)
    return 2


def own(name):
    """What `progress` has by a name; it is imported when the command is called."""

    def call(options):
        from . import progress

        return getattr(progress, name)(options)

    return call


def command(name):
    """What `commands` has by a name: for teachers, where there is what reads and runs notebooks."""

    def call(options):
        need("grading", "jupytext", "nbformat", "nbval", what="the teacher's part of simlib")
        from . import commands

        return getattr(commands, name)(options)

    return call
