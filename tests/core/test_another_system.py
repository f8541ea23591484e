"""Runs and simulations where the system has nothing that only Linux has, as on macOS."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from simlib.core import environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys, time, torch, torch.distributed as dist
import simlib

def fine(rank, n):
    x = torch.ones(1) * rank
    dist.all_reduce(x)
    torch.manual_seed(rank)
    return x.item(), torch.rand(()).item()

def hangs(rank, n):
    if rank:
        dist.barrier()

def dies(rank, n):
    if rank:
        os.kill(os.getpid(), 9)
    dist.barrier()

def loops(rank, n):
    while rank == 0:
        pass
    dist.barrier()

def loops_for_ever(rank, n):
    print(rank, flush=True)
    while True:
        pass

def told(engine, main, **options):
    try:
        return engine(main, 3, **options).results
    except simlib.SimlibError as error:
        return str(error)

engine = getattr(simlib, sys.argv[1])
if "kill" in sys.argv:
    engine(loops_for_ever, 2)
drawn = [torch.Generator().manual_seed(rank) for rank in range(3)]
found = {
    "right": [[3.0, torch.rand((), generator=one).item()] for one in drawn],
    "fine": told(engine, fine),
    "hangs": told(engine, hangs),
    "dies": told(engine, dies),
    "loops": told(engine, loops, timeout_s=3),
}
print(json.dumps(found))
"""


@pytest.fixture
def temporary():
    """A folder for temporary files. The paths of sockets in it must be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def elsewhere(tmp_path, temporary):
    """``elsewhere(*words)``: start a program on another system; its temporary folder is empty."""
    paths = [str(ROOT / "tests" / "another_system"), str(ROOT)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(temporary)}
    started = []

    def start(*words, program=PROGRAM):
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, tmp_path / "program.py", *words]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("engine", ["run", "simulate"])
def test_results_hangs_and_deaths_are_told_without_anything_of_linux(engine, elsewhere, temporary):
    process = elsewhere(engine)
    found = json.loads(process.communicate()[0].splitlines()[-1])
    assert process.returncode == 0
    assert found["fine"] == found["right"]
    assert "ranks 1 and 2 wait for rank 0, which has finished" in found["hangs"]
    assert "rank 1 waits for rank 0: barrier (program.py, line 13)" in found["hangs"]
    assert "SIGKILL" in found["dies"]
    assert "rank 0 is computing" in found["loops"]
    assert ("while rank == 0" in found["loops"]) == (engine == "run")
    assert not list(temporary.glob("simlib-*"))


@pytest.mark.parametrize("engine", ["run", "simulate"])
def test_ranks_that_compute_end_with_their_kernel_without_linuxs_signal(engine, elsewhere):
    kernel = elsewhere(engine, "kill")
    while "0" not in kernel.stdout.readline():
        pass
    family = psutil.Process(kernel.pid).children(recursive=True)
    os.kill(kernel.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert family and not alive


PARTS = """
import json, os
from multiprocessing import connection
from simlib.classroom.confinement import process_sandbox
from simlib.classroom.grading import sandbox, session
from simlib.cluster.batch import job_rank, launcher_process, staging
from simlib.core.engines.processes import worlds
from simlib.core.engines.virtual import simulation_monitor
from simlib.core.formats import job_processes

def told(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return str(error)

started = []
process_sandbox.close_to_others()
process_sandbox.keep_one_server(lambda: started.append(True))
print(json.dumps({
    "a sandbox": told(sandbox.check_can_isolate, False),
    "a server": [started, connection.arbitrary_address("AF_UNIX")[0]],
    "a running job": told(job_processes.find_job),
    "this host": job_rank._this_host() == f"{os.uname().nodename} ",
    "a stage in use": staging.is_run("/"),
    "a process": launcher_process.stat_of(os.getpid()),
    "its sleep": worlds.sleep_count(os.getpid()),
    "its thread": simulation_monitor.thread_as_seen_here(os.getpid(), 7),
    "its memory": session.share_of(os.getpid()),
}))
"""


def test_parts_that_ask_linux_say_so_or_do_without(elsewhere):
    found = json.loads(elsewhere(program=PARTS).communicate()[0])
    assert "runs only on Linux" in (told := found.pop("a sandbox")) and "--no-sandbox" in told
    assert "which only Linux has" in found.pop("a running job")
    assert found == {
        "a server": [[True], "/"],
        "this host": True,
        "a stage in use": False,
        "a process": None,
        "its sleep": None,
        "its thread": 7,
        "its memory": 0,
    }


def test_gloo_uses_the_loopback_interface_of_the_system(monkeypatch):
    assert environment.loopback() == "lo"
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    assert environment.loopback() == "lo0"
