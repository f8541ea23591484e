"""Answers that end processes or never end: only their question pays, and only the limits."""

from dataclasses import replace

import breakers
import pytest
from ground import HONEST, LIMITS, Case, right
from quick import one_of
from sampled import SEED

SHORT = replace(LIMITS, answer_s=8)
SHORTEST = replace(SHORT, cell_s=60, notebook_s=120, memory_bytes=1500 << 20, processes=200)
PLANTED = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import simlib.checks
from simlib.checks.verdict import RIGHT, Verdict
simlib.checks.check = lambda question, *_, **__: Verdict(question, {"value": 1}, RIGHT, "", 1)
"""
WHERE_ERRORS_LOOK = f"""\
import os, signal, time
for name in ("stack_data", "astroid", "ctags"):
    open(f"/home/student/{{name}}.py", "w").write({PLANTED!r})
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{{pid}}/cmdline").read().split(chr(0))
    except OSError:
        continue
    if "ipykernel_launcher" in words and "bwrap" not in words[0]:
        os.kill(int(pid), signal.SIGINT)
time.sleep(3)
"""
SPEAKS = """\
import os, sys
sys.path[:] = [path for path in sys.path if path]
del sys.modules["multiprocessing"]
import multiprocessing
os.write(1, b"planted")
"""
IN_THE_SERVERS_PLACE = f"""\
import os, signal, time
os.mkdir("/home/student/multiprocessing")
open("/home/student/multiprocessing/__init__.py", "w").write({SPEAKS!r})
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(5)
"""
HELPER = "import os, signal\nos.kill(-1, signal.SIGKILL)"


def beside_innocents(cases):
    """Every case followed by an innocent answer."""
    together = {}
    for name, case in cases.items():
        together |= {name: case, f"the one after {name}": right(HONEST)}
    return together


ENDS = list(breakers.CELLS)


@pytest.mark.parametrize("names", one_of(2, {"some": ENDS[0::2], "others": ENDS[1::2]}, first=SEED))
def test_a_cell_that_ends_its_process_costs_its_question(names, grade_cases):
    result = grade_cases(beside_innocents({name: breakers.CELLS[name] for name in names}), SHORT)
    assert result.runs == 1


def test_ranks_that_end_cost_their_question(grade_cases):
    assert grade_cases(beside_innocents(breakers.RANKS), SHORT).runs == 1


ALONE = [name for name in breakers.KERNELS if name.startswith(("takes_memory", "forks"))]
REST = [name for name in breakers.KERNELS if name not in ALONE]


@pytest.mark.parametrize("name", one_of(2, {name: name for name in ALONE}, first=SEED))
def test_an_answer_that_takes_all_there_is_costs_its_question(name, grade_cases):
    result = grade_cases(
        {"before": right(HONEST), name: breakers.KERNELS[name], "after": right(HONEST)}, SHORTEST
    )
    assert result.runs <= 4  # all of them together have twice the time of a notebook


@pytest.mark.parametrize("names", one_of(2, {"some": REST[0::2], "others": REST[1::2]}, first=SEED))
def test_answers_that_would_end_the_examiner_cost_their_question(names, grade_cases):
    cases = {name: breakers.KERNELS[name] for name in names}
    result = grade_cases(beside_innocents(cases), replace(SHORTEST, notebook_s=400))
    assert result.runs <= 4


def test_what_examines_imports_nothing_that_a_student_wrote(grade_cases):
    nonsense = Case("def NAME(rank, world_size, x):\n    return x", "wrong", "No rank communicates")
    result = grade_cases({"nonsense": nonsense}, helpers=[WHERE_ERRORS_LOOK])
    assert result.runs == 1


def test_nobody_takes_the_place_of_the_server_of_ranks(grade_cases):
    result = grade_cases({"innocent": right(HONEST)}, SHORTEST, helpers=[IN_THE_SERVERS_PLACE])
    assert "planted" not in str(result)
    assert result.runs == 1


def test_a_cell_of_ones_own_reaches_no_process_but_its_own(grade_cases):
    result = grade_cases({"innocent": right(HONEST)}, SHORTEST, helpers=[HELPER])
    assert result.runs == 1
    assert "No such process" in str(result.notes)
