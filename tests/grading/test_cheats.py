"""Answers that cheat, look around or are merely odd: each gets what it earned, the host stays.

Many of them share one notebook, each beside innocent answers.
"""

import cheats
import forgeries
import intruders
import pytest
from ground import HONEST, right

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
