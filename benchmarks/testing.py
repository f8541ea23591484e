"""Tests of distributed code by three tools: how long, and what a deadlock looks like.

pytest-mpi is not among what the course installs. Get it into a folder of its own, and say where:
``pip install --no-deps --target=FOLDER pytest-mpi``, then ``PYTEST_MPI=FOLDER``; it is left out
otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from .table import heading, interleave, line, ratio, spread

FOLDER = Path(__file__).with_name("ten_tests")
LIMIT_S = 60
"""After which a suite that hangs is ended."""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(FOLDER)]
PLUGIN = [*PYTEST, "-p", "simlib.testing.plugin", "test_plugin.py"]
HUNDRED, DEADLOCK = {"REPEAT": "10"}, {"HANG": "1"}


def testing(rounds):
    """Print the table."""
    heading(f"Tests of 4 ranks, seconds of the whole suite; a hang is ended after {LIMIT_S} s")
    mpi = _pytest_mpi()
    ways = {
        "simlib.testing, 100 tests": lambda: _timed(PLUGIN, **HUNDRED),
        "simlib.testing, 10 tests": lambda: _timed(PLUGIN),
        "MultiProcessTestCase, 10 tests": lambda: _timed([sys.executable, "test_process_case.py"]),
    }
    if mpi is not None:
        ways["pytest-mpi, 10 tests"] = lambda: _timed(*mpi)
    else:
        line("pytest-mpi is left out: PYTEST_MPI names no folder", "")
    seconds = interleave(ways, rounds)
    ours = seconds["simlib.testing, 10 tests"]
    for name, taken in seconds.items():
        beside = "" if taken is ours else f"{ratio(taken, ours):.1f} times ours of 10"
        line(name, spread(taken, digits=1), beside)
    _hangs("simlib.testing", [*PLUGIN, "-k", "hang"])
    _hangs("simlib.testing, one of ten", PLUGIN)
    _hangs("MultiProcessTestCase, one of ten", [sys.executable, "test_process_case.py"])
    if mpi is not None:
        _hangs("pytest-mpi, one of ten", *mpi)


def _pytest_mpi():
    """The command of pytest-mpi and where it lies; None where it is not there."""
    folder = os.environ.get("PYTEST_MPI", "")
    if not (Path(folder) / "pytest_mpi").is_dir():
        return None
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec), "-n", "4", *PYTEST, "-p", "pytest_mpi", "--with-mpi"]
    return [*command, "test_mpi_plugin.py"], folder


def _timed(command, path="", **environ):
    """Seconds of a suite that has to pass."""
    seconds, code, text = _run(command, path, **environ)
    if code != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{text}")
    return seconds


def _hangs(name, command, path=""):
    """Print what is seen of a suite in which the ranks of one test wait for each other."""
    seconds, code, text = _run(command, path, **DEADLOCK)
    ended = f"ended by us after {seconds:.0f} s" if code is None else f"{seconds:.1f}"
    line(f"a deadlock in {name}", ended)
    told = [row for row in text.splitlines() if "wait" in row or "imeout" in row or "ecv" in row]
    for row in told[:6] or [f"(its last words: {text.strip()[-200:]!r})"]:
        print(f"    {row.strip()[:150]}", flush=True)


def _run(command, path, **environ):
    """Seconds, exit code (None: ended after `LIMIT_S`) and output of a command."""
    paths = [str(Path(__file__).parent.parent), path, os.environ.get("PYTHONPATH", "")]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environ}
    around["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryFile("w+") as output:
        begin_s = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=FOLDER, env=around, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            code = process.wait(LIMIT_S if "HANG" in environ else None)
        except subprocess.TimeoutExpired:
            code = None
            _end(process)
        seconds = time.perf_counter() - begin_s
        output.seek(0)
        return seconds, code, output.read()


def _end(process):
    """End a process and all that it has started."""
    everybody = [*psutil.Process(process.pid).children(recursive=True), process]
    for one in everybody:
        one.kill()
    process.wait()
