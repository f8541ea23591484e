"""The classroom's commands: grade a folder of notebooks, check your own notebooks, hand exercises
out.

`source` and `exercise` read the exercises that were handed out. `collect` and `notebook_file` read
the notebooks that students handed in, and `late` finds the late ones. `merge_answers` puts a
student's answers into the exercise. `session` runs the merged notebook with nbval, in a kernel that
`sandbox` isolates. In this kernel `examiner` and `graded_checks` examine the answers, and `shell`
runs the student's cells in a process of its own. `grade` and `score` compute the points, and
`whole_class` grades many notebooks. `reports`, `comments` and `pages` write the results into an
`own_folder`.

This file itself adds ``simlib grade``, ``check``, ``progress`` and ``handout`` to the command line.
The code of a command is imported when the command is called.
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
        help="check which of your answers are right, wrong or not written yet",
        description="Run the answers of a saved notebook, and the public checks of the exercise. "
        "The exit code is 0 if all answers are right, 1 if not, and 2 if the notebook "
        "cannot be checked.",
    )
    parser.add_argument(
        "notebooks", nargs="+", help="exercises/NN_name.ipynb, or a folder of exercises"
    )
    parser.set_defaults(command=check)
    parser = commands.add_parser(
        "progress",
        help="show in one table which exercises are right, wrong or not written yet",
        description="Run the public checks of all exercises in a folder and print one table. "
        "Nothing is sent anywhere. A notebook that has not changed is not run again. The exit "
        "code is 0 if all is right, 1 if not, and 2 if a notebook cannot be checked.",
    )
    parser.add_argument(
        "folder", nargs="?", default="exercises", help="the folder of exercises (exercises)"
    )
    parser.add_argument(
        "--certificate", metavar="FILE", help="write the table as an HTML page, too"
    )
    parser.add_argument("--name", default="", help="a name to show on that page")
    parser.set_defaults(command=own("progress"))
    parser = commands.add_parser(
        "handout",
        help="make the folder or zip that students get",
        description="Write exercises, lessons, simlib and the files to install it, without "
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
        "files to import into Canvas and Moodle, and a page for each student. The exit code is "
        "0 if all was graded, 1 if a notebook could not be graded, 2 for a wrong call, and 130 "
        "after Ctrl-C.",
    )
    parser.add_argument(
        "submissions", help="a folder with a folder per student, a folder of files, or a zip"
    )
    parser.add_argument("--out", metavar="F", help="folder to write to (report)")
    parser.add_argument("--roster", metavar="CSV", help="class list; no file gives 0 points")
    parser.add_argument(
        "--overrides",
        metavar="CSV",
        help="table of what you set by hand: student, exercise, question, points, comment",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="notebooks at once (2)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="STUDENT",
        help="grade this student again, even if nothing changed",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="a time like 2026-11-30T18:00. Later calls keep the deadline, 'none' removes it",
    )
    parser.add_argument(
        "--late-costs",
        metavar="PERCENT",
        help="with 10, a late notebook loses 10 %% of its points. With 10/day, it loses 10 %% for "
        "each day begun. Later calls keep this, 'none' removes it",
    )
    parser.add_argument(
        "--counts",
        choices=["in-time", "last"],
        help="which of a student's files counts. in-time: the last file that came in time, or the "
        "last file if none came in time. last: the last file. Later calls keep this",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of hidden tests: 0 to 2**64 - 1 (drawn)"
    )
    parser.add_argument(
        "--exercise", action="append", metavar="NN", help="grade these exercises only"
    )
    parser.add_argument(
        "--exercises", default=str(EXERCISES), metavar="F", help="folder of exercise sources"
    )
    parser.add_argument(
        "--time",
        type=float,
        metavar="S",
        help="time limit of a notebook in seconds (240); a longer limit gives each cell more time",
    )
    parser.add_argument("--memory", type=int, metavar="MB", help="memory limit in MB (4096)")
    parser.add_argument(
        "--sandbox",
        choices=["bubblewrap", "podman", "docker"],
        help="the program that isolates notebooks (the first of these that is installed)",
    )
    parser.add_argument(
        "--no-sandbox", action="store_true", help="run students' code with your own rights"
    )
    parser.set_defaults(command=command("grade"))


def check(options):
    """Check notebooks. If none of them exists, report this at once."""
    if any(os.path.lexists(path) for path in options.notebooks):
        return own("check")(options)
    for path in options.notebooks:
        try:
            read_bytes(path)
        except Unreadable as error:
            print(f"simlib: {path}: {error}", file=sys.stderr)
    return 2


def own(name):
    """The function of this name in `progress`, which is imported when the command is called."""

    def call(options):
        from . import progress

        return getattr(progress, name)(options)

    return call


def command(name):
    """The function of this name in `commands`. It needs the packages that run notebooks."""

    def call(options):
        need("grading", "jupytext", "nbformat", "nbval", what="the teacher's part of simlib")
        from . import commands

        return getattr(commands, name)(options)

    return call
