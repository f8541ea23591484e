"""Nobody grades with more rights than needed: as root only in the sandbox, and never unawares."""

import os
import shutil

import pytest

from simlib.classroom.grading import sandbox
from simlib.cli import main


@pytest.fixture
def as_root(monkeypatch):
    """Pretend to be root, whoever runs the tests."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sandbox, "why_not", lambda: None)


def without(command, monkeypatch):
    """Pretend that a command is not installed."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == command else which(name))


def test_root_does_not_grade_without_a_sandbox(as_root):
    with pytest.raises(sandbox.CannotIsolate, match="as root.* in the sandbox only"):
        sandbox.check_can_isolate(no_sandbox=True)


def test_root_does_not_grade_where_its_rights_cannot_be_dropped(as_root, monkeypatch):
    without("setpriv", monkeypatch)
    with pytest.raises(sandbox.CannotIsolate, match="setpriv.*drops root's rights.*missing"):
        sandbox.check_can_isolate(no_sandbox=False)


def test_the_command_says_so_and_grades_nothing(as_root, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    assert main(["grade", str(tmp_path / "in"), "--out", str(out), "--no-sandbox"]) == 2
    assert "as root" in capsys.readouterr().err
    assert not out.exists()


def test_without_bubblewrap_nobody_grades_unless_asked_to(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for program in sandbox.PROGRAMS.values():
        without(program, monkeypatch)
    with pytest.raises(sandbox.CannotIsolate, match="(?s)not installed.*--no-sandbox"):
        sandbox.check_can_isolate(no_sandbox=False)
    sandbox.check_can_isolate(no_sandbox=True)
