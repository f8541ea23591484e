"""A right answer is right however it is written: ten kinds and one, made of every solution."""

import linecache

import honest
import pytest
from notebooks_made import SOURCES

from simlib.grading.exercise import read_exercise
from simlib.grading.source import exercise_files, number_of

EXERCISES = {path.stem: read_exercise(path) for path in exercise_files(SOURCES, ".py")}


def check_of(exercise, question):
    """The source of a question's check."""
    (check,) = exercise.cells_of(question, "check")
    return check.source


CASES = [
    pytest.param(
        name,
        question,
        kind,
        id=f"{number_of(name)}-{question}-{kind.__name__}",
        marks=pytest.mark.stratum(kind.__name__),
    )
    for name, exercise in EXERCISES.items()
    for question in exercise.questions
    for kind in honest.KINDS
    # Where memory is counted, copies of all are another answer.
    if not (kind is honest.on_copies and "memory=" in check_of(exercise, question))
]


@pytest.mark.parametrize("name, question, kind", CASES)
def test_a_right_answer_is_right_however_it_is_written(name, question, kind):
    exercise = EXERCISES[name]
    setups = [cell.source for cell in exercise.cells if cell.role == "setup"]
    names = {"__name__": "exercise"}
    for number, source in enumerate(setups):
        run_cell(source, names, f"setup {number}")
    check = check_of(exercise, question)
    solution = exercise.questions[question].solution
    for number, source in enumerate(kind(solution, question, check)):
        run_cell(source, names, f"answer {number}")
    names = dict(names)  # as `check_of` does
    run_cell(check, names, "check")
    assert names["verdict"].status == "right", names["verdict"]


def run_cell(source, names, cell):
    """Execute a cell's source so that, as in a notebook, `inspect` finds its text again."""
    file = f"<{cell}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
