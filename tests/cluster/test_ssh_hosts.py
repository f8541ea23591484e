"""Jobs from a laptop: `Ssh`, on a practice cluster whose files the laptop does not see.

The laptop is node3 together with this process: its folders are hidden from the cluster's hosts, and
theirs from it. `there` is what the hosts share, at a path that is empty here. For jobs with
``stage=True``, each node has an empty folder of its own where the login host has those of jobs.
"""

import json
import os
import re
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

CLUSTER = LOGIN, *NODES = ["login", "node1", "node2"]
LAPTOP = "node3"
OP_S = 0.6
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


class Laptop:
    """Submits from where nothing of the cluster is seen."""

    def __init__(self, cluster, here, there, disk, staged):
        self.cluster, self.here, self.there, self.disk = cluster, here, there, disk
        self.staged = staged
        # Without the mark by which the practice cluster ends all that a program leaves behind.
        self.ssh = [*cluster.launcher(LAPTOP), "env", "-u", MARK, "ssh"]
        self.python = ["env", f"PYTHONPATH={ROOT}", sys.executable]

    def to(self, to, host="login", **options):
        options = {"python": self.python, "folder": f"{self.there}/jobs", **options}
        return simlib.Ssh(host, to, ssh=self.ssh, **options)

    def mpiexec(self, **options):
        return self.to(simlib.Mpiexec(hosts=NODES, time_limit=WAIT_S), **options)

    def submit(self, function, to, ranks=2, **options):
        return simlib.submit(function, ranks, to=to, folder=self.here / "jobs", **options)

    def stage(self, function, hosts=NODES, **options):
        """Submit to hosts that share nothing but a path."""
        to = simlib.Mpiexec(hosts=hosts, time_limit=WAIT_S, stage=True, launcher=[MPIEXEC])
        return self.submit(
            function, self.to(to, folder=str(self.staged)), ranks=len(hosts), **options
        )

    def left_of_copies(self):
        """What the nodes still have of the folders of such jobs."""
        words = ["ls", self.staged]
        ran = [self.cluster.run(node, words, capture_output=True, text=True) for node in NODES]
        return [done.stdout.split() for done in ran]

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
    here, staged = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("staged")
    base = Path(tempfile.mkdtemp())  # where another account may enter
    base.chmod(0o755)
    there, disk = base / "there", base / "disk"
    there.mkdir()
    disk.mkdir()
    with PracticeCluster(3, slurm=True) as cluster:
        for host in CLUSTER:
            on(cluster, host, f"mount -n --bind {disk} {there}")
            hide(cluster, host, here, *([staged] if host in NODES else []))
        yield Laptop(cluster, here, there, disk, staged)
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
    assert run.results == [(3, host, f"{far}/work", "7", False) for host in NODES]
    assert job.status == "done"
    assert "node1, node2, by login" in repr(job)
    assert [clock["host"] for clock in job.clocks] == NODES
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
        with pytest.raises(TimeoutError, match="is still active after 0 s: login cannot"):
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
        (
            laptop.to(mpiexec, python="/no/python"),
            "login has no Python /no/python: name the Python",
        ),
        (
            laptop.to(mpiexec, python=["/usr/bin/env", "python3"]),
            "/usr/bin/env python3 on login cannot load this simlib .*with python=",
        ),
        (laptop.to(simlib.Slurm(nodes=9)), "the queue has refused the job: the job asks for more"),
    ):
        with pytest.raises(simlib.JobError, match=words):
            laptop.submit(lambda rank, world_size: rank, to)
        assert simlib.jobs(laptop.here / "jobs")[-1].status == "failed"
    monkeypatch.setattr(torch, "__version__", "1.99.0")
    with pytest.raises(
        simlib.JobError, match="with torch .*, but the notebook has 1.99.0: install"
    ):
        laptop.submit(lambda rank, world_size: rank, laptop.to(mpiexec))


def test_what_can_never_be_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, words in (
        ({"host": "-oProxyCommand=x"}, "'-oProxyCommand=x' is not a host name that ssh can use"),
        ({"host": "login", "to": "slurm"}, "to='slurm' must say how login runs the job"),
        ({"host": "login", "sync": "a.py"}, r"sync='a.py' must be a list: sync=\['a.py'\]"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.Ssh(**options)
    for path, words in (("a.py", "there is no 'a.py' here"), ("..", "is not in this working fold")):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.Ssh("login", sync=[path]).check(1)


# Hosts that share no folder


def test_what_hosts_that_share_nothing_bring_back(laptop, capfd):
    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        time.sleep(OP_S * rank)  # rank 0's op is seen under way
        dist.all_reduce(x)
        print("rank", rank, "is on", os.uname().nodename)
        return x.item(), os.uname().nodename, torch.full((3_000_000,), float(rank))

    job = laptop.stage(main)
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
    assert laptop.left_of_copies() == [[], []]


def test_the_judge_sees_the_logs_of_other_hosts(laptop):
    def main(rank, world_size):
        dist.barrier()
        dist.recv(torch.zeros(1), src=1 - rank)

    error = failure(laptop.stage(main))
    assert isinstance(error, simlib.DeadlockError)
    assert "ranks 0 and 1 wait for each other" in str(error)
    assert error.run.trace.of_rank(0) and error.sites


def test_ranks_here_and_there_and_one_that_dies(laptop):
    """The host that submits takes part; others outlive a death on another host."""

    def main(rank, world_size):
        dist.barrier()
        if rank == 1:
            os._exit(3)
        return os.uname().nodename

    run = laptop.stage(main, CLUSTER, on_death="continue").result(WAIT_S)
    assert run.results == ["login", None, "node2"]
    assert list(run.deaths) == [1]


def test_a_job_is_cancelled(laptop):
    def main(rank, world_size):
        print("here", flush=True)
        time.sleep(WAIT_S)

    job = laptop.stage(main)
    wait_until(lambda: job.status == "active" and said(job, "here"))
    job.cancel()
    assert job.status == "cancelled"
    wait_until(lambda: laptop.left_of_copies() == [[], []])


def test_slurm_on_nodes_that_share_nothing(laptop):
    """A second job waits for its turn, and is cancelled there."""

    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        dist.all_reduce(x)
        return x.item(), os.uname().nodename

    login = laptop.cluster.launcher("login")
    to = simlib.Slurm(2, stage=True, time_limit=WAIT_S, login=login, extra=["--exclusive"])
    first, second = (simlib.submit(main, 2, to=to, folder=laptop.staged) for _ in range(2))
    assert second.status == "queued"
    second.cancel()
    assert second.status == "cancelled"
    run = first.result(WAIT_S)
    assert run.results == [(3, node) for node in NODES]
    assert [op.kind for op in run.trace.of_rank(1)] == ["all_reduce"]
    assert laptop.left_of_copies() == [[], []]
    with pytest.raises(simlib.JobError, match="has refused the job: the job asks for more"):
        to = simlib.Slurm(9, stage=True, login=login)
        simlib.submit(main, 2, to=to, folder=laptop.staged)
    with pytest.raises(simlib.InvalidCallError, match="the job by srun: add launcher='srun'"):
        simlib.Slurm(2, stage=True, launcher="mpiexec")


def test_what_keeps_a_host_from_a_copy(laptop):
    with pytest.raises(simlib.InvalidCallError, match="name them with hosts="):
        simlib.Mpiexec(stage=True)
    job = laptop.stage(lambda rank, world_size: rank, ["node1", "node99"])
    assert "could not be carried out: the host node99 is unknown" in str(failure(job))
    assert laptop.left_of_copies()[0] == []
    on(laptop.cluster, "node2", f"mount -n -o remount,ro {laptop.staged}")
    try:
        job = laptop.stage(lambda rank, world_size: rank)
        words = r"simlib cannot copy the job's folder to node2: \[Errno 30\] Read-only file system"
        assert re.search(words, str(failure(job)))
        assert laptop.left_of_copies()[0] == []
    finally:
        on(laptop.cluster, "node2", f"mount -n -o remount,rw {laptop.staged}")
