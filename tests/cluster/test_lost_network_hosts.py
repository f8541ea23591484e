"""Hosts and processes that go while ranks run on them, on a practice cluster, each for real.

Each fault has a node of its own; the other rank is on node1. Afterwards nothing of the job runs on
any host that can be reached, and the sentence is the same for another kernel.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from breaking import on, processes_on, switch_off
from jobs import WAIT_S, wait_until

import simlib
from simlib.cluster.practice import PracticeCluster

LONG = pytest.mark.slow  # what another case here shows, too
MPIEXEC = Path(sys.executable).with_name("mpiexec")
TIMEOUT_S = 15
"""A busy machine may take seconds to import this module, on two ranks at once."""
NO_ANSWER = r"node\d+, where rank 1 runs, no longer answers: its network was lost, or it was switch"
GONE = r"rank 1 on node\d+ is gone: {}.*\(test_lost_network_hosts.py, line \d+, .*all_reduce"


def summing(rank, world_size):
    dist.all_reduce(torch.ones(1))
    print("at work")
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)


# What goes


def cut(cluster, host, job):
    on(cluster, host, "ip link set eth0 down")


def power_off(cluster, host, job):
    switch_off(cluster, host)


def launcher_of_rank(cluster, host, job):
    """hydra_pmi_proxy or slurmstepd: what has started rank 1 on its host."""
    os.kill(parents(job)[2], signal.SIGKILL)


def starter(cluster, host, job):
    """start.py: what the launcher has started."""
    os.kill(parents(job)[1], signal.SIGKILL)


def supervisor(cluster, host, job):
    os.kill(parents(job)[0], signal.SIGKILL)


def parents(job):
    """The parents of rank 1's process, as this machine counts processes; the nearest first."""
    log = str(job.path / "rank-1.log")
    found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if maps(pid, log)]
    rank = max(found, key=lambda pid: parent_of(pid) in found)  # its supervisor has it mapped, too
    first = parent_of(rank)
    second = parent_of(first)
    return first, second, parent_of(second)


def maps(pid, path):
    try:
        return path in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


FAULTS = {
    "network": (cut, simlib.JobError, NO_ANSWER),
    "power": (power_off, simlib.JobError, NO_ANSWER),
    "proxy": (launcher_of_rank, simlib.RankDiedError, GONE.format("the program of the launcher")),
    "start.py": (starter, simlib.RankDiedError, GONE.format("the process that looked after it")),
    "supervisor": (supervisor, simlib.RankDiedError, GONE.format("the process that .* signal 9")),
}
CASES = [
    ("network", "mpiexec"),
    ("network", "srun"),
    ("power", "mpiexec"),
    ("proxy", "srun"),
    ("start.py", "mpiexec"),
    ("proxy", "mpiexec"),
    ("power", "srun"),
    ("start.py", "srun"),
    ("supervisor", "mpiexec"),
    ("supervisor", "srun"),
]
USUAL = 4
"""So many of the cases `make test` has."""
HOST = {case: f"node{number}" for number, case in enumerate(CASES, 2)}
SILENT = f"node{len(CASES) + 2}"


@pytest.fixture(scope="module")
def cluster(needs_practice_cluster):
    needs_practice_cluster(slurm=True)
    with PracticeCluster(len(CASES) + 2, slurm=True) as cluster:
        yield cluster


@pytest.fixture
def submit(cluster, tmp_path):
    """Submits the function to two hosts; returns when both ranks are at work."""
    login = cluster.launcher("login")

    def submit(hosts, launcher):
        mpiexec = simlib.Mpiexec(hosts=hosts, launcher=[*login, MPIEXEC], time_limit=WAIT_S)
        where = (f"--nodelist={','.join(hosts)}",)
        slurm = simlib.Slurm(nodes=2, login=login, time_limit=WAIT_S, extra=where)
        to = mpiexec if launcher == "mpiexec" else slurm
        job = simlib.submit(summing, 2, to=to, folder=tmp_path, timeout_s=TIMEOUT_S)
        files = [job.path / name for name in ("rank-0.out", "rank-1.out", "reach.json")]
        are_there = lambda: all(path.exists() and path.stat().st_size for path in files)  # noqa: E731
        wait_until(lambda: are_there() or job.status not in ("queued", "active"))
        return job

    return submit


def failure(job, error):
    with pytest.raises(error) as caught:
        job.result(WAIT_S)
    return caught.value


def ranks_left(cluster, *but):
    """Processes of ranks and their launchers on the hosts that can be reached."""
    names = ("python", "python3", "mpiexec", "srun", "ssh", "hydra_pmi_proxy")
    found = processes_on(cluster).items()
    return {
        host: left
        for host, running in found
        if host not in but and (left := [name for name in running if name in names])
    }


@pytest.mark.parametrize(
    ("what", "launcher"),
    [pytest.param(*case, marks=LONG if at >= USUAL else ()) for at, case in enumerate(CASES)],
)
def test_what_goes_while_ranks_run_is_named(cluster, submit, what, launcher):
    fault, error, words = FAULTS[what]
    host = HOST[what, launcher]
    job = submit(["node1", host], launcher)
    fault(cluster, host, job)
    began_s = time.time()
    found = failure(job, error)
    seconds = job.path.joinpath("state.json").stat().st_mtime - began_s
    print(f"\n{what}, {launcher}: {seconds:.1f} s  {str(found).splitlines()[0]}")
    assert re.search(words, str(found)), str(found)
    assert found.run.trace.of_rank(0)
    assert "Connection" not in str(found) and "socket.cpp" not in str(found)
    wait_until(lambda: not ranks_left(cluster))
    assert str(failure(simlib.Job(job.path), error)) == str(found)
    assert max(path.stat().st_size for path in job.path.glob("rank-*.log")) < 1 << 20


@LONG
def test_the_host_of_rank_0_goes_without_a_word(cluster, submit):
    """Nobody is told by TCP, and the judge is gone: the launcher process misses him."""
    job = submit([SILENT, "node1"], "mpiexec")
    cut(cluster, SILENT, job)
    switch_off(cluster, SILENT)
    found = failure(job, simlib.JobError)
    assert f"{SILENT}, where rank 0 runs, no longer answers" in str(found)
    wait_until(lambda: not ranks_left(cluster))
