"""Grade a whole class: every notebook once, several at a time, results kept as they come."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import itertools
import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from . import known_answers
from .cache import digest, digest_of_simlib
from .grade import GraderFails, NotebookResult, grade, without_points
from .known_answers import Expected, SolutionFails, record
from .score import PARTLY, WRONG
from .session import STOP
from .shared_lock import SharedExclusiveLock
from .texts import one_line

TICK_S = 1.0
"""Seconds after which the clock of the bar moves."""
LONGEST_NAME = 30
"""Characters of a student's name in the bar."""


@dataclass
class GradedFile:
    """A student's result in one exercise, with what is known about the file.

    Attributes
    ----------
    student, name, file : str
    exercise : str
    late : bool
    when : str
        When the file was last changed, in ISO 8601; may be empty.
    result : NotebookResult
    notes : list of str
    platform : str
        ``"canvas"`` or ``"moodle"`` where the student is that platform's number.
    conflict : str
        What to say where something else claims to be the same student.
    """

    student: str
    name: str
    exercise: str
    file: str
    late: bool
    when: str
    result: NotebookResult
    notes: list = field(default_factory=list)
    platform: str = ""
    conflict: str = ""


class ClassGrader:
    """Grades the files of a class.

    Parameters
    ----------
    exercises : dict of str to Exercise
    cache : Cache
    seed : int
    limits : sandbox.Limits
    isolate : bool
    wrong_answers : Path or None
        Folder of known wrong answers.
    """

    def __init__(self, exercises, cache, seed, limits, isolate=True, wrong_answers=None):
        self._wrong_answers = wrong_answers
        self._exercises = exercises
        self._cache = cache
        self._seed = seed
        self._limits = limits
        self._isolate = isolate
        self._simlib = digest_of_simlib()
        self._locks = {name: threading.Lock() for name in exercises}
        self._expected = {}
        self._lock = SharedExclusiveLock()

    def run(self, files, jobs, advance, regrade=()):
        """``[GradedFile]`` of files, in their order.

        Parameters
        ----------
        files : list of SubmittedFile
        jobs : int
            How many are graded at a time.
        advance : callable
            Called with each `GradedFile`.
        regrade : collection of str
            Students whose notebooks are graded again.
        """
        stop = threading.Event()
        context = contextvars.copy_context()
        context.run(STOP.set, stop)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [
                pool.submit(context.copy().run, self._one, one, one.student in regrade)
                for one in files
            ]
            try:
                for future in concurrent.futures.as_completed(futures):
                    advance(future.result())
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def _one(self, file, regrade):
        exercise = self._exercises.get(file.exercise)
        if exercise is None:
            reason = file.unreadable or "nobody can tell which exercise this notebook belongs to"
            result = NotebookResult("", "wrong notebook", reason, [])
        elif file.unreadable:
            result = without_points(exercise, "unreadable", file.unreadable)
        else:
            result = self._result(file.content, exercise, regrade)
        return GradedFile(
            file.student,
            file.name,
            file.exercise or "",
            file.file,
            file.late,
            file.when.isoformat(timespec="seconds") if file.when else "",
            result,
            file.notes,
            file.platform,
            file.conflict,
        )

    def _result(self, content, exercise, regrade):
        key = ("result", digest(content), *self._key(exercise))
        stored = None if regrade else self._cache.get(*key)
        limits = asdict(self._limits)
        try:
            if stored and (stored["limits"] == limits or not stored["result"]["cut_short"]):
                result = NotebookResult.from_dict(stored["result"])
            else:
                result = self._graded(content, exercise)
                self._cache.put({"result": result.as_dict(), "limits": limits}, *key)
        except Exception as error:  # ours: this file stays ungraded, the others go on
            return without_points(
                exercise, "not graded", f"the grader failed: {type(error).__name__}: {error}"
            )
        try:
            self._name_known_mistakes(result, exercise)
        except Exception as error:  # names are a help, and worth no points
            result.notes.append(f"known wrong answers were not looked at: {error}")
        return result

    def _graded(self, content, exercise):
        """The result of a submission; where others may have cost it time, of a second look."""

        def look():
            return grade(content, exercise, expected, self._seed, self._limits, self._isolate)

        with self._lock.shared() as had_lock:
            try:
                expected = self.expected(exercise)
                result = look()
                if not (result.cut_short and had_lock()):
                    return result
            except (GraderFails, SolutionFails):
                if not had_lock():
                    raise
        with self._lock.exclusive():
            expected = self.expected(exercise)
            return look()

    def _name_known_mistakes(self, result, exercise):
        """Say of wrong answers which known one they do the same as."""
        for one in result.questions:
            if one.status in (WRONG, PARTLY) and one.outputs and self._wrong_answers:
                one.known = known_answers.name_of(
                    one.outputs, self._known_wrong(exercise, one.question)
                )

    def _known_wrong(self, exercise, question):
        """``{words: signature}`` of the known wrong answers to a question; they are run once."""
        sources = known_answers.sources_of(self._wrong_answers, exercise, question)
        with self._lock.shared() as had_lock:
            expected = self.expected(exercise)
            with self._locks[exercise.name]:
                key = ("known", question, sources, asdict(self._limits), *self._key(exercise))
                stored = self._cache.get(*key)
                if stored is None:
                    stored = known_answers.outputs_of(
                        sources, exercise, question, expected,
                        self._seed, self._limits, self._isolate,
                    )  # fmt: skip
                    if len(stored) == len(sources) or not had_lock():
                        self._cache.put(stored, *key)
        return stored

    def expected(self, exercise):
        """What the solution gives; it is run once."""
        with self._locks[exercise.name]:
            if exercise.name not in self._expected:
                key = ("expected", *self._key(exercise))
                stored = self._cache.get(*key)
                if stored is None:
                    found = record(exercise, self._seed, self._limits, self._isolate)
                    stored = asdict(found)
                    self._cache.put(stored, *key)
                self._expected[exercise.name] = Expected(**stored)
            return self._expected[exercise.name]

    def _key(self, exercise):
        versions = sys.version, version("torch"), version("nbval")
        made = exercise.digest, self._simlib, versions
        return *made, self._seed, self._isolate


@contextlib.contextmanager
def progress(total):
    """A function to call with each `GradedFile`; it shows on stderr how far the grading is.

    That is a bar on a terminal, and a line for each notebook elsewhere.

    Parameters
    ----------
    total : int
        How many there will be.
    """
    if not sys.stderr.isatty():
        numbers = itertools.count(1)
        yield lambda one: print(
            f"{next(numbers)} of {total}: {label(one)}", file=sys.stderr, flush=True
        )
        return
    from tqdm import tqdm

    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())  # 0 where it does not say
    except OSError:
        columns, rows = 0, 0
    shape = "{n} of {total} |{bar}| {elapsed}{postfix}"
    with tqdm(
        total=total, file=sys.stderr, ncols=columns or 80, nrows=rows or 24, bar_format=shape
    ) as bar:
        bar.set_postfix_str("the solution is run first")
        done = threading.Event()

        def move_clock():  # tqdm moves it with an update only, and the first one takes a while
            while not done.wait(TICK_S):
                bar.refresh()

        def advance(one):
            bar.set_postfix_str(label(one)[:LONGEST_NAME], refresh=False)
            bar.update()
            bar.refresh()

        clock = threading.Thread(target=move_clock, daemon=True)
        clock.start()
        try:
            yield advance
        finally:
            done.set()
            clock.join()


def label(one):
    """Whose notebook it is, and which, in one line."""
    return one_line(f"{one.student} {one.exercise or one.file}")
