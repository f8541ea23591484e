"""Notebooks of every version, in every state: honest answers keep their points in all of them."""

import json
import os

import odd_files
import pytest
from ground import HONEST, LIMITS, SEED

import simlib.classroom.grading.grade as grading
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.notebook_file import LARGEST_BYTES, Unreadable, read_bytes
from simlib.classroom.grading.whole_class import Expected

ANSWERS = [HONEST, "def NAME(rank, world_size, x):\n    return x", HONEST]
EARNED = [1, 0, 1]


@pytest.fixture(scope="module")
def sessions():
    """What came of cells that have been run."""
    return {}


@pytest.fixture
def graded(ground, expected, sessions, monkeypatch):
    """``graded(content)``: cells that have been run with other files are not run again."""
    run = grading.run_notebook

    def run_once(cells, limits, isolate):
        key = json.dumps([(cell.id, cell.source, cell.outputs) for cell in cells])
        if key not in sessions:
            sessions[key] = run(cells, limits, isolate)
        return sessions[key]

    monkeypatch.setattr(grading, "run_notebook", run_once)
    return lambda content: grade(content, ground.exercise, expected, SEED, LIMITS)


def plain(ground):
    return json.loads(ground.bytes(ANSWERS))


@pytest.mark.parametrize("name", odd_files.GOOD)
def test_honest_answers_keep_their_points(name, ground, graded, sessions):
    result = graded(odd_files.GOOD[name](plain(ground)))
    assert result.status == "graded"
    points = [one.points for one in result.questions]
    assert points == EARNED + [0] * (len(points) - len(EARNED))
    assert result.questions[1].status == "wrong"
    assert "No rank communicates" in result.questions[1].reason
    assert {one.status for one in result.questions[len(EARNED) :]} <= {"not attempted", "not found"}
    assert len(sessions) <= 3  # one order of the cells, and perhaps one of two cells of one's own


@pytest.mark.parametrize("name", odd_files.BAD)
def test_what_cannot_be_graded_gets_a_reason(name, ground):
    make, status, words = odd_files.BAD[name]
    result = grade(make(plain(ground)), ground.exercise, Expected({}, {}), SEED, LIMITS)
    assert (result.status, result.points, result.of) == (status, 0, len(ground.names))
    assert words in result.reason
    assert len(result.questions) == len(ground.names)


def test_links_pipes_and_huge_files_are_not_read(tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text("{}")
    link, pipe, huge = tmp_path / "link.ipynb", tmp_path / "pipe.ipynb", tmp_path / "huge.ipynb"
    link.symlink_to(secret)
    os.mkfifo(pipe)
    with open(huge, "wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    for path, words in ((link, "link"), (pipe, "no ordinary file"), (huge, "larger than")):
        with pytest.raises(Unreadable, match=words):
            read_bytes(path)
