"""What ``simlib check`` and ``progress`` do, for who writes the answers: no extra is needed."""

from __future__ import annotations

import sys

from . import progress as own_progress
from . import self_check
from .merge_answers import WrongNotebook
from .notebook_file import Unreadable
from .texts import one_line


def check(options):
    """Check a student's own notebooks; returns the exit code."""
    code = 0
    paths = [path for named in options.notebooks for path in self_check.exercises_in(named)]
    for path in paths:
        try:
            code = max(code, check_one(path, len(paths) > 1))
        except (Unreadable, WrongNotebook) as error:
            print(f"simlib: {path}: {error}", file=sys.stderr)
            code = 2
        except KeyboardInterrupt:
            return 130
    return code


def check_one(path, is_one_of_many):
    """Print the result of each question, as it comes; returns 0 if all are right, else 1."""
    results, notes = self_check.check_notebook(path)
    if is_one_of_many:
        print(f"== {path}\n")
    statuses = []
    for one in results:
        print(f"{one.text}\n", flush=True)
        statuses.append(one.status)
    for note in notes:
        print(f"note: {note}")
    right = statuses.count(self_check.RIGHT)
    print(f"{right} of {len(statuses)} right" + "\n" * is_one_of_many)
    return int(right < len(statuses))


def progress(options):
    """Print a learner's table of all exercises, and write the page; returns the exit code."""
    paths = self_check.exercises_in(options.folder)
    if not paths or not all(path.suffix == ".ipynb" for path in paths):
        return refuse(f"{options.folder}: there are no exercises (NN_name.ipynb) in this folder")

    def tell(path):
        print(f"checking {path.name} ...", file=sys.stderr, flush=True)

    try:
        notebooks = own_progress.progress_of(paths, tell)
        print(own_progress.table(notebooks))
        if options.certificate:
            own_progress.write_certificate(options.certificate, notebooks, options.name)
    except OSError as error:
        return refuse(f"{options.certificate}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130
    if any(one.problem for one in notebooks):
        return 2
    right, asked, *_ = own_progress.totals(notebooks)
    return int(right < asked)


def refuse(text):
    """Say why there is nothing, each line by itself; returns the exit code."""
    for line in text.splitlines():
        print(f"simlib: {one_line(line)}", file=sys.stderr)
    return 2
