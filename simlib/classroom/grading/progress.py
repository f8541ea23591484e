"""`simlib check` and `simlib progress`, for learners. Neither of them needs an extra.

The commands send nothing to other machines. They keep the results of a notebook's checks next to
the notebook, in ``.progress``, until the notebook or simlib changes. They check wrong answers again
each time.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.draw.display import above_bars, bar
from ...core.model.words import aligned
from .merge_answers import GIVEN, WrongNotebook, merge_answers
from .notebook_file import Unreadable, parse, read_bytes
from .own_folder import NotOwn
from .self_check import (
    NOT_WRITTEN,
    RIGHT,
    CheckResult,
    check_notebook,
    exercises_in,
    own_cells,
    pristine_of,
    result_of,
)
from .texts import Cache, digest, digest_of_simlib, one_line

KEPT = ".progress"
"""The name of the folder for results, next to the notebooks."""


@dataclass(frozen=True)
class NotebookProgress:
    """The state of one exercise notebook.

    Attributes
    ----------
    exercise : str
    questions : list of tuple
        ``(question, title, status, points, of)``: the earned points, and the most points.
    problem : str
        The reason why the notebook could not be checked; empty if it was checked.
    """

    exercise: str
    questions: list
    problem: str = ""

    @property
    def right(self):
        """Return the number of right answers."""
        return sum(status == RIGHT for _, _, status, *_ in self.questions)

    @property
    def points(self):
        """Return the points of right answers, and of the right parts of other answers."""
        return sum(points for *_, points, _ in self.questions)

    @property
    def of(self):
        """The most points possible."""
        return sum(of for *_, of in self.questions)


def progress_of(paths, tell=lambda path: None):
    """A `NotebookProgress` of each notebook.

    Parameters
    ----------
    paths : iterable of Path
    tell : callable
        simlib calls this function with a notebook's path before the notebook's checks run.
    """
    version = digest_of_simlib()
    return [progress_of_notebook(Path(path), version, tell) for path in paths]


def progress_of_notebook(path, version, tell):
    """Return the `NotebookProgress` of one notebook. Its checks run only if an answer is new."""
    try:
        exercise, is_pristine = pristine_of(path)
        content = read_bytes(path)
        merged = merge_answers(exercise, parse(content))
        if not is_pristine:  # a copy of the folder alone: its own checks say what is written
            merged = own_cells(exercise)
        if any(found == GIVEN for found in merged.found.values()):
            results = kept_results(path, (digest(content), exercise.digest, version), tell)
        else:
            results = [result_of(name, merged.found[name], None, "") for name in merged.found]
    except (Unreadable, WrongNotebook) as error:
        return NotebookProgress(path.stem, [], one_line(str(error)))
    questions = [
        (one.question, asked.title, one.status, one.points, asked.points)
        for one in results
        for asked in [exercise.questions[one.question]]
    ]
    return NotebookProgress(exercise.name, questions)


def kept_results(path, key, tell):
    """Return the results of a notebook's checks: the kept results, or else the results of a new
    run."""
    try:
        cache = Cache(path.parent / KEPT)
    except (OSError, NotOwn):  # a folder that nobody can write to, or that others can
        cache = None
    kept = cache and cache.get(path.name, *key)
    if kept:
        return [CheckResult(**one) for one in kept]
    tell(path)
    results = list(check_notebook(path)[0])
    if cache and all(one.status in (RIGHT, NOT_WRITTEN) for one in results):
        cache.put([asdict(one) for one in results], path.name, *key)
    return results


def table(notebooks):
    """Return all exercises as plain text, with right answers, points, and each question's
    status."""
    rows = [("exercise", "right", "points", "")]
    for one in notebooks:
        if one.problem:
            rows.append((one.exercise, "", "", one.problem))
            continue
        said = ", ".join(f"{name} {status}" for name, _, status, *_ in one.questions)
        is_new = all(status == NOT_WRITTEN for _, _, status, *_ in one.questions)
        counts = f"{one.right} of {len(one.questions)}", f"{one.points} of {one.of}"
        rows.append((one.exercise, *counts, "not begun" if is_new else said))
    right, asked, points, of = totals(notebooks)
    rows.append(("together", f"{right} of {asked}", f"{points} of {of}", ""))
    names = [row[0] for row in rows]
    width = max(map(len, names))
    numbers = aligned([row[1:3] for row in rows])
    lines = [
        f"{name.ljust(width)}  {counts}  {row[3]}".rstrip()
        for name, counts, row in zip(names, numbers, rows, strict=True)
    ]
    return "\n".join(lines)


def totals(notebooks):
    """Return the number of right answers and of questions, the points, and the most possible
    points."""
    return (
        sum(one.right for one in notebooks),
        sum(len(one.questions) for one in notebooks),
        sum(one.points for one in notebooks),
        sum(one.of for one in notebooks),
    )


def write_certificate(path, notebooks, name=""):
    """Write the table as one HTML page. The page runs and fetches nothing.

    Parameters
    ----------
    path : Path
    notebooks : list of NotebookProgress
    name : str
        The name of the learner; it may be empty.
    """
    from .pages import environment  # jinja2 takes a moment, and few ask for a page

    page = environment().get_template("certificate.html")
    numbers = dict(zip(("right", "asked", "points", "of"), totals(notebooks), strict=True))
    day = datetime.date.today().isoformat()
    text = page.render(notebooks=notebooks, name=name, day=day, **numbers)
    Path(path).write_text(text, encoding="utf-8", errors="replace")


def check(options):
    """Check a student's own notebooks; returns the exit code."""
    code = 0
    paths = [path for named in options.notebooks for path in exercises_in(named)]
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
    """Print each question's result when it is known; returns 0 if all are right, else 1."""
    results, notes = check_notebook(path)
    if is_one_of_many:
        print(f"== {path}\n")
    statuses = []
    with bar(None, Path(path).stem) as show:
        for one in results:
            with above_bars():
                print(f"{one.text}\n")
            statuses.append(one.status)
            show(f"{Path(path).stem}: {len(statuses)} checked", 0)
    for note in notes:
        print(f"note: {note}")
    right = statuses.count(RIGHT)
    print(f"{right} of {len(statuses)} right" + "\n" * is_one_of_many)
    return int(right < len(statuses))


def progress(options):
    """Print a learner's table of all exercises, and write the page; returns the exit code."""
    paths = exercises_in(options.folder)
    if not paths or not all(path.suffix == ".ipynb" for path in paths):
        return refuse(f"{options.folder}: there are no exercises (NN_name.ipynb) in this folder")

    shows = []

    def tell(path):
        if not shows:
            shows.append(stack.enter_context(bar(len(paths), "")))
        shows[0](path.stem, paths.index(path))

    try:
        with contextlib.ExitStack() as stack:
            notebooks = progress_of(paths, tell)
        print(table(notebooks))
        if options.certificate:
            write_certificate(options.certificate, notebooks, options.name)
    except OSError as error:
        return refuse(f"{options.certificate}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130
    if any(one.problem for one in notebooks):
        return 2
    right, asked, *_ = totals(notebooks)
    return int(right < asked)


def refuse(text):
    """Print why there is nothing to do, with one line for each reason. Return the exit code."""
    for line in text.splitlines():
        print(f"simlib: {one_line(line)}", file=sys.stderr)
    return 2
