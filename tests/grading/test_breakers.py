"""Answers that end processes or never end: only their question pays, and only the limits."""

from dataclasses import replace

import breakers
import pytest
from ground import HONEST, LIMITS, right

SHORT = replace(LIMITS, answer_s=8)
SHORTEST = replace(SHORT, cell_s=60, notebook_s=120, memory_bytes=1500 << 20, processes=200)
HELPER = "import os, signal\nos.kill(-1, signal.SIGKILL)"


def beside_innocents(cases):
    """Every case followed by an innocent answer."""
    together = {}
    for name, case in cases.items():
        together |= {name: case, f"the one after {name}": right(HONEST)}
    return together


CELLS = list(breakers.CELLS)


@pytest.mark.parametrize("names", [CELLS[0::2], CELLS[1::2]], ids=["some", "others"])
def test_a_cell_that_ends_its_process_costs_its_question(names, grade_cases):
    result = grade_cases(beside_innocents({name: breakers.CELLS[name] for name in names}), SHORT)
    assert result.runs == 1


def test_ranks_that_end_cost_their_question(grade_cases):
    assert grade_cases(beside_innocents(breakers.RANKS), SHORT).runs == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", breakers.KERNELS)
def test_an_answer_that_ends_the_examiner_costs_its_question(name, grade_cases):
    result = grade_cases(
        {"before": right(HONEST), name: breakers.KERNELS[name], "after": right(HONEST)}, SHORTEST
    )
    assert result.runs <= 4  # all of them together have twice the time of a notebook


@pytest.mark.long
def test_a_cell_of_ones_own_that_ends_the_examiner_is_left_out(grade_cases):
    result = grade_cases({"innocent": right(HONEST)}, SHORTEST, helpers=[HELPER])
    assert any("a cell of the student's own" in note for note in result.notes)
