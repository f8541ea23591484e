"""What the tests of grading share: a sandbox, the ground, and a host that is looked at after."""

import contextlib
import functools
import json
import os
import random
import socket
from pathlib import Path

import psutil
import pytest
from ground import LIMITS, SEED, Ground
from intruders import SECRET
from notebooks_made import content, exercise, hand_in, solved, table

from simlib.classroom.grading import commands
from simlib.classroom.grading import exercise as exercise_module
from simlib.classroom.grading.grade import grade
from simlib.classroom.grading.whole_class import record
from simlib.cli import main

SOLVED = content(solved(exercise("04")))
SLEEP_S = "98765.4321"
"""How long processes sleep which answers leave behind; each host has a number of its own."""


@pytest.fixture(scope="session")
def ground(tmp_path_factory):
    """The exercise that hostile answers are put into."""
    return Ground(tmp_path_factory.mktemp("ground"), size=28, limit_s=20)


@pytest.fixture(scope="session")
def expected_of(isolated):
    """``expected_of(exercise)``: what its solution gives; each is run once."""
    known = {}

    def find(exercise):
        if exercise.name not in known:
            known[exercise.name] = record(exercise, SEED, LIMITS)
        return known[exercise.name]

    return find


@pytest.fixture(scope="session")
def expected(expected_of, ground):
    """What the solution of the ground gives."""
    return expected_of(ground.exercise)


def server_outside_the_ephemeral_range():
    """A server on the host's loopback, on a port that no process is given by itself.

    The sandbox has a loopback of its own, where kernel, store and ranks listen on ports that the
    system chose: a port of that range here may be one of theirs, and who connects to it would
    reach, rightly, his own process.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(10_000, lowest), 50):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise OSError(f"50 ports between 10000 and {lowest} are all taken")


class Host:
    """Things of the host that a submission must not reach; `check` holds that none did."""

    def __init__(self, folder):
        self.folder = folder
        folder.chmod(0o777)
        (folder / "secret").write_text("CANARY")
        (folder / "secret").chmod(0o666)
        self._server = server_outside_the_ephemeral_range()
        self._server.setblocking(False)
        self.port = self._server.getsockname()[1]
        self._sleep_s = f"98765.{self.port}"
        self._local = socket.socket(socket.AF_UNIX)
        self._local.bind(f"\0simlib-canary-{self.port}")
        self._local.listen()
        self._local.setblocking(False)

    def adapted(self, source):
        """A source that knows where these things are."""
        source = source.replace(SLEEP_S, self._sleep_s)
        return source.replace("PORT", str(self.port)).replace("CANARY", str(self.folder))

    def check(self):
        """Nobody came, nothing changed, nobody stayed."""
        for server in (self._server, self._local):
            with pytest.raises(BlockingIOError):
                server.accept()
        assert [one.name for one in self.folder.iterdir()] == ["secret"]
        assert (self.folder / "secret").read_text() == "CANARY"
        running = psutil.process_iter(["cmdline"])
        assert not [one for one in running if self._sleep_s in (one.info["cmdline"] or ())]

    def close(self):
        """Close the sockets."""
        self._server.close()
        self._local.close()


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A `Host`; it is checked at the end of the test."""
    monkeypatch.setitem(os.environ, "GRADER_SECRET", SECRET)
    found = Host(tmp_path)
    yield found
    found.check()
    found.close()


@pytest.fixture
def grade_cases(ground, expected, host):
    """``grade_cases({name: Case})``: graded in one notebook, and compared with what is to come."""

    def grade_them(cases, limits=LIMITS, helpers=()):
        assert len(cases) <= len(ground.names)
        sources = [host.adapted(case.source) for case in cases.values()]
        result = grade(ground.bytes(sources, helpers), ground.exercise, expected, SEED, limits)
        wrong = {}
        for (name, case), one in zip(cases.items(), result.questions, strict=False):
            said = f"{one.reason}\n{one.got}"
            as_it_should = one.points == case.points and case.status in ("", one.status)
            if not as_it_should or case.words not in said or "\x1b" in said:
                wrong[name] = f"{one.points} {one.status}: {said}"
        assert not wrong
        return result

    return grade_them


class Desk:
    """Where a teacher works: submissions in `class`, what `simlib grade` makes in `report`.

    Nothing is run: `graded` has the contents that `stand_in` has graded.
    """

    def __init__(self, capsys, graded):
        self._capsys, self.graded = capsys, graded

    def hand_in(self, *names, data=SOLVED):
        """Files of students."""
        hand_in(Path("class"), *names, data=data)

    def write(self, name, text):
        """A table that the teacher has made; returns its name."""
        Path(name).write_text(text, encoding="utf-8")
        return name

    def grade(self, *words, code=0):
        """What the command says, which must end with this exit code; `graded` begins anew."""
        self.graded.clear()
        assert main(["grade", "class", *words]) == code
        return self._capsys.readouterr()

    def rows(self):
        """``{student: {column: text}}`` of report.csv."""
        head, *others = table("report/report.csv")
        return {row[0]: dict(zip(head, row, strict=True)) for row in others}

    def report(self):
        """report.json."""
        return json.loads(Path("report/report.json").read_text("utf-8"))

    def page(self, name="class"):
        """A page of the report."""
        return Path("report", f"{name}.html").read_text("utf-8")


read_once = functools.cache(exercise_module.read_exercises)


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory, monkeypatch):
    """The key of whoever runs the tests stays as it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def sources_are_read_once(monkeypatch):
    """The sources of all exercises are read once for all tests."""
    monkeypatch.setattr(commands, "read_exercises", read_once)


@pytest.fixture
def desk(stand_in, tmp_path, monkeypatch, capsys):
    """A `Desk` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Desk(capsys, stand_in)
