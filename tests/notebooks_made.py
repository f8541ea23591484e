"""Notebooks as students hand them in, made from the exercises: solved, in parts, or odd."""

import csv
import json
from pathlib import Path

from simlib.classroom.grading.exercise import read_exercise

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "authoring" / "exercises"


def exercise(number):
    """The `Exercise` of a number such as ``"04"``."""
    (path,) = SOURCES.glob(f"{number}*.py")
    return read_exercise(path)


def notebook(exercise, answers=None):
    """A notebook as it was handed out, as a dict, with these answers: ``{question: source}``.

    The answer ``True`` stands for the solution.
    """
    path = ROOT / "exercises" / f"{exercise.name}.ipynb"
    made = json.loads(path.read_text(encoding="utf-8"))
    for question, source in (answers or {}).items():
        cell = cell_of(made, f"{question}-answer")
        cell["source"] = exercise.questions[question].solution if source is True else source
    return made


def solved(exercise):
    """A notebook in which all is solved."""
    return notebook(exercise, dict.fromkeys(exercise.questions, True))


def cell_of(made, identity):
    """The cell with this id."""
    return next(cell for cell in made["cells"] if cell.get("id") == identity)


def extra(source, **fields):
    """A code cell of the student's own."""
    empty = {"metadata": {}, "outputs": [], "execution_count": None}
    return {"cell_type": "code", "source": source} | empty | fields


def content(made):
    """A notebook as the bytes of a file."""
    return json.dumps(made).encode()


def hand_in(folder, *names, data):
    """Files with this content below a folder."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def table(path):
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
