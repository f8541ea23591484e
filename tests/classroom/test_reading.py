"""Files that take time or memory to be read cost themselves only; what is read is as it was."""

import json
import resource

import pytest
from notebooks_made import content, exercise, notebook, solved

from simlib.classroom.grading import grade
from simlib.classroom.grading.grade import Reader
from simlib.classroom.grading.merge_answers import WrongNotebook, merge_answers
from simlib.classroom.grading.notebook_file import MAX_CHARS, Unreadable, parse

FOUR = exercise("04")
SOLVED = content(solved(FOUR))
SECONDS = 4
"""Of the processor: a linear reading takes a tenth, one that is not takes ten times as much."""


@pytest.fixture
def reader():
    with Reader({FOUR.name: FOUR}, seconds=SECONDS) as found:
        yield found


def cells(number, source, identity=str):
    """A file of so many code cells."""
    made = [{"cell_type": "code", "id": identity(n), "source": source} for n in range(number)]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": made}).encode()


def one_cell(source):
    return b'{"cells": [{"cell_type": "code", "source": "%s"}]}' % source


@pytest.mark.parametrize("make", [solved, notebook])
def test_what_the_other_process_merges_is_what_is_merged_here(reader, make):
    data = content(make(FOUR))
    assert reader.merge(data, FOUR.name) == merge_answers(FOUR, parse(data))


LARGE = {
    "newlines": one_cell(b"\\n" * (9 << 20)),
    "blank lines": b"{" + b" \n" * (9 << 20) + b"<",
    "arrays": b'{"cells": [' + b"[]," * (6 << 20) + b"[]]}",
    "brackets": b'{"cells": ' + b"[" * (10 << 20),
}


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
def test_twenty_megabytes_of_anything_are_refused_and_the_next_file_is_read(reader, data):
    with pytest.raises(Unreadable, match="^(?!the file takes too long)"):
        reader.merge(data, FOUR.name)
    assert reader.merge(SOLVED, FOUR.name).found


ALIKE = {
    "newlines": one_cell(b"\\n" * (MAX_CHARS - 10)),
    "many cells": cells(4900, "def mean_of_all(rank, n, x):\n    return 7\n" + "x = 1\n" * 50),
    "like ids": cells(4900, "def mean_of_all(rank): pass", lambda _: "mean_of_all-answer"),
    "other ids": cells(4900, "def mean_of_all(rank): pass", lambda n: f"{n % 2450}" * 60),
    "checks": cells(4900, "verdict = check_of('04.1', mean_of_all)"),
}


@pytest.mark.parametrize("data", ALIKE.values(), ids=ALIKE)
def test_merging_what_may_be_large_is_linear(reader, data):
    try:
        reader.merge(data, FOUR.name)
    except WrongNotebook:
        pass


def test_text_beyond_two_megabytes_is_refused_but_not_outputs():
    made = solved(FOUR)
    picture = {"output_type": "display_data", "data": {"image/png": "x" * 10_000_000}}
    made["cells"][-1]["outputs"] = [picture]
    assert parse(content(made)).cells == parse(SOLVED).cells
    with pytest.raises(Unreadable, match="more than 2 MB of text"):
        parse(one_cell(b"x" * (MAX_CHARS + 1)))


def test_a_file_that_takes_too_much_memory_is_unreadable_and_the_next_one_is_read():
    data = b'{"cells": [{"cell_type": "code", "source": [' + b'"a",' * (4 << 20) + b'"a"]}]}'
    with Reader({FOUR.name: FOUR}, memory_bytes=64 << 20) as reader:
        with pytest.raises(Unreadable, match="too much memory"):
            reader.merge(data, FOUR.name)
        assert reader.merge(SOLVED, FOUR.name).found


PROGRAM = """
import os, resource, signal, sys
sys.stdin.buffer.readline()
sys.stdin.buffer.readline()
sys.stdin.buffer.read(2)
{}
"""


@pytest.mark.parametrize(
    "does, words",
    [
        ("os._exit(3)", "ends the process that reads it"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ends the process that reads it"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "too long"),
        ("signal.pause()", "too long"),
    ],
)
def test_a_file_that_ends_or_stops_its_reader_is_unreadable(tmp_path, monkeypatch, does, words):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(does))
    whole = grade.PROGRAM
    monkeypatch.setattr(grade, "PROGRAM", program)
    with Reader({FOUR.name: FOUR}, patience_s=1) as reader:
        with pytest.raises(Unreadable, match=words):
            reader.merge(b"{}", FOUR.name)
        monkeypatch.setattr(grade, "PROGRAM", whole)
        reader._patience_s = 60
        assert reader.merge(SOLVED, FOUR.name).found


def test_the_grader_takes_no_memory_for_what_others_read(reader):
    reader.merge(SOLVED, FOUR.name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = LARGE["arrays"]
    with pytest.raises(Unreadable):
        reader.merge(data, FOUR.name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
