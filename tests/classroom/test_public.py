"""The process in which `simlib check` runs a notebook: its time, its end, what lies beside it."""

import os
import signal
import sys
import time
import types

import psutil
import pytest
from notebooks_made import cell_of, content, exercise, hand_in, notebook

from simlib.classroom.grading import self_check
from simlib.classroom.grading import self_check as inside
from simlib.classroom.grading.sandbox import Limits
from simlib.cli import main

COLLECTIVES = exercise("04")


def step(source, kind="helper", question=None):
    return {"kind": kind, "question": question, "source": source}


def told_of(folder, *sources, limit_s=60):
    """What is told about these cells."""
    return list(self_check.run_steps([step(source) for source in sources], folder, limit_s))


def beside(folder, *sources):
    """What is said to lie beside a notebook of these cells."""
    return told_of(folder, *sources)[-1]["beside"]


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_the_end_of(pid):
    until = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(pid)


# Its end

FORK = """\
import multiprocessing, os, time
other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(50,))
other.start()
open("pid", "w").write(str(other.pid))
"""
LEAVE = """\
import os, time
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(50)
open("pid", "w").write(str(pid))
"""


@pytest.mark.parametrize("last, told", [("", "beside"), ("os._exit(0)", "begins")])
def test_what_a_cell_starts_ends_with_check(tmp_path, monkeypatch, last, told):
    monkeypatch.setattr(self_check, "END_S", 1)
    begun = time.monotonic()
    assert told in told_of(tmp_path, FORK, last)[-1]
    assert time.monotonic() - begun < 40
    wait_for_the_end_of(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("start", [FORK, LEAVE])
def test_check_ends_when_its_time_is_over_whoever_holds_the_pipe(tmp_path, monkeypatch, start):
    endless = "print('{}', flush=True)\nwhile True: pass"
    monkeypatch.setattr(self_check, "COMMAND", [sys.executable, "-c", f"{start}\n{endless}"])
    begun = time.monotonic()
    assert told_of(tmp_path, limit_s=5) == [{}]
    assert time.monotonic() - begun < 40
    pid = int((tmp_path / "pid").read_text())
    if start == LEAVE:
        os.kill(pid, signal.SIGKILL)
    wait_for_the_end_of(pid)


def test_what_is_told_before_the_time_is_over_is_not_lost(tmp_path, monkeypatch):
    lines = r"""print('{"begins": "1"}\n{"begins": "2"}', flush=True)"""
    endless = "\nwhile True: pass"
    monkeypatch.setattr(self_check, "COMMAND", [sys.executable, "-c", lines + endless])
    told = self_check.run_steps([], tmp_path, 4)
    assert next(told) == {"begins": "1"}
    time.sleep(5)
    assert list(told) == [{"begins": "2"}]


def test_check_leaves_no_folders_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told_of(tmp_path, "import multiprocessing.util\nmultiprocessing.util.get_temp_dir()")
    assert not list(tmp_path.glob("pymp-*"))


def test_a_check_has_as_long_as_in_grading(tmp_path, monkeypatch):
    report_limits = (
        "import simlib.classroom.grading.self_check as public\n"
        "public.run_for_a_time = lambda shell, source, limit_s: {'error': f'{limit_s} s'}\n"
        "public.main()\n"
    )
    monkeypatch.setattr(self_check, "COMMAND", [sys.executable, "-c", report_limits])
    told = self_check.run_steps([step("", "check", "f"), step("")], tmp_path, 60)
    check, cell = (one["text"] for one in told if "text" in one)
    assert check.endswith(f": {Limits().cell_s} s") and cell == f"{Limits().answer_s} s"


# Its beginning


@pytest.mark.parametrize("own_cell", ["", "# " + "x" * 200_000])
def test_check_says_why_python_did_not_start(tmp_path, capsys, own_cell):
    made = notebook(COLLECTIVES, {"mean_of_all": True})
    cell_of(made, "mean_of_all-answer")["source"] += f"\n{own_cell}"
    hand_in(tmp_path, ".pristine/04_collectives.ipynb", data=content(notebook(COLLECTIVES)))
    hand_in(tmp_path, "exercises/04_collectives.ipynb", data=content(made))
    hand_in(tmp_path, "exercises/queue.py", data=b"raise RuntimeError('no queue')")
    assert main(["check", str(tmp_path / "exercises/04_collectives.ipynb")]) == 1
    said = capsys.readouterr().out
    assert "mean_of_all: not reached: Python did not start: RuntimeError: no queue\n" in said


def test_python_that_does_not_start_in_time_is_ended(tmp_path):
    (tmp_path / "queue.py").write_text("while True: pass")
    sources = ["# " + "x" * 200_000]
    assert told_of(tmp_path, *sources, limit_s=3) == [{"not started": "it gave no reason"}]


# What lies beside it


def test_modules_and_packages_beside_a_notebook_are_told(tmp_path):
    hand_in(tmp_path, "mine.py", "packed/__init__.py", "packed/deep.py", "bare/one.py", data=b"")
    hand_in(tmp_path, "unused.py", ".venv/lib/installed.py", "below/there.py", data=b"")
    cells = [
        "import mine, packed.deep, bare.one",
        "import sys\nsys.path += ['.venv/lib', 'below']\nimport installed, there",
        "import os\nos.chdir('below')",
    ]
    assert beside(tmp_path, *cells) == ["bare/", "mine.py", "packed/"]


def test_modules_that_the_notebook_writes_are_not_told(tmp_path):
    cells = ["open('mine.py', 'w').write('x = 1')", "%%writefile ./other.py\nx = 1"]
    for _ in range(2):  # the first time leaves the files
        assert beside(tmp_path, *cells, "import mine, other") == []
        assert {one.name for one in tmp_path.glob("*.py")} == {"mine.py", "other.py"}


def test_a_module_of_another_kind_does_no_harm(tmp_path, monkeypatch):
    odd = types.ModuleType("odd")
    odd.__file__ = 7
    monkeypatch.setitem(sys.modules, "odd", odd)
    assert inside.modules_beside(str(tmp_path), set(), time.time()) == []
