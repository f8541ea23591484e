"""Grade a whole class: each notebook once, several notebooks at a time. Keep each result at once.

The solution of an exercise runs once, to get the expected results (`Expected`). If a student's
answer to a question is wrong, the known wrong answers to this question run once, too. If a limit
caused a verdict, the verdict is final only if the notebook was graded alone
(`SharedExclusiveLock`).
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import contextvars
import itertools
import re
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from ...core.draw.display import bar
from .grade import GraderFails, NotebookResult, Turn, cells_of, grade, without_points
from .merge_answers import GIVEN, MergedNotebook, Step, hidden_last
from .score import ALLOWED, MARK, PARTLY, WRONG
from .session import STOP, CellResult, code_cell, run_notebook
from .source import number_of
from .texts import clean, digest, digest_of_simlib, one_line


class SharedExclusiveLock:
    """Lets notebooks be graded together, or one notebook alone. Knows all notebooks (visits) that
    are graded at the moment."""

    def __init__(self):
        self._changed = threading.Condition()
        self._here = {}  # a visit -> whether it had company
        self._waiting = 0

    @contextlib.contextmanager
    def shared(self):
        """Within the block, grade a notebook beside others. Yields the `Visit`."""
        visit = Visit(self)
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._here[visit] = bool(self._here)
            if len(self._here) > 1:
                self._here = dict.fromkeys(self._here, True)
        try:
            yield visit
        finally:
            with self._changed:
                del self._here[visit]
                self._waiting -= visit.is_alone
                self._changed.notify_all()

    def make_alone(self, visit):
        """Wait until all other visits have ended. No other visit begins meanwhile."""
        with self._changed:
            had_company = self._here.pop(visit)
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._here)
            self._here[visit], visit.is_alone = False, True
        return had_company

    def had_company(self, visit):
        """Whether other visits have run at the same time as this visit."""
        with self._changed:
            return self._here[visit]


class Visit:
    """The grading of one notebook beside others. A call of the object returns whether others ran
    meanwhile."""

    def __init__(self, lock):
        self._lock = lock
        self.is_alone = False

    def __call__(self):
        return self._lock.had_company(self)

    def alone(self):
        """Wait until this visit is alone, and keep it alone. Return whether others ran before."""
        return not self.is_alone and self._lock.make_alone(self)


RECORDED_CHARS = 50_000_000
"""The most characters of output in a recorded run. This output contains all values."""

VALUES_LINE = re.compile(r"(\d+): (?!.* \((?:has|at|returns) )")
"""Matches a line of a hidden cell that contains a world and its values, and no complaint."""
MAX_NAMES = 3
"""If more known wrong answers than this give the same results, simlib names none of them, because
their names mean little."""
PLACES = re.compile(
    rf"""
    [^\s(]+,\ line\ \d+    # (function, line 4)
      (?:,\ (?:called\ )?from\ [^\s(]+,\ line\ \d+)*    # and who led there
    | (?<=\))\ {{3}}\S.*     # that line's text, behind it
    | ^(?:{re.escape(MARK)})?\ {{4}}.*    # or below it
    | ^(?:{re.escape(MARK)})?The\ traceback\ of\ rank\ .*\n(?:(?!\d+:).*\n?)*    # to the next world
    """,
    re.VERBOSE | re.MULTILINE,
)
"""Matches a place in a source, in the form of `Site.place` and of error messages."""


class SolutionFails(Exception):
    """The solution itself fails. So simlib can grade nothing, and no student is at fault."""


@dataclass(frozen=True)
class Expected:
    """The results of the solution.

    Attributes
    ----------
    outputs : dict of str to list
        The outputs of check and hidden cells in nbformat's form, by cell id.
    recorded : dict of str to str
        The results of `measure` for each question: values and counts of messages.
    """

    outputs: dict
    recorded: dict

    def text(self, identity):
        """Return the output of a cell as text."""
        return CellResult("same", outputs=self.outputs.get(identity, [])).text


def record(exercise, seed, limits, isolate=True):
    """Run the solution of an exercise, without any student code.

    Raises
    ------
    SolutionFails
        A cell fails, or the solution does not pass its own check. Or in a hidden cell, the solution
        raises an error, returns a value that does not equal itself, or breaks a rule.
    """
    solutions = {name: question.solution for name, question in exercise.questions.items()}
    steps = hidden_last(steps_with(exercise.cells, solutions))
    solved = MergedNotebook(steps, dict.fromkeys(exercise.questions, GIVEN), [])
    cells = cells_of(solved, exercise, Expected({}, {}), seed, limits)
    for cell in cells:
        cell.metadata = {"tags": ["nbval-ignore-output"]}
    cells += [
        code_cell(f"recorded-{name}", f"examiner.recorded({name!r})") for name in exercise.questions
    ]
    limits = replace(limits, output_chars=RECORDED_CHARS)
    session = run_notebook(cells, limits, isolate)
    for cell in cells:
        result = session.cells.get(cell.id)
        if result is None or result.word != "same":
            said = f"{result.word}: {result.error}" if result else session.ended or session.log
            raise SolutionFails(f"{exercise.name}, seed {seed}: cell {cell.id} fails: {said}")
    graded = [cell for cell in exercise.cells if cell.role in ("check", "hidden")]
    outputs = {cell.id: session.cells[cell.id].outputs for cell in graded}
    for cell in graded:
        if not session.cells[cell.id].text:
            raise SolutionFails(
                f"{exercise.name}: cell {cell.id} prints nothing that could be compared"
            )
        if cell.role == "check" and "check(" in cell.source:
            text = session.cells[cell.id].text
            if text != f"{cell.question}: right":
                raise SolutionFails(f"{exercise.name}: the solution's check says: {text}")
        if cell.role == "hidden" and "measure(" in cell.source:
            unfit = complaint_in(session.cells[cell.id].text)
            if unfit:
                raise SolutionFails(
                    f"{exercise.name}, seed {seed}: cell {cell.id} cannot judge answers, because "
                    f"the solution itself fails it: {unfit}"
                )
    recorded = {name: session.cells[f"recorded-{name}"].text for name in exercise.questions}
    return Expected(outputs, recorded)


def steps_with(cells, answers):
    """Return the steps through pristine cells, with ``answers[question]`` in place of each
    answer."""
    return [
        Step("answer", cell, answers[cell.question])
        if cell.role == "answer"
        else Step("pristine", cell, cell.source)
        for cell in cells
    ]


def complaint_in(text):
    """Return the first line of a hidden cell that complains about the solution; None without a
    complaint.

    `GradedChecks.measure` prints two lines for each world. The first contains the values, and the
    second says that the answer kept the rules.
    """
    lines = text.splitlines()
    for values, rule in zip(lines[::2], [*lines[1::2], ""], strict=False):
        world = VALUES_LINE.match(values)
        if not world:
            return values
        if rule != f"{world[1]}: {ALLOWED}":
            return rule if rule.startswith(f"{world[1]}: ") else values
    return None


def sources_of(folder, exercise, question):
    """Return ``{words: source}`` of the known wrong answers to a question.

    The known wrong answers are functions in ``NN_question.py``. They are the keys of the dict
    ``WRONG`` in this file. The words complete a sentence that begins with "This is". They are a
    function's docstring if it begins with a small letter, else the function's name.
    """
    path = Path(folder) / f"{number_of(exercise.name)}_{question}.py"
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    statements = ast.parse(text).body
    names = [
        key.id
        for statement in statements
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "WRONG"
        for key in statement.value.keys
    ]
    said = {one.name: words_of(one) for one in statements if isinstance(one, ast.FunctionDef)}
    return {said[name]: f"{text}\n{question} = {name}\n" for name in names}


def words_of(function):
    """Return the name of a known wrong answer: the first line of its docstring, else the function's
    name."""
    words = (ast.get_docstring(function) or "").partition("\n")[0].rstrip(".")
    return (
        words if words[:1].islower() else f'the answer "{function.name.replace("_", " ").strip()}"'
    )


def outputs_of(sources, exercise, question, expected, seed, limits, isolate):
    """Run all known wrong answers under a seed, in one run. Return ``{words: signature}`` of their
    results."""
    setup = [cell for cell in exercise.cells if cell.role == "setup"]
    own = [cell for cell in exercise.cells if cell.question == question]
    merged = MergedNotebook(steps_with(setup, {}), {}, [])
    cells = cells_of(merged, exercise, expected, seed, limits)
    for number, source in enumerate(sources.values()):
        merged = MergedNotebook(steps_with(own, {question: source}), {question: GIVEN}, [])
        for cell in cells_of(merged, exercise, expected, seed, limits)[1:]:
            cell.id = f"{cell.id}-{number}"
            cells.append(cell)
    found = run_notebook(cells, limits, isolate).cells
    checks = [c.id for c in own if c.role in ("check", "hidden")]
    signatures = {}
    for number, words in enumerate(sources):
        results = {one: found.get(f"{one}-{number}") for one in checks}
        if all(one and one.word not in ("timeout", "gone") for one in results.values()):
            texts = {one: clean(result.text) for one, result in results.items()}
            signatures[words] = signature(texts)
    return signatures


def name_of(outputs, signatures):
    """Return the known wrong answer that gives these outputs; empty if there is none, or if there
    are too many.

    Parameters
    ----------
    outputs : dict of str to str
        The outputs of check and hidden cells, by cell id.
    signatures : dict of str to list
        The signatures from `outputs_of`.
    """
    found = signature(outputs)
    words = [one for one, other in signatures.items() if other == found]
    return ", or ".join(words) if len(words) <= MAX_NAMES else ""


def signature(outputs):
    """Return the outputs of an answer without places in sources, so that equal answers have equal
    signatures.

    Parameters
    ----------
    outputs : dict of str to str
        The outputs of check and hidden cells, by cell id.
    """
    return [PLACES.sub("", outputs[one]) for one in sorted(outputs)]


@dataclass
class GradedFile:
    """A student's result in one exercise, with facts about the file.

    Attributes
    ----------
    student, name, file : str
    exercise : str
    late : bool
    when : str
        The time of the file's last change, in ISO 8601; empty if it is unknown.
    result : NotebookResult
    notes : list of str
    platform : str
        ``"canvas"`` or ``"moodle"`` if this platform has named the file.
    conflict : str
        The note if another file claims to belong to the same student.
    number : str
        That platform's number of the student.
    deadline : str
        The deadline, in ISO 8601; empty if there is none.
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
    number: str = ""
    deadline: str = ""


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
        The folder of known wrong answers.
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
        """Grade files. Return ``[GradedFile]`` in the order of the files.

        Parameters
        ----------
        files : list of SubmittedFile
        jobs : int
            The number of notebooks to grade at a time.
        advance : callable
            simlib calls this function with each `GradedFile`.
        regrade : collection of str
            The students whose notebooks are graded again.
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
            reason = file.unreadable or "it is not clear which exercise this notebook belongs to"
            result = NotebookResult("", "wrong notebook", reason, [])
        elif file.unreadable:
            status = "not graded" if file.is_ours else "unreadable"
            result = without_points(exercise, status, file.unreadable)
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
            file.number,
            file.deadline,
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
        except SolutionFails:
            raise
        except Exception as error:  # ours: this file stays ungraded, the others go on
            return without_points(
                exercise, "not graded", f"the grader failed: {type(error).__name__}: {error}"
            )
        try:
            self._name_known_mistakes(result, exercise)
        except Exception as error:  # names are a help, and worth no points
            result.notes.append(
                f"simlib could not compare this answer with known wrong answers: {error}"
            )
        return result

    def _graded(self, content, exercise):
        """Return the result of a submission. If other notebooks may have slowed it down, grade it a
        second time.

        Both gradings together take no more time than one notebook may take.
        """

        def look():
            limits = self._limits
            return grade(content, exercise, expected, self._seed, limits, self._isolate, turn)

        with self._lock.shared() as visit:
            turn = Turn(2 * self._limits.notebook_s, visit.alone)
            try:
                expected = self.expected(exercise)
                result = look()
                if not (result.cut_short and visit()):
                    return result
            except (GraderFails, SolutionFails):
                if not visit():
                    raise
            visit.alone()
            expected = self.expected(exercise)
            return look()

    def _name_known_mistakes(self, result, exercise):
        """For each wrong answer, record which known wrong answer gives the same results."""
        for one in result.questions:
            if one.status in (WRONG, PARTLY) and one.outputs and self._wrong_answers:
                one.known = name_of(one.outputs, self._known_wrong(exercise, one.question))

    def _known_wrong(self, exercise, question):
        """Return ``{words: signature}`` of the known wrong answers to a question. Run them only
        once."""
        sources = sources_of(self._wrong_answers, exercise, question)
        with self._lock.shared() as had_lock:
            expected = self.expected(exercise)
            with self._locks[exercise.name]:
                key = ("known", question, sources, asdict(self._limits), *self._key(exercise))
                stored = self._cache.get(*key)
                if stored is None:
                    stored = outputs_of(
                        sources, exercise, question, expected,
                        self._seed, self._limits, self._isolate,
                    )  # fmt: skip
                    if len(stored) == len(sources) or not had_lock():
                        self._cache.put(stored, *key)
        return stored

    def expected(self, exercise):
        """Return the results of the solution. Run the solution only once."""
        with self._locks[exercise.name]:
            if exercise.name not in self._expected:
                key = ("expected", *self._key(exercise))
                stored = self._cache.get(*key)
                if stored is None:
                    stored = asdict(self._recorded(exercise))
                    self._cache.put(stored, *key)
                self._expected[exercise.name] = Expected(**stored)
            return self._expected[exercise.name]

    def _recorded(self, exercise):
        try:
            return record(exercise, self._seed, self._limits, self._isolate)
        except SolutionFails:
            raise
        except Exception as error:
            raise SolutionFails(f"{exercise.name}: {type(error).__name__}: {error}") from error

    def _key(self, exercise):
        versions = sys.version, version("torch"), version("nbval")
        made = exercise.digest, self._simlib, versions
        return *made, self._seed, self._isolate


@contextlib.contextmanager
def progress(total):
    """Yield a function to call with each `GradedFile`. It shows the progress on stderr.

    On a terminal, the function shows a bar. Elsewhere, it prints a line for each notebook.

    Parameters
    ----------
    total : int
        The number of notebooks.
    """
    numbers = itertools.count(1)
    if not sys.stderr.isatty():
        yield lambda one: print(
            f"{next(numbers)} of {total}: {label(one)}", file=sys.stderr, flush=True
        )
        return
    with bar(total, "the solution is run first") as show:
        yield lambda one: show(label(one), next(numbers))


def label(one):
    """Return the student and the exercise of a notebook, in one line."""
    return one_line(f"{one.student} {one.exercise or one.file}")
