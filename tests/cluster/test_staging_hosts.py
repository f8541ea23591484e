"""Jobs on hosts that share no folder: `Mpiexec(stage=True)`, on a practice cluster.

Every node has an empty folder of its own where the login host has those of jobs.
"""

import os
import re
import sys
import time

import pytest
import torch
import torch.distributed as dist
from breaking import hide, on
from jobs import ROOT, WAIT_S, failure, wait_until
from test_ssh_hosts import MPIEXEC, said

import simlib
from simlib.cluster.practice import PracticeCluster
from simlib.cluster.practice.enter import MARK

NODES = ["node1", "node2"]
OP_S = 0.6


class Shared:
    """Nothing is, but the path: `job` starts one from the login host."""

    def __init__(self, cluster, folder, here):
        self.cluster = cluster
        self.folder = folder
        self.here = here
        self.ssh = [*cluster.launcher("login"), "env", "-u", MARK, "ssh"]

    def submit(self, function, world_size=2, hosts=NODES, **options):
        mpiexec = simlib.Mpiexec(hosts=hosts, time_limit=WAIT_S, stage=True, launcher=[MPIEXEC])
        python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
        to = simlib.Ssh("login", mpiexec, python=python, folder=str(self.folder), ssh=self.ssh)
        return simlib.submit(function, world_size, to=to, folder=self.here, **options)

    def left_on(self, host):
        done = self.cluster.run(host, ["ls", self.folder], capture_output=True, text=True)
        return done.stdout.split()


@pytest.fixture(scope="module")
def hosts(needs_practice_cluster, tmp_path_factory):
    needs_practice_cluster(slurm=True)
    folder, here = tmp_path_factory.mktemp("jobs"), tmp_path_factory.mktemp("here")
    with PracticeCluster(2, slurm=True) as cluster:
        for node in NODES:
            hide(cluster, node, folder, here)
        yield Shared(cluster, folder, here)


def test_what_hosts_that_share_nothing_bring_back(hosts, capfd):
    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        time.sleep(OP_S * rank)  # rank 0's op is seen under way
        dist.all_reduce(x)
        print("rank", rank, "is on", os.uname().nodename)
        return x.item(), os.uname().nodename, torch.full((3_000_000,), float(rank))

    job = hosts.submit(main)
    job.follow()
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"[{rank}] rank {rank} is on {node}" for rank, node in enumerate(NODES)
    ]
    run = job.result(WAIT_S)
    assert [result[:2] for result in run.results] == [(3, node) for node in NODES]
    assert all(result[2].eq(rank).all() for rank, result in enumerate(run.results))
    ops = [op for rank in (0, 1) for op in run.trace.of_rank(rank)]
    assert [(op.kind, op.done) for op in ops] == [("all_reduce", True)] * 2
    assert ops[0].end_s - ops[0].post_s > OP_S / 2
    assert [hosts.left_on(node) for node in NODES] == [[], []]


def test_the_judge_sees_the_logs_of_other_hosts(hosts):
    def main(rank, world_size):
        dist.barrier()
        dist.recv(torch.zeros(1), src=1 - rank)

    error = failure(hosts.submit(main))
    assert isinstance(error, simlib.DeadlockError)
    assert "ranks 0 and 1 wait for each other" in str(error)


def test_ranks_here_and_there_and_one_that_dies(hosts):
    """The host that submits takes part; others outlive a death on another host."""

    def main(rank, world_size):
        dist.barrier()
        if rank == 1:
            os._exit(3)
        return os.uname().nodename

    run = hosts.submit(main, 3, ["login", *NODES], on_death="continue").result(WAIT_S)
    assert run.results == ["login", None, "node2"]
    assert list(run.deaths) == [1]


def test_a_job_is_cancelled(hosts):
    def main(rank, world_size):
        print("here", flush=True)
        time.sleep(WAIT_S)

    job = hosts.submit(main)
    wait_until(lambda: job.status == "active" and said(job, "here"))
    job.cancel()
    assert job.status == "cancelled"
    wait_until(lambda: [hosts.left_on(node) for node in NODES] == [[], []])


def test_slurm_on_nodes_that_share_nothing(hosts):
    """A second job waits for its turn, and is cancelled there."""

    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        dist.all_reduce(x)
        return x.item(), os.uname().nodename

    login = hosts.cluster.launcher("login")
    to = simlib.Slurm(2, stage=True, time_limit=WAIT_S, login=login, extra=["--exclusive"])
    first, second = (simlib.submit(main, 2, to=to, folder=hosts.folder) for _ in range(2))
    assert second.status == "queued"
    second.cancel()
    assert second.status == "cancelled"
    run = first.result(WAIT_S)
    assert run.results == [(3, node) for node in NODES]
    assert [op.kind for op in run.trace.of_rank(1)] == ["all_reduce"]
    assert [hosts.left_on(node) for node in NODES] == [[], []]
    with pytest.raises(simlib.JobError, match="the queue has refused the job: more was asked for"):
        to = simlib.Slurm(9, stage=True, login=login)
        simlib.submit(main, 2, to=to, folder=hosts.folder)
    with pytest.raises(simlib.InvalidCallError, match="copies the job by srun: launcher='srun'"):
        simlib.Slurm(2, stage=True, launcher="mpiexec")


def test_what_keeps_a_host_from_a_copy(hosts):
    with pytest.raises(simlib.InvalidCallError, match="name them by hosts="):
        simlib.Mpiexec(stage=True)
    job = hosts.submit(lambda rank, world_size: rank, hosts=["node1", "node99"])
    assert "could not be carried out: the host node99 is unknown" in str(failure(job))
    assert hosts.left_on("node1") == []
    on(hosts.cluster, "node2", f"mount -n -o remount,ro {hosts.folder}")
    try:
        job = hosts.submit(lambda rank, world_size: rank)
        words = r"node2 cannot have a copy of the job's folder: \[Errno 30\] Read-only file system"
        assert re.search(words, str(failure(job)))
        assert hosts.left_on("node1") == []
    finally:
        on(hosts.cluster, "node2", f"mount -n -o remount,rw {hosts.folder}")
