"""All exercises there are: solutions get full points, stubs none, a wrong answer costs its own.

And each known wrong answer is told by its name.
"""

import pytest
from ground import LIMITS, SEED
from known_wrong import FOLDER, earned, mixed, wrong_sources
from notebooks_made import SOURCES, content, notebook, solved

from simlib.classroom.grading import whole_class as known
from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.source import number_of
from simlib.classroom.grading.whole_class import Expected

EXERCISES = {path.stem: read_exercise(path) for path in sorted(SOURCES.glob("*.py"))}
RACES = {
    "the shift that receives into x while x is still being sent",
    "the ring that doubles a buffer while it is still being sent",
    "the all_reduce that nobody waits for",
    "the division of a gradient whose all_reduce is still open",
}
"""What these give depends on who is first, so they are not recognised each time."""
MIXED = [
    pytest.param(name, number, parity, id=f"{number_of(name)}-{number}-{parity}")
    for name, exercise in EXERCISES.items()
    for number in range(max(map(len, wrong_sources(exercise).values())))
    for parity in (0, 1)
]


@pytest.fixture(scope="module")
def known_to(expected_of):
    """``known_to(exercise, question)``: words and signatures of its known wrong answers."""
    found = {}

    def find(exercise, question):
        key = exercise.name, question
        if key not in found:
            sources = known.sources_of(FOLDER, exercise, question)
            expected = expected_of(exercise)
            found[key] = known.outputs_of(
                sources, exercise, question, expected, SEED, LIMITS, isolate=True
            )
        return found[key]

    return find


@pytest.mark.parametrize("name", EXERCISES)
def test_what_was_handed_out_is_not_attempted(name):
    exercise = EXERCISES[name]
    result = grade(content(notebook(exercise)), exercise, Expected({}, {}), SEED, LIMITS)
    assert (result.points, result.of, result.runs) == (0, exercise.points, 0)
    assert not result.cut_short
    assert {one.status for one in result.questions} == {"not attempted"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_solution_gets_full_points(name, expected_of):
    exercise = EXERCISES[name]
    result = grade(content(solved(exercise)), exercise, expected_of(exercise), SEED, LIMITS)
    assert not [one for one in result.questions if one.status != "right"]
    assert (result.points, result.runs) == (exercise.points, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name, number, parity", MIXED)
def test_a_wrong_answer_loses_its_question_only_and_is_named(
    name, number, parity, expected_of, known_to
):
    exercise = EXERCISES[name]
    answers = mixed(exercise, number, parity)
    made = content(notebook(exercise, answers))
    result = grade(made, exercise, expected_of(exercise), SEED, LIMITS)
    got = {one.question: one for one in result.questions}
    for question, source in answers.items():
        if source is True:
            assert got[question].points == exercise.questions[question].points, got[question]
            continue
        assert got[question].points == earned(exercise, {question: source}), got[question]
        words = list(known.sources_of(FOLDER, exercise, question))[number]
        if words in RACES:
            continue
        named = known.name_of(got[question].outputs, known_to(exercise, question))
        assert words in named, (question, words, named, got[question])
