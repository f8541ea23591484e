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
from simlib.classroom.grading.notebook_file import parse
from simlib.classroom.grading.source import read_source, with_stubs, without_hidden

COLLECTIVES = exercise("04")
QUESTIONS = list(COLLECTIVES.questions)
SOLUTIONS = {name: one.solution for name, one in COLLECTIVES.questions.items()}
MEAN = "def mean_of_all(rank, world_size, x):\n    return 1.0"


def put_in(made):
    """The `MergedNotebook` of a notebook and exercise 04."""
    return merge_answers(COLLECTIVES, parse(content(made)))


def answers(found):
    """``{question: source}`` of what was taken over."""
    return {step.cell.question: step.source for step in found.steps if step.kind == "answer"}


def helpers(found):
    return [step.source for step in found.steps if step.kind == "helper"]


def order(found):
    """What runs: ids of pristine cells and answers, sources of own cells."""
    return [step.cell.id if step.cell else step.source for step in found.steps]


def below(made, identity, *cells):
    """Put cells below the one with this id."""
    place = made["cells"].index(cell_of(made, identity)) + 1
    made["cells"][place:place] = cells


def without(made, *keys):
    """The notebook with these entries of its cells taken out."""
    for cell in made["cells"]:
        for key in keys:
            cell.pop(key, None)
    return made


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


def test_answers_stand_where_the_exercise_has_them_and_hidden_cells_after_all():
    made = solved(COLLECTIVES)
    made["cells"].append(extra("last = 1"))
    found = put_in(made)
    assert answers(found) == SOLUTIONS
    ids = order(found)
    for name in QUESTIONS:
        first = ids.index(f"{name}-answer")
        assert ids[first : first + 2] == [f"{name}-answer", f"{name}-check"]
    assert ids[-len(QUESTIONS) - 1 :] == ["last = 1", *(f"{name}-hidden" for name in QUESTIONS)]


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
    for call in ("verdict = check('mean_of_all', 0)", "again = check_of('04.1', print)"):
        cell_of(made, "mean_of_all-check")["source"] = call
        found = put_in(made)
        assert helpers(found) == [] and "mean_of_all-check" in found.notes[0]


@pytest.mark.parametrize(
    "above, kept, below, answer, begins",
    [
        ("def part(x):\n    return x", MEAN, None, MEAN, ["def part", "def mean_of_all"]),
        (MEAN, "print(mean_of_all)", None, MEAN, ["def mean_of_all", "print"]),
        (None, MEAN, "def part(x):\n    return x", MEAN, ["def mean_of_all", "def part"]),
        (MEAN, MEAN + " + 1", None, MEAN + " + 1", ["def mean_of_all", "def mean_of_all"]),
    ],
    ids=["helper above", "trial below", "helper in a copy", "two tries"],
)
def test_parts_of_a_split_answer_run_where_they_stand(above, kept, below, answer, begins):
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
    assert [source[: len(part)] for source, part in zip(ran, begins, strict=True)] == begins


@pytest.mark.parametrize("has_own_check", [False, True])
def test_a_trial_below_the_check_is_the_answer_only_with_a_check_of_its_own(has_own_check):
    made, trial = solved(COLLECTIVES), MEAN.replace("1.0", "7")
    copied = {"metadata": cell_of(made, "mean_of_all-answer")["metadata"]}
    cells = [extra("part = 3"), extra(trial, **copied), extra("print(part)")]
    if has_own_check:
        cells.append(cell_of(made, "mean_of_all-check") | {"id": "copy"})
    below(made, "mean_of_all-check", *cells)
    found = put_in(made)
    assert answers(found)["mean_of_all"] == (trial if has_own_check else SOLUTIONS["mean_of_all"])
    ran = order(found)
    assert ran.index("mean_of_all-check") < ran.index("part = 3") < ran.index("print(part)")


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
    copied = copy.deepcopy(cell_of(made, "mean_of_all-answer")) | {"source": MEAN}
    below(made, "mean_of_all-answer", copied)
    found = put_in(made)
    assert answers(found)["mean_of_all"] == MEAN
    assert any("2 cells answer this question" in note for note in found.notes)


OTHER_WAYS = {
    "solution": SOLUTIONS["mean_of_all"],
    "indented": "if True:\n    def mean_of_all(rank, n, x):\n        return 7",
    "annotated": "mean_of_all: object = lambda rank, n, x: 7",
    "with its check": "def mean_of_all(rank, n, x):\n    return 7\nverdict = check(mean_of_all)",
}


@pytest.mark.parametrize("source", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_an_answer_is_found_by_name_however_it_is_defined(source):
    made = notebook(COLLECTIVES)
    below(made, "mean_of_all-answer", extra(source))
    assert answers(put_in(made)) == {"mean_of_all": source}
    made["cells"].remove(cell_of(made, "mean_of_all-answer"))
    assert answers(put_in(without(made, "id", "metadata"))) == {"mean_of_all": source}


def test_a_method_of_this_name_is_no_answer():
    made = notebook(COLLECTIVES)
    made["cells"].append(extra("class Own:\n    def mean_of_all(self, x):\n        return 7"))
    assert put_in(made).found["mean_of_all"] == NOT_ATTEMPTED


# Cells of a student's own


def test_own_cells_stay_where_they_were_put():
    made = solved(COLLECTIVES)
    cells = made["cells"]
    cells.insert(0, extra("first = 1"))
    cells.insert(cells.index(cell_of(made, "own_broadcast-answer")), extra("second = 2", id="own"))
    steps = order(put_in(made))
    assert [one for one in steps if "=" in one] == ["first = 1", "second = 2"]
    assert steps[0] == "first = 1"
    assert steps.index("second = 2") < steps.index("own_broadcast-answer")
    assert steps.index("second = 2") > steps.index("mean_of_all-check")


def test_a_changed_setup_runs_below_the_original_one():
    made = solved(COLLECTIVES)
    setup = next(c for c in made["cells"] if c["metadata"].get("course", {}).get("role") == "setup")
    setup["source"] = "import numpy as np\n" + "".join(setup["source"])
    found = put_in(made)
    roles = [step.cell.role if step.cell else "own" for step in found.steps]
    assert roles[:3] == ["setup", "own", "answer"]
    assert helpers(found) == [setup["source"]]
    assert f"changed cells, so the original cells were used: {setup['id']}" in found.notes


def test_own_cells_with_a_check_in_them_run_and_what_stands_in_a_copy_of_a_check():
    made = solved(COLLECTIVES)
    own = "def half(x):\n    return x / 2\nagain = check('mean_of_all', mean_of_all, None, None)"
    copied = {"metadata": cell_of(made, "mean_of_all-check")["metadata"]}
    below(made, "mean_of_all-check", extra(own), extra("def part(x):\n    return x", **copied))
    assert helpers(put_in(made)) == [own, "def part(x):\n    return x"]


# What is told


@pytest.mark.parametrize("word", ["changed", "missing"])
def test_checks_that_are_gone_are_told(word):
    made = solved(COLLECTIVES)
    cell = cell_of(made, "mean_of_all-check")
    if word == "missing":
        made["cells"].remove(cell)
    else:
        cell |= {"id": "x", "source": "print('right')"}
    assert put_in(made).notes == [
        f"{word} cells, so the original cells were used: mean_of_all-check"
    ]


def as_before():
    """A notebook that was handed out while checks stood in their cells as a whole."""
    path = SOURCES / "04_collectives.py"
    made = with_stubs(without_hidden(read_source(path, is_exercise=True)))
    made = json.loads(nbformat.writes(made))
    source = "".join(cell_of(made, "mean_of_all-check")["source"])
    assert "lambda" in source
    made["cells"].append(extra(source))
    return made


MAKERS = [lambda: solved(COLLECTIVES), lambda: notebook(COLLECTIVES), as_before]


@pytest.mark.parametrize("make", MAKERS, ids=["solved", "handed out", "with whole checks"])
def test_of_a_notebook_as_it_should_be_nothing_is_told(make):
    found = put_in(make())
    assert (found.notes, helpers(found)) == ([], [])


@pytest.mark.parametrize("text", ["\n", " ", "\t\n", "x\n", "mean_of_all ", "def "])
def test_a_megabyte_of_anything_is_read_at_once(text):
    """Where a pattern's time grows with the square of a text this test never ends."""
    made = solved(COLLECTIVES)
    below(made, "mean_of_all-check", extra(text * (1_000_000 // len(text))))
    assert answers(put_in(without(made, "id", "metadata"))).keys() == set(QUESTIONS)
