"""What a pytest run is at, line by line in the file that ``PROGRESS`` names.

``began``, ``passed`` or ``failed``, and a test's id: whoever watches sees that it goes on, and
knows what has failed where it is stopped. A plugin of pytest's, see ``conftest.py``; where the
tests are split over processes, the one that collects their reports writes.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

FILE = os.environ.get("PROGRESS")


def _write(word, nodeid):
    if FILE and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(FILE, "a", encoding="utf-8") as file:
            file.write(f"{time.time()} {word} {nodeid}\n")


def pytest_runtest_logstart(nodeid):
    """A test begins."""
    _write("began", nodeid)


def pytest_runtest_logreport(report):
    """A part of a test has ended: its set-up, itself, or what tidies up."""
    if report.failed:
        _write("failed", report.nodeid)
    elif report.when == "teardown":
        _write("passed", report.nodeid)


def pytest_collectreport(report):
    """A file cannot be collected."""
    if report.failed:
        _write("failed", report.nodeid)


class Progress(NamedTuple):
    """What such a file says."""

    last_s: float
    """When something was written last, on the wall clock; 0 where nothing was."""
    running: dict
    """Test -> when it began."""
    failed: list


def read(path):
    """The `Progress` in a file."""
    last_s, running, failed = 0.0, {}, []
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    for line in lines:
        moment, word, test = line.split(" ", 2)
        last_s = float(moment)
        if word == "began":
            running[test] = last_s
            continue
        running.pop(test, None)
        if word == "failed" and test not in failed:
            failed.append(test)
    return Progress(last_s, running, failed)
