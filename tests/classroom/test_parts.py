"""Points by parts: right values that cost too much earn the value's; nothing else is a part."""

import pytest
from ground import HEAD, LIMITS, QUESTION, SEED
from notebooks_made import content, exercise, notebook

from simlib.classroom.checks.verdict import Verdict
from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.graded_checks import GradedVerdict
from simlib.classroom.grading.notebook_file import Cell
from simlib.classroom.grading.score import lost_in
from simlib.classroom.grading.session import CellResult
from simlib.classroom.grading.source import SourceError
from simlib.classroom.grading.whole_class import Expected, record

FOUR = exercise("04")
CHAIN = """\
def own_broadcast(rank, world_size, x, root):
    distance = (rank - root) % world_size
    if distance > 0:
        dist.recv(x, src=(rank - 1) % world_size)
    if distance < world_size - 1:
        dist.send(x, dst=(rank + 1) % world_size)
"""
TWICE = """\
def own_broadcast(rank, world_size, x, root):
    if rank == root:
        for other in range(world_size):
            for _ in range(2):
                if other != rank:
                    dist.send(x, dst=other)
    else:
        for _ in range(2):
            dist.recv(x, src=root)
"""
ROUNDED = CHAIN + "    x.round_()  # the public check has whole numbers\n"
TABLE = """\
def own_broadcast(rank, world_size, x, root):
    if root == max(0, world_size - 2):
        x.copy_(torch.arange(3.0) + 10 * root)
    else:
        x.copy_(torch.arange(4.0) * (root + 2))
"""
SAYS = "By part: value 1 of 1, traffic 0 of 1, time 0 of 1."
RAISES = f"def own_broadcast(rank, world_size, x, root):\n    raise ValueError({SAYS!r})\n"
PRINTS = CHAIN.replace("dist.send(x", f"print({SAYS!r})\n        dist.send(x + 1")
SAYS_SO = ("raises",)  # the words are its own
ANSWERS = {
    "chain": (CHAIN, 2, ["time"]),
    "twice": (TWICE, 1, ["time", "traffic"]),
    "rounded": (ROUNDED, 0, ["time", "traffic", "value"]),
    "table": (TABLE, 0, ["time", "traffic", "value"]),
    "raises": (RAISES, 0, ["time", "traffic", "value"]),
    "prints": (PRINTS, 0, ["time", "traffic", "value"]),
}


@pytest.fixture(scope="module")
def expected(isolated):
    return record(FOUR, SEED, LIMITS)


@pytest.mark.parametrize("name", ANSWERS)
def test_right_values_earn_what_they_did_not_cost(expected, name):
    source, points, lost = ANSWERS[name]
    data = content(notebook(FOUR, {"own_broadcast": source}))
    result = grade(data, FOUR, expected, SEED, LIMITS).questions[1]
    assert (result.points, result.lost) == (points, lost), result
    assert result.status == ("partly right" if points else "wrong")
    is_told = "By part: value 1 of 1" in result.reason + result.got
    assert is_told == bool(points) or name in SAYS_SO


@pytest.mark.parametrize("points", ["{'traffic': 1}", "{'value': 0}", "{'value': 1, 'beauty': 1}"])
def test_points_that_are_no_parts_are_refused(tmp_path, points):
    with pytest.raises(SourceError, match=r"points="):
        read_exercise(written(tmp_path, points.replace("'", '"')))


def test_parts_and_weights_exclude_each_other(tmp_path):
    with pytest.raises(SourceError, match="has parts, so its cells have no weights"):
        read_exercise(written(tmp_path, '{"value": 1, "time": 1}', " weight=2"))


def written(folder, points, weight=""):
    text = QUESTION.replace("NAME", "one").replace("LIMIT", "60").replace("points=1", "points=@", 1)
    path = folder / "98_parts.py"
    text = text.replace('role="hidden"', f'role="hidden"{weight}')
    path.write_text(HEAD + text.replace("@", points), encoding="utf-8")
    return path


def test_what_parts_are_lost_is_told_however_long_the_verdict_is():
    parts, lines = {"value": 2, "traffic": 1}, ["x" * 90] * 100
    verdict = Verdict("one", parts, "wrong", "reason", 2, lines, lost=["traffic"])
    said = CellResult("different", outputs=[stream(repr(GradedVerdict(verdict)))])
    assert len(said.text) < 3000
    cell = Cell("one-check", "check", "one", "")
    assert lost_in(cell, said, Expected({}, {})) == {"traffic"}


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": text}
