"""How long a lesson takes, counted from its cells. What it promises: see test_build.py."""

from pathlib import Path

import build as builder
import minutes
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from simlib.classroom.grading.source import read_source

ROOT = Path(__file__).resolve().parents[2]
LESSONS = [path for path in builder.sources(ROOT) if path.parent.name == "lessons"]
MOST = 90
"""Minutes: a lesson that takes longer is to be cut, or its side-tracks folded."""


def cells(words=0, lines=0, runs=0, guesses=0, written=0):
    """A lesson with so much of each."""
    code = ["x = 1\n" * lines, *["guess = None  # how many?"] * guesses]
    tasks = ["**Now you\nwrite it.**"] * written
    empty = ["# a comment\n\n"] * (runs - len(code))
    return [
        *map(new_markdown_cell, ["word " * words, *tasks]),
        *map(new_code_cell, [*code, *empty]),
    ]


@pytest.mark.parametrize(
    "more, needed",
    [
        ({}, 5),
        ({"words": 30 * minutes.WORDS_A_MINUTE}, 30),
        ({"lines": 30 * 60 // minutes.LINE_S}, 30),
        ({"runs": 30 * 60 // minutes.RUN_S}, 30),
        ({"guesses": 20}, 20 * (minutes.GUESS_S + minutes.LINE_S + minutes.RUN_S) / 60),
        ({"written": 10}, 10 * minutes.WRITTEN_S / 60),
    ],
)
def test_words_lines_runs_guesses_and_what_is_written_take_time(more, needed):
    counted = minutes.of_lesson(cells(**more))
    assert counted % minutes.ROUNDED_TO == 0 and abs(counted - needed) <= 3


@pytest.mark.parametrize(
    "text, added",
    [
        (f"<details>{'word ' * 1400}</details> and <details>\n{'word ' * 1400}</details>", 0),
        (f"<details></details>{'word ' * 1400}<details></details>", 10),
        (f"**Next:** lesson 7.\n\n## Appendix\n\n{'word ' * 1400}", 0),
    ],
)
def test_hints_answers_and_appendices_do_not_count(text, added):
    before = cells(words=20 * minutes.WORDS_A_MINUTE)
    assert minutes.of_lesson([*before, new_markdown_cell(text)]) == 20 + added


def test_the_cells_of_an_appendix_do_not_count():
    assert minutes.of_lesson([new_markdown_cell("**Next:** lesson 7."), *cells(lines=900)]) == 5


def test_a_line_of_guesses_is_one_and_none_in_a_function_is_no_guess():
    assert len(minutes.GUESS.findall("messages, steps = None, None")) == 1
    assert minutes.GUESS.findall("def f():\n    x = None\n    return x") == []


def test_an_exercise_takes_what_its_headings_say():
    tasks = [
        "## 1. One (★, 10 minutes, 2 points)\nIn 30 minutes,",
        "## 2. Two (★★, 25 minutes, 1 point)",
    ]
    assert minutes.of_exercise([new_markdown_cell(task) for task in tasks]) == 35


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_lesson_takes_more_than_an_hour_and_a_half(path):
    assert minutes.of_lesson(read_source(path, is_exercise=False).cells) <= MOST
