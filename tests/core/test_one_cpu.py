"""A simulation is held to one CPU, which nobody notices but by its speed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

import simlib
from simlib.core.engines.virtual import one_cpu
from simlib.core.engines.virtual.one_cpu import OneCpu
from simlib.core.engines.virtual.process import simulators

CPUS = getattr(os, "sched_getaffinity", lambda pid: {0})(0)
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="there is one CPU, or no choice")

THREADS = """
import os, threading
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("begun", flush=True)
input()
"""


class Clocks:
    """What time it is, and how much of it the process has computed."""

    def __init__(self):
        self.now_s = self.computed_s = 0.0

    def go_on(self, seconds, share):
        self.now_s += seconds
        self.computed_s += seconds * share


@pytest.fixture
def process():
    """A process of four threads."""
    command = [sys.executable, "-c", THREADS]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.readline()
        yield process
        process.kill()


def cpus_of(process):
    """How many CPUs each thread of the process may run on."""
    threads = os.listdir(f"/proc/{process.pid}/task")
    return [len(os.sched_getaffinity(int(thread))) for thread in threads]


def held(process, clocks):
    return OneCpu(process.pid, lambda: process.pid, lambda: clocks.now_s, lambda: clocks.computed_s)


def test_all_threads_keep_the_cpu_that_is_theirs_alone_until_they_are_let_go(process):
    clocks = Clocks()
    hold = held(process, clocks)
    assert cpus_of(process) == [1] * 4
    for _ in range(20):
        clocks.go_on(0.1, 0.99)
        hold.look()
    assert cpus_of(process) == [1] * 4
    hold.let_go()
    assert cpus_of(process) == [len(CPUS)] * 4


def test_one_that_shares_its_cpu_is_let_go_and_held_again_later_and_later(process):
    clocks = Clocks()
    hold = held(process, clocks)
    is_held = []
    for _ in range(32):
        clocks.go_on(0.25, 0.5)
        hold.look()
        is_held.append(cpus_of(process) == [1] * 4)
    free, again = [False], [True]
    assert is_held == free * 4 + again + free * 8 + again + free * 16 + again + free


def test_a_process_that_has_ended_is_let_be(process):
    clocks = Clocks()
    hold = held(process, clocks)
    process.kill()
    process.wait()
    clocks.go_on(1, 0)
    hold.look()
    hold.let_go()
    assert held(process, clocks).let_go() is None


def cpus_seen(rank, world_size):
    """As seen by the rank, a command, a child; and where this thread may run."""
    with open(f"/proc/self/task/{threading.get_native_id()}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    command = subprocess.run(["nproc"], capture_output=True, text=True, check=True)
    pid = os.fork()
    if pid == 0:
        os._exit(len(os.sched_getaffinity(0)))
    child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return len(os.sched_getaffinity(0)), int(command.stdout), child, status["Cpus_allowed_list"]


def test_ranks_and_what_they_start_see_all_cpus_and_so_does_their_process_after_it(monkeypatch):
    monkeypatch.setattr(one_cpu, "ENOUGH", 0)  # it keeps its CPU, on a busy machine, too
    results = simlib.simulate(cpus_seen, 4).results
    everything = (len(CPUS),) * 3
    assert [found[:3] for found in results] == [everything] * 4
    assert all(found[3].strip().isdigit() for found in results), "no range: one CPU"
    assert [os.sched_getaffinity(p.process.pid) for p in simulators()._resting] == [CPUS, CPUS]


def test_several_threads_of_one_op_have_all_cpus():
    def main(rank, world_size):
        torch.set_num_threads(2)
        with open(f"/proc/self/task/{threading.get_native_id()}/status") as file:
            return next(line for line in file if line.startswith("Cpus_allowed_list"))

    (found,) = simlib.simulate(main, 1).results
    assert not found.split(":")[1].strip().isdigit()
