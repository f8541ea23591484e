"""Points for one submission: transplant, run, and say about each question what came of it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field

from .runs import Runner
from .session import code_cell
from .submission import Unreadable, parse
from .transplant import GIVEN, WrongNotebook, failure, transplant

RIGHT, PARTLY, WRONG, LIMITS = "right", "partly right", "wrong", "broke the limits"
LONGEST_REASON = 2000
MOST_FAILURES = 5
"""Cells of the student's own that are told to fail."""
UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
BEGIN = """\
from simlib.grading.inside.examiner import Examiner
examiner = Examiner(globals(), {limit})
"""


@dataclass
class QuestionResult:
    """What came of one question.

    Attributes
    ----------
    question, title : str
    points : float
        Earned.
    of : int
        What it is worth.
    status : str
        ``"right"``, ``"partly right"``, ``"wrong"``, ``"not attempted"``, ``"not found"``,
        ``"broke the limits"``.
    reason : str
        Why, in words for the student; it may hold text that the student's code printed.
    expected, got : str
        Of the public check where it was wrong.
    hidden : str
        ``"right"``, ``"wrong"``, or empty where the hidden cells were not reached.
    known : str
        Which known wrong answer it does the same as, in words.
    seconds : float
    outputs : dict of str to str
        What check and hidden cells gave, by cell id; for the teacher only.
    """

    question: str
    title: str
    points: float
    of: int
    status: str
    reason: str = ""
    expected: str = ""
    got: str = ""
    hidden: str = ""
    known: str = ""
    seconds: float = 0.0
    outputs: dict = field(default_factory=dict)


@dataclass
class NotebookResult:
    """What came of one notebook.

    Attributes
    ----------
    exercise : str
    status : str
        ``"graded"``, ``"unreadable"``, ``"wrong notebook"`` or ``"missing"``.
    reason : str
        Why it was not graded.
    questions : list of QuestionResult
    notes : list of str
        What was odd, for the teacher.
    runs : int
        How often it was run.
    seconds : float
    """

    exercise: str
    status: str
    reason: str
    questions: list
    notes: list = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0

    @property
    def points(self):
        """Points earned."""
        return round(sum(one.points for one in self.questions), 2)

    @property
    def of(self):
        """Points to be had."""
        return sum(one.of for one in self.questions)

    def as_dict(self):
        """As plain data."""
        return asdict(self) | {"points": self.points, "of": self.of}

    @classmethod
    def from_dict(cls, data):
        """The result that `as_dict` was made from."""
        kept = {key: value for key, value in data.items() if key not in ("points", "of")}
        kept["questions"] = [QuestionResult(**one) for one in kept["questions"]]
        return cls(**kept)


def without_points(exercise, status, reason, notes=()):
    """The result of a notebook that cannot be graded."""
    questions = [
        QuestionResult(one.name, one.title, 0, one.points, "not found", reason)
        for one in exercise.questions.values()
    ]
    return NotebookResult(exercise.name, status, reason, questions, list(notes))


def grade(content, exercise, expected, seed, limits, isolate=True):
    """The `NotebookResult` of a submission.

    Parameters
    ----------
    content : bytes
        The file.
    exercise : Exercise
    expected : Expected
        What the solution gave under this seed, see `record`.
    seed : int
        The seed of hidden cells.
    limits : sandbox.Limits
    isolate : bool
        False without a sandbox.
    """
    begun = time.monotonic()
    try:
        found = transplant(exercise, parse(content))
    except Unreadable as error:
        return without_points(exercise, "unreadable", str(error))
    except WrongNotebook as error:
        return without_points(exercise, "wrong notebook", str(error))
    result = NotebookResult(exercise.name, "graded", "", [], list(found.notes))
    runner = Runner(lambda part: cells_of(part, exercise, expected, seed, limits), limits, isolate)
    runs = runner.run(found)
    result.runs = runs.number
    failures = failures_of(found, runs.cells)
    told = [*runs.notes, *failures.values()]
    result.notes += map(clean, told[: len(runs.notes) + MOST_FAILURES])
    for question in exercise.questions.values():
        one = judge(question, exercise, found, runs.cells, runs.set_aside, expected)
        one.reason += because_of(one, failures)
        result.questions.append(one)
    result.seconds = round(time.monotonic() - begun, 2)
    return result


def cells_of(found, exercise, expected, seed, limits):
    """The cells of the notebook to run."""
    cells = [code_cell("examiner", BEGIN.format(limit=limits.answer_s))]
    fetched = set()
    for step in found.steps:
        if step.kind == "helper":
            cells.append(code_cell(step.identity, f"examiner.helper({step.source!a})"))
        elif step.kind == "answer":
            call = f"examiner.answer({step.cell.question!r}, {step.source!a})"
            recorded = expected.recorded.get(step.cell.question)
            if recorded:
                call += f"\nexaminer.expect({step.cell.question!r}, {recorded!r})"
            cells.append(code_cell(step.cell.id, call))
        elif step.cell.role in ("check", "hidden"):
            if step.cell.question not in fetched:
                fetched.add(step.cell.question)
                call = f"examiner.fetch({step.cell.question!r})"
                cells.append(code_cell(fetch_of(step.cell.question), call))
            outputs = expected.outputs.get(step.cell.id, [])
            cells.append(code_cell(step.cell.id, seeded(step.cell, seed), outputs, compare=True))
        else:
            setup = f"{step.source}\nexaminer.setup({step.source!a})"
            cells.append(code_cell(step.cell.id, setup))
    return cells


def fetch_of(question):
    """The id of the cell that fetches a question's function, which stands before its check."""
    return f"{question}-fetch"


def seeded(cell, seed):
    """A hidden cell's source with the seed of this run; another cell's source."""
    if cell.role != "hidden":
        return cell.source
    source = re.sub(r"^seed = \d+$", f"seed = {seed}", cell.source, count=1, flags=re.MULTILINE)
    return f"examiner.begin({cell.id!r}, {cell.question!r})\n{source}"


def judge(question, exercise, found, cells, set_aside, expected):
    """The `QuestionResult` of one question."""
    result = QuestionResult(question.name, question.title, 0, question.points, "")
    if found.found[question.name] != GIVEN:
        result.status = found.found[question.name]
        result.reason = (
            "The function is as it was handed out."
            if result.status == "not attempted"
            else f"There is no cell that defines {question.name}."
        )
        return result
    if question.name in set_aside:
        result.status, result.reason = LIMITS, sentence(set_aside[question.name])
        return result
    (cell,) = exercise.cells_of(question.name, "answer")
    for identity, what in (
        (cell.id, "The answer's cell fails"),
        (fetch_of(question.name), "The function cannot be used"),
    ):
        ran = cells.get(identity)
        said = json_in(ran)
        if said is None or said.get("error"):
            error = said["error"] if said else (ran.error if ran else "it was not reached")
            result.status = LIMITS if said is None or said.get("ended") else WRONG
            result.reason = f"{what}: {sentence(error)}"
            result.got = clean(said.get("output", "")) if said else ""
            return result
    checks = [(one, cells.get(one.id)) for one in exercise.cells_of(question.name, "check")]
    hidden = [(one, cells.get(one.id)) for one in exercise.cells_of(question.name, "hidden")]
    result.outputs = {one.id: clean(got.text) for one, got in checks + hidden if got}
    result.seconds = round(sum(got.seconds for _, got in checks + hidden if got), 2)
    if hidden:
        result.hidden = RIGHT if all(is_same(got) for _, got in hidden) else WRONG
    failed = [(one, got) for one, got in checks + hidden if not is_same(got)]
    if failed:
        explain(result, *failed[0], expected)
    else:
        result.status = RIGHT
        result.reason = "Right, in public and in hidden tests." if hidden else "Right."
    if not any(one.role == "check" for one, _ in failed):
        result.points = earned(question, exercise, [one for one, _ in failed])
        if failed and result.points:
            result.status = PARTLY
    return result


def earned(question, exercise, failed):
    """The points of a question whose public check passes, by the weights of what passes."""
    weights = exercise.weights_of(question.name)
    passed = sum(weight for cell, weight in weights if cell not in failed)
    points = round(question.points * passed / sum(weight for _, weight in weights), 2)
    return int(points) if points == int(points) else points


def is_same(got):
    """Whether a cell was run and nbval found what was expected."""
    return got is not None and got.word == "same"


def explain(result, cell, got, expected):
    """Say in a result which cell was not as expected, and how."""
    if got is None or got.word in ("timeout", "gone"):
        result.status = LIMITS
        result.reason = "It was still running when its time was over."
        return
    result.status = WRONG
    text = clean(got.text)
    if cell.role == "hidden":
        result.reason = "It passes the public check, but not all hidden tests, with other inputs."
        return
    result.got = text
    result.expected = expected.text(cell.id)
    if text.startswith(f"{result.question}: not written yet. Rank"):
        result.status = "not attempted"
    # What ranks printed stands before what the check says.
    lines = text.splitlines()
    said = [n for n, line in enumerate(lines) if line.startswith(f"{result.question}: ")]
    after = lines[said[-1] + 1 :] if said else []
    result.reason = after[0] if after else text


def failures_of(found, cells):
    """``{source: sentence}`` of the student's own cells that fail."""
    said = {s.source: json_in(cells.get(s.identity)) for s in found.steps if s.kind == "helper"}
    return {
        source: failure(source, clean(one["error"]))
        for source, one in said.items()
        if one and one.get("error")
    }


def because_of(result, failures):
    """What is added to the reason of an answer that lacks a name of a cell that fails."""
    missing = UNKNOWN_NAME.search(f"{result.reason}\n{result.got}")
    if missing is None:
        return ""
    for source, sentence_of_it in failures.items():
        if re.search(rf"\b{missing[1]}\b", source):
            return f" Of your own cells {sentence_of_it}"
    return ""


def json_in(result):
    """What the examiner said about a student's cell; None where it said nothing."""
    try:
        said = json.loads(result.text.strip().splitlines()[-1])
    except (AttributeError, IndexError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def clean(text):
    """A text without codes for terminals, and not too long."""
    text = ANSI.sub("", str(text))
    text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
    if len(text) > LONGEST_REASON:
        text = text[:LONGEST_REASON] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "it gave no answer that can be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))
