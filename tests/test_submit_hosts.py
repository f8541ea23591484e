"""Jobs on several hosts, by mpiexec over ssh and by Slurm, on the practice cluster."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_submit import WAIT_S, failure, processes_of, sleeping, wait_until
from torch.nn.parallel import DistributedDataParallel

import simlib
from simlib.practice import PracticeCluster

pytestmark = pytest.mark.long  # hosts of their own, with ssh and Slurm

HOSTS = ["node1", "node2"]


@pytest.fixture(scope="module")
def login(needs_practice_cluster):
    """The words that run a program on the login host of a practice cluster with Slurm."""
    needs_practice_cluster(slurm=True)
    with PracticeCluster(2, slurm=True) as cluster:
        yield cluster.launcher("login")


@pytest.fixture
def submit(login, tmp_path):
    """Submits a function to both nodes."""
    mpiexec = [*login, Path(sys.executable).with_name("mpiexec")]

    def submit(function, hosts=HOSTS):
        to = simlib.Mpiexec(hosts=hosts, launcher=mpiexec, time_limit=WAIT_S)
        return simlib.submit(function, 2, to=to, folder=tmp_path)

    return submit


def test_training_on_two_hosts_gives_the_weights_of_run(submit):
    steps = 3

    def train(rank, world_size):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(8, 4)[rank::world_size]
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).pow(2).mean().backward()
            optimizer.step()
        print(os.uname().nodename, os.environ["LOCAL_RANK"])
        return [p.detach() for p in model.parameters()]

    job = submit(train)
    run = job.result(WAIT_S)
    assert run.output == ["node1 0\n", "node2 0\n"]
    for here, there in zip(simlib.run(train, 2).results, run.results, strict=True):
        assert all(torch.equal(*pair) for pair in zip(here, there, strict=True))
    # The nodes have one clock, in truth.
    first, second = job.clocks
    assert (first["host"], first["error_s"]) == ("node1", 0)
    assert 0 < second["error_s"] < 0.1
    assert abs(second["offset_s"]) <= second["error_s"] == run.trace.clock_error_s


def test_ddp_that_waits_for_ever(submit):
    def train(rank, world_size):
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        for _ in range(2 - rank):
            model(torch.ones(1, 4)).sum().backward()

    job = submit(train)
    error = failure(job)
    assert isinstance(error, simlib.DeadlockError)
    assert "rank 0 waits for rank 1, which has finished" in str(error)
    wait_until(lambda: not processes_of(job))


def test_a_host_that_is_none(submit):
    error = failure(submit(sleeping, ["node1", "node3"]))
    assert isinstance(error, simlib.JobError)
    assert "the host node3 is unknown" in str(error)


def test_slurm(login, tmp_path):
    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        dist.all_reduce(x)
        return x.item(), os.uname().nodename

    to = simlib.Slurm(nodes=2, time_limit=WAIT_S, login=login)
    job = simlib.submit(main, 2, to=to, folder=tmp_path)
    again = simlib.Job(job.path)
    assert again.result(WAIT_S).results == [(3, "node1"), (3, "node2")]
    assert job.status == again.status == "done"


def test_slurm_cancelled_in_the_queue_and_running(login, tmp_path):
    to = simlib.Slurm(nodes=2, time_limit=WAIT_S, extra=("--exclusive",), login=login)
    first = simlib.submit(sleeping, 2, to=to, folder=tmp_path)
    wait_until(lambda: first.status == "active")
    second = simlib.submit(sleeping, 2, to=to, folder=tmp_path)
    assert second.status == "queued"
    for job in (second, first):
        job.cancel()
        assert job.status == "cancelled"
        assert f"{job.name} was cancelled" in str(failure(job))
    wait_until(lambda: not processes_of(first))
    assert [job.name for job in simlib.jobs(tmp_path)] == ["sleeping-1", "sleeping-2"]


def test_what_slurm_refuses(login, tmp_path):
    for options, words in (
        ({"nodes": 9}, "the queue has refused the job: more was asked for than there is"),
        ({"nodes": 2, "partition": "gpu"}, "there is no such partition"),
    ):
        to = simlib.Slurm(login=login, **options)
        with pytest.raises(simlib.JobError, match=words):
            simlib.submit(sleeping, 2, to=to, folder=tmp_path)
    assert {job.status for job in simlib.jobs(tmp_path)} == {"failed"}


def test_the_time_limit_of_a_job_of_slurm(login, tmp_path):
    to = simlib.Slurm(nodes=2, time_limit=1, login=login)
    began = time.monotonic()
    job = simlib.submit(sleeping, 2, to=to, folder=tmp_path)
    assert "the time limit of sleeping-1, 1 s, was over" in str(failure(job))
    assert time.monotonic() - began < WAIT_S
