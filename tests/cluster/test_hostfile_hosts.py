"""Jobs whose hosts stand in a file, on the practice cluster."""

import os
import sys
from pathlib import Path

import pytest
from jobs import WAIT_S

import simlib
from simlib.cluster.practice import PracticeCluster


@pytest.fixture(scope="module")
def mpiexec(needs_practice_cluster):
    """The words that run mpiexec on the login host of a practice cluster."""
    needs_practice_cluster()
    with PracticeCluster(2) as cluster:
        yield [*cluster.launcher("login"), str(Path(sys.executable).with_name("mpiexec"))]


def where(rank, world_size):
    return os.uname().nodename, int(os.environ["LOCAL_RANK"])


@pytest.mark.parametrize("text", ["node1:2\r\nnode2\r\n", "# mine\nnode1 slots=2\n\nnode2 slots=1"])
def test_each_host_gets_the_ranks_that_the_file_gives_it(mpiexec, tmp_path, text):
    (tmp_path / "hosts").write_bytes(text.encode())
    to = simlib.Mpiexec(
        hostfile=str(tmp_path / "hosts"), launcher=mpiexec, time_limit=WAIT_S
    )  # fmt: skip
    job = simlib.submit(where, 3, to=to, folder=tmp_path / "jobs")
    assert job.result(WAIT_S).results == [("node1", 0), ("node1", 1), ("node2", 0)]


def test_nothing_starts_where_the_file_is_wrong(mpiexec, tmp_path):
    (tmp_path / "hosts").write_text("node1\nnode2 two\n")
    with pytest.raises(simlib.InvalidCallError, match="line 2 of .* has 'two' after the host"):
        to = simlib.Mpiexec(hostfile=str(tmp_path / "hosts"), launcher=mpiexec)
        simlib.submit(where, 3, to=to, folder=tmp_path / "jobs")
    assert not (tmp_path / "jobs").exists()
