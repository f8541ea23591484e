"""Answers that cheat, look around or are merely odd: each gets what it earned, the host stays.

Many of them share one notebook, each beside innocent answers.
"""

import cheats
import forgeries
import intruders
import pytest
from ground import HONEST, LIMITS, SEED, right
from notebooks_made import content, exercise, notebook
from quick import one_of
from sampled import SEED as DRAWN

from simlib.classroom.grading.grade import grade

GROUPS = {
    "values and cells": cheats.VALUES | cheats.IN_THE_CELL | {"innocent": right(HONEST)},
    "communication": cheats.COMMUNICATION | cheats.ODD_BUT_RIGHT | {"innocent": right(HONEST)},
    "intruders": intruders.ALL | {"innocent": right(HONEST)},
    "what a rank can still forge": forgeries.ALL | {"innocent": right(HONEST)},
}


@pytest.mark.parametrize("cases", one_of(2, GROUPS, first=DRAWN))
def test_everybody_gets_what_they_earned(cases, grade_cases):
    assert grade_cases(cases).runs == 1


@pytest.mark.parametrize("source", one_of(2, forgeries.IN_SIMULATION, first=DRAWN))
def test_what_a_rank_can_forge_in_a_simulation(expected_of, source):
    one = exercise("05")
    made = content(notebook(one, {"chain_broadcast": source}))
    result = grade(made, one, expected_of(one), SEED, LIMITS)
    points = {one.question: one.points for one in result.questions if one.points}
    assert points == {"chain_broadcast": 3}


def test_the_shapes_of_what_a_rank_sends_tell_nothing(expected_of):
    one = exercise("06")
    made = content(notebook(one, {"out_of_step": forgeries.BY_THE_WAY}))
    result = grade(made, one, expected_of(one), SEED, LIMITS)
    assert not any(question.points for question in result.questions)
    (answer,) = [one for one in result.questions if one.question == "out_of_step"]
    assert answer.code == forgeries.BY_THE_WAY and answer.form
