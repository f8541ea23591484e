"""Read the pristine material of an exercise, from its source or from a notebook."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..parts import parts_of
from .reference import Cell, Exercise, Question
from .release_version import shown_form
from .source import (
    SourceError,
    course_of,
    exercise_files,
    read_source,
    solution_source,
    stub_source,
)


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
                parts_of(course_of(cell, "points") or 1),
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
        if len(questions[name].parts) > 1 and any(cell.weight is not None for cell, _ in weights):
            raise SourceError(f"{path}: question {name} has parts, so its cells have no weights")
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
            question, parts = course["question"], parts_of(course.get("points", 1))
            questions[question] = Question(question, question, parts, source, "")
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
