"""Points by parts and by weights: right values that cost too much earn the value's; the cells of
other questions earn their weights each."""

import re

import nbformat
import pytest
from ground import HEAD, LIMITS, QUESTION, SEED
from notebooks_made import SOURCES

from simlib.classroom.checks.verdict import Verdict
from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.graded_checks import GradedVerdict
from simlib.classroom.grading.notebook_file import Cell
from simlib.classroom.grading.score import lost_in
from simlib.classroom.grading.session import CellResult
from simlib.classroom.grading.source import (
    SourceError,
    course_of,
    read_source,
    with_stubs,
    without_hidden,
)
from simlib.classroom.grading.whole_class import Expected, record

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
WEIGHED = {
    "right": "return total",
    "all_positive": "return total.abs()",  # the check and the first hidden cell never see a minus
    "positive_and_small": "return total.abs().clamp(max=90)",  # the check alone passes
    "wrong": "return total + 1",
}
"""The last line of answers to questions of 4 points with two hidden cells."""
POINTS = {0: (4, 1.33, 0, 0), 1: (4, 2, 1, 0)}
"""What they earn, by the weight of the check."""


def weighed(name, check_weight):
    """A question with two hidden cells: numbers >= 0 weigh 1, any numbers 2."""
    text = QUESTION.replace("NAME", name).replace("LIMIT", "60").replace("points=1", "points=4")
    text = text.replace('role="check"', f'role="check" weight={check_weight}')
    _, marker, hidden = text.partition('# %% role="hidden"')
    positive = hidden.replace("torch.randn", "100 * torch.rand")
    return f"{text.removesuffix(marker + hidden)}{marker}{positive}{marker} weight=2{hidden}"


def written(folder, *texts):
    path = folder / "98_parts.py"
    path.write_text("".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def graded(isolated, tmp_path_factory):
    """The result of one notebook with all of these answers, and by question."""
    text = (SOURCES / "04_collectives.py").read_text(encoding="utf-8")
    first, begin, end = (text.index(f"# %% [markdown]\n# ## {number}") for number in (1, 2, 3))
    own = {f"own_broadcast_{name}": source for name, (source, *_) in ANSWERS.items()}
    texts = [text[begin:end].replace("own_broadcast", name) for name in own]
    endings = {f"{name}_weighs_{w}": line for w in POINTS for name, line in WEIGHED.items()}
    texts += [weighed(name, name[-1]) for name in endings]
    setup = HEAD.partition('# %% role="setup"')
    path = written(tmp_path_factory.mktemp("parts"), text[:first], *setup[1:], *texts)
    one = read_exercise(path)
    made = with_stubs(without_hidden(read_source(path, is_exercise=True)))
    for cell in made.cells:
        name = course_of(cell, "question")
        if course_of(cell, "role") == "answer" and name in own:
            cell.source = own[name].replace("own_broadcast", name)
        elif course_of(cell, "role") == "answer":
            solution = one.questions[name].solution
            cell.source = re.sub("return total$", endings[name], solution)
    result = grade(nbformat.writes(made).encode(), one, record(one, SEED, LIMITS), SEED, LIMITS)
    return result, {found.question: found for found in result.questions}


@pytest.mark.parametrize("name", ANSWERS)
def test_right_values_earn_what_they_did_not_cost(graded, name):
    _, points, lost = ANSWERS[name]
    result = graded[1][f"own_broadcast_{name}"]
    assert (result.points, result.lost) == (points, lost), result
    assert result.status == ("partly right" if points else "wrong")
    is_told = "By part: value 1 of 1" in result.reason + result.got
    assert is_told == bool(points) or name in SAYS_SO


@pytest.mark.parametrize("weight, points", POINTS.items())
def test_what_passes_earns_its_weight(graded, weight, points):
    result, by_name = graded
    found = [by_name[f"{name}_weighs_{weight}"] for name in WEIGHED]
    assert tuple(one.points for one in found) == points
    statuses = [one.status for one in found]
    assert statuses == ["right", *("partly right" if one else "wrong" for one in points[1:])]
    assert [one.hidden for one in found] == ["right", "wrong", "wrong", "wrong"]
    assert result.points == round(sum(one.points for one in result.questions), 2)
    assert result.of == 3 * len(ANSWERS) + 4 * 2 * len(WEIGHED)


ONE = QUESTION.replace("NAME", "one").replace("LIMIT", "60")
NOTHING = weighed("nothing", 0).replace('role="hidden"', 'role="hidden" weight=0')
PARTS = 'points={"value": 1, "time": 1}'


def without_cell(role):
    begin = ONE.index(f'# %% role="{role}"')
    end = ONE.find("# %%", begin + 1)
    return ONE[:begin] + (ONE[end:] if end > 0 else "")


@pytest.mark.parametrize(
    "text, words",
    [
        (ONE.replace("points=1", 'points={"traffic": 1}', 1), "points="),
        (ONE.replace("points=1", 'points={"value": 0}', 1), "points="),
        (ONE.replace("points=1", 'points={"value": 1, "beauty": 1}', 1), "points="),
        (
            ONE.replace("points=1", PARTS, 1).replace('role="hidden"', 'role="hidden" weight=2'),
            "has parts, so its cells have no weights",
        ),
        (
            NOTHING.replace(" weight=0 weight=2", " weight=0"),
            "the cells of question nothing have no weight",
        ),
        (without_cell("check"), "question one has no check cell"),
        (without_cell("hidden"), "question one has no hidden cell"),
    ],
)
def test_points_that_nothing_examines_or_that_are_no_parts_are_refused(tmp_path, text, words):
    with pytest.raises(SourceError, match=words):
        read_exercise(written(tmp_path, HEAD, text))


def test_what_parts_are_lost_is_told_however_long_the_verdict_is():
    parts, lines = {"value": 2, "traffic": 1}, ["x" * 90] * 100
    verdict = Verdict("one", parts, "wrong", "reason", 2, lines, lost=["traffic"])
    text = repr(GradedVerdict(verdict))
    output = {"output_type": "stream", "name": "stdout", "text": text}
    said = CellResult("different", outputs=[output])
    assert len(said.text) < 3000
    cell = Cell("one-check", "check", "one", "")
    assert lost_in(cell, said, Expected({}, {})) == {"traffic"}
