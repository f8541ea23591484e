"""How long a lesson takes, counted from its cells. What it promises: see test_build.py."""

from pathlib import Path

import build as builder
import minutes
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from simlib.classroom.grading.source import read_source

ROOT = Path(__file__).resolve().parents[2]
LESSONS = [path for path in builder.sources(ROOT) if path.parent.name == "lessons"]
MOST, MOST_OF_A_PART = 110, 60
"""Minutes. The second is for lessons 11 to 18, which come in parts of one sitting each."""
WHOLE = [f"{number:02}" for number in range(11)] + ["16"]


def cells(words=0, lines=0, runs=0, guesses=0, written=0, labs=0, formulas=0, questions=0):
    """A lesson with so much of each."""
    code = ["x = 1\n" * lines, *["guess = None  # how many?"] * guesses]
    code += ["labs.rounds_lab(4)"] * labs
    tasks = ["**Now you\nwrite it.**"] * written
    empty = ["# a comment\n\n"] * (runs - len(code))
    exit_ticket = "## Exit ticket\n\n" + "1. \n" * questions
    return [
        *map(new_markdown_cell, ["word " * words, *tasks, "$$a = b$$\n" * formulas, exit_ticket]),
        *map(new_code_cell, [*code, *empty]),
    ]


@pytest.mark.parametrize(
    "more, needed",
    [
        ({}, 5),
        ({"words": 30 * minutes.WORDS_A_MINUTE}, 30),
        ({"lines": 30 * 60 // minutes.LINE_S}, 30),
        ({"runs": 30 * 60 // minutes.CELL_S}, 30),
        ({"guesses": 20}, 20 * (minutes.GUESS_S + minutes.LINE_S + minutes.CELL_S) / 60),
        ({"written": 10}, 10 * minutes.WRITTEN_S / 60),
        ({"labs": 5}, 5 * (minutes.LAB_S + minutes.LINE_S + minutes.CELL_S) / 60),
        ({"formulas": 90}, 90 * minutes.FORMULA_S / 60),
        ({"questions": 20}, 20 * (minutes.QUESTION_S / 60 + 1 / minutes.WORDS_A_MINUTE)),
    ],
)
def test_what_a_learner_reads_runs_guesses_writes_and_moves_takes_time(more, needed):
    counted = minutes.of_lesson(cells(**more))
    assert counted % minutes.ROUNDED_TO == 0 and abs(counted - needed) <= 3


@pytest.mark.parametrize(
    "text, added",
    [
        (f"<details>{'word ' * 1200}</details> and <details>\n{'word ' * 1200}</details>", 10),
        (f"<details></details>{'word ' * 1200}<details></details>", 10),
        ("<details>\n\n" + "    x = 1\n" * 20 + "\n</details>", 10),
        (f"**Next:** lesson 7.\n\n## Appendix\n\n{'word ' * 1400}", 0),
    ],
)
def test_folded_words_count_half_and_written_lines_count(text, added):
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
def test_a_lesson_takes_two_sittings_at_most_and_a_part_one(path):
    most = MOST if path.stem[:2] in WHOLE else MOST_OF_A_PART
    assert minutes.of_lesson(read_source(path, is_exercise=False).cells) <= most
