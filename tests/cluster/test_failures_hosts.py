"""Failures of real clusters, provoked for real on a practice cluster: each is one clear sentence.

One cluster has them all, each on a node of its own. `pytest -s` prints what was said, and after how
many seconds. After each failure nothing runs on any host that did not before, the job's folder can
be read by another kernel, and the next job works.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import mpi4py
import pytest
import torch
import torch.distributed as dist
from breaking import (
    close_sshd,
    hide,
    hide_program,
    install_other_python,
    on,
    processes_on,
    refuse_key,
    replace,
    switch_off,
)
from jobs import WAIT_S, wait_until
from test_submit import sleeping

import simlib
from simlib.cluster.practice import PracticeCluster

LONG = pytest.mark.slow  # what another case here shows, too
MPIEXEC = Path(sys.executable).with_name("mpiexec")
HEALTHY = ["node1", "node2"]
FAULTS = [
    "no sshd", "link down", "off", "no key", "unknown key", "no MPI", "other Python",
    "broken torch", "no mpi4py", "no MPI library", "dies in MPI", "no folder",
]  # fmt: skip
HOST = {fault: f"node{number}" for number, fault in enumerate(FAULTS, len(HEALTHY) + 1)}
FOR_LATE = [f"node{len(HEALTHY) + len(FAULTS) + 1}", f"node{len(HEALTHY) + len(FAULTS) + 2}"]
ALONE = """\
import os, sys
words = sys.argv[1:]
place = words.index(sys.executable) if sys.executable in words else len(words)
unset = [word for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE") for word in ("-u", name)]
program = ["env", *unset, *words[place:]] if words[place:] else []
os.execv({mpiexec!r}, [{mpiexec!r}, *words[:place], *program])
"""
"""An mpiexec whose ranks cannot speak to it, as those of another MPI."""


class Hosts:
    """The broken cluster, a folder for jobs, and what was said so far."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.login = cluster.launcher("login")
        self.folder = folder
        self.said = []
        self.idle = self.running()
        self.late = self.begin_late()

    def begin_late(self):
        """A job whose end by Slurm's own limit is near; Slurm looks every half a minute, so it goes
        on, on nodes of its own, while others are looked at.
        """
        extra = (f"--nodelist={','.join(FOR_LATE)}", "--time=1")
        job = self.submit(sleeping, self.slurm(extra=extra))
        wait_until(lambda: job.path.joinpath("rank-1.out").exists())
        self.ask_queue(job, "scontrol update JobId=ID EndTime=now+1")
        return job, time.time()

    def running(self, *but):
        return {
            host: names for host, names in processes_on(self.cluster).items() if host not in but
        }

    def mpiexec(self, *hosts, **options):
        launcher = options.pop("launcher", [MPIEXEC])
        options = {"time_limit": WAIT_S, **options}
        return simlib.Mpiexec(
            hosts=list(hosts or HEALTHY), launcher=[*self.login, *launcher], **options
        )

    def slurm(self, **options):
        where = (f"--nodelist={','.join(HEALTHY)}",)
        options = {"nodes": 2, "time_limit": WAIT_S, "extra": where, **options}
        return simlib.Slurm(login=self.login, **options)

    def submit(self, function, to):
        return simlib.submit(function, 2, to=to, folder=self.folder)

    def ask_queue(self, job, *words):
        """Run a command of Slurm's about a job, ``ID`` standing for it."""
        number = json.loads(job.path.joinpath("native.json").read_text())["id"]
        on(self.cluster, "login", " ".join(words).replace("ID", number))

    def failed(self, what, job, began_s, error, words):
        """A job has failed: look at the sentence, and at what is left."""
        with pytest.raises(error) as caught:
            job.result(WAIT_S)
        sentence = str(caught.value).splitlines()[0]
        self.note(what, sentence, job.path.joinpath("state.json").stat().st_mtime - began_s)
        assert re.search(words, sentence), str(caught.value)
        wait_until(self.is_idle)
        again = {job.name: job for job in simlib.jobs(self.folder)}[job.name]
        assert again.status == ("cancelled" if "cancel" in what else "failed")
        with pytest.raises(error) as caught:
            again.result(0)
        assert str(caught.value).splitlines()[0] == sentence
        if os.environ.get("TEST_ALL") == "1":
            self.works()
        return caught.value

    def note(self, what, sentence, seconds):
        self.said.append(f"{what:32} {seconds:5.1f} s  {sentence}")

    def is_idle(self):
        idle = {host: names for host, names in self.idle.items() if host not in FOR_LATE}
        return self.running(*FOR_LATE) == idle

    def works(self, to=None):
        """The next job."""
        run = self.submit(hello, to or self.mpiexec()).result(WAIT_S)
        assert run.results == [(3, "node1"), (3, "node2")]


@pytest.fixture(scope="module")
def hosts(needs_practice_cluster, tmp_path_factory):
    """Two healthy nodes, and each of the faults on one."""
    needs_practice_cluster(slurm=True)
    drafts = tmp_path_factory.mktemp("drafts")
    folder = tmp_path_factory.mktemp("common") / "jobs"
    folder.mkdir()
    with PracticeCluster(len(HEALTHY + FAULTS + FOR_LATE), slurm=True) as cluster:
        break_all(cluster, drafts, folder)
        hosts = Hosts(cluster, folder)
        yield hosts
    print("\n\n" + "\n".join(hosts.said))


def break_all(cluster, drafts, folder):
    close_sshd(cluster, HOST["no sshd"], drafts / "sshd")
    on(cluster, HOST["link down"], "ip link set eth0 down")
    switch_off(cluster, HOST["off"])
    refuse_key(cluster, HOST["no key"], drafts / "key")
    forget_key(cluster, HOST["unknown key"])
    hide_program(cluster, HOST["no MPI"], MPIEXEC, MPIEXEC.with_name("hydra_pmi_proxy"))
    install_other_python(cluster, HOST["other Python"], drafts / "pth")
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"
    replace(cluster, HOST["broken torch"], torch.__file__, drafts / "torch", lambda text: dies)
    missing = "raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n"
    replace(cluster, HOST["no mpi4py"], mpi4py.__file__, drafts / "mpi", lambda text: missing)
    for library in MPIEXEC.parents[1].glob("lib/libmpi.so*"):
        on(cluster, HOST["no MPI library"], f"mount -n --bind /dev/null '{library}'")
    dies = "import os; os._exit(3)\n"
    replace(cluster, HOST["dies in MPI"], mpi4py.__file__, drafts / "dies", lambda text: dies)
    hide(cluster, HOST["no folder"], folder)
    elsewhere = folder.parent / "elsewhere" / "here"
    elsewhere.mkdir(parents=True)
    hide(cluster, HOST["no folder"], elsewhere.parent)


def forget_key(cluster, host):
    """Nobody knows this host's key any more."""
    known = cluster.folder / "ssh" / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if not line.startswith(f"{host},")))


def hello(rank, world_size):
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    return x.item(), os.uname().nodename


def wrong_on_one(rank, world_size):
    dist.barrier()
    if rank == 1:
        raise KeyError("no data")
    dist.recv(torch.zeros(1), src=1)


def killed(rank, world_size):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def crashed(rank, world_size):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def waiting_for_each_other(rank, world_size):
    dist.recv(torch.zeros(1), src=1 - rank)


def disagreeing(rank, world_size):
    dist.all_reduce(torch.zeros(4 + rank))


def joined_s(job):
    """When both ranks had joined: from there the seconds are counted until one hears of a failure
    of theirs. How long they need to load torch depends on the machine.
    """
    with pytest.raises(simlib.SimlibError):
        job.result(WAIT_S)
    return max(job.path.joinpath(f"rank-{rank}.json").stat().st_mtime for rank in (0, 1))


# Hosts on which a job cannot start

STARTS = {
    "unknown host": ("node99", "the host node99 is unknown: .* must be in DNS or /etc/hosts"),
    "sshd down": (HOST["no sshd"], "answers, but no ssh server runs there: start sshd on it"),
    "link down": (HOST["link down"], f"{HOST['link down']} does not answer: is it switched on"),
    "host switched off": (HOST["off"], f"{HOST['off']} does not answer: is it switched on"),
    "key missing": (
        HOST["no key"], f"{HOST['no key']} does not let this account in .* ssh-copy-id node"
    ),
    "host key unknown": (
        HOST["unknown key"],
        f"ssh does not know {HOST['unknown key']} yet, .* run `ssh {HOST['unknown key']}` once",
    ),
    "no MPI on a host": (
        HOST["no MPI"],
        "a host has no MPI .*doctor --hosts node1,node8` says which.*: install the same MPI there",
    ),
    "another Python on a host": (
        HOST["other Python"],
        rf"{HOST['other Python']} has Python 3\.99\.1, the notebook 3\..*: install the same",
    ),
    "a library that kills": (
        HOST["broken torch"],
        f"{HOST['broken torch']} cannot load simlib .* ended with signal 4.*install the same",
    ),
    "no mpi4py on a host": (
        HOST["no mpi4py"], f"{HOST['no mpi4py']} has no mpi4py, the notebook 4.*: install the same"
    ),
    "no MPI library on a host": (
        HOST["no MPI library"],
        f"no MPI library on {HOST['no MPI library']} .*install the same MPI there",
    ),
    "dead before MPI_Init": (
        HOST["dies in MPI"],
        f"a rank on {HOST['dies in MPI']} exited with code 3 before it could join the others: mend",
    ),
    "folder not shared": (
        HOST["no folder"],
        "a host does not see the job's folder.*doctor --hosts .*share, name one by folder=",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=LONG if what == "link down" else ()) for what in STARTS]
)
def test_a_host_on_which_a_job_cannot_start(hosts, what):
    host, words = STARTS[what]
    began_s = time.time()
    job = hosts.submit(hello, hosts.mpiexec("node1", host))
    hosts.failed(what, job, began_s, simlib.JobError, f"{job.name} could not be .*{words}")


def test_a_working_folder_that_a_host_does_not_see(hosts, monkeypatch):
    folder = hosts.folder.parent / "elsewhere" / "here"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hosts, "folder", hosts.folder.parent / "other jobs")
    began_s = time.time()
    job = hosts.submit(hello, hosts.mpiexec("node1", HOST["no folder"]))
    words = f"{HOST['no folder']} does not see the folder {folder}, in which .*: submit it from"
    hosts.failed("working folder not shared", job, began_s, simlib.JobError, words)


def test_mpiexec_of_another_mpi_on_two_hosts(hosts, tmp_path):
    program = tmp_path / "mpiexec.py"
    program.write_text(ALONE.format(mpiexec=str(MPIEXEC)))
    began_s = time.time()
    job = hosts.submit(hello, hosts.mpiexec(launcher=[sys.executable, program]))
    words = "2 ranks were asked for, but MPI says: rank 0 of 1. mpiexec belongs to another MPI"
    hosts.failed("mpiexec of another MPI", job, began_s, simlib.JobError, words)


# Jobs that fail on their way

WAYS = {
    "exception": (wrong_on_one, simlib.RankError, r"rank 1 raised KeyError: 'no data' \(test_fail"),
    "SIGKILL": (
        killed, simlib.RankDiedError,
        r"the process of rank 1 was ended by signal 9 \(SIGKILL\) .*other ranks were ended too",
    ),
    "SIGSEGV": (
        crashed, simlib.RankDiedError,
        r"the process of rank 1 was ended by signal 11 \(SIGSEGV\) .*other ranks were ended too",
    ),
    "deadlock": (
        waiting_for_each_other, simlib.DeadlockError, "ranks 0 and 1 wait for each other"
    ),
    "disagreeing all_reduce": (
        disagreeing, simlib.MismatchError, "rank 1 brings 5 elements where rank 0 brings 4",
    ),
}  # fmt: skip
# Each way once, and mpiexec and srun both; the rest repeats.
BY_MPIEXEC = [pytest.param(what, marks=LONG if what == "SIGKILL" else ()) for what in WAYS]
BY_SRUN = [pytest.param(what, marks=LONG if what == "SIGSEGV" else ()) for what in list(WAYS)[:3]]


@pytest.mark.parametrize("what", BY_MPIEXEC)
def test_a_job_of_mpiexec_that_fails(hosts, what):
    function, error, words = WAYS[what]
    job = hosts.submit(function, hosts.mpiexec())
    found = hosts.failed(f"{what}, mpiexec", job, joined_s(job), error, words)
    assert found.run.trace.of_rank(0) and found.sites


def test_wall_time_of_mpiexec(hosts):
    job = hosts.submit(sleeping, hosts.mpiexec(time_limit=0.5))
    words = r"the time limit of sleeping-\d+, 0.5 s, was over .* by time_limit="
    hosts.failed("time limit, mpiexec", job, time.time(), simlib.JobError, words)


@LONG
def test_the_next_job_of_mpiexec_works(hosts):
    hosts.works()


# Slurm


@pytest.mark.parametrize("what", BY_SRUN)
def test_a_job_of_srun_that_fails(hosts, what):
    function, error, words = WAYS[what]
    job = hosts.submit(function, hosts.slurm())
    hosts.failed(f"{what}, srun", job, joined_s(job), error, words)


def test_wall_time_of_slurm(hosts):
    job = hosts.submit(sleeping, hosts.slurm(time_limit=0.5))
    words = r"the time limit of sleeping-\d+, 0.5 s, was over .* by time_limit="
    hosts.failed("time limit, Slurm", job, time.time(), simlib.JobError, words)


def test_a_job_that_somebody_else_cancels(hosts):
    job = hosts.submit(sleeping, hosts.slurm())
    wait_until(lambda: job.path.joinpath("rank-1.out").exists())
    began_s = time.time()
    hosts.ask_queue(job, "scancel ID")
    words = rf"{job.name} was cancelled"
    hosts.failed("cancelled by scancel", job, began_s, simlib.JobError, words)


def test_what_slurm_cannot_give_is_refused(hosts):
    began_s = time.time()
    with pytest.raises(simlib.JobError) as caught:
        hosts.submit(sleeping, hosts.slurm(nodes=20, extra=()))
    words = str(caught.value)
    hosts.note("impossible request, refused", words, time.time() - began_s)
    assert re.search("queue has refused the job: more was asked for than there is: take", words)
    assert simlib.jobs(hosts.folder)[-1].status == "failed"


def test_what_slurm_cannot_give_now_waits_and_says_why(hosts):
    change = "scontrol update NodeName=node2 State="
    on(hosts.cluster, "login", f"{change}DRAIN Reason=repair")
    began_s = time.time()
    job = hosts.submit(sleeping, hosts.slurm())

    def told():
        with pytest.raises(TimeoutError) as caught:
            job.result(0)
        assert f"{job.name} is queued after 0 s, and goes on" in str(caught.value)
        return str(caught.value).partition("goes on: ")[2]

    try:
        wait_until(told)
        hosts.note("impossible request, waiting", told(), time.time() - began_s)
        words = "the queue says '(Nodes required|ReqNodeNotAvail).*may last for ever.*cancel.. take"
        assert re.search(words, told())
    finally:
        job.cancel()
        on(hosts.cluster, "login", f"{change}RESUME")
    assert job.status == "cancelled"


def test_the_time_limit_of_slurm_itself(hosts):
    words = "the queue's time limit was over before its ranks were done: give it more by time_limit"
    hosts.failed("time limit of Slurm itself", *hosts.late, simlib.JobError, words)
    wait_until(lambda: hosts.running() == hosts.idle)


def test_the_next_job_of_slurm_works(hosts):
    hosts.works(hosts.slurm())
