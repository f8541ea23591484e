"""Where an extra of simlib is not installed, one sentence names it, and all else works."""

import subprocess
import sys
from pathlib import Path

import pytest

from simlib import cli, digits
from simlib.core.environment import MissingExtra, need

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without(monkeypatch):
    """``without("sklearn")``: in this process it is not installed."""
    return lambda *names: [monkeypatch.setitem(sys.modules, name, None) for name in names]


def test_what_is_there_is_not_complained_of():
    need("course", "json", what="nobody")


def test_what_is_missing_is_named_with_the_extra_that_brings_it(without):
    without("sklearn")
    with pytest.raises(
        MissingExtra, match=r'sklearn. To install this, run pip install "rank-by-rank\[course\]"$'
    ):
        digits.load()


@pytest.mark.parametrize("words", [["grade", "class"], ["handout"]])
def test_the_classroom_of_a_teacher_says_what_it_needs(without, capsys, words):
    without("jupytext", "nbval")
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "jupytext, nbval" in said and said.endswith('pip install "rank-by-rank[grading]"\n')


def test_a_notebook_is_checked_without_the_extra_for_teachers():
    """A student has no nbval and no jupytext: `simlib check` imports neither."""
    lines = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['jupytext', 'nbformat', 'nbval', 'pytest', 'tqdm']))\n"
        "import simlib.classroom.grading.progress, simlib.core.engines.workers.preload\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_progress_without_new_answers_needs_neither_the_extra_nor_torch():
    lines = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['jupytext', 'nbformat', 'torch', 'numpy']))\n"
        "from simlib import cli\n"
        "sys.exit(cli.main(['progress']))\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "review                          0 of 10   0 of 10  not begun\n" in done.stdout
