"""A job as its folder knows it: what is there, who still looks after it, what the queue says."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from test_job_logs import post

import simlib
from simlib.cli import main
from simlib.cluster.batch import folder as folders
from simlib.cluster.batch import job as jobs
from simlib.cluster.batch import logs, state
from simlib.cluster.batch.bootstrap import UNWRITTEN
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.supervisor import JobJudge, Supervisor
from simlib.cluster.commands import _looked_at
from simlib.core.model.errors import FailureReport
from simlib.core.record.oplog import FORMAT

RANKS = 2
ENDED = {"state": "ended", "code": 1, "why": "code"}


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


def active(folder, process):
    place = {"host": os.uname().nodename, "pid": process.pid, "began": 0}  # in 1970: a wrong clock
    folder.write_json({"state": "active", **place}, "state.json")


def reported(folder, rank, name, message, from_wait=False):
    """A rank has raised an error, in a wait that another one broke, or by itself."""
    report = FailureReport(name, message, [], "", invalid=False, from_wait=from_wait)
    folder.write(pickle.dumps(("error", report)), "answer", rank)


def failure(folder, error=simlib.JobError):
    with pytest.raises(error) as caught:
        simlib.Job(folder.path).result(0)
    return caught.value


# Who looks after it


def test_a_job_is_active_as_long_as_somebody_waits_for_its_launcher(folder, waiting):
    active(folder, waiting)
    job = simlib.Job(folder.path)
    assert job.status == "active"
    waiting.communicate()
    assert job.status == "failed"
    gone = f"the process {waiting.pid} that watched the job's launcher has ended"
    assert gone in str(failure(folder))
    for rank in range(RANKS):  # results are not lost with it
        folder.write(pickle.dumps(("result", rank)), "answer", rank)
    assert simlib.Job(folder.path).result(0).results == [0, 1]
    job.cancel()
    assert folder.has("end")
    assert job.status == "cancelled"


def test_another_process_with_the_number_of_the_one_that_waited(folder):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        active(folder, process)
        assert simlib.Job(folder.path).status == "failed"


def test_a_job_that_was_never_started(folder, monkeypatch):
    job = simlib.Job(folder.path)
    assert job.status == "queued"
    monkeypatch.setattr(state, "START_S", -1)
    assert job.status == "failed"
    assert "the job was never started" in str(failure(folder))


class Queue:
    """Stands for what the scheduler says."""

    def __init__(self, folder):
        self._folder = folder

    def state(self):
        native = self._folder.read_json("native.json")
        return native and native["says"]

    def words(self):
        return ""

    reason = words


def test_what_the_queue_says(folder, monkeypatch):
    monkeypatch.setattr(state, "JobInQueue", Queue)
    monkeypatch.setattr(state, "START_S", -1)  # in a queue it may take as long as it takes
    job = simlib.Job(folder.path)  # it is handed to the queue while somebody looks
    folder.write_json({"says": "queued"}, "native.json")
    assert job.status == "queued"
    said = job._in_words("queued")
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: 2e9)
        assert job._in_words("queued") == said  # others are printed
    folder.write_json({"says": "cancelled"}, "native.json")
    assert job.status == "cancelled"
    folder.write_json({"says": "done"}, "native.json")  # also a job that squeue has forgotten
    assert job.status == "queued"  # its folder may be behind
    monkeypatch.setattr(state, "SETTLE_S", -1)
    assert job.status == "failed"
    assert "the queue has ended the job" in str(failure(folder))
    folder.mark("cancel")
    assert job.status == "cancelled"
    folder.write_json(ENDED | {"code": 0}, "state.json")
    assert job.status == "done"


def test_ranks_that_end_before_their_launcher_is_told_are_cancelled(folder):
    folder.mark("cancel")
    folder.write_json(ENDED, "state.json")
    assert simlib.Job(folder.path).status == "cancelled"


# Why it failed


def test_a_full_filesystem_is_named(folder, monkeypatch):
    folder.write_json(ENDED, "state.json")
    monkeypatch.setattr(jobs, "FULL_BYTES", float("inf"))
    assert "the filesystem of the job's folder is full" in str(failure(folder))


def test_the_first_reason_counts_but_for_what_a_rank_raised_by_itself(folder):
    folder.write_json(ENDED, "state.json")
    folder.write_once(b"node2 has no disk", "refused")
    folder.write_once(b"node1 has lost node2", "refused")
    assert "node2 has no disk" in str(failure(folder))
    reported(folder, 0, "ValueError", "x", from_wait=True)
    assert "node2 has no disk" in str(failure(folder))
    reported(folder, 0, "ValueError", "x")
    failure(folder, simlib.RankError)


@pytest.mark.parametrize(("has_joined", "words"), [(0, "node2 has no disk"), (1, "SIGSEGV")])
def test_who_dies_before_it_has_joined_is_not_to_blame(folder, has_joined, words):
    folder.write_json(ENDED, "state.json")
    folder.write_json({"code": -11}, "exit", 0)
    folder.write_once(b"node2 has no disk", "refused")
    if has_joined:
        folder.write_json({"host": "node1", "offset_s": 0.0, "error_s": 0.0}, "json", 0)
    assert words in str(failure(folder, simlib.SimlibError))


def test_a_death_is_no_wait_that_was_broken(folder):
    folder.write_json({"code": -9}, "exit", 1)
    watch = logs.JobMonitor(folder)
    watch.take_in()
    assert watch.failed_by_itself()


@pytest.fixture
def broken_off(folder):
    """A job whose rank 0 has seen a connection break, and whose rank 1 has left no word."""
    for rank in range(RANKS):
        place = {"host": f"node{rank + 1}", "offset_s": 0.0, "error_s": 0.0}
        folder.write_json(place, "json", rank)
    reported(folder, 0, "RuntimeError", "Connection reset", from_wait=True)
    folder.write_json(ENDED | {"code": 255}, "state.json")
    return folder


def test_a_rank_that_has_left_no_word_is_to_blame(broken_off):
    error = failure(broken_off, simlib.RankDiedError)
    assert str(error).startswith("rank 1 on node2 is gone: ")
    assert error.exitcodes == {1: -signal.SIGKILL}
    assert "Connection" not in str(error)


def test_a_rank_that_has_failed_or_refused_is_to_blame_first(broken_off):
    broken_off.write(b"rank 1 cannot write what it came to", "refused")
    assert "rank 1 cannot write" in str(failure(broken_off))
    broken_off.file("refused").unlink()
    reported(broken_off, 0, "KeyError", "'no data'")
    assert "rank 0 raised KeyError" in str(failure(broken_off, simlib.RankError))


def test_a_host_that_no_longer_answers_is_named_before_what_follows_from_it(broken_off):
    """Not before an error: a firewall may drop the second look at a host that is well."""
    broken_off.write_json({"node2": "silent"}, "lost.json")
    broken_off.write(logs.dump_verdict(simlib.DeadlockError("no op for 9 s")), "verdict.pkl")
    said = str(failure(broken_off)).splitlines()
    assert said[0].startswith("main-1 could not be carried out: node2, where rank 1 runs, no long")
    assert said[1] == "What happened then: no op for 9 s"
    broken_off.file("verdict.pkl").unlink()
    reported(broken_off, 1, "ZeroDivisionError", "division by zero")
    assert "rank 1 raised ZeroDivisionError" in str(failure(broken_off, simlib.RankError))


LATE = "no rank called an op or printed a line for 9 s"
ALL, NONE = range(RANKS), ()
NO_ROOM = f"{UNWRITTEN}node2 cannot write into the job's folder (Read-only): x\n    for y\nmore"


@pytest.mark.parametrize(
    ("guess", "joined", "said", "words"),
    [
        (simlib.StuckError(LATE), ALL, {}, f"^{LATE}$"),
        (simlib.StuckError(LATE), ALL, {"launcher.err": f"a\n{NO_ROOM}"}, r"only\): x\n    for y$"),
        (simlib.DeadlockError(LATE), ALL, {"launcher.err": NO_ROOM}, "node2 cannot write"),
        (simlib.DeadlockError("a ring", graph=()), ALL, {"launcher.err": NO_ROOM}, "^a ring$"),
        (simlib.StuckError(LATE), ALL, {"refused": "node2 has no disk"}, "node2 has no disk"),
        (simlib.StuckError(LATE), ALL, {"launcher.err": "sh: x: not found"}, f"^{LATE}$"),
        (simlib.StuckError(LATE), NONE, {"launcher.err": "sh: x: not found"}, "cannot run .* x"),
        (simlib.StuckError(LATE), NONE, {"rank-0.log": ""}, "rank 1 did not join .* in 9 s: a "),
    ],
)
def test_what_was_said_is_read_before_anything_is_guessed(folder, guess, joined, said, words):
    folder.write_json(folder.about() | {"log_format": FORMAT}, "job.json")
    folder.write_json(ENDED, "state.json")
    folder.write(logs.dump_verdict(guess), "verdict.pkl")
    for rank in joined:
        folder.write_json({"host": "node1", "offset_s": 0.0, "error_s": 0.0}, "json", rank)
    for name, text in said.items():
        folder.write(text.encode(), name)
    assert re.search(words, str(failure(folder, simlib.SimlibError)))


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ({}, r"launcher has ended with exit code 1: `simlib doctor --hosts a --folder .*` checks"),
        ({"launcher.err": "new words"}, r"All output of the launcher is in \S*/launcher.err$"),
        ({"launcher.out": "new words", "launcher.err": " "}, r"is in \S*/launcher.out$"),
        (
            {"mute.json": '["node2"]'},
            r"no ssh server answers on node2: log in by hand to see whether",
        ),
        ({"mute.json": "[]"}, "the launcher has ended"),
    ],
)
def test_a_launcher_of_which_little_is_known(folder, said, last):
    folder.write_json(folder.about() | {"hosts": ["a"]}, "job.json")
    folder.write_json(ENDED, "state.json")
    for name, text in said.items():
        folder.write(text.encode(), name)
    words = str(failure(folder))
    assert re.search(last, words.splitlines()[-1])
    assert ("All output of" in words) == any(name.startswith("launcher") for name in said)


# Its folder, deleted


def test_a_supervisor_ends_its_rank_where_the_folder_is_deleted(folder):
    reader, writer = os.pipe()
    supervisor = Supervisor(folder, os.getpid(), reader)
    assert not supervisor._is_over()
    folder.file("job.json").unlink()
    assert supervisor._is_over()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("left", [None, "beat"])
def test_a_folder_that_somebody_deletes(folder, waiting, left, monkeypatch, capsys):
    """Also where a rank has put a file into it meanwhile."""
    active(folder, waiting)
    job = simlib.Job(folder.path)
    listed = simlib.jobs(folder.path.parent)
    shutil.rmtree(folder.path)
    if left:
        folder.path.mkdir()
        folder.mark(left)
    words = "main-1 no longer exists: somebody deleted its folder .*main-1, .* Submit the job again"
    calls = [job.follow, job.result, job.cancel, lambda: job.status, lambda: job.clocks]
    for call in (*calls, lambda: logs.JobMonitor(folder)):
        with pytest.raises(simlib.JobError, match=words):
            call()
    assert repr(job) == "main-1: deleted, 2 ranks on hosts"
    assert simlib.jobs(folder.path.parent) == []
    monkeypatch.setattr(jobs, "jobs", lambda _: listed)
    assert main(["jobs", "--folder", str(folder.path.parent)]) == 0
    assert _looked_at(job) == simlib.ExitCode.NOT_RUN
    said = capsys.readouterr()
    assert "there are no jobs" in said.out and said.err.count("main-1 no longer exists") == 1


def test_a_job_in_the_queue_is_taken_out_of_it_though_its_folder_is_deleted(folder, monkeypatch):
    cancelled = []
    monkeypatch.setattr(state, "JobInQueue", Queue)
    monkeypatch.setattr(Queue, "cancel", lambda self: cancelled.append(self), raising=False)
    job = simlib.Job(folder.path)
    shutil.rmtree(folder.path)
    with pytest.raises(simlib.JobError, match="main-1 no longer exists"):
        job.cancel()
    assert cancelled


# Who waits


def test_ranks_that_wait_are_told_while_they_wait(folder, waiting, capsys):
    """By all who look: follow, result, jobs; and hosts that do not answer meanwhile."""
    active(folder, waiting)
    for rank in range(RANKS):
        place = {"host": f"node{rank + 1}", "offset_s": 0.0, "error_s": 0.0}
        folder.write_json(place, "json", rank)
    memory = logs.create(folder.file("log", 0))
    writer = logs.writer(memory)
    writer.wait_begin(post(writer))
    logs.create(folder.file("log", 1))
    judge, job = JobJudge(folder, lambda: None), simlib.Job(folder.path)
    judge.look()
    judge._tell_waits(2.9)
    assert job.trouble == ""
    for silence_s, words in ((4, "3 s"), (7, "6 s")):
        judge._tell_waits(silence_s)
        words = f"rank 0 has waited for {words} in all_reduce for rank 1 on node2"
        assert job.trouble == words
    folder.write_json({"node2": "silent"}, "lost.json")
    words += "; node2, where rank 1 runs, no longer answers: the host lost its network, or was"
    assert words in repr(job)
    with pytest.raises(TimeoutError, match=f"after 0 s: {words}"):
        job.result(0)
    assert main(["jobs", "--folder", str(folder.path.parent)]) == 0
    assert f"hosts; {words}" in capsys.readouterr().out
    assert job._in_words("active").startswith(f"main-1 runs: {words}")
    folder.file("lost.json").unlink()
    judge._tell_waits(0.1)
    assert job.trouble == ""


# Its files


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


def test_a_file_for_which_there_is_no_room_takes_none(folder, monkeypatch):
    def no_room(path, content):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.Path, "write_bytes", no_room)
    before = sorted(folder.path.iterdir())
    with pytest.raises(OSError, match="No space left"):
        folder.write(b"x", "answer", 0)
    assert sorted(folder.path.iterdir()) == before


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
