"""Jobs from a laptop: `Ssh`, on a practice cluster whose files the laptop does not see.

The laptop is node3 together with this process: its folders are hidden from the cluster's hosts, and
theirs from it. `there` is what the hosts share, at a path that is empty here.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from breaking import hide, on
from jobs import ROOT, WAIT_S, failure, wait_until

import simlib
from simlib.cluster.batch import remote_state, ssh
from simlib.cluster.practice import PracticeCluster
from simlib.cluster.practice.enter import MARK

CLUSTER = ["login", "node1", "node2"]
LAPTOP = "node3"
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


class Laptop:
    """Submits from where nothing of the cluster is seen."""

    def __init__(self, cluster, here, there, disk):
        self.cluster = cluster
        self.here = here
        self.there = there
        self.disk = disk
        # Without the mark by which the practice cluster ends all that a program leaves behind.
        self.ssh = [*cluster.launcher(LAPTOP), "env", "-u", MARK, "ssh"]
        self.python = ["env", f"PYTHONPATH={ROOT}", sys.executable]

    def to(self, to, host="login", **options):
        options = {"python": self.python, "folder": f"{self.there}/jobs", **options}
        return simlib.Ssh(host, to, ssh=self.ssh, **options)

    def mpiexec(self, **options):
        return self.to(simlib.Mpiexec(hosts=CLUSTER[1:], time_limit=WAIT_S), **options)

    def submit(self, function, to, **options):
        return simlib.submit(function, 2, to=to, folder=self.here / "jobs", **options)

    def far_folder(self, job):
        """The folder of a job on the cluster's disk, as this process sees it."""
        there = json.loads((job.path / "remote.json").read_text())["folder"]
        there = Path(there.replace("~", f"{self.there}/learner"))
        return self.disk / there.relative_to(self.there)

    def link(self, state):
        on(self.cluster, LAPTOP, f"ip link set eth0 {state}")


@pytest.fixture(scope="module")
def laptop(needs_practice_cluster, tmp_path_factory):
    needs_practice_cluster(slurm=True)
    here = tmp_path_factory.mktemp("here")
    base = Path(tempfile.mkdtemp())  # where another account may enter
    base.chmod(0o755)
    there, disk = base / "there", base / "disk"
    there.mkdir()
    disk.mkdir()
    with PracticeCluster(3, slurm=True) as cluster:
        for host in CLUSTER:
            on(cluster, host, f"mount -n --bind {disk} {there}")
            hide(cluster, host, here)
        yield Laptop(cluster, here, there, disk)
    ssh.line_to.cache_clear()
    shutil.rmtree(base)


def test_a_job_with_modules_of_the_working_folder(laptop, monkeypatch, capfd):
    project = laptop.here / "project"
    (project / "package").mkdir(parents=True)
    (project / "package" / "__init__.py").write_text("from .parts import summed\n")
    (project / "package" / "parts.py").write_text(
        "import torch, torch.distributed as dist\n\n\ndef summed(rank):\n"
        "    x = torch.tensor([rank + 1])\n    dist.all_reduce(x)\n    return x.item()\n"
    )
    (project / "data.txt").write_text("7")
    (project / ".git").mkdir()
    monkeypatch.chdir(project)

    def main(rank, world_size):
        from package import summed

        print("rank", rank, "works in", os.path.basename(os.getcwd()))
        has = Path("data.txt").read_text(), Path(".git").exists()
        return summed(rank), os.uname().nodename, os.getcwd(), *has

    job = laptop.submit(main, laptop.mpiexec(sync=["."]))
    job.follow()
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"[{rank}] rank {rank} works in work" for rank in (0, 1)
    ]
    run = job.result(WAIT_S)
    far = laptop.there / laptop.far_folder(job).relative_to(laptop.disk)
    assert run.results == [(3, host, f"{far}/work", "7", False) for host in CLUSTER[1:]]
    assert job.status == "done"
    assert "node1, node2, by login" in repr(job)
    assert [clock["host"] for clock in job.clocks] == CLUSTER[1:]
    assert [op.kind for op in run.trace.of_rank(1)] == ["all_reduce"]
    assert not os.listdir(laptop.there)  # it is another path for this process
    monkeypatch.delattr(ssh.Line, "ask")  # all of it is here
    (again,) = simlib.jobs(laptop.here / "jobs")
    assert again.result(0).results == run.results


def said(job, words):
    """Whether rank 1 has printed some words, as far as is known here."""
    path = job.path / "rank-1.out"
    return path.exists() and words in path.read_text()


def waiting_for(go):
    """A rank function that prints, and goes on when there is a file on its side."""

    def main(rank, world_size):
        print("rank", rank, "waits", flush=True)
        while not os.path.exists(go):
            time.sleep(0.05)
        x = torch.ones(1000)
        dist.all_reduce(x)
        print("rank", rank, "has gone on", flush=True)
        return x.sum().item()

    return main


def test_the_connection_breaks_and_comes_back(laptop, monkeypatch):
    """The job goes on meanwhile, also by Slurm; a new kernel finds it."""
    to = laptop.to(simlib.Slurm(nodes=2, time_limit=WAIT_S))
    job = laptop.submit(waiting_for(laptop.there / "go"), to, name="long")
    wait_until(lambda: job.status == "active" and said(job, "waits"))
    laptop.link("down")
    try:
        monkeypatch.setattr(ssh, "ANSWER_S", 1.0)
        monkeypatch.setattr(remote_state, "PATIENT_S", 1.0)
        wait_until(lambda: "login cannot be reached at the moment" in repr(job))
        assert repr(job).startswith("long-1: active, 2 ranks on 2 nodes of slurm, by login; login")
        with pytest.raises(TimeoutError, match="is active after 0 s, and goes on: login cannot"):
            job.result(0)
        with pytest.raises(simlib.JobError, match="long-1 is not cancelled: "):
            job.cancel()
        again = simlib.Job(job.path)
        assert again.status == "active"
        (laptop.disk / "go").touch()
        far = laptop.far_folder(job)
        wait_until(lambda: json.loads((far / "state.json").read_text())["state"] == "ended")
        assert not said(job, "has gone on")
    finally:
        laptop.link("up")
        monkeypatch.undo()
    run = again.result(WAIT_S)
    assert run.results == [2000.0, 2000.0]
    assert run.output == [f"rank {rank} waits\nrank {rank} has gone on\n" for rank in (0, 1)]
    assert job.status == again.status == "done"


def test_ssh_is_killed_and_the_job_is_cancelled(laptop):
    job = laptop.submit(waiting_for(laptop.there / "never"), laptop.mpiexec())
    wait_until(lambda: job.status == "active")
    os.kill(job._outcome._state._line._process.pid, signal.SIGKILL)
    wait_until(lambda: job.status == "active" and said(job, "waits"))
    job.cancel()
    assert job.status == "cancelled"
    assert f"{job.name} was cancelled" in str(failure(job))
    assert simlib.Job(job.path).status == "cancelled"


def test_a_job_that_begins_anew(laptop):
    def main(rank, world_size):
        if world_size == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        return world_size

    job = laptop.submit(main, laptop.mpiexec(), restarts=1, min_ranks=1)
    run = job.result(WAIT_S)
    assert run.results == [1]
    assert [list(attempt.deaths) for attempt in run.attempts] == [[1], []]


@pytest.mark.slow  # test_failures_hosts has a deadlock
def test_an_error_is_told_as_ever(laptop):
    def main(rank, world_size):
        dist.recv(torch.zeros(1), src=1 - rank)

    error = failure(laptop.submit(main, laptop.mpiexec()))
    assert isinstance(error, simlib.DeadlockError)
    assert "ranks 0 and 1 wait for each other" in str(error)
    assert error.run.trace.of_rank(0) and error.sites


def test_a_script_by_another_account(laptop, tmp_path):
    """Another name and another home; its number is root's, or it could not enter root's Python."""
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(os.environ['USER'], os.environ['RANK'], *sys.argv)\n")
    home = laptop.disk / "learner"
    home.mkdir()
    for path, words in (
        ("passwd", f"learner:x:0:0::{laptop.there}/learner:/bin/sh\n"),
        ("shadow", "learner:*:::::::\n"),
    ):
        on(laptop.cluster, "login", f"cat /etc/{path} - > {laptop.disk}/{path} <<EOF\n{words}EOF\n"
           f"mount -n --bind {laptop.disk}/{path} /etc/{path}")  # fmt: skip
    to = laptop.to(simlib.Mpiexec(time_limit=WAIT_S), "learner@login", folder="~/own jobs")
    job = laptop.submit(script, to, argv=["--steps", 3])
    run = job.result(WAIT_S)
    far = laptop.far_folder(job)
    assert far.parent == home / "own jobs"
    place = laptop.there / far.relative_to(laptop.disk) / "work" / "train.py"
    assert run.output == [f"learner {rank} {place} --steps 3\n" for rank in (0, 1)]


def test_what_is_wrong_is_told_before_anything_runs(laptop, monkeypatch):
    mpiexec = simlib.Mpiexec()
    for to, words in (
        (laptop.to(mpiexec, "node99"), "the host node99 is unknown: is its name spelled right?"),
        (laptop.to(mpiexec, python="/no/python"), "login has no Python /no/python: name the one"),
        (
            laptop.to(mpiexec, python=["/usr/bin/env", "python3"]),
            "login has no simlib like this one for /usr/bin/env python3 .*by python=",
        ),
        (laptop.to(simlib.Slurm(nodes=9)), "the queue has refused the job: more was asked for"),
    ):
        with pytest.raises(simlib.JobError, match=words):
            laptop.submit(lambda rank, world_size: rank, to)
        assert simlib.jobs(laptop.here / "jobs")[-1].status == "failed"
    monkeypatch.setattr(simlib.cluster.batch.submission.torch, "__version__", "1.99.0")
    with pytest.raises(simlib.JobError, match="login has torch .*, the notebook 1.99.0: install"):
        laptop.submit(lambda rank, world_size: rank, laptop.to(mpiexec))


def test_what_can_never_be_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, words in (
        ({"host": "-oProxyCommand=x"}, "'-oProxyCommand=x' is no host that ssh could reach"),
        ({"host": "login", "to": "slurm"}, "to='slurm' must say what login does with the job"),
        ({"host": "login", "sync": "a.py"}, r"sync='a.py' must be a list: sync=\['a.py'\]"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.Ssh(**options)
    for path, words in (("a.py", "there is no 'a.py' here"), ("..", "is not in this working fold")):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.Ssh("login", sync=[path]).check(1)
