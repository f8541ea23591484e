"""The commands ``simlib grade`` and ``simlib handout``.

Their parsers are in another module, because the imports of this module take a second. A handout is
the material for students, as a folder or a zip file. It contains no solutions and no hidden cells.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ...core.draw.display import bar
from ...core.draw.text import count as counted
from ...core.environment import ROOT
from . import changes, collect, late, pages, reports, sandbox, session, whole_class
from .exercise import is_exercise, read_exercises, write_checks
from .own_folder import NotOwn, OwnFolder, state_folder
from .progress import refuse
from .reports import NOT_IN_ROSTER
from .roster import BadRoster, listed, names_of, read_roster, students_to_regrade
from .sandbox import hiding
from .self_check import PRISTINE
from .source import WRONG_ANSWERS, SourceError, exercise_files, number_of
from .texts import SEEDS, Cache, one_line

LEAST_TIME_S, LEAST_MEMORY_MB = 10, 1024
"""The smallest limits that the grader accepts: an empty notebook needs this many seconds and MB on
a busy machine."""


def hand_out(options):
    """Write the material for students. Return the exit code."""
    try:
        with bar(None, "writing the handout"):
            files = handout(ROOT, options.out)
    except CannotHandOut as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(cannot_write(Path(options.out), error, "a folder or a .zip"))
    books = [file for file in files if Path(file).match("exercises/*.ipynb")]
    print(f"{options.out}: {len(books)} exercises, {len(files)} files in all")
    return 0


REFUSALS = (
    SourceError,
    sandbox.CannotIsolate,
    collect.CannotCollect,
    BadRoster,
    reports.BadOverrides,
    NotOwn,
    ValueError,
)


def grade(options):
    """Grade a class. Return the exit code."""
    try:
        options.out = options.out or place_beside(options.submissions)
        places = options.submissions, options.out, options.exercises, options.roster
        with hiding(*places, options.overrides, state_folder()), sandbox.choosing(options.sandbox):
            return _grade(options)
    except whole_class.SolutionFails as error:
        return refuse(
            f"the course's own solution cannot be graded here ({one_line(str(error))}), so no "
            "table was written: call again, or leave its exercise out with --exercise"
        )
    except REFUSALS as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("simlib: stopped. Call simlib grade again to grade the rest", file=sys.stderr)
        return 130


def _grade(options):
    sandbox.check_can_isolate(options.no_sandbox)
    check_numbers(options)
    folder, rules = Path(options.out), rules_of(options)
    all_exercises = read_exercises(options.exercises)
    exercises = chosen_exercises(all_exercises, options.exercise)
    roster = read_roster(options.roster) if options.roster else []
    by_hand = reports.read_overrides(options.overrides) if options.overrides else []
    notes = []
    everybody = submitted_files(options, all_exercises, roster, notes)
    files = [one for one in everybody if one.exercise is None or one.exercise in exercises]
    exercises = exercises_of_report(exercises, files, bool(options.exercise), roster)
    regrade, not_applied = (), []
    if options.only or by_hand:
        names = names_of(files, roster)
        regrade = students_to_regrade(options.only or (), names, files)
        by_hand, not_applied = reports.check(by_hand, names, exercises, all_exercises)
    check_roster(roster, everybody)
    own, cache = report_folder(folder)
    warn(options.no_sandbox)
    with cache.locked():
        seed = cache.seed(options.seed)
        rules = late.Rules(**{name: cache.rule(name, rule) for name, rule in rules.items()})
        files = late.settle(files, {one.student: one.deadline for one in roster}, rules)
        graded = grade_files(options, exercises, files, cache, seed, regrade)
        report = reports.as_report(graded, roster, exercises, seed, not options.no_sandbox)
        report["notes"] = notes
        reports.charge(report, rules.costs)
        reports.apply(report, by_hand)
        report["changes"] = changes.since_last(
            cache, report, files, exercises, seed=seed, limits=limits_of(options),
            sandbox=not options.no_sandbox, costs=rules.costs,
        )  # fmt: skip
        if cache.has_others:
            report["notes"].append(OF_OTHERS.format(folder / reports.CACHE))
        not_written = reports.write_reports(own, report, roster)
        pages.write_pages(own, report)
    print(summary(report, folder, bool(options.exercise), rules, not_written, not_applied))
    return 0 if all(one.result.status == "graded" for one in graded) else 1


OF_OTHERS = (
    "simlib ignored a file in {}, because it is not signed with your key. If the file contained "
    "results, simlib graded these notebooks again. If it contained the seed, a deadline or another "
    "rule, give it again"
)


def place_beside(submissions):
    """Return the report's folder for a call that names none. Students must not be able to write
    there.

    Raises
    ------
    ValueError
        Students can write to the folder.
    """
    place, above = Path("report"), Path(submissions).resolve()
    if above in place.resolve().parents:
        raise ValueError(
            f"the report would be written among the submissions, in {place.resolve()}: name "
            "another folder with --out"
        )
    return str(place)


def report_folder(folder):
    """Return ``(OwnFolder, Cache)`` of a report's folder. Make the folder if it does not exist."""
    try:
        own = OwnFolder(folder)
        own.below(pages.FEEDBACK)  # refused before anything is graded
        return own, Cache(own.below(reports.CACHE, 0o700))
    except OSError as error:
        raise ValueError(cannot_write(folder, error)) from None


def check_roster(roster, files):
    """Refuse a roster if none of its students handed in a notebook, because all of them would get 0
    points.

    Raises
    ------
    ValueError
        No student of the roster handed in a notebook.
    """
    students = sorted({one.student for one in files})
    known = [one.student for one in roster]
    if known and not set(known) & set(students):
        raise ValueError(
            f"no student who handed in is in the roster. The roster has {listed(known)}. These "
            f"handed in: {listed(students)}. Give the roster a column with the names that the "
            "files have (student, name, email, or id for Canvas's numbers)"
        )


def submitted_files(options, all_exercises, roster, notes):
    """Return all submitted files of all exercises.

    The function adds notes about the class, for the teacher, to ``notes``.
    """
    if Path(options.out).resolve() == Path(options.submissions).resolve():
        raise ValueError("--out names the folder of the submissions: name another one")
    return collect.collect(options.submissions, all_exercises, roster, options.out, notes)


def grade_files(options, exercises, files, cache, seed, regrade):
    """Grade files and return ``[GradedFile]``. Show the progress meanwhile."""
    wrong = WRONG_ANSWERS if WRONG_ANSWERS.is_dir() else None
    isolate = not options.no_sandbox
    with whole_class.progress(len(files)) as advance:
        limits = limits_of(options)
        grader = whole_class.ClassGrader(exercises, cache, seed, limits, isolate, wrong)
        session.clear_after_the_dead()
        return grader.run(files, options.jobs, advance, regrade)


def warn(no_sandbox):
    """Warn the teacher of attacks against which this grading does not protect."""
    if no_sandbox:
        print("simlib: NO SANDBOX: students' code runs with your rights", file=sys.stderr)
    elif sandbox.filter_for(sandbox.FILTER) is None:
        print(
            f"simlib has no filter of system calls for {platform.machine()}: the sandbox runs "
            "without this protection",
            file=sys.stderr,
        )


def check_numbers(options):
    """Refuse numbers with which the grader could not grade anything.

    Raises
    ------
    ValueError
        A number is too small, or simlib can make no hidden tests for the seed.
    """
    time_s, memory_mb = options.time, options.memory
    if time_s is not None and not (math.isfinite(time_s) and time_s >= LEAST_TIME_S):
        raise ValueError(f"--time {time_s:g}: a notebook needs at least {LEAST_TIME_S} seconds")
    if memory_mb is not None and memory_mb < LEAST_MEMORY_MB:
        raise ValueError(f"--memory {memory_mb}: a notebook needs at least {LEAST_MEMORY_MB} MB")
    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}: grade at least 1 notebook at a time")
    if options.seed is not None and options.seed not in SEEDS:
        raise ValueError(
            f"--seed {options.seed}: hidden tests have seeds from {SEEDS[0]} to {SEEDS[-1]}"
        )


def limits_of(options):
    """Return the limits for the call's options. More time for a notebook means also more time for
    each cell."""
    limits = sandbox.Limits()
    if options.time:
        factor = max(1, options.time / limits.notebook_s)
        cell_s, answer_s = limits.cell_s * factor, limits.answer_s * factor
        limits = replace(limits, notebook_s=options.time, cell_s=cell_s, answer_s=answer_s)
    if options.memory:
        limits = replace(limits, memory_bytes=options.memory << 20)
    return limits


def chosen_exercises(exercises, numbers):
    """Return the exercises that the call names by number or by name.

    Raises
    ------
    ValueError
        One of the exercises does not exist.
    """
    if not numbers:
        return exercises
    unknown = [one for one in numbers if not any(is_exercise(one, name) for name in exercises)]
    if unknown:
        raise ValueError(f"there is no exercise {', '.join(unknown)}, only {', '.join(exercises)}")
    return {
        name: one for name, one in exercises.items() if any(is_exercise(n, name) for n in numbers)
    }


def exercises_of_report(exercises, files, is_chosen, roster):
    """Return the exercises of a report: those that the call names, or else those that students
    handed in.

    Raises
    ------
    ValueError
        No student handed in any of these exercises, and there is no roster. Then there is no
        report.
    """
    found = {one.exercise for one in files}
    if not is_chosen:
        return {name: one for name, one in exercises.items() if name in found}
    if not roster and not found & set(exercises):
        raise ValueError(f"no student handed in {', '.join(exercises)}: nothing was written")
    return exercises


def rules_of(options):
    """Return the call's rules for late notebooks, by their names in `late.Rules`. A rule that the
    call does not give is None.

    Raises
    ------
    ValueError
        A rule cannot be read.
    """
    rules = {"counts": options.counts}
    for name, option, read in (
        ("deadline", "deadline", late.deadline_of),
        ("costs", "late_costs", late.costs_of),
    ):
        text = getattr(options, option)
        try:
            rules[name] = read(text)
        except ValueError as error:
            raise ValueError(f"--{option.replace('_', '-')} {text}: {error}") from None
    return rules


def cannot_write(place, error, wanted="a folder"):
    """Return a sentence that says why simlib cannot write to the place that --out names."""
    above = [place, *place.parents]
    file = next((one for one in above if os.path.isfile(one)), None)
    if file is not None:
        return f"--out {place}: {file} is a file; name {wanted}"
    return f"--out {place}: nothing can be written there ({error.strerror or error})"


FILES = ("LICENSE", "constraints.txt", "pyproject.toml", "rank_by_rank.py")
FOLDERS = ("exercises", "notebooks", "simlib")
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".ipynb_checkpoints", ".*", "*.egg-info", "*.orig", "*.rej", "simlib-jobs"
)
README = """\
# Rank by Rank: exercises

Distributed training from a notebook cell. `notebooks/` has the lessons, `exercises/` what you hand
in. You need Python 3.11 or newer on Linux or macOS; on Windows, work inside WSL2. No GPU is needed.

## Install

In this folder, once:

    python3 -m venv .venv
    .venv/bin/python -m pip install -c constraints.txt ".[course,cluster]"

or, with conda: `conda env create -f environment.yml`, then `conda activate rank-by-rank`.

## Work

    .venv/bin/jupyter lab

Open an exercise, write each function where it says `# YOUR CODE HERE`, run its cell, then the check
below it. A check says "not written yet", "wrong" with the smallest world that fails, or "right";
"partly right" means that the values are right, but not all parts of the task are.

To check a whole notebook as it is on disk:

    .venv/bin/simlib check exercises/01_ranks_and_clusters.ipynb

or all of them: `.venv/bin/simlib check exercises`. Save first, because the command reads the file,
not the window. It runs everything from top to bottom, as grading does.

- You may add your own cells anywhere. Each may take 20 seconds. Your own Python files are not
  handed in: write their code into a cell. Leave the cells of the exercise where they are.
- Grading uses the original checks, even if you changed those in your notebook.
- There are hidden tests, too: they call the same functions with other inputs, under the same rules.
- Outputs do not count, so you need not save them.

## Hand in

Save the notebooks of `exercises/`, and hand them in under the names that they have.
"""


class CannotHandOut(Exception):
    """There is nothing to hand out, or the target is not free. The message gives the reason."""


def handout(root, target):
    """Write a release for students.

    Parameters
    ----------
    root : Path
        The checkout.
    target : str or Path
        A folder that does not exist yet or is empty, or a file that ends in ``.zip``.

    Returns
    -------
    list of str
        The files of the handout, sorted.

    Raises
    ------
    CannotHandOut
        The checkout has no built exercises, or the folder is not empty.
    """
    root, target = Path(root), Path(target)
    if not exercise_files(root / "exercises", ".ipynb"):
        raise CannotHandOut(f"{root} has no exercises to hand out: use a checkout of the course")
    if target.suffix == ".zip":
        with tempfile.TemporaryDirectory() as above:
            folder = Path(above) / target.stem
            fill(root, folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.make_archive(str(target.with_suffix("")), "zip", above, target.stem)
            return listing(folder)
    if target.exists() and any(target.iterdir()):
        raise CannotHandOut(f"{target} is not empty: name an empty folder, or remove this one")
    fill(root, target)
    return listing(target)


def fill(root, folder):
    """Put all files of the handout into a folder."""
    write_checks(root)
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(root / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=LEFT_OUT)
    shutil.copytree(folder / "exercises", folder / PRISTINE)
    recipe = (root / "environment.yml").read_text(encoding="utf-8").replace("- -e .", "- .")
    (folder / "environment.yml").write_text(recipe, encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")


def listing(folder):
    """Return the files below a folder, as paths relative to this folder."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


WIDEST = 40
"""The most columns of text for a student's key and name."""


def summary(report, folder, is_chosen, rules, not_written, not_applied):
    """Return the text that a call prints at its end, without the last line end.

    Parameters
    ----------
    report : dict
    folder : Path
    is_chosen : bool
        Whether the exercises were named in the call.
    rules : late.Rules
    not_written : dict of str to str
        For each table that was not written, the columns that it needs.
    not_applied : list of str
        A sentence for each override that was not applied.
    """
    students = report["students"]
    width = min(WIDEST, max((len(label(one)) for one in students), default=0))
    lines = [line(one, width) for one in students]
    lines += [] if is_chosen else rarely_submitted(report)
    strangers = [label(one) for one in students if NOT_IN_ROSTER in one["notes"]]
    if strangers:
        lines.append(f"{NOT_IN_ROSTER}: {', '.join(strangers)}")
    lines += report.get("notes", [])
    others = [(one, note) for one in students for note in one["notes"] if note != NOT_IN_ROSTER]
    lines += [f"{label(one)}: {note}" for one, note in others]
    lines += not_applied
    lines += changes.lines_on(report.get("changes", []))
    if not_written:
        needs = "; ".join(f"{name} needs {what}" for name, what in not_written.items())
        lines.append(f"not written: {needs}")
    lines += rules.sentences() + all_late(students)
    lines += of_failed_grader(students)
    lines.append(f"--seed {report['seed']} repeats these hidden tests. See {folder}/")
    return "\n".join(map(one_line, lines))


def all_late(students):
    """Return a sentence if all of several notebooks are late, because their times may then be
    meaningless."""
    books = [b for one in students for b in one["notebooks"] if b["status"] != "missing"]
    if len(books) < 2 or not all(book["late"] and book["when"] for book in books):
        return []
    return [
        f"all {len(books)} notebooks are late: check whether their times are the times of "
        "submission. Files of a zip from Moodle or of a git clone may have the time of download"
    ]


def of_failed_grader(students):
    """Return a line on the notebooks at which the grader itself failed; empty if there are none."""
    books = [(one, book) for one in students for book in one["notebooks"]]
    failed = [f"{one['student']} {b['exercise']}" for one, b in books if reports.is_unknown(b)]
    if not failed:
        return []
    return [
        "NOT GRADED, BUT NOT 0: the grader itself failed at "
        f"{counted(len(failed), 'notebook')} ({listed(failed)}). The tables have an empty cell "
        "there: call again, or give points with --overrides"
    ]


def label(student):
    """Return the id of a student, and the name if it differs, in one line."""
    key, name = one_line(student["student"]), one_line(student["name"])
    return key if key == name else f"{key}  {name}"


def line(student, width):
    """Return a line with a student's points and remarks on unusual things."""
    odd = [b for b in student["notebooks"] if b["status"] not in ("graded", "missing")]
    oddities = "".join(f"  {b['exercise']}: {b['status']}: {b['reason']}" for b in odd)
    oddities += "".join(f"  {one['file']}: {one['reason']}" for one in student["other_files"])
    points = "?" if any(map(reports.is_unknown, odd)) else student["points"]
    return f"{label(student):<{width}}  {points:>3} of {student['of']}{oddities}"


def rarely_submitted(report):
    """Return a sentence on each exercise that few students handed in. Such an exercise lowers the
    share of points of all others."""
    count = len(report["students"])
    submitted = {one["exercise"]: 0 for one in report["exercises"]}
    for student in report["students"]:
        for book in student["notebooks"]:
            submitted[book["exercise"]] += book["status"] != "missing"
    usual = [name for name, number in submitted.items() if 2 * number >= count]
    choice = " ".join(f"--exercise {number_of(name)}" for name in usual)
    return [
        f"{number} of {count} students handed in {name}. If you did not ask for it, "
        "leave it out with " + (choice or "--exercise and the number of each other exercise")
        for name, number in submitted.items()
        if 2 * number < count and len(submitted) > 1
    ]
