"""What the classroom's commands do; apart from their parsers, as its imports take a second."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from ..model.package import ROOT
from . import collect, handout, overrides, pages, reports, sandbox, self_check, session, whole_class
from .cache import Cache
from .course import WRONG_ANSWERS
from .csv_tables import one_line
from .exercise import read_exercises
from .merge_answers import WrongNotebook
from .notebook_file import Unreadable
from .options import (
    again,
    cannot_write,
    check_numbers,
    chosen,
    deadline_of,
    limits_of,
    mark_late,
    of_report,
)
from .progress import progress
from .source import SourceError
from .summary import summary
from .syscalls import seccomp_filter


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
    """Print what is to be said about a notebook, as it comes; returns 0 if all is right, else 1."""
    said, notes = self_check.check_notebook(path)
    if is_one_of_many:
        print(f"== {path}\n")
    statuses = []
    for one in said:
        print(f"{one.text}\n", flush=True)
        statuses.append(one.status)
    for note in notes:
        print(f"note: {note}")
    right = statuses.count(self_check.RIGHT)
    print(f"{right} of {len(statuses)} right" + "\n" * is_one_of_many)
    return int(right < len(statuses))


def hand_out(options):
    """Write what students get; returns the exit code."""
    try:
        files = handout.handout(ROOT, options.out)
    except handout.CannotHandOut as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(cannot_write(Path(options.out), error, "a folder or a .zip"))
    books = [file for file in files if file.startswith("exercises/")]
    print(f"{options.out}: {len(books)} exercises, {len(files)} files in all")
    return 0


REFUSALS = (
    SourceError,
    sandbox.CannotIsolate,
    collect.CannotCollect,
    reports.BadRoster,
    overrides.BadOverrides,
    ValueError,
)


def refuse(text):
    """Say why there is nothing, each line by itself; returns the exit code."""
    for line in text.splitlines():
        print(f"simlib: {one_line(line)}", file=sys.stderr)
    return 2


def grade(options):
    """Grade a class; returns the exit code."""
    try:
        return _grade(options)
    except REFUSALS as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("simlib: stopped; what was graded is kept, so call it again", file=sys.stderr)
        return 130


def _grade(options):
    sandbox.check_can_isolate(options.no_sandbox)
    check_numbers(options)
    folder, deadline = Path(options.out), deadline_of(options.deadline)
    every = read_exercises(options.exercises)
    exercises = chosen(every, options.exercise)
    roster = reports.read_roster(options.roster) if options.roster else []
    by_hand = overrides.read_overrides(options.overrides) if options.overrides else []
    handed = handed_in(options, every, exercises)
    exercises = of_report(exercises, handed, options.exercise, roster)
    names = reports.names_of(handed, roster)
    anew = again(options.only, names, handed)
    by_hand, aside = overrides.check(by_hand, names, exercises, every)
    cache = cache_in(folder)
    warn(options.no_sandbox)
    with cache.locked():
        seed, deadline = cache.seed(options.seed), cache.deadline(deadline)
        mark_late(handed, deadline)
        graded = graded_by(options, exercises, handed, cache, seed, anew)
        report = reports.as_report(graded, roster, exercises, seed, not options.no_sandbox)
        overrides.apply(report, by_hand)
        without = reports.write_reports(folder, report, roster)
        pages.write_pages(folder, report)
    print(summary(report, folder, bool(options.exercise), deadline, without, aside))
    return 0 if all(one.result.status == "graded" for one in graded) else 1


def cache_in(folder):
    """What was kept in a report's folder, which is made where there is none."""
    try:
        return Cache(folder / ".cache")
    except OSError as error:
        raise ValueError(cannot_write(folder, error)) from None


def handed_in(options, every, exercises):
    """What was handed in for the chosen exercises; which one a file is, is told among all."""
    if Path(options.out).resolve() == Path(options.submissions).resolve():
        raise ValueError("--out names the folder of the submissions: name another one")
    handed = collect.collect(options.submissions, every)
    return [one for one in handed if one.exercise is None or one.exercise in exercises]


def graded_by(options, exercises, handed, cache, seed, anew):
    """``[Graded]`` of what was handed in; it tells meanwhile how far it is."""
    wrong = WRONG_ANSWERS if WRONG_ANSWERS.is_dir() else None
    isolate = not options.no_sandbox
    with progress(len(handed)) as tell:
        work = whole_class.Batch(exercises, cache, seed, limits_of(options), isolate, wrong)
        session.clear_after_the_dead()
        return work.run(handed, options.jobs, tell, anew)


def warn(no_sandbox):
    """Say loudly what this grading does not hold back."""
    if no_sandbox:
        print("simlib: NO SANDBOX: what students wrote runs with your rights", file=sys.stderr)
    elif seccomp_filter() is None:
        print(
            f"simlib: no filter of system calls is known for {platform.machine()}: the sandbox "
            "stands, with one wall less",
            file=sys.stderr,
        )
