"""Failures of real clusters, provoked for real on a practice cluster: each is one clear sentence.

One cluster has them all, each on a node of its own. First the doctor sees them in one go, which
also shows that one fault does not hide another. `pytest -s` prints what was said of jobs, and after
how many seconds. After each failure nothing runs on any host that did not before, and the job's
folder can be read by another kernel. Last come hosts and processes that go while ranks run on them.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mpi4py
import pytest
import torch
import torch.distributed as dist
from breaking import (
    LIMIT_S,
    change_sshd,
    close_sshd,
    hide,
    hide_program,
    install_other_python,
    make_read_only,
    marked,
    on,
    place_of,
    processes_on,
    refuse_key,
    replace,
    stop_sshd,
    switch_off,
)
from jobs import WAIT_S, keepers_of_rank_1, wait_until
from test_submit import sleeping

import simlib
from simlib.cluster.practice import PracticeCluster

MPIEXEC = Path(sys.executable).with_name("mpiexec")
FAULTS = [
    "no sshd", "link down", "off", "no key", "unknown key", "no MPI", "other Python",
    "broken torch", "no mpi4py", "no MPI library", "dies in MPI", "no folder", "uid", "no Python",
    "no torch", "no simlib", "name", "clock", "Intel MPI", "read-only", "mute sshd",
]  # fmt: skip
LOSSES = [
    ("network", "mpiexec"), ("network", "srun"), ("power", "mpiexec"), ("proxy", "srun"),
    ("start.py", "mpiexec"), ("supervisor", "srun"), ("rank 0", "mpiexec"),
]  # fmt: skip
MORE_LOSSES = [
    ("proxy", "mpiexec"), ("power", "srun"), ("start.py", "srun"), ("supervisor", "mpiexec"),
]  # fmt: skip
HEALTHY, FOR_LATE = ["node1", "node2"], ["node3", "node4"]
HOST = {what: f"node{number}" for number, what in enumerate([*FAULTS, *LOSSES, *MORE_LOSSES], 5)}
NODES = 4 + len(HOST)
TIMEOUT_S = 15
"""A busy machine may take seconds to import this module, on two ranks at once."""
OF_JOBS = ("python", "python3", "mpiexec", "srun", "ssh", "hydra_pmi_proxy")
ASK = """
import json, sys, simlib
from simlib.cluster.doctor import checks, facts

folder, launcher, hang_s, *hosts = sys.argv[1:]
facts.LIMIT_S = checks.LIMIT_S = int(hang_s)
report = simlib.doctor(hosts, folder=folder, launcher=launcher or None)
lines = [[line.check, line.host, line.state, line.sentence] for line in report.lines]
print(json.dumps([lines, report.pairs, str(report)]))
"""
# A clock that is wrong for every program that a login starts: Linux has no namespace for it.
WRONG_CLOCK = """
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int code = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += 7;
    return code;
}
"""
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101"
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
        self.idle = processes_on(cluster)
        self.late = self.begin_late()

    def begin_late(self):
        """A job whose end by Slurm's own limit is near; Slurm looks every half a minute, so it goes
        on, on nodes of its own, while others are looked at.
        """
        job = self.submit(sleeping, self.slurm(FOR_LATE, extra=["--time=1"]))
        wait_until(lambda: job.path.joinpath("rank-1.out").exists())
        self.ask_queue(job, "scontrol update JobId=ID EndTime=now+1")
        return job, time.time()

    def mpiexec(self, hosts=HEALTHY, launcher=(MPIEXEC,), time_limit=WAIT_S):
        launcher = [*self.login, *launcher]
        return simlib.Mpiexec(hosts=hosts, launcher=launcher, time_limit=time_limit)

    def slurm(self, hosts=HEALTHY, time_limit=WAIT_S, extra=()):
        extra = [f"--nodelist={','.join(hosts)}", *extra]
        return simlib.Slurm(nodes=2, login=self.login, time_limit=time_limit, extra=extra)

    def by(self, launcher, **options):
        return (self.mpiexec if launcher == "mpiexec" else self.slurm)(**options)

    def submit(self, function, to, **options):
        return simlib.submit(function, 2, to=to, folder=self.folder, **options)

    def ask_queue(self, job, *words):
        """Run a command of Slurm's about a job, ``ID`` standing for it."""
        number = json.loads(job.path.joinpath("native.json").read_text())["id"]
        on(self.cluster, "login", " ".join(words).replace("ID", number))

    def failed(self, what, job, began_s, error, words, is_idle=None):
        """A job has failed: look at the sentence, and at what is left."""
        with pytest.raises(error) as caught:
            job.result(WAIT_S)
        sentence = str(caught.value).splitlines()[0]
        self.note(what, sentence, job.path.joinpath("state.json").stat().st_mtime - began_s)
        assert re.search(words, sentence), str(caught.value)
        wait_until(is_idle or self.is_idle)
        again = {job.name: job for job in simlib.jobs(self.folder)}[job.name]
        assert again.status == ("cancelled" if "cancel" in what else "failed")
        with pytest.raises(error) as same:
            again.result(0)
        assert str(same.value) == str(caught.value)
        return caught.value

    def note(self, what, sentence, seconds):
        self.said.append(f"{what:32} {seconds:5.1f} s  {sentence}")

    def is_idle(self, but=FOR_LATE):
        running, idle = processes_on(self.cluster), self.idle
        return all(running[host] == idle[host] for host in idle if host not in but)

    def has_no_ranks(self):
        """Also on hosts that were cut off, where their own sshd has not heard of it."""
        running = processes_on(self.cluster).values()
        return not any(name in OF_JOBS for names in running for name in names)

    def works(self, to):
        """The next job."""
        run = self.submit(hello, to).result(WAIT_S)
        assert run.results == [(3, "node1"), (3, "node2")]


class Seen:
    """What the doctor said about hosts of a cluster."""

    def __init__(self, cluster, hosts, folder, launcher="", hang_s=LIMIT_S // 2):
        words = [sys.executable, "-c", ASK, folder, launcher, hang_s, *hosts]
        done = cluster.run(
            "login", words, capture_output=True, text=True, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines, self.pairs, self.text = json.loads(done.stdout)
        self.lines = {(check, host): (state, words) for check, host, state, words in lines}

    def wrong(self, host):
        """The checks that are wrong on a host."""
        lines = self.lines.items()
        return [check for (check, on), (state, _) in lines if on == host and state == "wrong"]


@pytest.fixture(scope="module")
def hosts(needs_practice_cluster, needs_system, tmp_path_factory):
    """Two healthy nodes, and each of the faults on one."""
    needs_practice_cluster(slurm=True)
    needs_system("gcc", "gcc")
    if sys.prefix == sys.base_prefix:
        pytest.skip("this test hides the virtual environment on a node: run it from one")
    drafts = tmp_path_factory.mktemp("drafts")
    folder = tmp_path_factory.mktemp("common") / "jobs"
    folder.mkdir()
    for path in (drafts, *drafts.parents):  # another uid has to come to them, too
        if path.is_relative_to(tmp_path_factory.getbasetemp().parent):
            path.chmod(0o755)
    with PracticeCluster(NODES, slurm=True) as cluster:
        break_all(cluster, drafts, folder)
        hosts = Hosts(cluster, folder)
        yield hosts
    print("\n\n" + "\n".join(hosts.said))


def break_all(cluster, drafts, folder):
    close_sshd(cluster, HOST["no sshd"], drafts / "sshd")
    on(cluster, HOST["link down"], "ip link set eth0 down")
    switch_off(cluster, HOST["off"])
    refuse_key(cluster, HOST["no key"], drafts / "key")
    known = cluster.folder / "ssh" / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(ln for ln in lines if not ln.startswith(f"{HOST['unknown key']},")))
    hide_program(cluster, HOST["no MPI"], MPIEXEC, MPIEXEC.with_name("hydra_pmi_proxy"))
    install_other_python(cluster, HOST["other Python"], drafts / "pth")
    for fault, module, text in (
        ("broken torch", torch, "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"),
        ("no mpi4py", mpi4py, "raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n"),
        ("dies in MPI", mpi4py, "import os; os._exit(3)\n"),
    ):
        replace(cluster, HOST[fault], module.__file__, drafts / fault, lambda _, text=text: text)
    for library in MPIEXEC.parents[1].glob("lib/libmpi.so*"):
        on(cluster, HOST["no MPI library"], f"mount -n --bind /dev/null '{library}'")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.joinpath("here").mkdir(parents=True)
    hide(cluster, HOST["no folder"], folder, elsewhere)
    hide(cluster, HOST["no Python"], sys.prefix)
    hide(cluster, HOST["no torch"], *place_of("torch"))
    hide(cluster, HOST["no simlib"], Path(simlib.__file__).parent)
    (drafts / "impi").write_text(f"#!/bin/sh\necho '{INTEL}'\n")
    (drafts / "impi").chmod(0o755)
    on(cluster, HOST["Intel MPI"], f"mount -n --bind '{drafts / 'impi'}' '{MPIEXEC}'")
    other_uid = lambda text: re.sub(r"^root:x:0:0:", "root:x:4321:4321:", text, flags=re.M)  # noqa: E731
    replace(cluster, HOST["uid"], "/etc/passwd", drafts / "passwd", other_uid)
    make_read_only(cluster, HOST["read-only"], folder)
    stop_sshd(cluster, HOST["mute sshd"])
    own = f"{cluster.addresses[HOST['name']]} {HOST['name']}\n"
    names = (cluster.folder / "hosts").read_text().replace(own, f"127.0.1.1 {HOST['name']}\n")
    replace(cluster, HOST["name"], "/etc/hosts", drafts / "hosts", lambda _: names)
    (drafts / "clock.c").write_text(WRONG_CLOCK)
    library = drafts / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, drafts / "clock.c"], check=True)
    late = lambda text: marked(text, f"LD_PRELOAD={library}")  # noqa: E731
    change_sshd(cluster, HOST["clock"], drafts / "clock", late)


def hello(rank, world_size):
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    return x.item(), os.uname().nodename


def wrong_on_one(rank, world_size):
    dist.barrier()
    if rank == 1:
        raise KeyError("no data")
    dist.recv(torch.zeros(1), src=1)


def ended_by(number):
    def main(rank, world_size):
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), number)
        dist.barrier()

    return main


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


# What the doctor says of them; {0} is the host

SEEN = {
    "unknown host": ("name", "the name {0} is not known on login: spell the name right, or add it"),
    "no sshd": ("server", "answers, but runs no ssh server: start sshd on"),
    "link down": ("server", "does not answer: is it switched on, and in this network"),
    "off": ("server", "does not answer: is it switched on, and in this network"),
    "no key": ("ssh", "does not let this account in .* ssh-copy-id"),
    "uid": ("account", "root with uid 4321, but here it is root with uid 0: .*usermod -u"),
    "no Python": ("python", "is not there, only .*: install the same environment at the same"),
    "other Python": (
        "python", r"is Python 3\.99\.1 there and 3\..* here: .* sends functions as bytecode"
    ),
    "no torch": ("torch", r"torch is missing: .*pip install torch=="),
    "no simlib": ("simlib", "simlib is missing: put .* on a filesystem that all hosts"),
    "no MPI": ("mpi", "there is no mpiexec at .*: install the same MPICH there, at the"),
    "Intel MPI": (
        "mpi", r"the MPI there is Intel MPI 2021\.18, but MPICH .* here: install the same MPI"
    ),
    "no folder": ("files", "the host does not see a file .*: mount the same"),
    "name": ("address", r"own name {0} stands for 127\.0\.1\.1 there, .* write 10\.77\.0\.{1}"),
    "clock": ("clock", r"the host's clock is [67]\.\d s ahead of this machine's: .* time server"),
}  # fmt: skip
ONLY_ONE = ("no torch", "no simlib", "no folder", "name", "clock")
"""Faults that keep the doctor from no further check."""


@pytest.fixture(scope="module")
def seen(hosts):
    on_all = [HOST.get(fault, "node99") for fault in SEEN]
    return Seen(hosts.cluster, ["node1", *on_all], hosts.folder)


@pytest.mark.parametrize("fault", SEEN)
def test_a_fault_is_named_with_its_mend(seen, fault):
    """And stays with its host."""
    host, (check, words) = HOST.get(fault, "node99"), SEEN[fault]
    state, sentence = seen.lines[check, host]
    words = words.format(host, int(host.removeprefix("node")) + 1)
    assert state == "wrong" and re.search(words, sentence), sentence
    assert seen.wrong(host) == [check] if fault in ONLY_ONE else seen.wrong(host)[0] == check
    assert not seen.wrong("node1"), seen.text
    assert seen.lines["files", HOST["clock"]][0] == "ok"


def test_what_cannot_be_asked_says_why_and_the_hello_goes_on_with_the_others(seen):
    for check, host, because in (
        ("torch", "node99", "name"),
        ("files", HOST["link down"], "server"),
        ("torch", HOST["no Python"], "python"),
    ):
        assert seen.lines[check, host] == ("not asked", f"because the check {because} failed there")
    assert seen.lines["account", HOST["no Python"]][0] == "ok"
    fit = ["node1", *(HOST[fault] for fault in ONLY_ONE)]
    words = f"6 ranks on {', '.join(fit)}, world size 6"
    assert seen.lines["hello", None] == ("ok", words), seen.text


# Hosts on which a job cannot start

STARTS = {
    "unknown host": "the host node99 is unknown: .* must be in DNS or /etc/hosts",
    "no sshd": "answers, but runs no ssh server: start sshd on",
    "link down": "{0} does not answer: is it switched on",
    "off": "{0} does not answer: is it switched on",
    "no key": "{0} does not let this account in .* ssh-copy-id node",
    "unknown key": "ssh does not know {0} yet, .* run `ssh {0}` once",
    "no MPI": (
        "a host has no MPI .*doctor --hosts node1,{0} --folder .*` names the host.*: "
        "install the same MPI"
    ),
    "other Python": r"{0} runs .*, which is Python 3\.99\.1, but the notebook has Python 3",
    "broken torch": "{0} cannot load simlib .* ended with signal 4.*install the same",
    "no mpi4py": "{0} has no mpi4py, but the notebook has mpi4py 4.*: install mpi4py 4",
    "no MPI library": "no MPI library on {0} .*install the same MPI there",
    "dies in MPI": "a rank on {0} exited with code 3 before it could join the others: run",
    "no folder": "a host does not see .*doctor --hosts .* --folder .*that all hosts share",
    "read-only": r"{0} cannot write into the job's folder .*\(Read-only file system\): give",
    "mute sshd": "no ssh server answers on {0}: log in by hand to see whether the host is",
}


@pytest.mark.parametrize("fault", STARTS)
def test_a_host_on_which_a_job_cannot_start(hosts, fault):
    host, began_s = HOST.get(fault, "node99"), time.time()
    job = hosts.submit(hello, hosts.mpiexec(["node1", host]))
    words = f"{job.name} could not be .*{STARTS[fault].format(host)}"
    hosts.failed(fault, job, began_s, simlib.JobError, words)


def test_a_working_folder_that_a_host_does_not_see(hosts, monkeypatch):
    folder = hosts.folder.parent / "elsewhere" / "here"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hosts, "folder", hosts.folder.parent / "other jobs")
    began_s = time.time()
    job = hosts.submit(hello, hosts.mpiexec(["node1", HOST["no folder"]]))
    words = (
        f"{HOST['no folder']} does not see the folder {folder}, in which .*: submit the job from"
    )
    hosts.failed("working folder not shared", job, began_s, simlib.JobError, words)


def test_mpiexec_of_another_mpi_on_two_hosts(hosts, tmp_path):
    program = tmp_path / "mpiexec.py"
    program.write_text(ALONE.format(mpiexec=str(MPIEXEC)))
    began_s = time.time()
    job = hosts.submit(hello, hosts.mpiexec(launcher=[sys.executable, program]))
    words = "the job has 2 ranks, but MPI says that this is rank 0 of 1. mpiexec belongs to another"
    hosts.failed("mpiexec of another MPI", job, began_s, simlib.JobError, words)


# Jobs that fail on their way

DIED = r"the process of rank 1 was ended by signal {} \({}\) .*then ended the other ranks"
WAYS = {
    "exception": (wrong_on_one, simlib.RankError, r"rank 1 raised KeyError: 'no data' \(test_fail"),
    "SIGKILL": (ended_by(signal.SIGKILL), simlib.RankDiedError, DIED.format(9, "SIGKILL")),
    "SIGSEGV": (ended_by(signal.SIGSEGV), simlib.RankDiedError, DIED.format(11, "SIGSEGV")),
    "deadlock": (
        waiting_for_each_other, simlib.DeadlockError, "ranks 0 and 1 wait for each other"
    ),
    "disagreeing all_reduce": (
        disagreeing, simlib.MismatchError, "rank 1 brings 5 elements, but rank 0 brings 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "launcher"),
    [
        ("exception", "mpiexec"),
        ("SIGSEGV", "mpiexec"),
        ("deadlock", "mpiexec"),
        ("disagreeing all_reduce", "mpiexec"),
        ("exception", "srun"),
        ("SIGKILL", "srun"),
        ("SIGSEGV", "srun"),
    ],
)
def test_a_job_that_fails(hosts, what, launcher):
    function, error, words = WAYS[what]
    job = hosts.submit(function, hosts.by(launcher))
    found = hosts.failed(f"{what}, {launcher}", job, joined_s(job), error, words)
    assert found.run.trace.of_rank(0) and found.sites


@pytest.mark.parametrize("launcher", ["mpiexec", "srun"])
def test_a_time_limit(hosts, launcher):
    job = hosts.submit(sleeping, hosts.by(launcher, time_limit=0.5))
    words = r"sleeping-\d+ reached its time limit of 0.5 s .* increase time_limit"
    hosts.failed(f"time limit, {launcher}", job, time.time(), simlib.JobError, words)
    hosts.works(hosts.by(launcher))


# Slurm


def test_a_job_that_somebody_else_cancels(hosts):
    job = hosts.submit(sleeping, hosts.slurm())
    wait_until(lambda: job.path.joinpath("rank-1.out").exists())
    began_s = time.time()
    hosts.ask_queue(job, "scancel ID")
    words = rf"{job.name} was cancelled"
    hosts.failed("cancelled by scancel", job, began_s, simlib.JobError, words)


def test_what_slurm_cannot_give_now_waits_and_says_why(hosts):
    change = "scontrol update NodeName=node2 State="
    on(hosts.cluster, "login", f"{change}DRAIN Reason=repair")
    began_s = time.time()
    job = hosts.submit(sleeping, hosts.slurm())

    def told():
        with pytest.raises(TimeoutError) as caught:
            job.result(0)
        assert f"{job.name} is still queued after 0 s" in str(caught.value)
        return str(caught.value).partition(" s: ")[2]

    try:
        wait_until(told)
        hosts.note("impossible request, waiting", told(), time.time() - began_s)
        words = (
            "the queue says '(Nodes required|ReqNodeNotAvail).*may wait forever.*cancel.. removes"
        )
        assert re.search(words, told())
    finally:
        job.cancel()
        on(hosts.cluster, "login", f"{change}RESUME")
    assert job.status == "cancelled"


def test_the_time_limit_of_slurm_itself(hosts):
    words = "the job reached the queue's time limit before its ranks were done: increase time_limit"
    hosts.failed("time limit of Slurm itself", *hosts.late, simlib.JobError, words)
    wait_until(lambda: hosts.is_idle(but=()))


# What goes while ranks run


def summing(rank, world_size):
    dist.all_reduce(torch.ones(1))
    print("at work")
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)


NO_ANSWER = r"node\d+, where rank {} runs, no longer answers: the host lost its network, or was"
GONE = r"rank 1 on node\d+ is gone: {}.*\(test_failures_hosts.py, line \d+, .*all_reduce"
GOES = {
    "network": (simlib.JobError, NO_ANSWER.format(1)),
    "power": (simlib.JobError, NO_ANSWER.format(1)),
    "proxy": (simlib.RankDiedError, GONE.format("the launcher.s program")),
    "start.py": (simlib.RankDiedError, GONE.format("the process that watched the rank")),
    "supervisor": (simlib.RankDiedError, GONE.format("the process that .* signal 9")),
    "rank 0": (simlib.JobError, NO_ANSWER.format(0)),
}


@pytest.mark.parametrize(
    ("what", "launcher"),
    [*LOSSES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_LOSSES)],
)
def test_what_goes_while_ranks_run_is_named(hosts, what, launcher):
    """Where the host of rank 0 goes, nobody hears of it by TCP: the launcher process misses it."""
    (error, words), host = GOES[what], HOST[what, launcher]
    on_two = [host, "node1"] if what == "rank 0" else ["node1", host]
    job = hosts.submit(summing, hosts.by(launcher, hosts=on_two), timeout_s=TIMEOUT_S)
    files = [job.path / name for name in ("rank-0.out", "rank-1.out", "reach.json")]
    wait_until(lambda: all(path.exists() and path.stat().st_size for path in files))
    if what in ("network", "rank 0"):
        on(hosts.cluster, host, "ip link set eth0 down")
    if what in ("power", "rank 0"):
        switch_off(hosts.cluster, host)
    if what in ("supervisor", "start.py", "proxy"):
        os.kill(keepers_of_rank_1(job)[what], signal.SIGKILL)
    began_s = time.time()
    found = hosts.failed(f"{what}, {launcher}", job, began_s, error, words, hosts.has_no_ranks)
    assert found.run.trace.of_rank(0)
    assert "Connection" not in str(found) and "socket.cpp" not in str(found)
    assert max(path.stat().st_size for path in job.path.glob("rank-*.log")) < 1 << 20
    if what == "network":  # it was told before: at the latest when the time was over
        assert "have waited for" in job.path.joinpath("waiting.json").read_text()


def test_a_folder_that_somebody_deletes_ends_its_job(hosts):
    job = hosts.submit(summing, hosts.mpiexec(), timeout_s=None)
    wait_until(lambda: all(job.path.joinpath(f"rank-{rank}.out").exists() for rank in (0, 1)))
    shutil.rmtree(job.path, ignore_errors=True)
    with pytest.raises(
        simlib.JobError, match=f"{job.name} no longer exists: somebody deleted its fol"
    ):
        job.result(WAIT_S)
    wait_until(hosts.has_no_ranks)
