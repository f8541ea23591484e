"""Lesson 19: its published answers, and its own functions against other faults."""

import re

import jupytext
import pytest
from lesson_programs import LESSONS, names_of

PARTS = {
    "19_hangs_from_records": ("your_difference", "other_line"),
    "19_hangs_of_many_groups": ("your_culprits", "late_s"),
    "19_slow_steps_from_traces": ("three_numbers", "delay_us"),
}
ANSWER = re.compile(r"<details><summary>Answer</summary>\n\n(.*?)</details>", re.DOTALL)


def given(part):
    """What a part defines, and the first values of what its cells need."""
    needed = {"FOLDER", "jobs", "waits", "LINK", "CARD", "GPUS", "DEVICE", "runs"}

    def is_kept(names):
        is_needed = names <= needed
        needed.difference_update(names)
        return is_needed

    return names_of(part, is_kept)


def is_answer(cell):
    return cell.cell_type == "markdown" and ANSWER.search(cell.source)


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("part, name", [(part, one) for part in PARTS for one in PARTS[part]])
def test_a_folded_answer_is_right_and_a_stub_is_not_yet(part, name, is_answered, capsys):
    cells = jupytext.read(LESSONS / f"{part}.py", fmt="py:percent").cells
    stub = re.compile(rf"def {name}\(.*\n    return None  # yours.*")
    (first,) = (at for at, cell in enumerate(cells) if stub.search(cell.source))
    last = next(at for at, cell in enumerate(cells) if at > first and is_answer(cell))
    answer = re.sub(r"^ {4}", "", ANSWER.search(cells[last].source)[1], flags=re.M)
    names = given(part)
    for cell in cells[first:last]:
        if cell.cell_type == "code":
            source = stub.sub(lambda _: answer, cell.source) if is_answered else cell.source
            exec(source, names)
    said = capsys.readouterr().out
    assert ("right" in said, "not yet" in said) == (is_answered, not is_answered), said
