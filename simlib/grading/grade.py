"""Points for one submission: transplant, run, and say about each question what came of it."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field

from .merge_answers import WrongNotebook, transplant
from .notebook_file import Unreadable, parse
from .reruns import Runner
from .score import QuestionResult, because_of, clean, failures_of, fetch_of, is_cut_short, judge
from .session import code_cell

MOST_FAILURES = 5
"""Cells of the student's own that are told to fail."""
BEGIN = """\
from simlib.grading.sandboxed.examiner import Examiner
examiner = Examiner(globals(), {answer_s}, {patience})
"""


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
    cut_short : bool
        Whether a limit ended any part of it: under other limits the result may be another one.
    """

    exercise: str
    status: str
    reason: str
    questions: list
    notes: list = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    cut_short: bool = False

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
    """The result of a notebook that cannot be graded; its questions have its status and reason."""
    questions = [
        QuestionResult(one.name, one.title, 0, one.points, status, reason)
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
    cut = map(is_cut_short, runs.cells.values())
    result.cut_short = runs.number > 1 or bool(runs.set_aside) or any(cut)
    failures = failures_of(found, runs.cells)
    told = [*runs.notes, *list(failures.values())[:MOST_FAILURES]]
    if len(failures) > MOST_FAILURES:
        told.append(f"and {len(failures) - MOST_FAILURES} more cells of the student's own fail")
    result.notes += map(clean, told)
    for question in exercise.questions.values():
        one = judge(question, exercise, found, runs.cells, runs.set_aside, expected)
        one.reason += because_of(one, failures)
        result.questions.append(one)
    result.seconds = round(time.monotonic() - begun, 2)
    return result


def cells_of(found, exercise, expected, seed, limits):
    """The cells of the notebook to run."""
    begin = BEGIN.format(answer_s=limits.answer_s, patience=limits.patience)
    cells = [code_cell("examiner", begin)]
    fetched = set()
    for step in found.steps:
        if step.kind == "helper":
            cells.append(code_cell(step.identity, f"examiner.helper({step.source!a})"))
        elif step.kind == "answer":
            call = f"examiner.answer({step.cell.question!r}, {step.source!a})"
            recorded = expected.recorded.get(step.cell.question)
            if recorded:  # before anything of the student's can break it off
                call = f"examiner.expect({step.cell.question!r}, {recorded!r})\n{call}"
            cells.append(code_cell(step.cell.id, call))
        elif step.cell.role in ("check", "hidden"):
            if step.cell.question not in fetched:
                fetched.add(step.cell.question)
                call = f"examiner.fetch({step.cell.question!r})"
                cells.append(code_cell(fetch_of(step.cell.question), call))
            outputs = expected.outputs.get(step.cell.id, [])
            cells.append(code_cell(step.cell.id, seeded(step.cell, seed), outputs, compare=True))
            if step.cell.role == "check":
                names = f"examiner.names_of({step.source!a})"
                cells.append(code_cell(f"{step.cell.id}-names", names))
        else:
            setup = f"{step.source}\nexaminer.setup({step.source!a})"
            cells.append(code_cell(step.cell.id, setup))
    return cells


def seeded(cell, seed):
    """A hidden cell's source with the seed of this run; another cell's source."""
    if cell.role != "hidden":
        return cell.source
    source = re.sub(r"^seed = \d+$", f"seed = {seed}", cell.source, count=1, flags=re.MULTILINE)
    return f"examiner.begin({cell.id!r}, {cell.question!r})\n{source}"
