"""What is taken from a submission: answers by metadata, id or name; everything else is pristine."""

import copy
import json

import nbformat
import pytest
from notebooks_made import SOURCES, cell_of, content, exercise, extra, notebook, solved

from simlib.classroom.grading.merge_answers import (
    GIVEN,
    NOT_ATTEMPTED,
    NOT_FOUND,
    WrongNotebook,
    merge_answers,
)
from simlib.classroom.grading.notebook_file import Unreadable, parse, read_bytes
from simlib.classroom.grading.source import read_source, with_stubs, without_hidden

COLLECTIVES = exercise("04")
QUESTIONS = list(COLLECTIVES.questions)


def put_in(made):
    """The `MergedNotebook` of a notebook and exercise 04."""
    return merge_answers(COLLECTIVES, parse(content(made)))


def answers(found):
    """``{question: source}`` of what was taken over."""
    return {step.cell.question: step.source for step in found.steps if step.kind == "answer"}


def helpers(found):
    return [step.source for step in found.steps if step.kind == "helper"]


def solutions():
    return {name: one.solution for name, one in COLLECTIVES.questions.items()}


def test_an_untouched_exercise_was_not_attempted():
    found = put_in(notebook(COLLECTIVES))
    assert found.found == dict.fromkeys(QUESTIONS, NOT_ATTEMPTED)
    assert not answers(found)
    assert all(step.cell.role in ("setup", None) for step in found.steps)


def test_comments_and_spaces_alone_are_no_attempt():
    made = notebook(COLLECTIVES)
    cell = cell_of(made, "mean_of_all-answer")
    cell["source"] = "# I do not know\n\n" + "".join(cell["source"]).replace("(rank,", "( rank,")
    assert put_in(made).found["mean_of_all"] == NOT_ATTEMPTED


def test_answers_stand_where_the_exercise_has_them():
    found = put_in(solved(COLLECTIVES))
    assert answers(found) == solutions()
    kinds = [(step.cell.role, step.cell.question) for step in found.steps]
    for name in QUESTIONS:
        first = kinds.index(("answer", name))
        assert kinds[first : first + 2] == [(role, name) for role in ("answer", "check")]


def test_hidden_cells_come_after_all_that_a_student_wrote():
    made = solved(COLLECTIVES)
    made["cells"].append(extra("last = 1"))
    steps = put_in(made).steps
    hidden = [step.cell.id for step in steps[-len(QUESTIONS) :]]
    assert hidden == [f"{name}-hidden" for name in QUESTIONS]
    assert steps[-len(QUESTIONS) - 1].source == "last = 1"


def test_checks_are_the_pristine_ones_whatever_became_of_the_students():
    made = solved(COLLECTIVES)
    cell_of(made, "mean_of_all-check")["source"] = "print('mean_of_all: right')"
    made["cells"] = [c for c in made["cells"] if c["id"] != "own_broadcast-check"]
    found = put_in(made)
    sources = {step.cell.id: step.source for step in found.steps if step.kind == "pristine"}
    for cell in COLLECTIVES.cells:
        if cell.role in ("check", "hidden"):
            assert sources[cell.id] == cell.source
    assert any("mean_of_all-check" in note for note in found.notes)
    assert helpers(found) == ["print('mean_of_all: right')"]  # as any cell of the student's own
    cell_of(made, "mean_of_all-check")["source"] = "verdict = check('mean_of_all', 0)"
    assert not helpers(put_in(made))


MEAN = "def mean_of_all(rank, world_size, x):\n    return 1.0"


@pytest.mark.parametrize(
    "above, kept, below, answer, order",
    [
        ("def part(x):\n    return x", MEAN, None, MEAN, ["def part", "def mean_of_all"]),
        (MEAN, "print(mean_of_all)", None, MEAN, ["def mean_of_all", "print"]),
        (None, MEAN, "def part(x):\n    return x", MEAN, ["def mean_of_all", "def part"]),
        (MEAN, MEAN + " + 1", None, MEAN + " + 1", ["def mean_of_all", "def mean_of_all"]),
    ],
    ids=["helper above", "trial below", "helper in a copy", "two tries"],
)
def test_parts_of_a_split_answer_run_where_they_stand(above, kept, below, answer, order):
    made = notebook(COLLECTIVES)
    cell = cell_of(made, "mean_of_all-answer")
    cell["source"] = kept
    place = made["cells"].index(cell)
    copied = {"metadata": cell["metadata"]}  # as JupyterLab does; the last part keeps the id
    if below:
        made["cells"].insert(place + 1, extra(below, **copied))
    if above:
        made["cells"].insert(place, extra(above, **copied))
    found = put_in(made)
    assert answers(found) == {"mean_of_all": answer}
    ran = [step.source for step in found.steps if step.kind != "pristine"]
    assert [source[: len(part)] for source, part in zip(ran, order, strict=True)] == order


@pytest.mark.parametrize("has_own_check", [False, True])
def test_a_trial_below_the_check_is_the_answer_only_with_a_check_of_its_own(has_own_check):
    made, trial = solved(COLLECTIVES), MEAN.replace("1.0", "7")
    copied = {"metadata": cell_of(made, "mean_of_all-answer")["metadata"]}
    cells = [extra("part = 3"), extra(trial, **copied), extra("print(part)")]
    if has_own_check:
        cells.append(cell_of(made, "mean_of_all-check") | {"id": "copy"})
    below(made, "mean_of_all-check", *cells)
    found = put_in(made)
    assert answers(found)["mean_of_all"] == (trial if has_own_check else solutions()["mean_of_all"])
    ran = [step.cell.id if step.cell else step.source for step in found.steps]
    assert ran.index("mean_of_all-check") < ran.index("part = 3") < ran.index("print(part)")


def test_what_stands_in_a_copy_of_a_check_runs():
    made = notebook(COLLECTIVES)
    copied = {"metadata": cell_of(made, "mean_of_all-check")["metadata"]}
    made["cells"].append(extra("def part(x):\n    return x", **copied))
    assert helpers(put_in(made)) == ["def part(x):\n    return x"]


def old_format(made):
    """As nbformat 3 has it: worksheets, ``input`` in the place of ``source``."""
    cells = [
        {"cell_type": c["cell_type"], "input": c["source"], "metadata": c["metadata"]}
        for c in made["cells"]
    ]
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}


def without(made, *keys):
    """The notebook with these entries of its cells taken out."""
    made = copy.deepcopy(made)
    for cell in made["cells"]:
        for key in keys:
            cell.pop(key, None)
    return made


def with_same_ids(made):
    made = copy.deepcopy(made)
    for cell in made["cells"]:
        cell["id"] = "same"
    return made


def ids_in_metadata(made):
    made = without(made, "id")
    for cell, original in zip(made["cells"], solved(COLLECTIVES)["cells"], strict=True):
        cell["metadata"] = {"id": original["id"]}
    return made


ODD = {
    "nbformat 3": old_format,
    "nbformat 5": lambda made: made | {"nbformat": 5, "nbformat_minor": 1},
    "nbformat 4.0 without ids": lambda made: without(made, "id") | {"nbformat_minor": 0},
    "no metadata": lambda made: without(made, "metadata"),
    "neither ids nor metadata": lambda made: without(made, "id", "metadata"),
    "all ids the same": with_same_ids,
    "ids of Colab": ids_in_metadata,
    "stripped": lambda made: without(made, "outputs", "execution_count"),
    "no metadata of the notebook": lambda made: {"cells": made["cells"]},
    "metadata of another kernel": lambda made: (
        made | {"metadata": {"kernelspec": {"name": "conda-env-x", "language": "python"}}}
    ),
    "null where objects belong": lambda made: made | {"metadata": None},
    "cells that are none": lambda made: made | {"cells": [None, 1, "x", [], *made["cells"]]},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_notebooks_give_all_answers(change):
    found = put_in(change(solved(COLLECTIVES)))
    assert {name: text.strip() for name, text in answers(found).items()} == solutions()
    assert not helpers(found)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: json.dumps(json.loads(text), indent=1).replace("\n", "\r\n").encode(),
        lambda text: text.replace("\\n", "\\r\\n").encode(),
    ],
    ids=["BOM", "UTF-16", "CRLF of the file", "CRLF in sources"],
)
def test_encodings(encode):
    text = content(solved(COLLECTIVES)).decode()
    assert answers(merge_answers(COLLECTIVES, parse(encode(text)))) == solutions()


REFUSED = {
    "empty": (b" \n", "empty"),
    "cut off": (content(solved(COLLECTIVES))[:5000], "cut off"),
    "conflict": (
        b'{"cells": [\n<<<<<<< HEAD\n"a"\n=======\n"b"\n>>>>>>> x\n]}',
        "conflict markers",
    ),
    "binary": (b"\x93NUMPY\xff\x00\x01", "not text"),
    "deep": (b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deep"),
    "a list": (b"[1, 2]", "no notebook"),
    "no cells": (b'{"a": 1}', "no cells"),
    "many cells": (json.dumps({"cells": [{}] * 6000}).encode(), "6,000 cells"),
    "another language": (
        json.dumps({"cells": [], "metadata": {"kernelspec": {"language": "R"}}}).encode(),
        "language is r",
    ),
}


@pytest.mark.parametrize("data, words", REFUSED.values(), ids=REFUSED)
def test_what_is_no_notebook_is_told_in_words(data, words):
    with pytest.raises(Unreadable, match=words):
        parse(data)


def test_links_devices_and_huge_files_are_not_read(tmp_path):
    target = tmp_path / "target.ipynb"
    target.write_bytes(content(solved(COLLECTIVES)))
    (tmp_path / "link.ipynb").symlink_to(target)
    with pytest.raises(Unreadable, match="link"):
        read_bytes(tmp_path / "link.ipynb")
    with pytest.raises(Unreadable, match="no ordinary file"):
        read_bytes("/dev/zero")
    with open(tmp_path / "huge.ipynb", "wb") as file:
        file.truncate(30 << 20)
    with pytest.raises(Unreadable, match="20 MB"):
        read_bytes(tmp_path / "huge.ipynb")
    assert read_bytes(target) == target.read_bytes()


def test_another_exercise_is_the_wrong_notebook():
    with pytest.raises(WrongNotebook, match="no cell of exercise 04"):
        put_in(solved(exercise("01")))


def test_a_lost_answer_is_not_found():
    made = solved(COLLECTIVES)
    made["cells"] = [c for c in made["cells"] if c["id"] != "mean_of_all-answer"]
    found = put_in(made)
    assert found.found["mean_of_all"] == NOT_FOUND
    assert list(found.found.values()).count(GIVEN) == 2


def test_the_last_of_several_edited_copies_counts():
    made = solved(COLLECTIVES)
    cell = cell_of(made, "mean_of_all-answer")
    copied = copy.deepcopy(cell) | {"source": "def mean_of_all(rank, n, x):\n    return 7"}
    made["cells"].insert(made["cells"].index(cell) + 1, copied)
    found = put_in(made)
    assert answers(found)["mean_of_all"] == copied["source"]
    assert any("2 cells answer it" in note for note in found.notes)


def test_an_answer_in_a_new_cell_below_the_stub_is_found_by_its_name():
    made = notebook(COLLECTIVES)
    place = made["cells"].index(cell_of(made, "mean_of_all-answer")) + 1
    made["cells"].insert(place, extra(solutions()["mean_of_all"]))
    found = put_in(made)
    assert answers(found) == {"mean_of_all": solutions()["mean_of_all"]}


def test_own_cells_stay_where_they_were_put():
    made = solved(COLLECTIVES)
    cells = made["cells"]
    cells.insert(0, extra("first = 1"))
    cells.insert(cells.index(cell_of(made, "own_broadcast-answer")), extra("second = 2", id="own"))
    cells.append(extra("third = 3"))
    steps = [step.cell.id if step.cell else step.source for step in put_in(made).steps]
    assert [one for one in steps if "=" in one] == ["first = 1", "second = 2", "third = 3"]
    assert steps[0] == "first = 1"
    assert steps.index("second = 2") < steps.index("own_broadcast-answer")
    assert steps.index("second = 2") > steps.index("mean_of_all-check")
    assert steps.index("third = 3") == steps.index("mean_of_all-hidden") - 1


def below(made, identity, *cells):
    """Put cells below the one with this id."""
    place = made["cells"].index(cell_of(made, identity)) + 1
    made["cells"][place:place] = cells


def test_a_changed_setup_runs_below_the_original_one():
    made = solved(COLLECTIVES)
    setup = next(c for c in made["cells"] if c["metadata"].get("course", {}).get("role") == "setup")
    setup["source"] = "import numpy as np\n" + "".join(setup["source"])
    found = put_in(made)
    roles = [step.cell.role if step.cell else "own" for step in found.steps]
    assert roles[:3] == ["setup", "own", "answer"]
    assert helpers(found) == [setup["source"]]
    assert f"changed cells, the original ones were used: {setup['id']}" in found.notes


def test_own_cells_with_a_check_in_them_run():
    made = solved(COLLECTIVES)
    own = "def half(x):\n    return x / 2\nagain = check('mean_of_all', mean_of_all, None, None)"
    below(made, "mean_of_all-check", extra(own))
    assert helpers(put_in(made)) == [own]


@pytest.mark.parametrize("made_of", ["other ids", "nothing"])
def test_checks_that_are_gone_are_told(made_of):
    made = solved(COLLECTIVES)
    cell = cell_of(made, "mean_of_all-check")
    if made_of == "nothing":
        made["cells"].remove(cell)
    else:
        cell |= {"id": "x", "source": "print('right')"}
    word = "missing" if made_of == "nothing" else "changed"
    assert put_in(made).notes == [f"{word} cells, the original ones were used: mean_of_all-check"]


@pytest.mark.parametrize("make", [solved, notebook])
def test_of_a_notebook_as_it_should_be_nothing_is_told(make):
    assert put_in(make(COLLECTIVES)).notes == []


def as_before():
    """A notebook that was handed out while checks stood in their cells as a whole."""
    path = SOURCES / "04_collectives.py"
    made = with_stubs(without_hidden(read_source(path, is_exercise=True)))
    return json.loads(nbformat.writes(made))


def test_a_notebook_with_whole_checks_in_its_cells_is_as_it_should_be_too():
    made = as_before()
    source = "".join(cell_of(made, "mean_of_all-check")["source"])
    assert "lambda" in source
    made["cells"].append(extra(source))
    found = put_in(made)
    assert (found.notes, helpers(found)) == ([], [])


def test_a_changed_call_of_a_check_is_no_cell_of_ones_own():
    made = solved(COLLECTIVES)
    cell_of(made, "mean_of_all-check")["source"] = "again = check_of('04.1', print)"
    found = put_in(made)
    assert helpers(found) == [] and "mean_of_all-check" in found.notes[0]


OTHER_WAYS = {
    "indented": "if True:\n    def mean_of_all(rank, n, x):\n        return 7",
    "annotated": "mean_of_all: object = lambda rank, n, x: 7",
    "with its check": "def mean_of_all(rank, n, x):\n    return 7\nverdict = check(mean_of_all)",
}


@pytest.mark.parametrize("source", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_an_answer_is_found_by_name_however_it_is_defined(source):
    made = without(notebook(COLLECTIVES), "id", "metadata")
    made["cells"] = [c for c in made["cells"] if "def mean_of_all" not in "".join(c["source"])]
    made["cells"].append(extra(source))
    assert answers(put_in(made)) == {"mean_of_all": source}


def test_a_method_of_this_name_is_no_answer():
    made = notebook(COLLECTIVES)
    made["cells"].append(extra("class Own:\n    def mean_of_all(self, x):\n        return 7"))
    assert put_in(made).found["mean_of_all"] == NOT_ATTEMPTED


@pytest.mark.parametrize("text", ["\n", " ", "\t\n", "x\n", "mean_of_all ", "def "])
def test_a_megabyte_of_anything_is_read_at_once(text):
    """Where a pattern's time grows with the square of a text this test never ends."""
    made = solved(COLLECTIVES)
    below(made, "mean_of_all-check", extra(text * (1_000_000 // len(text))))
    made = without(made, "id", "metadata")
    assert answers(put_in(made)).keys() == set(QUESTIONS)
