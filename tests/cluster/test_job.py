"""A job as its folder knows it: what is there, who still looks after it, what the queue says."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import simlib
from simlib.cluster.batch import folder as folders
from simlib.cluster.batch import job as jobs
from simlib.cluster.batch import logs, state
from simlib.cluster.batch.folder import JobFolder
from simlib.core.model.errors import FailureReport

RANKS = 2


@pytest.fixture
def folder(tmp_path):
    """The folder of a job that has been submitted just now."""
    path = tmp_path / "main-1"
    path.mkdir()
    folder = JobFolder(path)
    about = {"function": "main", "world_size": RANKS, "to": "hosts", "timeout_s": 9, "check": True}
    folder.write_json({**about, "cells": {}, "hosts": [], "submitted": time.time()}, "job.json")
    folder.write(pickle.dumps({"cells": {}}), "request.pkl")
    folder.write_json({"state": "queued"}, "state.json")
    return folder


@pytest.fixture
def waiting():
    """A process that stands for the one which waits for a launcher; its last word names the job."""
    words = [sys.executable, "-c", "input()", "/elsewhere/main-1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def active(folder, process, **more):
    place = {"host": os.uname().nodename, "pid": process.pid, "began": 0}
    folder.write_json({"state": "active", **place, **more}, "state.json")


def answer(folder, ranks):
    for rank in ranks:
        folder.write(pickle.dumps(("result", rank)), "answer", rank)


def failure(job):
    with pytest.raises(simlib.JobError) as caught:
        job.result(0)
    return str(caught.value)


def test_a_job_is_active_as_long_as_somebody_waits_for_its_launcher(folder, waiting):
    active(folder, waiting)  # it began in 1970: somebody has set the clock
    job = simlib.Job(folder.path)
    assert job.status == "active"
    waiting.communicate()
    assert job.status == "failed"
    assert f"the process {waiting.pid} that looked after its launcher is gone" in failure(job)


def test_another_process_with_the_number_of_the_one_that_waited(folder):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        active(folder, process)
        assert simlib.Job(folder.path).status == "failed"


def test_results_are_not_lost_with_the_one_that_waited(folder, waiting):
    active(folder, waiting)
    waiting.communicate()
    answer(folder, range(RANKS))
    assert simlib.Job(folder.path).result(0).results == [0, 1]


def test_cancel_ends_ranks_whose_launcher_nobody_waits_for(folder, waiting):
    active(folder, waiting)
    waiting.communicate()
    job = simlib.Job(folder.path)
    job.cancel()
    assert folder.has("end")
    assert job.status == "cancelled"


def test_a_job_that_was_never_started(folder, monkeypatch):
    job = simlib.Job(folder.path)
    assert job.status == "queued"
    monkeypatch.setattr(state, "START_S", -1)
    assert job.status == "failed"
    assert "it was never started" in failure(job)


class Queue:
    """Stands for what the scheduler says."""

    def __init__(self, folder):
        self._folder = folder

    def state(self):
        native = self._folder.read_json("native.json")
        return native and native["says"]

    def words(self):
        return ""


@pytest.fixture
def queued(folder, monkeypatch):
    monkeypatch.setattr(state, "JobInQueue", Queue)
    monkeypatch.setattr(state, "START_S", -1)  # in a queue it may take as long as it takes
    return folder


def test_what_the_queue_says(queued):
    queued.write_json({"says": "queued"}, "native.json")
    job = simlib.Job(queued.path)
    assert job.status == "queued"
    queued.write_json({"says": "cancelled"}, "native.json")
    assert job.status == "cancelled"


def test_a_job_that_the_queue_has_forgotten_is_over(queued, monkeypatch):
    queued.write_json(
        {"says": "done"}, "native.json"
    )  # so a job is called that squeue does not know
    job = simlib.Job(queued.path)
    assert job.status == "queued"  # its folder may be behind
    monkeypatch.setattr(state, "SETTLE_S", -1)
    assert job.status == "failed"
    assert "the queue has ended it" in failure(job)
    queued.mark("cancel")
    assert job.status == "cancelled"
    queued.write_json({"state": "ended", "code": 0, "why": "code"}, "state.json")
    assert job.status == "done"


def test_a_job_that_is_handed_to_the_queue_while_somebody_looks(queued):
    job = simlib.Job(queued.path)
    queued.write_json({"says": "queued"}, "native.json")
    assert job.status == "queued"


def test_ranks_that_end_before_their_launcher_is_told_are_cancelled(folder):
    folder.mark("cancel")
    folder.write_json({"state": "ended", "code": 1, "why": "code"}, "state.json")
    assert simlib.Job(folder.path).status == "cancelled"


def test_a_full_filesystem_is_named(folder, monkeypatch):
    folder.write_json({"state": "ended", "code": 1, "why": "code"}, "state.json")
    monkeypatch.setattr(jobs, "FULL_BYTES", float("inf"))
    assert "the filesystem of its folder is full" in failure(simlib.Job(folder.path))


def test_a_file_for_which_there_is_no_room_takes_none(folder, monkeypatch):
    def no_room(path, content):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.Path, "write_bytes", no_room)
    before = sorted(folder.path.iterdir())
    with pytest.raises(OSError, match="No space left"):
        folder.write(b"x", "answer", 0)
    assert sorted(folder.path.iterdir()) == before


@pytest.fixture
def broken_off(folder):
    """A job whose rank 0 has seen a connection break, and whose rank 1 has left no word."""
    for rank in range(RANKS):
        place = {"host": f"node{rank + 1}", "offset_s": 0.0, "error_s": 0.0}
        folder.write_json(place, "json", rank)
    report = FailureReport("RuntimeError", "Connection reset", [], "", False, from_wait=True)
    folder.write(pickle.dumps(("error", report)), "answer", 0)
    folder.write_json({"state": "ended", "code": 255, "why": "code"}, "state.json")
    return folder


def test_a_rank_that_has_left_no_word_is_to_blame(broken_off):
    with pytest.raises(simlib.RankDiedError, match="^rank 1 on node2 is gone: ") as caught:
        simlib.Job(broken_off.path).result(0)
    assert caught.value.exitcodes == {1: -signal.SIGKILL}
    assert "Connection" not in str(caught.value)


def test_a_rank_that_has_failed_by_itself_is_to_blame_first(broken_off):
    report = FailureReport("KeyError", "'no data'", [], "", False, from_wait=False)
    broken_off.write(pickle.dumps(("error", report)), "answer", 0)
    with pytest.raises(simlib.RankError, match="rank 0 raised KeyError"):
        simlib.Job(broken_off.path).result(0)


def test_a_rank_that_has_refused_is_not_gone(broken_off):
    broken_off.write(b"rank 1 cannot write what it came to", "refused")
    assert "rank 1 cannot write" in failure(simlib.Job(broken_off.path))


def test_a_host_that_no_longer_answers_is_named_before_what_follows_from_it(broken_off):
    broken_off.write_json({"node2": "silent"}, "lost.json")
    broken_off.write(logs.dump_verdict(simlib.DeadlockError("no op for 9 s")), "verdict.pkl")
    said = failure(simlib.Job(broken_off.path)).splitlines()
    assert said[0].startswith("main-1 could not be carried out: node2, where rank 1 runs, no long")
    assert said[1] == "So it came to this: no op for 9 s"


def test_what_a_rank_raised_by_itself_comes_before_a_host_that_seems_lost(broken_off):
    """A firewall that limits connections, say, drops the second look at a host that is well."""
    broken_off.write_json({"node2": "silent"}, "lost.json")
    report = FailureReport("ZeroDivisionError", "division by zero", [], "", False, from_wait=False)
    broken_off.write(pickle.dumps(("error", report)), "answer", 1)
    with pytest.raises(simlib.RankError, match="rank 1 raised ZeroDivisionError"):
        simlib.Job(broken_off.path).result(0)


def test_jobs_of_others_are_not_listed(folder, monkeypatch):
    theirs = folder.path.with_name("main-2")
    theirs.mkdir()
    (theirs / "job.json").touch()
    truly_open = os.open

    def refuse(path, *more, **named):
        if path == theirs:
            raise PermissionError
        return truly_open(path, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(simlib.InvalidCallError, match="cannot be read by this account"):
        simlib.Job(theirs)
    assert [job.name for job in simlib.jobs(folder.path.parent)] == ["main-1"]


def test_a_file_that_another_host_has_made_is_seen(folder, monkeypatch):
    """NFS believes that a file is still not there, until somebody opens its folder."""
    known, there = set(), folders.Path.exists
    truly_open = os.open

    def open_anew(path, *more, **named):
        if os.path.isdir(path):
            known.update(os.listdir(path))
        elif named.get("dir_fd") is not None and path not in known:
            raise FileNotFoundError(path)
        return truly_open(path, *more, **named)

    monkeypatch.setattr(folders.Path, "exists", lambda path: path.name in known and there(path))
    monkeypatch.setattr(folders.os, "open", open_anew)
    assert not folder.has("end")
    folder.mark("end")
    assert folder.has("end")
    folder.write(b"1", "answer", 0)
    assert folder.read("answer", 0) == b"1"
    assert folder.read("answer", 1) is None
