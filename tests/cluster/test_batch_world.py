"""Who a rank of a job is, where the ranks meet, and what they say when they cannot."""

import pickle
import socket
import subprocess
import sys
import threading

import pytest

import simlib
from simlib.cluster import rendezvous
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.job_rank import code_of
from simlib.cluster.batch.supervisor import FOLLOWED
from simlib.cluster.rendezvous import Place, answered_by_all, check_size, find_place, which_answer
from simlib.core.model.errors import FailureReport


def test_who_a_process_is(monkeypatch):
    """srun knows better than an mpiexec around the notebook, and not than one within its job."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for names in rendezvous.ENVIRONMENTS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    with pytest.raises(simlib.JobError, match="does not know its rank"):
        find_place(uses_mpi=False)
    told = {"PMI_RANK": 1, "PMI_SIZE": 4, "SLURM_PROCID": 2, "SLURM_NTASKS": 8}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    survives = {"mpi4py": "4.0", "survives": True}  # MPI would not, so it is not asked
    for options, place in (
        ({"uses_mpi": False}, (2, 8, None)),
        ({"uses_mpi": True}, (1, 4, None)),
        ({"uses_mpi": True, **survives}, (1, 4, None)),
    ):
        found = find_place(**options)
        assert (found.rank, found.size, found.comm) == place
    with pytest.raises(
        simlib.JobError,
        match="has no mpi4py, but the notebook has mpi4py 4.0: install mpi4py 4.0 on every",
    ):
        find_place(uses_mpi=True, mpi4py="4.0")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(0, 1), "the environment says that this is rank 0 of 1. Is the notebook"),
        (Place(0, 1, object(), "MPICH 5"), "MPI says that this is rank 0 of 1. mpiexec belongs"),
        (Place(1, 3, object()), "MPI says that this is rank 1 of 3. Does launcher= give"),
    ],
)
def test_a_world_of_another_size(place, words):
    check_size(place, place.size)
    with pytest.raises(simlib.JobError, match=words):
        check_size(place, 2)


def test_the_address_that_all_reach_is_taken():
    """Rank 1 is on the host of rank 0 and reaches what no other host does."""
    addresses = ["10.0.0.1", "172.17.0.1", "192.168.1.5"]
    reached = [addresses, ["192.168.1.5"], ["10.0.0.1", "192.168.1.5"]]
    assert answered_by_all(addresses, reached) == "192.168.1.5"
    assert answered_by_all(addresses, [["10.0.0.1"], ["172.17.0.1"]]) is None
    assert answered_by_all(addresses, []) == "10.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert which_answer(["127.0.0.2", "127.0.0.1"], port) == ["127.0.0.1"]


def test_ranks_that_meet_by_files_talk_by_one_network(tmp_path, monkeypatch):
    """Rank 2 does not reach the address that comes first, and that rank 1 would take."""
    folder, size, found = JobFolder(tmp_path), 3, {}
    own = ["127.0.0.1", "127.0.0.2"]
    monkeypatch.setattr(rendezvous, "own_addresses", lambda: own)
    reach = {"rank 0": own, "rank 1": own, "rank 2": ["127.0.0.2"]}
    monkeypatch.setattr(
        rendezvous, "which_answer", lambda *_: reach[threading.current_thread().name]
    )
    store = rendezvous.serve_store(folder)

    def rank(number):
        found[number] = rendezvous._meet_by_files(Place(number, size), folder)

    threads = [threading.Thread(target=rank, args=(n,), name=f"rank {n}") for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number][1] for number in range(size)] == ["127.0.0.2"] * size
    del store


def test_meeting_by_mpi_leaves_torch_as_it_is():
    asks = "import torch.distributed as d; print(d.is_mpi_available())"
    words = f"import simlib.cluster.rendezvous; {asks}"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_who_failed_for_want_of_another_leaves_it_to_that_one_to_end_the_job():
    def code(word, from_wait, message="Connection closed by peer [127.0.0.1]:29500"):
        report = FailureReport("RuntimeError", message, [], "", invalid=False, from_wait=from_wait)
        return code_of(pickle.dumps((word, report)))

    timed_out = "Timed out waiting 500ms for recv operation to complete"
    assert code("error", from_wait=True) == FOLLOWED
    assert code("error", from_wait=True, message=timed_out) == 1
    assert code("error", from_wait=False) == 1
    assert code("result", from_wait=True) == 0
    assert code_of(b"nothing that can be read") == 0
