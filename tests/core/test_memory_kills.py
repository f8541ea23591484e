"""Processes that Linux has killed for want of memory: from its counts, from its log, for real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import wait_until

from simlib.core.engines.processes import worlds
from simlib.core.engines.processes.worlds import BY_KERNEL, PERHAPS, kill_count, why_killed

KILLED = -signal.SIGKILL
GROUPS = Path("/sys/fs/cgroup")
VERSION_1 = "9:cpu,cpuacct:/\n4:memory:/jobs/7\n0::/\n"
VERSION_2 = "0::/jobs/7\n"
MOUNTED = {
    "version 1": (VERSION_1, "memory/jobs/7/memory.oom_control", "under_oom 0\noom_kill {}\n"),
    "version 1 in a container": (VERSION_1, "memory/memory.oom_control", "oom_kill {}\n"),
    "version 2": (VERSION_2, "jobs/7/memory.events", "oom 9\noom_kill {}\noom_group_kill 5\n"),
    "version 2 in a container": (VERSION_2, "memory.events", "oom_kill {}\n"),
}
HUNGRY = """
import os, sys
import simlib

def main(rank, world_size):
    if rank == 1:
        bytearray(400 << 20)

open(sys.argv[1], "w").write(str(os.getpid()))
simlib.run(main, 2)
"""


def write(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("what", MOUNTED)
def test_counts_of_groups(tmp_path, what):
    own, place, text = MOUNTED[what]
    write(tmp_path, "proc/self/cgroup", own)
    write(tmp_path, "proc/vmstat", "oom_kill 100\n")
    write(tmp_path, f"sys/fs/cgroup/{place}", text.format(3))
    assert kill_count(tmp_path) == 3
    assert why_killed(KILLED, 3, 1, tmp_path) == ""
    assert why_killed(KILLED, 2, 1, tmp_path) == BY_KERNEL
    assert why_killed(1, 2, 1, tmp_path) == why_killed(-signal.SIGSEGV, 2, 1, tmp_path) == ""


def test_the_machines_count_where_groups_have_none(tmp_path):
    write(tmp_path, "proc/self/cgroup", VERSION_2)
    write(tmp_path, "proc/vmstat", "pgfault 7\noom_kill 4\n")
    assert kill_count(tmp_path) == 4


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("[1.2] Out of memory: Killed process 4321 (python) total-vm:1kB", BY_KERNEL),
        ("[1.2] Memory cgroup out of memory: Killed process 4321 (python), UID 0", BY_KERNEL),
        ("[1.2] Out of memory: Killed process 43210 (python)", ""),
        (None, PERHAPS),
    ],
)
def test_the_kernels_log_where_nothing_is_counted(tmp_path, monkeypatch, log, words):
    assert kill_count(tmp_path) is None
    monkeypatch.setattr(worlds, "_kernel_log", lambda: log)
    assert why_killed(KILLED, None, 4321, tmp_path) == words


def test_a_log_that_may_not_be_read(tmp_path, monkeypatch):
    program = tmp_path / "dmesg"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert worlds._kernel_log() is None
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert worlds._kernel_log() is None


@pytest.fixture
def group():
    """A group of processes that may have 300 MB more than torch takes."""
    is_first = (GROUPS / "memory/tasks").exists()
    path = GROUPS / ("memory" if is_first else "") / f"simlib-test-{os.getpid()}"
    try:
        path.mkdir()
        limit = "memory.limit_in_bytes" if is_first else "memory.max"
        (path / limit).write_text(str(700 << 20))
    except OSError as error:
        if path.exists():
            path.rmdir()
        pytest.skip(f"no group of processes with a limit can be made here: {error}")
    yield path
    wait_until(lambda: not (path / "cgroup.procs").read_text())  # a killed process takes a moment
    path.rmdir()


def test_a_rank_that_wants_more_than_there_is(group, tmp_path):
    program = tmp_path / "hungry.py"
    program.write_text(HUNGRY)
    words = f"echo $$ > {group}/cgroup.procs && exec '{sys.executable}' hungry.py pid"
    done = subprocess.run(
        ["sh", "-c", words], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert "rank 1 was ended by signal 9 (SIGKILL), because the machine" in done.stderr
