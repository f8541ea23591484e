"""One submission graded in the sandbox: points, reasons, and what students cannot reach."""

import ast
import os
import re
import sys
from pathlib import Path

import pytest
from ground import LIMITS, SEED
from notebooks_made import ROOT, SOURCES, cell_of, content, exercise, extra, hand_in, notebook

from simlib.classroom.grading import self_check, whole_class
from simlib.classroom.grading.grade import BEGIN, grade, seed_of, seeded
from simlib.classroom.grading.score import json_in
from simlib.classroom.grading.session import code_cell, run_notebook

COLLECTIVES = exercise("04")


@pytest.fixture(scope="module")
def expected(expected_of):
    """What the solution of exercise 04 gives."""
    return expected_of(COLLECTIVES)


@pytest.fixture
def graded(expected):
    """``graded(notebook)``: ``{question: QuestionResult}`` and the result itself under None."""

    def grade_it(made, limits=LIMITS):
        result = grade(content(made), COLLECTIVES, expected, SEED, limits)
        return {one.question: one for one in result.questions} | {None: result}

    return grade_it


def points(found):
    return [one.points for name, one in found.items() if name]


def test_hidden_cells_take_the_seed_of_the_run():
    for path in sorted(SOURCES.glob("*.py")):
        for cell in exercise(path.stem.partition("_")[0]).cells:
            if cell.role == "hidden":
                assert f"\nseed = {seed_of(cell.id, 77)}\n" in seeded(cell, 77), cell.id
                assert len(re.findall(r"\bseed\s*=", cell.source)) == 1, cell.id


# What students' code can reach

LOOK_AROUND = """
import glob, os, pathlib, socket, sys
def attempt(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__
def read_others():
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        if int(path[6:]) != os.getpid() and "ipykernel" in open(f"{path}/cmdline").read():
            found.append(attempt(lambda: open(f"{path}/mem", "rb")))
            found.append(attempt(lambda: open(f"{path}/environ", "rb").read()))
    return found
print({
    "uid": os.getuid(),
    "above": {
        str(folder): attempt(lambda: os.listdir(folder))
        for folder in pathlib.Path(sys.prefix).parents
    },
    "course": os.listdir("/course"),
    "kernels": read_others(),
    "sockets": [path for path in glob.glob("/tmp/**", recursive=True) if "grading" in path],
    "network": attempt(lambda: socket.create_connection(("192.0.2.1", 80), 3)),
    "write": attempt(lambda: open("/course/simlib/x", "w")),
    "room": [
        os.statvfs(place).f_blocks * os.statvfs(place).f_frsize
        for _, place, kind, options, *_ in map(str.split, open("/proc/mounts"))
        if kind == "tmpfs" and options.split(",")[0] == "rw"
    ],
    "environment": [name for name in os.environ if name.startswith(("GRADING", "JPY", "SSH"))],
})
"""
OWN_IN_TMP = {"ipython", "matplotlib"}
"""What the sandbox itself has put into /tmp: an environment may lie there."""


def test_code_inside_sees_nothing_that_matters(isolated):
    cells = [
        code_cell("examiner", BEGIN.format(answer_s=60, patience=1)),
        code_cell("look", f"examiner.helper({LOOK_AROUND!a})"),
        code_cell("own", "import os; print(os.path.exists('/proc/self/mem'))"),
    ]
    session = run_notebook(cells, LIMITS)
    said = json_in(session.cells["look"])
    assert said["error"] is None, said
    seen = ast.literal_eval(said["output"])
    assert seen["uid"] != 0
    assert seen["course"] == ["simlib"]
    venv = Path(sys.prefix)  # mounted where it lies: of the folders above it nothing else is there
    root, *above = reversed(venv.parents)
    assert ROOT.parts[1] not in set(seen["above"]["/"]) - {venv.parts[1]}
    for folder, only in zip(above, venv.parts[2:], strict=True):
        found = seen["above"][str(folder)]
        assert found == "PermissionError" or set(found) - OWN_IN_TMP == {only}
    assert seen["kernels"] == []
    assert not [path for path in seen["sockets"] if os.path.basename(path).startswith("k")]
    assert seen["network"] == "OSError"
    assert seen["write"] == "OSError"
    assert seen["environment"] == []
    assert 0 < sum(seen["room"]) <= LIMITS.scratch_bytes


PATCH_ALL = """
import builtins, json, torch, simlib, simlib.checks
from simlib.checks.verdict import Verdict
class Yes:
    def __eq__(self, other): return True
    def __repr__(self): return "right"
simlib.checks.check = lambda *args, **kwargs: Yes()
simlib.checks.check.__code__ = (lambda *a, **k: None).__code__
simlib.run = lambda *args, **kwargs: Yes()
torch.equal = torch.allclose = lambda *args, **kwargs: True
Verdict.__repr__ = lambda self: f"{self.question}: right"
builtins.print = lambda *args, **kwargs: None
json.dumps = lambda *args, **kwargs: '{"error": null}'
"""
PAST_THE_OPS = """
def own_broadcast(rank, world_size, x, root):
    store = dist.distributed_c10d._get_default_store()
    if rank == root:
        store.set("value", ",".join(str(one) for one in x.tolist()))
    x.copy_(torch.tensor([float(one) for one in store.get("value").decode().split(",")]))
"""
BOMB = """
class Bomb:
    def __reduce__(self):
        return exec, ("import os; os._exit(5)",)
def mean_of_all(rank, world_size, x):
    both = torch.tensor([x.sum(), float(len(x))])
    dist.all_reduce(both)
    return Bomb()
"""


def test_what_is_forged_has_no_effect(graded):
    answers = {"mean_of_all": BOMB, "own_broadcast": PAST_THE_OPS, "ring_all_gather": True}
    made = notebook(COLLECTIVES, answers)
    cell_of(made, "ring_all_gather-check")["source"] = "print('ring_all_gather: right')"
    made["cells"].insert(1, extra(PATCH_ALL))
    found = graded(made)
    assert points(found) == [0, 0, 3]
    assert found[None].runs == 1
    assert "not plain data" in found["mean_of_all"].got
    assert "Wait timeout" in found["own_broadcast"].got  # the store of a rank is its own
    assert "Wait timeout" in found["own_broadcast"].outputs["own_broadcast-hidden"]


# Known wrong answers

WRONG_ANSWERS = ROOT / "authoring" / "wrong_answers"
HEAD = "def mean_of_all(rank, world_size, x):\n    "
THE_SAME = {
    "it waits for ever": (
        HEAD + "if len(x):\n        dist.all_reduce(torch.tensor([x.sum(), 1.0]))\n    return 7.0",
        "def add_up(pair):\n    dist.all_reduce(pair, op=dist.ReduceOp.SUM)\n"
        + HEAD
        + "if len(x) > 0:\n        add_up(torch.ones(2))\n    return 7.0",
    ),
    "it raises an error": (
        HEAD + "return x[99].item()",
        "def last(numbers):\n    return numbers[99]\n" + HEAD + "return float(last(x))",
    ),
    "it makes a call that cannot be": (
        HEAD + "dist.send(x, dst=rank)",
        "def to(dst, x):\n    dist.send(tensor=x, dst=dst)\n" + HEAD + "to(rank, x)",
    ),
    "it makes a call that is not allowed": (
        HEAD + "dist.barrier()\n    return 7.0",
        "seven = lambda: dist.barrier() or 7.0\n" + HEAD + "return seven()",
    ),
    "its ranks disagree": (
        HEAD + "dist.all_reduce(x)\n    return 7.0",
        "def add_up(tensor):\n    dist.all_reduce(tensor)\n" + HEAD + "add_up(x)\n    return 7.0",
    ),
}
OWN_MEAN, SUM_OF_ALL = "each rank's own mean", "the sum of all"


@pytest.fixture(scope="module")
def told(expected):
    """What known answers to a question give, one of which has a cell that fails; in one run."""
    known = whole_class.sources_of(WRONG_ANSWERS, COLLECTIVES, "mean_of_all")
    some = {name: one for name, one in known.items() if name.startswith((OWN_MEAN, SUM_OF_ALL))}
    assert len(some) == 2
    sources = {"fails": "1 / 0", "own": HEAD + "numbers = x\n    return numbers.mean().item()"}
    sources |= some
    sources |= {f"{what} {n}": one for what, pair in THE_SAME.items() for n, one in enumerate(pair)}
    return whole_class.outputs_of(sources, COLLECTIVES, "mean_of_all", expected, SEED, LIMITS, True)


def test_a_known_wrong_answer_is_told_by_its_name_and_fails_to_no_harm_of_the_next(told):
    assert [words for words in told if told[words] == told["own"]] == ["own", OWN_MEAN]
    assert "NoneType" not in str(told["own"]) and told["own"] != told["fails"]
    (nameless,) = ast.parse("def always_one_more(rank, world_size): return rank").body
    assert whole_class.words_of(nameless) == 'the answer "always one more"'  # it has no docstring


def test_the_same_mistake_is_recognised_in_other_functions_and_lines(told):
    assert [what for what in THE_SAME if told[f"{what} 0"] != told[f"{what} 1"]] == []
    assert len({str(told[f"{what} 0"]) for what in THE_SAME}) == len(THE_SAME)


# Honest answers

SHARE = (
    "def mean_of_all(rank, world_size, x):\n"
    "    if world_size == 1:\n        return x.mean().item()\n"
)
USES_OF_A_VERDICT = """\
verdict.run
verdict.run.play()
print(verdict)
assert verdict.status == "right" and f"{verdict.points:.1f}" == "2.0"
LENGTH = len(str(verdict))
"""
BELOW = (
    SHARE + "    both = pair(x)\n    dist.all_reduce(both)\n    return (both[0] / both[1]).item()",
    "%matplotlib inline\ndef pair(x):\n    return torch.tensor([float(np.sum(x.numpy())), len(x)])",
)


def below(made, identity, source):
    """Put a cell of the student's own below the one with this id."""
    made["cells"].insert(made["cells"].index(cell_of(made, identity)) + 1, extra(source))


def test_cells_below_an_answer_count_in_grading_as_they_do_in_a_check(graded, tmp_path):
    made = notebook(
        COLLECTIVES,
        {
            "mean_of_all": BELOW[0],
            "own_broadcast": "own_broadcast = len",
            "ring_all_gather": True,
        },
    )
    below(made, "mean_of_all-answer", BELOW[1])
    below(made, "mean_of_all-check", USES_OF_A_VERDICT)
    solution = COLLECTIVES.questions["own_broadcast"].solution
    below(made, "own_broadcast-answer", f"LENGTH\n{solution}")
    setup = next(c for c in made["cells"] if c["metadata"].get("course", {}).get("role") == "setup")
    setup["source"] = "import numpy as np\n" + "".join(setup["source"])
    hand_in(tmp_path, "04_collectives.ipynb", data=content(made))
    hand_in(tmp_path, ".pristine/04_collectives.ipynb", data=content(notebook(COLLECTIVES)))
    said, _ = self_check.check_notebook(tmp_path / "04_collectives.ipynb")
    assert [one.status for one in said] == ["right"] * 3
    found = graded(made)
    reasons = {one.reason for name, one in found.items() if name}
    assert reasons == {"Right, in public and in hidden tests."}
    assert points(found) == [2, 3, 3]


def test_a_mixed_notebook_loses_what_is_wrong_and_a_failing_own_cell_is_told(graded, told):
    made = notebook(
        COLLECTIVES,
        {
            "mean_of_all": "def mean_of_all(rank, world_size, x):\n"
            "    total = x.sum().reshape(1)\n    dist.all_reduce(total)\n"
            "    return (total / world_size).item()",
            "own_broadcast": "import os\nos._exit(3)",
            "ring_all_gather": "def ring_all_gather(rank, world_size, x, lengths):\n"
            "    return pair(x)",
        },
    )
    made["cells"].insert(1, extra("import os, signal\nprint('\\x1b[31mhello')"))
    below(made, "ring_all_gather-answer", BELOW[1].replace("%matplotlib inline", "import no_such"))
    found = graded(made)
    assert points(found) == [0, 0, 0]
    assert found["mean_of_all"].status == "wrong"
    assert "divided by the number of ranks" in found["mean_of_all"].reason
    name = whole_class.name_of(found["mean_of_all"].outputs, told)
    assert name == "the sum of all numbers, divided by the number of ranks"
    assert found["own_broadcast"].status == "broke the limits"
    assert "ended the process" in found["own_broadcast"].reason
    fails = "the cell that begins with 'import no_such' fails: ModuleNotFoundError: No module named"
    assert any(note.startswith(fails) for note in found[None].notes)
    assert f"In your notebook, {fails}" in found["ring_all_gather"].reason
    for name in ("mean_of_all", "own_broadcast"):
        assert "In your notebook," not in found[name].reason
    assert found[None].cut_short  # os._exit, too: nobody knows who ended it
