"""Starting JupyterLab for tests: what goes wrong is told, and nothing is left behind."""

import os

import lab_server
import pytest
from lab_server import running_lab

STUBBORN = """\
import os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("pid").write_text(str(os.getpid()))
print("http://127.0.0.1/lab?token=0", flush=True)
signal.pause()
"""


@pytest.fixture
def course(tmp_path):
    """``course(text)``: a folder in which that is the script that starts JupyterLab."""
    (tmp_path / "scripts").mkdir()

    def with_script(text):
        (tmp_path / "scripts" / "lab.py").write_text(text)
        return tmp_path

    return with_script


def test_a_server_that_ends_early_is_quoted(course):
    with pytest.raises(AssertionError, match="no port is free"):
        with running_lab(course("raise SystemExit('no port is free')")):
            pass


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(course, monkeypatch):
    monkeypatch.setattr(lab_server, "START_LIMIT_S", 0.5)
    with pytest.raises(AssertionError, match="gave no address"):
        with running_lab(course("import signal\nsignal.pause()")):
            pass


def test_a_server_that_does_not_end_is_killed(course, monkeypatch):
    monkeypatch.setattr(lab_server, "STOP_LIMIT_S", 0.5)
    monkeypatch.setattr(lab_server, "answering", lambda address: address)
    folder = course(STUBBORN)
    with running_lab(folder):
        pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
