"""Notebooks of every version, in every state: honest answers keep their points in all of them."""

import json
import os
import re

import odd_files
import pytest
import sampled
from ground import HONEST, LIMITS, SEED
from notebooks_made import exercise, solved

from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.merge_answers import merge_answers
from simlib.classroom.grading.notebook_file import LARGEST_BYTES, Unreadable, parse, read_bytes
from simlib.classroom.grading.whole_class import Expected

FOUR = exercise("04")
ANSWERS = [HONEST, "def NAME(rank, world_size, x):\n    return x", HONEST]
EARNED = [1, 0, 1]
OWN = {
    "checks_exchanged": ["print('right')"] * 3,
    "hidden_cells_of_ones_own": ["seed = 1\nprint('right')"],
}
"""Of a form: what is left in it of a student's own cells, which run."""


def plain(ground):
    return json.loads(ground.bytes(ANSWERS))


@pytest.mark.parametrize("name", odd_files.GOOD)
def test_all_answers_are_found_and_nothing_else(name):
    found = merge_answers(FOUR, parse(odd_files.GOOD[name](solved(FOUR))))
    answers = {s.cell.question: s.source.strip() for s in found.steps if s.kind == "answer"}
    assert answers == {question: one.solution for question, one in FOUR.questions.items()}
    assert [s.source for s in found.steps if s.kind == "helper"] == OWN.get(name, [])


def test_honest_answers_keep_their_points(ground, expected):
    different = {}
    for form in odd_files.GOOD.values():
        content = form(plain(ground))
        merged = merge_answers(ground.exercise, parse(content))
        different.setdefault(str((merged.steps, merged.found)), content)
    contents = list(different.values())
    assert len(contents) <= 4  # one order of the cells, and perhaps a few cells of one's own
    for content in {contents[0], contents[sampled.SEED % len(contents)]}:
        result = grade(content, ground.exercise, expected, SEED, LIMITS)
        assert result.status == "graded"
        points = [one.points for one in result.questions]
        assert points == EARNED + [0] * (len(points) - len(EARNED))
        assert result.questions[1].status == "wrong"
        assert "No rank communicates" in result.questions[1].reason
        others = {one.status for one in result.questions[len(EARNED) :]}
        assert others <= {"not attempted", "not found"}


@pytest.mark.parametrize("name", odd_files.BAD)
def test_what_cannot_be_graded_gets_a_reason(name, ground):
    make, status, words = odd_files.BAD[name]
    result = grade(make(plain(ground)), ground.exercise, Expected({}, {}), SEED, LIMITS)
    assert (result.status, result.points, result.of) == (status, 0, len(ground.names))
    assert re.search(words, result.reason)
    assert len(result.questions) == len(ground.names)


def test_links_pipes_devices_and_huge_files_are_not_read(tmp_path):
    target = tmp_path / "target.ipynb"
    target.write_text("{}")
    link, pipe, huge = tmp_path / "link.ipynb", tmp_path / "pipe.ipynb", tmp_path / "huge.ipynb"
    link.symlink_to(target)
    os.mkfifo(pipe)
    with open(huge, "wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    refused = {
        link: "link",
        pipe: "not a regular",
        "/dev/zero": "not a regular",
        huge: "than 20 MB",
    }
    for path, words in refused.items():
        with pytest.raises(Unreadable, match=words):
            read_bytes(path)
    assert read_bytes(target) == b"{}"
