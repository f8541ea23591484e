"""`simlib.testing`, the pytest plugin: what a suite of distributed code sees, from outside.

One suite with an outcome of each sort is run once; the tests look at its report. Those that need
another command line are small.
"""

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from simlib.core.model.errors import InvalidCallError
from simlib.testing import asked_by

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ("-p", "simlib.testing.plugin")

SUITE = """
import ctypes, dataclasses, os, socket
import pytest, torch, torch.distributed as dist
import test_helpers, under_trial
from test_helpers import check_small

@pytest.mark.ranks(1, 2, 4)
def test_sum(rank, world_size):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    assert x.item() == sum(range(world_size)) and world_size == dist.get_world_size()

class TestOfAClass:
    offset = 7

    @pytest.mark.ranks(2)
    def test_method(self, rank):
        assert self.offset == 7 and rank in (0, 1)

@dataclasses.dataclass
class Setting:
    lr: float

@pytest.fixture
def setting(world_size):
    return Setting(lr=0.1 * world_size)

@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.ranks(2)
def test_arguments(rank, world_size, tmp_path, k, setting):
    (tmp_path / str(rank)).write_text(str(k))
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2 and k in (3, 5) and setting == Setting(lr=0.2)

def double(number):
    return 2 * number

@pytest.mark.ranks(4)
def test_values(rank):
    print("I am rank", rank)
    if rank in (1, 2):
        assert double(rank) == rank, "twice"
    if rank == 3:
        assert [1, 2, rank] == [1, 2, 4]
    dist.barrier()

@pytest.mark.ranks(2)
def test_all_alike():
    assert double(2) == 5

class Somewhere:
    def __repr__(self):
        return f"<Somewhere at 0x{os.getpid():x}>"

@pytest.mark.ranks(2)
def test_alike_elsewhere():
    assert Somewhere() is None

@pytest.mark.ranks(2)
def test_deadlock(rank):
    x = torch.ones(1)
    dist.recv(x, src=1 - rank)

@pytest.mark.ranks(2)
def test_crash(rank):
    if rank == 1:
        ctypes.string_at(0)
    dist.barrier()

@pytest.mark.ranks(2)
def test_after_the_crash(rank, world_size):
    test_sum(rank, world_size)

@pytest.mark.ranks(2)
def test_skip():
    pytest.skip("no device")

@pytest.mark.ranks(2)
def test_xfail(rank):
    if rank == 1:
        pytest.xfail("not yet")

@pytest.mark.xfail(raises=under_trial.Deadlock, strict=True)
@pytest.mark.ranks(2)
def test_expected_deadlock(rank):
    test_deadlock(rank)

@pytest.mark.ranks(2)
def test_unfinished(rank):
    if rank == 0:
        dist.isend(torch.ones(1), 1)

@pytest.mark.ranks(2, strict=False)
def test_unfinished_and_let_be(rank):
    test_unfinished(rank)

@pytest.mark.ranks(2)
def test_monkeypatch(monkeypatch):
    pass

@pytest.fixture
def line():
    ends = socket.socketpair()
    yield ends[0]
    for end in ends:
        end.close()

@pytest.mark.ranks(2)
def test_socket(line):
    pass

@pytest.mark.ranks(2, frobs=1)
def test_unknown_option():
    pass

@pytest.mark.ranks(4, engine="simulate", seeds=[0, 2])
def test_order(rank):
    x = torch.zeros(1)
    if rank == 0:
        for _ in range(3):
            dist.recv(x)
        assert x.item() == 3
    else:
        dist.send(torch.tensor([float(rank)]), 0)

def pass_on(rank, world_size, count):
    sent = dist.isend(torch.ones(count), (rank + 1) % world_size)
    dist.recv(torch.empty(count), (rank - 1) % world_size)
    sent.wait()
    return Setting(lr=float(rank))

@pytest.mark.parametrize("engine", ["run", "simulate"])
def test_budget(ranks, engine):
    run = ranks(pass_on, 4, (100,), engine=engine)
    assert run.results[3] == Setting(lr=3.0)
    assert run.bytes_sent[0] <= 400
    assert run.bytes_sent[1] <= 399

def test_error_of_a_function(ranks):
    with pytest.raises(under_trial.Deadlock, match="wait for each other"):
        ranks(lambda rank, world_size: test_deadlock(rank), 2)

def test_value_of_a_function(ranks):
    def main(rank, world_size):
        assert double(rank) == 0
    ranks(main, 2)

@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.ranks(3)
def test_of_a_module_under_test(rank, turn):
    assert under_trial.count() == turn
    if rank == 0:
        print("pid", os.getpid())

@pytest.mark.ranks(2)
def test_of_a_helper(rank):
    assert test_helpers.LIMIT == 9
    check_small(8 + rank)
"""
HELPERS = """
LIMIT = 9

def check_small(number):
    assert number < LIMIT
"""
UNDER_TRIAL = """
from simlib.core.model.errors import DeadlockError as Deadlock

calls = []

def count():
    calls.append(1)
    return len(calls)
"""


class Case(NamedTuple):
    """How a test of the suite went."""

    outcome: str
    text: str
    printed: str


class Report(NamedTuple):
    """How the suite went."""

    cases: dict
    text: str


def pytest_in(folder, *words, **environ):
    """Run pytest with the plugin in a folder, quietly; its code and all it has said."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", *words]
    around = {name: value for name, value in os.environ.items() if name not in ("CI", "SEED")}
    around["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which take seconds
    around["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"cwd": folder, "env": {**around, **environ}, "stdin": subprocess.DEVNULL}
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, **given, **said, timeout=240)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The `Report` of the suite."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "test_helpers.py").write_text(HELPERS)
    (folder / "under_trial.py").write_text(UNDER_TRIAL)
    words = ("-rfEs", "--junitxml=report.xml", "-o", "junit_logging=system-out")
    _, text = pytest_in(folder, *words, "test_suite.py", COLUMNS="200")
    cases = {}
    for case in tree.parse(folder / "report.xml").iter("testcase"):
        verdict = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if verdict is not None:
            outcome, told = "failed", verdict.text
        elif skipped is not None:
            outcome, told = skipped.get("type"), skipped.get("message")
        else:
            outcome, told = "passed", ""
        cases[case.get("name")] = Case(outcome, told, case.findtext("system-out", ""))
    assert cases, text
    return Report(cases, text)


RIGHT = [
    *(f"test_sum[{ranks}ranks]" for ranks in (1, 2, 4)),
    *("test_method[2ranks]", "test_arguments[2ranks-3]", "test_arguments[2ranks-5]"),
    *("test_after_the_crash[2ranks]", "test_unfinished_and_let_be[2ranks]"),
    *("test_error_of_a_function", "test_order[4ranks-seed2]"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(report, name):
    assert report.cases[name][:2] == ("passed", ""), report.text


BUDGET = ["assert 400 <= 399", r"assert run.bytes_sent\[1\] <= 399"]  # and the one before it held
WRONG = {
    "test_values[4ranks]": [
        r"rank 1 raised AssertionError: twice \(test_suite.py, line ",
        "rank 2 raised AssertionError: twice",
        r"assert 4 == 2\n +\+ +where 4 = double\(2\)",
        r"assert \[1, 2, 3\] == \[1, 2, 4\]",
        "At index 2 diff: 3 != 4",
    ],
    "test_all_alike[2ranks]": [
        r"^ranks 0 and 1 raised AssertionError: assert 4 == 5 \(test_suite.py",
    ],
    "test_alike_elsewhere[2ranks]": [
        r"^ranks 0 and 1 raised AssertionError: assert <Somewhere at 0x\w+> is None",
    ],
    "test_deadlock[2ranks]": [
        "ranks 0 and 1 wait for each other",
        r"rank 0 waits for rank 1: recv\(src=1\) \(test_suite.py, ",
        r"rank 1 waits for rank 0: recv\(src=0\) \(test_suite.py, ",
    ],
    "test_crash[2ranks]": [
        "the process of rank 1 was ended by signal 11",
        r"ctypes.string_at\(0\)",
    ],
    "test_unfinished[2ranks]": ["test_suite.py, line"],
    # What cannot be sent is refused in a sentence.
    "test_monkeypatch[2ranks]": [
        r"^the fixture monkeypatch of .* cannot be sent to the ranks.*$",
    ],
    "test_socket[2ranks]": [r"^.*argument 'line', a socket, cannot be copied to a process.*$"],
    "test_unknown_option[2ranks]": [r"^.*simlib.run has no option 'frobs'.*$"],
    "test_order[4ranks-seed0]": [
        "another possible order of events: rank 0 raised AssertionError: assert 1.0 == 3",
        "simulate with seed=0 shows it",
    ],
    "test_budget[run]": BUDGET,
    "test_budget[simulate]": BUDGET,
    "test_value_of_a_function": [
        "rank 1 raised AssertionError: assert 2 == 0",
        r"ranks\(main, 2\)",
    ],
    "test_of_a_helper[2ranks]": [
        "rank 1 raised AssertionError",
        'File "test_helpers.py", line 5, in check_small',
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails_and_is_told(report, name):
    outcome, text, _ = report.cases[name]
    assert outcome == "failed"
    for words in WRONG[name]:
        assert re.search(words, text), text


def test_ranks_that_fail_alike_are_told_once_in_lines_of_the_test_alone(report):
    for case in report.cases.values():
        assert set(re.findall(r'File "([^"]*)"', case.text)) <= {"test_suite.py", "test_helpers.py"}
        assert "site-packages" not in case.text and "simlib/" not in case.text
    assert report.cases["test_all_alike[2ranks]"].text.count("assert double(2) == 5") == 1
    assert "rank 0" not in report.cases["test_values[4ranks]"].text
    one = "FAILED test_suite.py::test_all_alike[2ranks] - ranks 0 and 1 raised AssertionError: "
    assert one + "assert 4 == 5" in report.text


def test_skips_and_xfails_of_ranks_are_honoured(report):
    assert report.cases["test_skip[2ranks]"][:2] == ("pytest.skip", "no device (rank 0)")
    assert report.cases["test_xfail[2ranks]"][:2] == ("pytest.xfail", "not yet (rank 1)")
    assert report.cases["test_expected_deadlock[2ranks]"].outcome == "pytest.xfail"
    assert re.search(r"SKIPPED \[1\] test_suite.py:\d+: no device", report.text), report.text


def test_what_ranks_print_is_in_the_report_and_with_a_module_under_test_they_serve_again(report):
    printed = report.cases["test_values[4ranks]"].printed
    assert {f"[{rank}] I am rank {rank}" for rank in range(4)} <= set(printed.splitlines())
    one, two = (report.cases[f"test_of_a_module_under_test[3ranks-{turn}]"] for turn in (1, 2))
    assert (one.outcome, two.outcome) == ("passed", "passed"), two.text
    assert one.printed == two.printed and "[0] pid" in one.printed


SMALL = """
import os, pytest

@pytest.fixture(autouse=True)
def names_its_process(tmp_path):
    yield
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(4))
def test_small(rank, k):
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
    assert k != 2
"""


def pids_in(folder):
    return {int(line) for line in (folder / "pids").read_text().split()}


def test_each_worker_of_xdist_has_its_ranks_and_leaves_none(tmp_path):
    (tmp_path / "test_small.py").write_text(SMALL)
    code, text = pytest_in(tmp_path, "-p", "xdist.plugin", "-n", "2", "--dist", "load")
    assert code == 1 and "1 failed, 3 passed" in text, text
    assert "ranks 0 and 1 raised AssertionError: assert 2 != 2" in text
    pids = pids_in(tmp_path)
    assert len(pids) >= 6  # two workers, two ranks each
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_what_failed_last_runs_alone_and_x_stops(tmp_path):
    (tmp_path / "test_small.py").write_text(SMALL)
    words = ("-p", "cacheprovider", "-k", "2ranks and not 0", "-x")
    _, text = pytest_in(tmp_path, *words)
    assert "1 failed, 1 passed, 1 deselected" in text, text
    _, text = pytest_in(tmp_path, "-p", "cacheprovider", "--lf", "--collect-only", "-q")
    assert "test_small[2ranks-2]" in text and "test_small[2ranks-1]" not in text, text
    assert not [pid for pid in pids_in(tmp_path) if psutil.pid_exists(pid)]


QUICK = """
import sys, pytest

@pytest.mark.ranks(2)
def test_marked(rank):
    raise SystemExit("a rank was started")

def test_plain():
    assert "torch" not in sys.modules and "simlib.core.engines.processes" not in sys.modules
"""


def test_a_debugger_is_refused_before_any_test_runs_and_a_plain_test_imports_no_torch(tmp_path):
    (tmp_path / "test_quick.py").write_text(QUICK)
    code, text = pytest_in(tmp_path, "--pdb")
    assert code == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert "a debugger cannot stop in a rank" in line and '-m "not ranks"' in line
    for words in (("--pdb", "-m", "not ranks"), ("-k", "plain")):
        code, text = pytest_in(tmp_path, *words)
        assert code == 0 and "1 passed, 1 deselected" in text, text


def test_marks_that_cannot_be_right_are_refused_when_tests_are_collected(tmp_path):
    head = "import pytest, unittest\nfrom hypothesis import given, strategies\n"
    test = "def test_it(x=0):\n    pass\n"
    marked = "@pytest.mark.ranks(2)\n"
    for name, body in (
        ("numbers", f"@pytest.mark.ranks()\n{test}"),
        ("examples", f"{marked}@given(strategies.integers())\n{test}"),
        ("cases", f"{marked}class TestIt(unittest.TestCase):\n    def test_it(self): pass\n"),
    ):
        (tmp_path / f"test_{name}.py").write_text(head + body)
    code, text = pytest_in(tmp_path, "--collect-only", "test_numbers.py", "test_examples.py")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "test_it: mark.ranks needs numbers of ranks" in text, text
    assert "test_it: each rank would draw its own examples" in text, text
    _, text = pytest_in(tmp_path, "test_cases.py")
    assert "test_it is marked ranks, but is not a test function of pytest" in text, text


def mark(*args, **kwargs):
    return SimpleNamespace(args=args, kwargs=kwargs)


@pytest.mark.parametrize(
    "mark, words",
    [
        (mark(0), "a number of ranks in mark.ranks is 0"),
        (mark(2, engine="gpu"), "engine='gpu' is not known"),
        (mark(2, seeds=range(3)), 'seed= and seeds= need engine="simulate"'),
        (mark(2, seed=3), 'seed= and seeds= need engine="simulate"'),
        (mark(2, engine="simulate", seeds=3), "seeds=3 is one number: give several"),
    ],
)
def test_what_a_mark_cannot_ask_for(mark, words):
    with pytest.raises(InvalidCallError) as told:
        asked_by(mark)
    assert words in str(told.value)


def test_the_entry_point_is_no_second_plugin(tmp_path):
    """Where simlib is installed pytest finds the plugin by itself; -p names it once more."""
    info = tmp_path / "simlib_stand_in-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simlib-stand-in\nVersion: 1\n")
    points = re.search(
        r"\[project\.entry-points\.pytest11\]\n(.*)\n", (ROOT / "pyproject.toml").read_text()
    )
    name, _, module = points[1].partition(" = ")
    (info / "entry_points.txt").write_text(
        f"[pytest11]\n{ast.literal_eval(name)} = {ast.literal_eval(module)}\n"
    )
    (info / "RECORD").write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    (tmp_path / "test_quick.py").write_text(QUICK)
    words = ("--collect-only", "--strict-markers")
    by_itself = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "PYTHONPATH": path}
    code, text = pytest_in(tmp_path, *words, **by_itself)
    assert code == 0 and "2 tests collected" in text, text


def test_the_page_for_users_says_what_pytest_says(tmp_path):
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("using-simlib*.md")]
    (section,) = [page.partition("## Your tests\n")[2] for page in pages if "## Your tests" in page]
    program = re.search("```python\n# test_averages.py\n(.*?)```", section, re.DOTALL)
    told = re.search("```text\n(.*?)```", section[program.end() :], re.DOTALL)[1]
    (tmp_path / "test_averages.py").write_text("# test_averages.py\n" + program[1])
    code, text = pytest_in(tmp_path, COLUMNS="200")
    assert code == 1, text
    missing = [line for line in told.splitlines() if line not in text]
    assert not missing, text
    for failed in ("test_any_order[4ranks-seed", "test_wrong", "test_both_receive_first"):
        assert f"FAILED test_averages.py::{failed}" in text, text
    for passed in ("test_average[", "test_traffic"):
        assert f"FAILED test_averages.py::{passed}" not in text, text
