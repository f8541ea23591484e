"""The parts of jobs of another place, without another place: what travels, and how ssh is told."""

import errno
import io
import json
import os
import shutil
import struct
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest

import simlib
from simlib.cluster.batch import remote_agent, remote_state, ssh
from simlib.cluster.batch.ssh import HELLO, Line, UnreachableError, quoted
from simlib.core.model.errors import JobError
from simlib.core.record.oplog import COMMITTED, HEADER


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """A far folder, and one here; pieces are of 4 bytes."""
    monkeypatch.setattr(remote_state, "PIECE_BYTES", 4)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    return there, here


def fetch(there, here, is_over=False):
    """Bring what is new; returns the names of each answer."""
    answers = []
    while not answers or answers[-1]:
        messages, body = remote_state.news(there, remote_state.held(here), is_over)
        remote_state.take(here, messages, body)
        answers.append([message["name"] for message in messages])
    return answers[:-1]


def log(committed, room=1 << 12):
    header = bytearray(HEADER)
    struct.pack_into("q", header, COMMITTED, committed)
    body = bytes(range(1, committed - HEADER + 1))
    return bytes(header) + body + bytes(room - committed)


def test_only_what_has_changed_is_brought(sides):
    there, here = sides
    (there / "rank-0.out").write_text("one\ntwo\n")
    (there / "rank-0.answer").write_bytes(b"an answer")
    (there / "rank-0.log").write_bytes(log(HEADER + 9))
    (there / "attempt-1").mkdir()
    (there / "attempt-1" / "job.json").write_text("{}")
    (there / "empty").touch()
    (there / "job.json").write_text("its own")
    fetch(there, here)
    assert (here / "rank-0.out").read_text() == "one\ntwo\n"
    assert (here / "rank-0.answer").read_bytes() == b"an answer"
    assert sorted(os.listdir(here)) == ["attempt-1", "empty", "rank-0.answer", "rank-0.out"]
    assert fetch(there, here) == []
    with open(there / "rank-0.out", "a") as file:
        file.write("three\n")
    assert fetch(there, here) == [["rank-0.out"]] * 2
    assert (here / "rank-0.out").read_text() == "one\ntwo\nthree\n"
    fetch(there, here, is_over=True)
    assert (here / "rank-0.log").read_bytes() == log(HEADER + 9, room=HEADER + 9)
    assert fetch(there, here, is_over=True) == []


def test_a_file_that_is_replaced_meanwhile_is_whole_at_the_next_look(sides):
    there, here = sides
    for text in ("before", "after that"):
        (there / "rank-0.json").write_text(text)
        remote_state.take(here, *remote_state.news(there, remote_state.held(here), False))
        assert not (here / "rank-0.json").exists()
    fetch(there, here)
    assert (here / "rank-0.json").read_text() == "after that"
    assert os.listdir(here) == ["rank-0.json"]
    (there / "rank-0.json").write_text("at last")
    fetch(there, here)
    assert (here / "rank-0.json").read_text() == "at last"


@pytest.mark.parametrize("call", ["replace", "utime"])
def test_what_a_kernel_leaves_that_dies_over_a_file_is_brought_anew(sides, monkeypatch, call):
    there, here = sides
    (there / "rank-0.json").write_text("all")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, call, full)
        fetch(there, here)
    fetch(there, here)
    assert os.listdir(here) == ["rank-0.json"] and (here / "rank-0.json").read_text() == "all"
    assert fetch(there, here) == []


def test_the_far_side_names_no_files_elsewhere(sides):
    names = ["../evil", "/tmp/evil", ".ssh", "a/b", "attempt-1/../../evil", *remote_state.OWN]
    names += ["attempt-1/remote.json", "attempt-1/native.json"]
    for name in names:
        message = {"name": name, "at": 0, "length": 1, "of": [1, 1]}
        with pytest.raises(
            JobError, match=f"the remote side sent {name!r}, which is not a file of"
        ):
            remote_state.take(sides[1], [message], b"x")
    assert os.listdir(sides[1]) == []


def far_side(words):
    """A connection whose ssh is a shell that does as told, whatever it is to run."""
    return Line("login", ["sh", "-c", words], ["/far/python"])


@pytest.mark.parametrize(
    ("words", "told", "was_sent"),
    [
        (
            "echo 'ssh: connect to host login port 22: Connection refused' >&2; exit 255",
            "login answers, but runs no ssh server: start sshd on login",
            False,
        ),
        (
            "echo 'simlib is here: '; read asked; echo Killed by us >&2; exit 255",
            r"the connection to login was lost \(Killed by us\)",
            True,
        ),
        (
            "echo 'sh: 1: exec: /far/python: not found' >&2; exit 127",
            "login has no Python /far/python: name the Python of the course's",
            False,
        ),
        (
            "echo 'No module named simlib.cluster.batch.remote' >&2; exit 1",
            "/far/python on login cannot load this simlib .*install the same environment",
            False,
        ),
        ("echo Welcome; exit 3", r"the remote side on login has ended \(exit code 3\)", False),
    ],
)
def test_why_there_is_no_connection(words, told, was_sent):
    with pytest.raises(UnreachableError, match=told) as broken:
        far_side(words).ask({"do": "hello"})
    assert broken.value.was_sent == was_sent


def test_what_is_printed_before_the_first_word_and_the_answer_is_passed_over():
    """Empty lines say that the far side is at work."""
    begin = "echo Welcome; echo 'simlib is here: '; read asked; echo; echo"
    line = far_side(f"{begin}; echo '{{\"nbytes\": 2}}'; echo x; cat")
    assert line.ask({"do": "hello"}) == ({"nbytes": 2}, b"x\n")
    line._drop()
    line = far_side(f'{begin}; echo \'{{"error": "so it is", "nbytes": 0}}\'; cat')
    with pytest.raises(JobError, match="so it is"):
        line.ask({"do": "hello"})
    line._drop()


def test_ssh_tells_of_the_ranks_what_the_place_there_tells():
    needs = {"time_limit": 9, "gpus_per_rank": 1, "cpus_per_rank": 3}
    to = simlib.Ssh("login", simlib.Slurm(nodes=2, **needs))
    assert (to.hosts, to.uses_mpi, to.cwd("/here")) == (None, False, "/here")
    assert (to.time_limit, to.gpus_per_rank, to.threads()) == (9, 1, 3)
    on_hosts = simlib.Ssh("login", simlib.Mpiexec(hosts=["a"]))
    assert (list(on_hosts.hosts), on_hosts.uses_mpi, on_hosts.threads()) == (["a"], True, 1)


def test_the_home_folder_is_the_far_shells():
    assert quoted("~/my course/bin/python") == "~/'my course/bin/python'"
    assert quoted("$HOME/x") == "'$HOME/x'"


def test_the_far_side_writes_empty_lines_as_long_as_it_is_at_work(monkeypatch):
    monkeypatch.setattr(remote_agent, "BEAT_S", 0.001)
    go = threading.Event()

    class Slow:
        def work(self, message, body):
            go.wait()
            return {"is": "done"}, body

    reader, writer = os.pipe()
    asked = io.BytesIO(b'{"do": "work", "nbytes": 1}\nx')
    monkeypatch.setattr(remote_agent, "select", SimpleNamespace(select=lambda *_: [True]))
    with os.fdopen(reader, "rb") as answers:
        with os.fdopen(writer, "wb") as out:
            serve = threading.Thread(target=remote_agent.serve, args=(Slow(), asked, out))
            serve.start()
            said = [answers.readline() for _ in range(4)]
            go.set()
            serve.join()
        said += answers.readlines()
    assert said[:4] == [b"\n", HELLO + b"\n", b"\n", b"\n"]
    assert {*said[2:-2]} == {b"\n"}
    assert json.loads(said[-2]) == {"is": "done", "nbytes": 1} and said[-1] == b"x"


@dataclass(frozen=True)
class Nothing(simlib.Mpiexec):
    """Starts nothing, and counts how often."""

    started: ClassVar[list] = []

    def command(self, world_size, program):
        return ["true"]

    def start(self, folder):
        self.started.append(folder.path)


class Cable:
    """A connection to a far side in this process, which breaks before or after a message."""

    host = "login"

    def __init__(self):
        self.far = remote_agent.Far()
        self.breaks = ""

    def ask(self, message, body=b"", wait_s=None):
        if message["do"] != "hello" and self.breaks == "before":
            raise UnreachableError("it is broken")
        answer = remote_agent._answer(getattr(self.far, message["do"]), message, body)
        if message["do"] != "hello" and self.breaks == "after":
            error = UnreachableError("it is broken")
            error.was_sent = True
            raise error
        if "error" in answer[0]:
            raise JobError(answer[0]["error"])
        return answer


@pytest.fixture
def cable(monkeypatch):
    cable = Cable()
    for module in (ssh, remote_state):
        monkeypatch.setattr(module, "line_to", lambda *_: cable)
    monkeypatch.setattr(remote_state, "LOOK_S", 0.0)
    monkeypatch.setattr(ssh, "HAND_OVER_S", 0.0)
    Nothing.started.clear()
    return cable


def handed_over(tmp_path, there="there"):
    to = simlib.Ssh("login", Nothing(), folder=str(tmp_path / there))
    return simlib.submit(print, 1, to=to, folder=tmp_path / "here")


def test_a_job_that_may_have_arrived_is_not_refused(cable, tmp_path):
    cable.breaks = "before"
    with pytest.raises(JobError, match="it is broken"):
        handed_over(tmp_path)
    (job,) = simlib.jobs(tmp_path / "here")
    assert job.status == "failed"
    cable.breaks = "after"
    with pytest.warns(UserWarning, match=r"whether login has accepted print-2 \(it is broken\)"):
        job = handed_over(tmp_path)
    assert job.status == "queued" and "it is broken" in repr(job)
    cable.breaks = ""
    assert repr(job) == "print-2: queued, 1 ranks on login"
    (path,) = Nothing.started
    (path / "state.json").write_text('{"state": "ended", "code": 0, "why": "code"}')
    assert job.status == "done"


def test_a_job_whose_far_folder_is_deleted(cable, tmp_path):
    job = handed_over(tmp_path)
    assert job.status == "queued"
    shutil.rmtree(*Nothing.started)
    assert job.status == "failed"
    with pytest.raises(JobError, match="login has no folder .*print-1"):
        job.result()


def test_a_job_that_is_cancelled_before_it_arrives_does_not_begin(cable, tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(cable.far, "submit", lambda *message: messages.append(message) or ({}, b""))
    cable.breaks = "after"
    with pytest.warns(UserWarning, match="does not know yet"):
        job = handed_over(tmp_path)
    cable.breaks = ""
    assert "has no folder" in repr(job) and "yet: the job may not have arrived there" in repr(job)
    job.cancel()
    assert job.status == "cancelled"
    with pytest.raises(JobError, match="was cancelled"):
        remote_agent.Far().submit(*messages[0])
    assert not Nothing.started


def test_a_cancelled_jobs_other_hand_does_not_start_it(cable, tmp_path, monkeypatch):
    """It is cancelled between its folder and its start."""
    truly = remote_agent.prepare

    def prepare(folder, *rest):
        truly(folder, *rest)
        folder.mark("cancel")

    monkeypatch.setattr(remote_agent, "prepare", prepare)
    with pytest.raises(JobError, match="was cancelled"):
        handed_over(tmp_path)
    assert not Nothing.started


def test_a_cancel_that_may_have_arrived_is_kept(cable, tmp_path, monkeypatch):
    monkeypatch.setattr("simlib.cluster.batch.job.CANCEL_S", 0.1)  # nothing runs that could end
    job = handed_over(tmp_path)
    cable.breaks = "after"
    with pytest.raises(JobError, match="does not know yet whether print-1 is cancelled"):
        job.cancel()
    assert (job.path / "cancel").exists()
    (job.path / "cancel").unlink()
    cable.breaks = "before"
    with pytest.raises(JobError, match="print-1 is not cancelled: it is broken"):
        job.cancel()
    assert not (job.path / "cancel").exists()


def full(*_, **named):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told(cable, tmp_path, monkeypatch):
    """There it leaves nothing; here the job goes on."""
    with (
        monkeypatch.context() as patched,
        pytest.raises(JobError, match="made and filled in .*there .No space left on device"),
    ):
        patched.setattr(remote_agent, "prepare", full)
        handed_over(tmp_path)
    assert not (tmp_path / "there").exists()
    job = handed_over(tmp_path)
    (Nothing.started[0] / "rank-0.out").write_text("x")
    monkeypatch.setattr(remote_state, "_write", full)
    monkeypatch.setattr(remote_state, "PATIENT_S", 0.0)
    assert job.status == "queued"
    assert f"{job.name} cannot be filled (No space left on device): free some" in repr(job)


def test_a_folder_there_that_is_anybodys_is_refused(cable, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o777)
    with pytest.raises(JobError, match="any account can create folders in .*there"):
        handed_over(tmp_path)
    assert not os.listdir(there) and not Nothing.started
