"""A right answer is right however it is written: at least ten kinds, made of every solution.

A few of them are checked each time: every kind once, and every exercise. The rest are slow.
"""

import linecache

import honest
import pytest
from notebooks_made import SOURCES

from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.source import exercise_files, number_of

EXERCISES = {path.stem: read_exercise(path) for path in exercise_files(SOURCES, ".py")}


def check_of(exercise, question):
    """The source of a question's check."""
    (check,) = exercise.cells_of(question, "check")
    return check.source


VARIANTS = {
    (name, question): honest.variants(
        exercise.questions[question].solution, question, check_of(exercise, question)
    )
    for name, exercise in EXERCISES.items()
    for question in exercise.questions
}


def always_checked():
    """``{(exercise, question, kind)}``: the kinds go round the exercises until all have come."""
    found = set()
    for number in range(max(len(EXERCISES), len(honest.KINDS))):
        kind = honest.KINDS[number % len(honest.KINDS)]
        names = list(EXERCISES)[number % len(EXERCISES) :] + list(EXERCISES)
        having = (key for name in names for key in VARIANTS if key[0] == name)
        found.add((*next(key for key in having if kind in VARIANTS[key]), kind))
    return found


ALWAYS = always_checked()
CASES = [
    pytest.param(
        name,
        question,
        cells,
        id=f"{number_of(name)}-{question}-{kind.__name__}",
        marks=() if (name, question, kind) in ALWAYS else pytest.mark.slow,
    )
    for (name, question), kinds in VARIANTS.items()
    for kind, cells in kinds.items()
]


@pytest.mark.parametrize("name, question, cells", CASES)
def test_a_right_answer_is_right_however_it_is_written(name, question, cells):
    exercise = EXERCISES[name]
    setups = [cell.source for cell in exercise.cells if cell.role == "setup"]
    names = {"__name__": "exercise"}
    for number, source in enumerate(setups):
        run_cell(source, names, f"setup {number}")
    for number, source in enumerate(cells):
        run_cell(source, names, f"answer {number}")
    names = dict(names)  # as `check_of` does
    run_cell(check_of(exercise, question), names, "check")
    assert names["verdict"].status == "right", names["verdict"]


def test_every_task_has_ten_kinds_at_least():
    few = {question: len(kinds) for (_, question), kinds in VARIANTS.items() if len(kinds) < 10}
    assert not few
    used = {kind for kinds in VARIANTS.values() for kind in kinds}
    assert used == set(honest.KINDS)


def run_cell(source, names, cell):
    """Execute a cell's source so that, as in a notebook, `inspect` finds its text again."""
    file = f"<{cell}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
