"""The parts of jobs of another place, without another place: what travels, and how ssh is told."""

import os
import struct

import pytest

from simlib.engines.batch import staging
from simlib.engines.batch.remote import files
from simlib.engines.batch.remote.line import Line, UnreachableError, quoted
from simlib.model.errors import JobError
from simlib.record.oplog import COMMITTED, HEADER


@pytest.fixture
def sides(tmp_path):
    """A far folder, one here, and what brings the one to the other; pieces are of 4 bytes."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    return there, here, files.Mirror(here)


def fetch(there, mirror, is_over=False, between=lambda: None):
    asked = []

    def read(wanted):
        asked.append([name for name, _, _ in wanted])
        answer = files.read_pieces(there, wanted)
        between()
        return answer

    mirror.fetch(files.listing(there, is_over), read)
    return asked


def log(committed, room=1 << 12):
    header = bytearray(HEADER)
    struct.pack_into("q", header, COMMITTED, committed)
    body = bytes(range(1, committed - HEADER + 1))
    return bytes(header) + body + bytes(room - committed)


def test_only_what_has_changed_is_asked_for(sides, monkeypatch):
    monkeypatch.setattr(files, "PIECE_BYTES", 4)
    there, here, mirror = sides
    (there / "rank-0.out").write_text("one\ntwo\n")
    (there / "rank-0.answer").write_bytes(b"an answer")
    (there / "rank-0.log").write_bytes(log(HEADER + 9))
    (there / "attempt-1").mkdir()
    (there / "attempt-1" / "job.json").write_text("{}")
    (there / "job.json").write_text("its own")
    fetch(there, mirror)
    assert (here / "rank-0.out").read_text() == "one\ntwo\n"
    assert (here / "rank-0.answer").read_bytes() == b"an answer"
    assert sorted(os.listdir(here)) == ["attempt-1", "rank-0.answer", "rank-0.out"]
    assert fetch(there, mirror) == []
    with open(there / "rank-0.out", "a") as file:
        file.write("three\n")
    assert fetch(there, mirror) == [["rank-0.out"]] * 2
    assert (here / "rank-0.out").read_text() == "one\ntwo\nthree\n"
    fetch(there, mirror, is_over=True)
    assert (here / "rank-0.log").read_bytes() == log(HEADER + 9, room=HEADER + 9)
    assert fetch(there, files.Mirror(here), is_over=True) == []  # a new kernel's


def test_a_file_that_is_replaced_meanwhile_is_whole_at_the_next_look(sides, monkeypatch):
    monkeypatch.setattr(files, "PIECE_BYTES", 4)
    there, here, mirror = sides
    (there / "rank-0.json").write_text("before")
    fetch(there, mirror, between=lambda: (there / "rank-0.json").write_text("after that"))
    assert not (here / "rank-0.json").exists()
    fetch(there, mirror)
    assert (here / "rank-0.json").read_text() == "after that"
    (there / "gone").write_text("x")
    fetch(there, mirror, between=lambda: (there / "gone").unlink(missing_ok=True))
    assert (here / "gone").read_text() == "x"


def test_the_far_side_names_no_files_elsewhere(sides):
    there, here, mirror = sides
    names = ["../evil", "/tmp/evil", ".ssh", "a/b", "attempt-1/../../evil", *files.OWN]
    names += ["attempt-1/remote.json", "attempt-1/native.json"]
    mirror.fetch(dict.fromkeys(names, [1, 1]), lambda wanted: pytest.fail(f"asked for {wanted}"))
    assert os.listdir(here) == []
    there = {"remote.json": [1, 1], "good": [1, 1]}
    with pytest.raises(JobError, match="sends 'remote.json', and was not asked for it"):
        mirror.fetch(there, lambda wanted: ([("remote.json", 0, 1, 1, 1)], b"x"))
    assert os.listdir(here) == []


def far_side(words):
    """A connection whose ssh is a shell that does as told, whatever it is to run."""
    return Line("login", ["sh", "-c", words], ["/far/python"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "echo 'ssh: connect to host login port 22: Connection refused' >&2; exit 255",
            "login answers, but no ssh server runs there: start sshd on it",
        ),
        ("echo Killed by us >&2; exit 255", r"the connection to login has broken \(Killed by us\)"),
        (
            "echo 'sh: 1: exec: /far/python: not found' >&2; exit 127",
            "login has no Python /far/python: name the one of the course's",
        ),
        (
            "echo 'No module named simlib.engines.batch.remote' >&2; exit 1",
            "login has no simlib like this one for /far/python .*install the same environment",
        ),
        ("echo Welcome; exit 3", r"the far side on login has ended \(exit code 3\)"),
    ],
)
def test_why_there_is_no_connection(words, told):
    with pytest.raises(UnreachableError, match=told):
        far_side(words).ask({"do": "hello"})


def test_what_is_printed_before_the_first_word_is_passed_over():
    answer = '{"error": "so it is", "nbytes": 0}'
    line = far_side(f"echo Welcome; echo 'simlib is here: '; read question; echo '{answer}'; cat")
    with pytest.raises(JobError, match="so it is"):
        line.ask({"do": "hello"})
    line._drop()


def test_the_home_folder_is_the_far_shells():
    assert quoted("~/my course/bin/python") == "~/'my course/bin/python'"
    assert quoted("$HOME/x") == "'$HOME/x'"


def carried(source, target, name, told=None):
    messages, told = source.changes(name, told)
    for message, content in messages:
        target.apply(message, content)
    return told


def test_staging_carries_what_is_new_and_a_logs_body_before_its_header(tmp_path, monkeypatch):
    sides = [tmp_path / name for name in ("spoke", "hub")]
    for side in sides:
        side.mkdir()
    spoke, hub = (staging.Files(str(side), [HEADER, COMMITTED]) for side in sides)
    (sides[0] / "rank-0.out").write_text("one\n")
    told = carried(spoke, hub, "rank-0.out")
    with open(sides[0] / "rank-0.out", "a") as file:
        file.write("two\n")
    assert [message["at"] for message, _ in spoke.changes("rank-0.out", told)[0]] == [4]
    carried(spoke, hub, "rank-0.out", told)
    assert (sides[1] / "rank-0.out").read_text() == "one\ntwo\n"
    (sides[0] / "rank-0.log").write_bytes(log(HEADER + 9))
    monkeypatch.setattr(staging, "PIECE", 6)
    first, told = spoke.changes("rank-0.log", None)
    assert [(message["at"], len(content)) for message, content in first] == [(HEADER, 6)]
    second, told = spoke.changes("rank-0.log", told)
    assert [(m["at"], len(c)) for m, c in second] == [(HEADER + 6, 3), (0, HEADER)]
    for message, content in first + second:
        hub.apply(message, content)
    assert (sides[1] / "rank-0.log").read_bytes() == log(HEADER + 9, room=HEADER + 9)
    assert spoke.changes("rank-0.log", told)[0] == []


def test_the_first_who_refuses_counts_at_the_hub(tmp_path):
    hub = staging.Files(str(tmp_path), [HEADER, COMMITTED])
    for words in (b"node1 has no torch", b"node2 heard of it"):
        hub.apply({"name": "refused"}, words)
    assert (tmp_path / "refused").read_bytes() == b"node1 has no torch"


def test_a_spoke_that_sees_the_folder_needs_no_copy(tmp_path):
    (tmp_path / ".staged-1").touch()
    ours, theirs = os.pipe(), os.pipe()
    staging.Pipe(ours[0], ours[1]).send({"folder": str(tmp_path), "mark": ".staged-1"})
    staging.Spoke(staging.Pipe(ours[0], theirs[1])).serve()
    assert staging.Pipe(theirs[0], theirs[1]).receive()[0]["is"] == "shared"
    for number in (*ours, *theirs):
        os.close(number)
