"""`make test`: what fails fails it, but for what is listed and passes in a second run, alone."""

import os
import signal
import subprocess
import sys
import time

import nbformat
import progress
import pytest
import run_tests
from run_tests import SECOND_LOOK, STOPPED, TWO_AT_A_TIME, Part

PYTEST = ["-m", "pytest", "-q"]
WATCHED = ["-p", "progress"]
STEADY = "def test_steady():\n    pass\n"
BROKEN = "def test_broken():\n    assert False\n"
HANGING = "import time\n\ndef test_hanging():\n    time.sleep(1000)\n"
ONCE = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_suffix(".seen")
    first, _ = not seen.exists(), seen.touch()
    assert not first
"""
LISTED = '[[test]]\nname = "{}"\nwhy = "it is made so"\nseen = ["today"]\n'


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The environment of a run of the files in an empty folder; its list of second looks."""
    scripts = str(run_tests.ROOT / "scripts")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    found = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds each
    found.pop("PYTEST_XDIST_WORKER", None)
    return {**found, "PYTHONPATH": scripts}


@pytest.fixture
def verdict(tmp_path, environment):
    """``verdict(files, everything, listed)``: how a part goes that runs these files by pytest."""

    def of(files, everything=False, options=(), beside=(), listed=()):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        (tmp_path / SECOND_LOOK).write_text("\n".join(map(LISTED.format, listed)) or "test = []")
        part = Part("tests", [*PYTEST, *WATCHED, *options], beside, ["."])
        return run_tests.run_part(part, environment, everything)

    return of


def test_all_pass(verdict):
    found = verdict({"test_a.py": STEADY})
    assert (found.code, found.notes) == (0, [])
    assert "passed" in str(found) and "alone" not in str(found)


def test_what_fails_always_fails_the_run(verdict):
    files = {"test_a.py": STEADY, "test_b.py": BROKEN, "test_c.py": ONCE}
    found = verdict(files, listed=["test_b.py::test_broken", "test_c.py::test_once"])
    assert (found.code, found.notes) == (1, ["failed again: test_b.py::test_broken"])
    assert "FAILED" in str(found)


def test_what_fails_once_and_is_listed_is_named(verdict):
    files = {"test_a.py": STEADY, "test_c.py": ONCE}
    listed = ["test_c.py::test_once"]
    found = verdict(files, options=["-p", "xdist"], beside=TWO_AT_A_TIME, listed=listed)
    assert found.code == 0
    assert "failed at first, passed alone: test_c.py::test_once" in str(found)


def test_what_fails_once_and_is_not_listed_fails_the_run(verdict):
    found = verdict({"test_c.py": ONCE}, listed=["test_c.py::test_other"])
    assert found.code == 1
    assert f"list it with a reason in {SECOND_LOOK}: test_c.py::test_once" in str(found)


def test_of_a_listed_test_any_case_may_need_the_second_run(verdict):
    cases = "import pytest\n" + ONCE.replace(
        "def test_once():", "@pytest.mark.parametrize('x', ['a'])\ndef test_once(x):"
    )
    assert verdict({"test_c.py": cases}, listed=["test_c.py::test_once"]).code == 0


def test_with_all_there_is_no_second_run(verdict):
    assert verdict({"test_c.py": ONCE}, everything=True).code == 1


def test_many_failures_are_no_accident(verdict):
    files = {f"test_{number}.py": ONCE for number in range(run_tests.FEW + 1)}
    assert verdict(files, listed=[f"{name}::test_once" for name in files]).code == 1


def test_a_notebook_runs_again_from_its_first_cell(verdict):
    """Its second cell fails once, and needs the first."""
    once = ONCE.replace("__file__", "'here'").partition("def test_once():\n")[2]
    once = "\n".join(line.strip() for line in once.splitlines())
    cells = [nbformat.v4.new_code_cell(text) for text in ("from pathlib import Path", once)]
    notebook = nbformat.writes(nbformat.v4.new_notebook(cells=cells))
    found = verdict(
        {"once.ipynb": notebook},
        options=["-p", "nbval.plugin", "--nbval-lax", "--nbval-current-env"],
        listed=["once.ipynb"],
    )
    assert (found.code, found.notes) == (0, ["failed at first, passed alone: once.ipynb"])


def test_what_hangs_is_stopped_and_the_failures_before_are_named(verdict, monkeypatch):
    monkeypatch.setattr(run_tests, "STILL_S", 6)  # pytest has to start
    found = verdict({"test_a.py": BROKEN, "test_b.py": HANGING})
    assert found.code == STOPPED
    assert found.notes == [
        "failed before: test_a.py::test_broken",
        "still running: test_b.py::test_hanging",
    ]


def test_with_all_there_is_no_limit(verdict, monkeypatch):
    monkeypatch.setattr(run_tests, "STILL_S", 0)
    assert verdict({"test_a.py": STEADY}, everything=True).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_an_interrupt_names_the_failures_before(tmp_path, environment, number):
    (tmp_path / "test_a.py").write_text(BROKEN)
    (tmp_path / "test_b.py").write_text(
        HANGING.replace("    time", "    print(flush=True)\n    time")
    )
    program = (
        "import os, run_tests\n"
        "run_tests.end_as_by_ctrl_c()\n"
        f"run_tests.ROOT = run_tests.Path({str(tmp_path)!r})\n"
        f"part = run_tests.Part('tests', {[*PYTEST, '-s', *WATCHED]!r}, (), ['.'])\n"
        "print(run_tests.run_part(part, dict(os.environ), False))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("F"):  # the first has failed, and the second has printed an empty line
            break
    process.send_signal(number)
    rest = process.communicate(timeout=60)[0]
    assert "interrupted" in rest and "failed before: test_a.py::test_broken" in rest


def test_progress_is_read_line_by_line(tmp_path):
    file = tmp_path / "progress"
    assert progress.read(file) == (0.0, {}, [])
    lines = ["1.0 began a", "2.0 began b c", "3.0 failed a", "3.5 failed a", "4.0 began d"]
    file.write_text("\n".join(lines) + "\n5.0 passed b c\n")
    assert progress.read(file) == (5.0, {"d": 4.0}, ["a"])


def test_a_test_that_takes_too_long_is_seen_though_others_end():
    now = time.time()
    long_ago = now - run_tests.STILL_S - 60
    assert not run_tests.is_still(progress.Progress(now, {"a": now}, []), long_ago)
    assert run_tests.is_still(progress.Progress(now, {"a": long_ago}, []), long_ago)
    assert run_tests.is_still(progress.Progress(0.0, {}, []), long_ago)
    assert not run_tests.is_still(progress.Progress(0.0, {}, []), now)


def test_every_second_look_has_a_reason_and_was_needed_once():
    for name, entry in run_tests.second_look().items():
        assert entry.keys() == {"name", "why", "seen"} and entry["why"], name
        assert (run_tests.ROOT / name.partition("::")[0]).is_file(), name
        assert len(entry["seen"]) == 1, f"{name} needed it more than once: mend it"
