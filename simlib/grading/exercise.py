"""The pristine material of an exercise: its cells as they were written, hidden ones too."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from .shown_form import shown_form
from .source import (
    SourceError,
    course_of,
    exercise_files,
    read_source,
    solution_source,
    stub_source,
)


@dataclass(frozen=True)
class Cell:
    """A code cell of an exercise source.

    Attributes
    ----------
    id : str
    role : str or None
        ``"setup"``, ``"answer"``, ``"check"``, ``"hidden"``; None for code that stands by itself.
    question : str or None
    source : str
        The text; of an answer cell with its markers.
    weight : float or None
        Of a check or hidden cell: its share of the question's points, see `Exercise.weights_of`.
    shown : str
        The text as learners see it, which of a check is a call; of an answer as `source`.
    """

    id: str
    role: str | None
    question: str | None
    source: str
    weight: float | None = None
    shown: str = ""

    def __post_init__(self):
        object.__setattr__(self, "shown", self.shown or self.source)


@dataclass(frozen=True)
class Question:
    """One question: its name is that of the function that answers it."""

    name: str
    title: str
    points: int
    stub: str
    solution: str


@dataclass(frozen=True)
class Exercise:
    """All that is pristine of one exercise.

    Attributes
    ----------
    name : str
        ``NN_name``, as the notebook is called without its ending.
    cells : tuple of Cell
        Its code cells, in order.
    ids : frozenset of str
        The ids of all cells that students are given, text cells too.
    questions : dict of str to Question
        In order.
    digest : str
        Changes with the source.
    cases : str
        What its checks expect, as `simlib.checks.check_of` reads it; empty where nobody knows.
    """

    name: str
    cells: tuple
    ids: frozenset
    questions: dict
    digest: str
    cases: str = ""

    @property
    def points(self):
        """What all questions are worth."""
        return sum(question.points for question in self.questions.values())

    def cells_of(self, question, role):
        """The cells of one question with one role."""
        return [cell for cell in self.cells if (cell.question, cell.role) == (question, role)]

    def as_shown(self):
        """The same with what students have only: no hidden cells, and checks as calls."""
        visible = tuple(
            replace(cell, source=cell.shown) for cell in self.cells if cell.role != "hidden"
        )
        return replace(self, cells=visible)

    def weights_of(self, question):
        """``[(Cell, weight)]`` of a question's check and hidden cells.

        Unless its source says otherwise, a hidden cell weighs 1, and the check beside it nothing:
        it is public, so whoever has read it could pass it with a table of answers.
        """
        checks, hidden = (self.cells_of(question, role) for role in ("check", "hidden"))
        usual = [(cell, 0 if hidden else 1) for cell in checks] + [(cell, 1) for cell in hidden]
        return [(cell, one if cell.weight is None else cell.weight) for cell, one in usual]


def read_exercise(path):
    """The `Exercise` of a source file in `authoring/exercises`.

    Raises
    ------
    SourceError
        The source cannot be read; a question has two answer cells or none, or no check cell or no
        hidden cell: any answer to it would be right.
    """
    notebook = read_source(path, is_exercise=True)
    shown, cases = shown_form(notebook, path.stem)
    cells = tuple(
        Cell(
            cell.id,
            course_of(cell, "role"),
            course_of(cell, "question"),
            cell.source,
            course_of(cell, "weight"),
            seen.source,
        )
        for cell, seen in zip(notebook.cells, shown.cells, strict=True)
        if cell.cell_type == "code"
    )
    questions, title = {}, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            title = cell.source.partition("\n")[0].lstrip("# ").partition(" (")[0]
        if course_of(cell, "role") == "answer":
            name = course_of(cell, "question")
            if name in questions:
                raise SourceError(f"{path}: question {name} has two answer cells")
            questions[name] = Question(
                name,
                title,
                course_of(cell, "points") or 1,
                stub_source(cell.source),
                solution_source(cell.source),
            )
    orphans = {cell.question for cell in cells if cell.question} - set(questions)
    if orphans:
        raise SourceError(f"{path}: no answer cell for {', '.join(sorted(orphans))}")
    exercise = Exercise(
        path.stem,
        cells,
        frozenset(cell.id for cell in notebook.cells if course_of(cell, "role") != "hidden"),
        questions,
        hashlib.sha256(path.read_bytes()).hexdigest(),
        cases,
    )
    for name in questions:
        for role in ("check", "hidden"):
            if not exercise.cells_of(name, role):
                raise SourceError(f"{path}: question {name} has no {role} cell")
        weights = exercise.weights_of(name)
        if not sum(weight for _, weight in weights):
            raise SourceError(f"{path}: the cells of question {name} weigh nothing")
    return exercise


def exercise_of(notebook, name, cases=""):
    """The `Exercise` that a notebook holds as it was handed out: no solutions, nothing hidden.

    Parameters
    ----------
    notebook : dict
        As nbformat 4.5 has it.
    name : str
    cases : str
        What its checks expect, where that was handed out with it.
    """
    cells, questions = [], {}
    for cell in notebook["cells"]:
        course = cell["metadata"].get("course", {})
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        cells.append(Cell(cell["id"], course.get("role"), course.get("question"), source))
        if course.get("role") == "answer":
            question, points = course["question"], course.get("points", 1)
            questions[question] = Question(question, question, points, source, "")
    ids = frozenset(cell["id"] for cell in notebook["cells"])
    text = "\n".join([*(cell.source for cell in cells), cases])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Exercise(name, tuple(cells), ids, questions, digest, cases)


def read_exercises(folder):
    """``{name: Exercise}`` of all sources in a folder.

    Raises
    ------
    SourceError
        A source cannot be read, or the folder has none.
    """
    paths = exercise_files(Path(folder), ".py")
    if not paths:
        raise SourceError(
            f"{folder} has no exercise sources (NN_name.py): grading needs those of the checkout, "
            "authoring/exercises; name their folder by --exercises"
        )
    return {path.stem: read_exercise(path) for path in paths}


def is_exercise(text, name):
    """Whether a text names an exercise, by name or number; spreadsheets write 4 for 04."""
    number = text.zfill(2) if text.isdecimal() else text
    return name == text or name.startswith(f"{number}_")
