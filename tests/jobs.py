"""What tests of jobs share: submit, wait, see who still runs, and stand-ins for mpiexec."""

import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import simlib
from simlib.cluster.batch.submission import noting_refusal

WAIT_S = 120
ROOT = Path(__file__).resolve().parents[1]

LAUNCHER = """\
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("HYDRA build details")
    sys.exit()
size, program = int(words[1]), words[2:]
ranks = [
    subprocess.Popen(program, env={**os.environ, **environ(rank, size)}) for rank in range(size)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
"""An mpiexec that starts processes and tells them what `environ` says."""


def submitted(function, ranks, tmp_path, *args, to=None, **options):
    to = simlib.Mpiexec(time_limit=WAIT_S) if to is None else to
    return simlib.submit(function, ranks, args, to=to, folder=tmp_path / "jobs", **options)


def start(to, folder):
    """Hand a job over whose folder is there."""
    with noting_refusal(folder):
        to.start(folder)


def failure(job):
    with pytest.raises(simlib.SimlibError) as caught:
        job.result(WAIT_S)
    return caught.value


def wait_until(holds):
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.05)


def processes_of(job):
    """Whatever still runs for a job."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(job.path) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def keepers_of_rank_1(job):
    """Its parents: supervisor, start.py, and "proxy", hydra_pmi_proxy or slurmstepd."""
    log = str(job.path / "rank-1.log")
    found = [pid for pid in psutil.pids() if _maps(pid, log)]
    (rank,) = (one for one in map(psutil.Process, found) if one.ppid() in found)
    return {
        name: parent.pid
        for name, parent in zip(("supervisor", "start.py", "proxy"), rank.parents(), strict=False)
    }


def _maps(pid, path):
    try:
        return path in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def by_job(function, world_size, args=(), **options):
    """As `simlib.run`, but by a job; when it is over nothing runs any more."""
    with tempfile.TemporaryDirectory() as folder:
        to = simlib.Mpiexec(time_limit=WAIT_S)
        job = simlib.submit(function, world_size, args, to=to, folder=folder, **options)
        try:
            return job.result(WAIT_S)
        finally:
            wait_until(lambda: not processes_of(job))


def fake_launcher(tmp_path, environ):
    """A command that stands for mpiexec; ``environ`` is the source of ``environ(rank, size)``."""
    path = tmp_path / "launcher.py"
    path.write_text(f"environ = {environ}\n{LAUNCHER}")
    return [sys.executable, str(path)]
