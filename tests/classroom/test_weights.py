"""A question's points by the weights of its check and hidden cells; they were all or nothing."""

import re

import nbformat
import pytest
from ground import HEAD, LIMITS, QUESTION, SEED

from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.source import (
    SourceError,
    course_of,
    read_source,
    with_stubs,
    without_hidden,
)
from simlib.classroom.grading.whole_class import record

SIGN = "torch.randn"
ANSWERS = {
    "right": "return total",
    "all_positive": "return total.abs()",  # the check and the first hidden cell never see a minus
    "positive_and_small": "return total.abs().clamp(max=90)",  # the check alone passes
    "wrong": "return total + 1",
}


def question(name, check_weight):
    """A question of 4 points with two hidden cells: numbers >= 0 weigh 1, any numbers 2."""
    text = QUESTION.replace("NAME", name).replace("LIMIT", "60").replace("points=1", "points=4")
    text = text.replace('role="check"', f'role="check" weight={check_weight}')
    _, marker, hidden = text.partition('# %% role="hidden"')
    positive = hidden.replace(SIGN, "100 * torch.rand")
    return f"{text.removesuffix(marker + hidden)}{marker}{positive}{marker} weight=2{hidden}"


def written(folder, *questions):
    path = folder / "98_parts.py"
    path.write_text(HEAD + "".join(questions), encoding="utf-8")
    return path


def answered(path, exercise, lines):
    """A notebook in which each question's solution ends with another line."""
    made = with_stubs(without_hidden(read_source(path, is_exercise=True)))
    for cell in made.cells:
        if course_of(cell, "role") == "answer":
            name = course_of(cell, "question")
            solution = exercise.questions[name].solution
            cell.source = re.sub("return total$", lines[name], solution)
    return nbformat.writes(made).encode()


@pytest.mark.parametrize("check_weight, points", [(0, (4, 1.33, 0, 0)), (1, (4, 2, 1, 0))])
def test_what_passes_earns_its_weight(isolated, tmp_path, check_weight, points):
    path = written(tmp_path, *(question(name, check_weight) for name in ANSWERS))
    exercise = read_exercise(path)
    expected = record(exercise, SEED, LIMITS)
    result = grade(answered(path, exercise, ANSWERS), exercise, expected, SEED, LIMITS)
    assert tuple(one.points for one in result.questions) == points
    statuses = [one.status for one in result.questions]
    assert statuses == ["right", *("partly right" if one else "wrong" for one in points[1:])]
    assert [one.hidden for one in result.questions] == ["right", "wrong", "wrong", "wrong"]
    assert result.points == round(sum(points), 2) and result.of == 16


def test_cells_of_a_question_must_weigh_something(tmp_path):
    text = question("nothing", 0).replace('role="hidden"', 'role="hidden" weight=0')
    with pytest.raises(SourceError, match="the cells of question nothing weigh nothing"):
        read_exercise(written(tmp_path, text.replace(" weight=0 weight=2", " weight=0")))


@pytest.mark.parametrize("role", ["check", "hidden"])
def test_a_question_that_nothing_examines_is_refused(tmp_path, role):
    text = QUESTION.replace("NAME", "free").replace("LIMIT", "60")
    begin = text.index(f'# %% role="{role}"')
    end = text.find("# %%", begin + 1)
    with pytest.raises(SourceError, match=f"question free has no {role} cell"):
        read_exercise(written(tmp_path, text[:begin] + (text[end:] if end > 0 else "")))
