"""What the sources of exercises promise about rules: none can be kept by work that nobody sees."""

import re
from pathlib import Path

import pytest

from simlib.classroom.grading.exercise import read_exercises

EXERCISES = read_exercises(Path(__file__).resolve().parents[2] / "authoring" / "exercises")

FREE_OF_PRODUCTS = {
    "own_broadcast", "ring_reduce_scatter", "ring_in_order", "chain_broadcast", "quick_all_reduce",
    "break_even_ranks", "quickest_epoch", "accumulate", "survive", "as_predicted",
    "my_layers", "sharded_adam",
}  # fmt: skip
"""Tasks whose solutions compute nothing that torch counts, so that no floor can be asked for."""
CHECKS = [
    (cell.question, cell.source)
    for exercise in EXERCISES.values()
    for cell in exercise.cells
    if cell.role == "check"
]


@pytest.mark.parametrize("question, source", CHECKS, ids=[question for question, _ in CHECKS])
def test_a_budget_of_time_or_memory_has_a_floor_of_work(question, source):
    has_budget = re.search(r"\b(timed|memory)=\[", source)
    assert bool(has_budget) == ("at_least_flops=" in source or question in FREE_OF_PRODUCTS)


@pytest.mark.parametrize("question, source", CHECKS, ids=[question for question, _ in CHECKS])
def test_rounds_are_counted_by_a_virtual_clock_too(question, source):
    assert not re.search(r"\brounds\(", source) or "timed=[" in source
