"""A class of 30 by the command line: the table is right, is kept, and survives a kill."""

import os
import signal
import subprocess
import sys
import time

import pytest
from class_of_30 import table_in, write_class
from notebooks_made import ROOT, exercise

pytestmark = pytest.mark.slow
SEED = "5"


def command(folder):
    """The call of ``simlib grade`` on the class in a folder."""
    call = [sys.executable, "-m", "simlib", "grade", str(folder / "class"), "--seed", SEED]
    return [*call, "--out", str(folder / "report"), "--jobs", "2", "--time", "600"]


def results(folder):
    """How many results are kept."""
    return len([one for one in (folder / "report" / ".cache").glob("*") if len(one.name) == 64])


def test_a_class_is_graded_killed_and_graded_again(isolated, tmp_path):
    wanted = write_class(tmp_path / "class", [exercise("01"), exercise("04")])
    assert len(wanted) == 30
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command(tmp_path), cwd=ROOT, env=environ)
    while results(tmp_path) < 12 and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = results(tmp_path)
    assert kept < 30
    for _ in range(2):
        again = subprocess.run(command(tmp_path), cwd=ROOT, env=environ)
        assert again.returncode == 1  # some files cannot be read
        assert table_in(tmp_path / "report" / "report.json") == wanted
    complete = {one: one.stat().st_mtime_ns for one in (tmp_path / "report" / ".cache").glob("*")}
    subprocess.run(command(tmp_path), cwd=ROOT, env=environ)
    after = {one: one.stat().st_mtime_ns for one in complete}
    assert {one.name for one in complete if complete[one] != after[one]} <= {"seed", "lock"}
