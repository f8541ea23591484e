"""Grade a whole class: every notebook once, several at a time, results kept as they come."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from . import misconceptions
from .cache import digest, digest_of_simlib
from .expected import Expected, record
from .grade import NotebookResult, grade, without_points
from .score import PARTLY, WRONG
from .session import STOP


@dataclass
class Graded:
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


class Batch:
    """Grades what was handed in.

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

    def run(self, handed, jobs, tell, again=()):
        """``[Graded]`` of files, in their order.

        Parameters
        ----------
        handed : list of Handed
        jobs : int
            How many are graded at a time.
        tell : callable
            Called after each one.
        again : collection of str
            Students whose results are made anew.
        """
        stop = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(
            jobs, initializer=STOP.set, initargs=(stop,)
        ) as pool:
            futures = [pool.submit(self._one, one, one.student in again) for one in handed]
            try:
                for future in concurrent.futures.as_completed(futures):
                    tell(future.result())
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def _one(self, handed, anew):
        exercise = self._exercises.get(handed.exercise)
        if exercise is None:
            reason = handed.unreadable or "nobody can tell which exercise this notebook belongs to"
            result = NotebookResult("", "wrong notebook", reason, [])
        elif handed.unreadable:
            result = without_points(exercise, "unreadable", handed.unreadable)
        else:
            result = self._result(handed.content, exercise, anew)
        return Graded(
            handed.student,
            handed.name,
            handed.exercise or "",
            handed.file,
            handed.late,
            handed.when.isoformat(timespec="seconds") if handed.when else "",
            result,
            handed.notes,
            handed.platform,
        )

    def _result(self, content, exercise, anew):
        key = ("result", digest(content), *self._key(exercise))
        stored = None if anew else self._cache.get(*key)
        limits = asdict(self._limits)
        try:
            if stored and (stored["limits"] == limits or not stored["result"]["cut_short"]):
                result = NotebookResult.from_dict(stored["result"])
            else:
                expected = self.expected(exercise)
                result = grade(content, exercise, expected, self._seed, self._limits, self._isolate)
                self._cache.put({"result": result.as_dict(), "limits": limits}, *key)
        except Exception as error:  # ours: the file is told to be ungraded, the others go on
            return without_points(
                exercise, "not graded", f"the grader failed: {type(error).__name__}: {error}"
            )
        try:
            self._name_known_mistakes(result, exercise)
        except Exception as error:  # names are a help, and worth no points
            result.notes.append(f"known wrong answers were not looked at: {error}")
        return result

    def _name_known_mistakes(self, result, exercise):
        """Say of wrong answers which known one they do the same as."""
        for one in result.questions:
            if one.status in (WRONG, PARTLY) and one.outputs and self._wrong_answers:
                one.known = misconceptions.named(one.outputs, self._known(exercise, one.question))

    def _known(self, exercise, question):
        """``{words: signature}`` of the known wrong answers to a question; they are run once."""
        sources = misconceptions.sources_of(self._wrong_answers, exercise, question)
        expected = self.expected(exercise)
        with self._locks[exercise.name]:
            key = ("known", question, sources, asdict(self._limits), *self._key(exercise))
            stored = self._cache.get(*key)
            if stored is None:
                stored = misconceptions.outputs_of(
                    sources, exercise, question, expected, self._seed, self._limits, self._isolate
                )
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
