"""One submission graded in the sandbox: points, reasons, and what students cannot reach."""

import pytest
from notebooks_made import content, exercise, extra, notebook, solved

from simlib.grading import sandbox
from simlib.grading.expected import record
from simlib.grading.grade import grade

SEED = 5
LIMITS = sandbox.Limits(notebook_s=600, cell_s=300, answer_s=60)
FIRST = exercise("01")
COLLECTIVES = exercise("04")


@pytest.fixture(scope="session")
def isolated(needs_system):
    """Skip where there is no bubblewrap."""
    needs_system("bubblewrap", "bwrap")
    needs_system("util-linux", "setpriv")
    if sandbox.why_not():
        pytest.skip(sandbox.why_not())


@pytest.fixture(scope="module")
def expected(isolated):
    """What the solution of exercise 04 gives."""
    return record(COLLECTIVES, SEED, LIMITS)


@pytest.fixture
def graded(expected):
    """``graded(notebook)``: ``{question: QuestionResult}`` and the result itself under None."""

    def grade_it(made, limits=LIMITS):
        result = grade(content(made), COLLECTIVES, expected, SEED, limits)
        return {one.question: one for one in result.questions} | {None: result}

    return grade_it


def points(found):
    return [one.points for name, one in found.items() if name]


def test_solutions_get_all_points_and_stubs_none(graded):
    assert points(graded(solved(COLLECTIVES))) == [2, 3, 3]
    untouched = graded(notebook(COLLECTIVES))
    assert points(untouched) == [0, 0, 0]
    assert untouched[None].runs == 0
    assert {one.status for name, one in untouched.items() if name} == {"not attempted"}


def test_a_mixed_notebook_loses_what_is_wrong_and_no_more(graded):
    made = notebook(
        COLLECTIVES,
        {
            "mean_of_all": "def mean_of_all(rank, world_size, x):\n"
            "    total = x.sum().reshape(1)\n    dist.all_reduce(total)\n"
            "    return (total / world_size).item()",
            "own_broadcast": "import os\nos._exit(3)",
            "ring_all_gather": True,
        },
    )
    made["cells"].insert(1, extra("import os, signal\nprint('\\x1b[31mhello')"))
    found = graded(made)
    assert points(found) == [0, 0, 3]
    assert found["mean_of_all"].status == "wrong"
    assert "divided by the number of ranks" in found["mean_of_all"].reason
    assert found["own_broadcast"].status == "broke the limits"
    assert "ended the process" in found["own_broadcast"].reason
