"""`make test`: what fails fails it, but for what passes in a second run with nothing beside it."""

import os
import time

import nbformat
import pytest
import run_tests
from run_tests import TWO_AT_A_TIME, Part

PYTEST = ["-m", "pytest", "-q"]
STEADY = "def test_steady():\n    pass\n"
BROKEN = "def test_broken():\n    assert False\n"
ONCE = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_suffix(".seen")
    first, _ = not seen.exists(), seen.touch()
    assert not first
"""


@pytest.fixture
def verdict(tmp_path, monkeypatch):
    """``verdict(files, everything)``: how a part goes that runs these files by pytest."""
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds each

    def of(files, everything=False, options=(), beside=()):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        deadline = None if everything else time.monotonic() + run_tests.LIMIT_S
        part = Part("tests", [*PYTEST, *options], beside, ["."])
        return run_tests.run_part(part, environment, deadline)

    return of


def test_all_pass(verdict):
    found = verdict({"test_a.py": STEADY})
    assert (found.code, found.second_run) == (0, [])
    assert "passed" in str(found) and "alone" not in str(found)


def test_what_fails_always_fails_the_run(verdict):
    found = verdict({"test_a.py": STEADY, "test_b.py": BROKEN, "test_c.py": ONCE})
    assert (found.code, found.second_run) == (1, [])
    assert "FAILED" in str(found)


def test_what_fails_once_is_named(verdict):
    found = verdict(
        {"test_a.py": STEADY, "test_c.py": ONCE}, options=["-p", "xdist"], beside=TWO_AT_A_TIME
    )
    assert (found.code, found.second_run) == (0, ["test_c.py::test_once"])
    assert "failed at first, passed alone: test_c.py::test_once" in str(found)


def test_with_all_there_is_no_second_run(verdict):
    assert verdict({"test_c.py": ONCE}, everything=True).code == 1


def test_many_failures_are_no_accident(verdict):
    files = {f"test_{number}.py": ONCE for number in range(run_tests.FEW + 1)}
    assert verdict(files).code == 1


def test_a_notebook_runs_again_from_its_first_cell(verdict):
    """Its second cell fails once, and needs the first."""
    once = ONCE.replace("__file__", "'here'").partition("def test_once():\n")[2]
    once = "\n".join(line.strip() for line in once.splitlines())
    cells = [nbformat.v4.new_code_cell(text) for text in ("from pathlib import Path", once)]
    notebook = nbformat.writes(nbformat.v4.new_notebook(cells=cells))
    found = verdict(
        {"once.ipynb": notebook},
        options=["-p", "nbval.plugin", "--nbval-lax", "--nbval-current-env"],
    )
    assert (found.code, found.second_run) == (0, ["once.ipynb"])
