"""Who a rank of a job is, where the ranks meet, and what they say when they cannot."""

import pickle
import socket
import subprocess
import sys
import threading
import time

import pytest

import simlib
from simlib.cluster import rendezvous
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.job_rank import code_of
from simlib.cluster.batch.logs import JobMonitor
from simlib.cluster.batch.supervisor import FOLLOWED
from simlib.cluster.rendezvous import Place, answered_by_all, check_size, find_place, which_answer
from simlib.core.model.errors import FailureReport


@pytest.fixture
def environ(monkeypatch):
    """Sets what a launcher sets, and nothing else of the kind."""
    for names in rendezvous.ENVIRONMENTS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


def test_srun_knows_better_than_an_mpiexec_around_the_notebook(environ):
    for name, value in {"PMI_RANK": 0, "PMI_SIZE": 1, "SLURM_PROCID": 2, "SLURM_NTASKS": 4}.items():
        environ(name, str(value))
    place = find_place(uses_mpi=False)
    assert (place.rank, place.size) == (2, 4)


def test_an_mpiexec_within_a_batch_job_knows_better_than_slurm(environ, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for name, value in {"PMI_RANK": 1, "PMI_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 8}.items():
        environ(name, str(value))
    place = find_place(uses_mpi=True)
    assert (place.rank, place.size) == (1, 4)


def test_ranks_that_are_to_outlive_each_other_do_not_ask_mpi(environ, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for name, value in {"PMI_RANK": 1, "PMI_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 8}.items():
        environ(name, str(value))
    place = find_place(uses_mpi=True, mpi4py="4.0", survives=True)
    assert (place.rank, place.size, place.comm) == (1, 4, None)
    with pytest.raises(simlib.JobError, match="has no mpi4py, the notebook 4.0"):
        find_place(uses_mpi=True, mpi4py="4.0")


def test_nobody_knows_the_rank(environ):
    with pytest.raises(simlib.JobError, match="does not know its rank"):
        find_place(uses_mpi=False)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(0, 1), "the environment says: rank 0 of 1. Is the notebook itself a process of"),
        (Place(0, 1, object(), "MPICH 5"), "MPI says: rank 0 of 1. mpiexec belongs to another MPI"),
        (Place(1, 3, object()), "MPI says: rank 1 of 3. Does the launcher get a number"),
    ],
)
def test_a_world_of_another_size(place, words):
    check_size(place, place.size)
    with pytest.raises(simlib.JobError, match=words):
        check_size(place, 2)


def test_which_addresses_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert which_answer(["127.0.0.2", "127.0.0.1"], port) == ["127.0.0.1"]


def test_the_address_that_all_reach_is_taken():
    """Rank 1 is on the host of rank 0 and reaches what no other host does."""
    addresses = ["10.0.0.1", "172.17.0.1", "192.168.1.5"]
    reached = [addresses, ["192.168.1.5"], ["10.0.0.1", "192.168.1.5"]]
    assert answered_by_all(addresses, reached) == "192.168.1.5"
    assert answered_by_all(addresses, [["10.0.0.1"], ["172.17.0.1"]]) is None
    assert answered_by_all(addresses, []) == "10.0.0.1"


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


@pytest.fixture
def failed(tmp_path):
    """The folder of a job that has failed."""
    folder = JobFolder(tmp_path / "main-1")
    folder.path.mkdir()
    about = {"function": "main", "world_size": 2, "to": "", "timeout_s": 9, "check": True}
    folder.write_json({**about, "cells": {}, "hosts": [], "submitted": time.time()}, "job.json")
    folder.write_json({"state": "ended", "code": 1, "why": "code"}, "state.json")
    folder.write(pickle.dumps({"cells": {}}), "request.pkl")
    folder.write_once(b"node2 has no disk", "refused")
    folder.write_once(b"node1 has lost node2", "refused")
    return folder


def raised(folder, from_wait):
    report = FailureReport("ValueError", "x", [], "", invalid=False, from_wait=from_wait)
    folder.write(pickle.dumps(("error", report)), "answer", 0)
    with pytest.raises(simlib.SimlibError) as caught:
        simlib.Job(folder.path).result(0)
    return caught.value


def test_who_failed_for_want_of_another_leaves_it_to_that_one_to_end_the_job():
    def code(word, from_wait, message="Connection closed by peer [127.0.0.1]:29500"):
        report = FailureReport("RuntimeError", message, [], "", invalid=False, from_wait=from_wait)
        return code_of(pickle.dumps((word, report)))

    assert code("error", from_wait=True) == FOLLOWED
    timed_out = "Timed out waiting 500ms for recv operation to complete"
    assert code("error", from_wait=True, message=timed_out) == 1
    assert code("error", from_wait=False) == 1
    assert code("result", from_wait=True) == 0
    assert code_of(b"nothing that can be read") == 0


def test_who_has_ended_is_not_looked_for_again(tmp_path, monkeypatch):
    folder, looks = JobFolder(tmp_path), []

    def has(name, rank):
        looks.append(rank)
        return tmp_path.joinpath(f"rank-{rank}.{name}").exists()

    monkeypatch.setattr(folder, "has", has)
    assert not folder.have_all_ended(4)
    for rank, name in {1: "answer", 0: "exit", 3: "answer"}.items():
        tmp_path.joinpath(f"rank-{rank}.{name}").touch()
    assert not folder.have_all_ended(4)
    looks.clear()
    assert not folder.have_all_ended(4)
    assert set(looks) == {2}
    tmp_path.joinpath("rank-2.exit").touch()
    assert folder.have_all_ended(4)


def test_the_first_reason_counts(failed):
    with pytest.raises(simlib.JobError, match="node2 has no disk"):
        simlib.Job(failed.path).result(0)


def test_a_wait_that_was_broken_does_not_hide_the_reason(failed):
    assert "node2 has no disk" in str(raised(failed, from_wait=True))


def test_a_learners_own_error_is_the_reason(failed):
    assert isinstance(raised(failed, from_wait=False), simlib.RankError)


def test_a_death_is_no_wait_that_was_broken(failed):
    failed.write_json(-9, "exit", 1)
    watch = JobMonitor(failed)
    watch.take_in()
    assert watch.failed_by_itself()
