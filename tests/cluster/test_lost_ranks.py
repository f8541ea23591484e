"""Hosts and ranks that can no longer say how they ended: what others tell of them."""

import pytest

from simlib.cluster.batch.failures import lost_hosts, lost_ranks
from simlib.cluster.batch.folder import JobFolder

PLACES = {rank: {"host": f"node{rank + 1}", "starter": 40 + rank} for rank in range(3)}
FROM_OUTSIDE = "is gone: the process that watched the rank was ended from outside"
HYDRA = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 41 RUNNING AT node2
=   EXIT CODE: 9
"""
OPEN_MPI = """
prterun noticed that process rank 1 with PID 2345 on node node2 exited on
signal 9 (Killed).
"""
SRUN = """
srun: error: node1: task 0: Exited with exit code 1
srun: error: node2: task 1: Killed
srun: error: node3: task 2: Terminated
"""
ALIKE = {0: {"host": "node2.site.org", "starter": 40}, 1: {"host": "node2", "starter": 41}}


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


@pytest.mark.parametrize(
    ("said", "places", "running", "found"),
    [
        (HYDRA, PLACES, [0, 1, 2], {1: f"rank 1 on node2 {FROM_OUTSIDE}"}),
        (OPEN_MPI, PLACES, [0, 1, 2], {1: f"rank 1 on node2 {FROM_OUTSIDE}"}),
        (SRUN, PLACES, [0, 1, 2], {1: f"rank 1 on node2 {FROM_OUTSIDE}"}),
        (HYDRA, PLACES, [0, 2], {}),  # rank 1 has told how it ended
        (HYDRA, ALIKE, [0, 1], {1: f"rank 1 on node2 {FROM_OUTSIDE}"}),  # two on one host
    ],
)
def test_a_launcher_names_the_rank_that_was_ended_first(folder, said, places, running, found):
    assert lost_ranks(folder, places, running, said) == found


def test_what_start_py_has_seen_counts_more(folder):
    told = {"host": "node3", "starter": 42, "words": "the process was ended by signal 9"}
    folder.write_json(told, "gone.json")
    found = lost_ranks(folder, PLACES, [0, 1, 2], HYDRA)
    assert found == {2: "rank 2 on node3 is gone: the process was ended by signal 9"}


def test_the_only_one_of_whom_nothing_is_known(folder):
    assert lost_ranks(folder, PLACES, [1], "") == {1: f"rank 1 on node2 {FROM_OUTSIDE}"}
    assert lost_ranks(folder, PLACES, [1, 2], "") == {}
    folder.mark("ended", 2)
    assert lost_ranks(folder, PLACES, [1, 2], "").keys() == {1}
    folder.mark("ended", 1)
    assert lost_ranks(folder, PLACES, [1, 2], "") == {}


def test_lost_hosts_are_named_with_their_ranks(folder):
    assert lost_hosts(folder, PLACES) is None
    folder.write_json({}, "lost.json")
    assert lost_hosts(folder, PLACES) is None
    folder.write_json({"node2": "silent", "node3": "refused", "node1": "cut"}, "lost.json")
    first, second, third = lost_hosts(folder, {**PLACES, 3: {"host": "node3"}}).split("; ")
    assert first == "node1, where rank 0 runs, has lost its network"
    assert second.startswith("node2, where rank 1 runs, no longer answers: the host lost its")
    assert third.startswith("node3, where ranks 2 and 3 run, answers, but its ssh server no longer")
