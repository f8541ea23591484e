"""The sources of all exercises, and the check cell of each question in them."""

from pathlib import Path

from simlib.grading.exercise import read_exercise
from simlib.grading.source import exercise_files

SOURCES = exercise_files(Path(__file__).resolve().parent.parent / "authoring" / "exercises", ".py")


def check_cells(path):
    """``{question: source of its check}`` of an exercise."""
    return {
        cell.question: cell.source for cell in read_exercise(path).cells if cell.role == "check"
    }
