"""Answers that cheat, look around or are merely odd: each gets what it earned, the host stays.

Many of them share one notebook, each beside innocent answers.
"""

import cheats
import forgeries
import intruders
import pytest
from ground import HONEST, LIMITS, SEED, right
from notebooks_made import content, exercise, notebook

from simlib.classroom.grading.grade import grade

GROUPS = {
    "values and cells": cheats.VALUES | cheats.IN_THE_CELL | {"innocent": right(HONEST)},
    "communication": cheats.COMMUNICATION | cheats.ODD_BUT_RIGHT | {"innocent": right(HONEST)},
    "intruders": intruders.ALL | {"innocent": right(HONEST)},
    "what a rank can still forge": forgeries.ALL | {"innocent": right(HONEST)},
}


@pytest.mark.parametrize("group", GROUPS)
def test_everybody_gets_what_they_earned(group, grade_cases):
    result = grade_cases(GROUPS[group])
    assert result.runs == 1


@pytest.mark.parametrize("name", forgeries.IN_SIMULATION)
def test_what_a_rank_can_forge_in_a_simulation(expected_of, name):
    one = exercise("05")
    made = content(notebook(one, {"chain_broadcast": forgeries.IN_SIMULATION[name]}))
    result = grade(made, one, expected_of(one), SEED, LIMITS)
    assert [question.points for question in result.questions] == [0, 0, 3, 0]
