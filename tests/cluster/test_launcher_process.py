"""The program that waits for a launcher: its end, what is left over, and which hosts answer."""

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from jobs import wait_until

from simlib.cluster.batch import launcher_process
from simlib.cluster.batch.bootstrap import UNWRITTEN
from simlib.cluster.batch.launcher_process import CUT, OPEN, REFUSED, SILENT
from simlib.core.record.oplog import CAPACITY, COMMITTED, HEADER

DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
"""A launcher that does not end, with something in a session of its own, as an ssh may be."""
AWAIT = """
import os, sys, time
while not os.path.exists({path!r}): time.sleep(0.01)
sys.exit({code})
"""
"""A launcher that ends when the first look is over."""
LOOK = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
name = "lost.json" if (folder / "reach.json").exists() else "reach.json"
(folder / name).write_text("{}")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this is no program of its own
    for name in ("LINGER_S", "LEAVE_S", "SILENCE_S"):
        monkeypatch.setattr(launcher_process, name, 0.2)
    return tmp_path


def plan_of(folder, program="", **more):
    return {
        "command": [sys.executable, "-c", program], "environ": {}, "time_limit": 60,
        "hopeless": "(?!)", "obey_s": 0.2, "cancelled_by": [str(folder / "cancel")],
        "reach": [sys.executable, "-c", LOOK], "world_size": 2, "timeout_s": 60,
        "log": [HEADER, COMMITTED], "hosts": [], "unwritten": UNWRITTEN, **more,
    }  # fmt: skip


def carry(folder, program, **more):
    """Have a launcher carried to its end; returns what is in ``state.json``."""
    (folder / "launch.json").write_text(json.dumps(plan_of(folder, program, **more)))
    launcher_process.main(str(folder))
    return json.loads((folder / "state.json").read_text())


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def join(folder, hosts=("node1", "node2"), is_alone=False):
    for rank, host in enumerate(hosts):
        place = {"host": host, "address": "127.0.0.1", "is_alone": is_alone}
        (folder / f"rank-{rank}.json").write_text(json.dumps(place))


@pytest.mark.parametrize("planned", [False, True])
def test_a_launcher_that_does_not_end_when_the_ranks_do(folder, monkeypatch, planned):
    """A plan may say how long it may take."""
    times = {"linger_s": 0.2, "leave_s": 0.2} if planned else {}
    for name in ("LINGER_S", "LEAVE_S"):
        monkeypatch.setattr(launcher_process, name, 1000 if planned else 0.2)
    (folder / "end").touch()
    state = carry(folder, DEAF, **times)
    assert (state["state"], state["code"], state["why"]) == ("ended", -signal.SIGKILL, "late")
    left = int((folder / "launcher.out").read_text())
    wait_until(lambda: has_ended(left))


def test_nobody_has_heard_of_rank_0_for_long(folder):
    """Without a timeout, silence is no end."""
    (folder / "beat").touch()
    state = carry(folder, "import time; time.sleep(1000)", timeout_s=0.1)
    assert state["why"] == "silent"
    assert (folder / "end").exists()
    for limit_s, is_silent in ((None, False), (1, True)):
        plan = plan_of(folder, timeout_s=limit_s)
        watch = launcher_process.Watch(None, folder, plan, None)
        assert not watch._is_silent(time.monotonic())
        assert watch._is_silent(time.monotonic() + 1000) == is_silent


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import shutil; shutil.rmtree({folder!r}); time.sleep(1000)", None),
        ("os.unlink({folder!r} + '/launch.json'); time.sleep(1000)", None),
        ("print('a\\n{unwritten}', file=sys.stderr, flush=True); time.sleep(1000)", "hopeless"),
        ("print('a\\nnode2', file=sys.stderr); sys.exit(3)", "code"),
    ],
)
def test_a_folder_that_is_deleted_or_takes_no_files_ends_the_launcher(folder, program, why):
    """Nobody else may be left who could."""
    join(folder)
    program = program.format(folder=str(folder), unwritten=UNWRITTEN)
    plan = plan_of(folder, f"import os, sys, time; {program}")
    (folder / "launch.json").write_text(json.dumps(plan))
    launcher_process.main(str(folder))
    state = folder / "state.json"
    written = json.loads(state.read_text()) if state.exists() else {}
    assert written.get("why") == why if why else written.get("state") != "ended"


@pytest.mark.parametrize(
    ("beat_s", "judge", "looks"),
    [
        (0, [], 0),
        (0, [0, 0], 0),
        (0, [0, 1, 1], 1),
        (0, [1, 2, 0], 3),
        (39, [], 0),
        (41, [], 1),
    ],
)
def test_hosts_are_looked_at_each_third_in_which_nothing_moves(folder, beat_s, judge, looks):
    """What the judge counts, or how long he is silent himself, however long that really takes."""
    join(folder)
    (folder / "launcher.err").touch()
    (folder / "beat").touch()
    plan = plan_of(folder, timeout_s=120, reach=[sys.executable, "-c", ""])
    (folder / "launch.json").write_text(json.dumps(plan))
    hosts = launcher_process.Hosts(folder, plan)
    watch = launcher_process.Watch(None, folder, plan, hosts)
    now = time.monotonic()
    watch._limit = now + 1000
    for thirds in [0, *judge]:
        (folder / "waiting.json").write_text(json.dumps({"thirds": thirds, "words": ""}))
        assert watch._why_now(now) == "code"
        hosts.await_look()
    watch._why_now(now + beat_s)
    hosts.await_look()
    assert len(hosts._looks) == 1 + looks


@pytest.mark.parametrize(
    ("said", "names", "is_looked"),
    [("a\n", ["node1"], True), ("ssh: node1: no", ["node1"], False), ("a\n", [], False)],
)
def test_hosts_are_asked_by_name_where_no_rank_has_joined(folder, said, names, is_looked):
    carry(folder, f"import sys; sys.exit({said!r})", hosts=names)
    assert (folder / "reach.json").exists() == is_looked  # as LOOK writes it


@pytest.mark.parametrize(("greeting", "mute"), [(b"SSH-2.0", []), (b"", ["localhost"]), (None, [])])
def test_a_server_that_says_nothing_is_mute(tmp_path, monkeypatch, greeting, mute):
    """One that nobody can connect to is not: ssh says so itself."""
    monkeypatch.setattr(launcher_process, "GREETING_S", 0.1 if greeting == b"" else 60)
    (tmp_path / "launch.json").write_text('{"hosts": ["localhost"]}')
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(launcher_process, "PORT", listening.getsockname()[1])
        thread = threading.Thread(target=lambda: listening.accept()[0].sendall(greeting))
        if greeting is None:
            listening.close()
        if greeting:
            thread.start()
        launcher_process.look_at_hosts(tmp_path)
    assert json.loads((tmp_path / "mute.json").read_text()) == mute


@pytest.mark.parametrize("code", [0, 1])
def test_hosts_are_looked_at_when_all_have_joined_and_when_it_has_failed(folder, code):
    join(folder)
    carry(folder, AWAIT.format(path=str(folder / "reach.json"), code=code))
    assert (folder / "lost.json").exists() == (code == 1)


def test_one_host_is_not_looked_at(folder):
    for is_alone in (True, False):
        join(folder, is_alone=is_alone)
        hosts = launcher_process.Hosts(folder, plan_of(folder))
        hosts.look_first()
        hosts.await_look()
        assert (folder / "reach.json").exists() != is_alone


def test_the_room_of_logs_is_given_back_whose_supervisors_were_killed(folder):
    log = folder / "rank-0.log"
    with open(log, "wb") as file:
        file.truncate(CAPACITY)
        file.seek(COMMITTED)
        file.write(struct.pack("q", 4000))
    (folder / "rank-1.log").touch()  # it was killed before there was a header
    carry(folder, "")
    assert log.stat().st_size == 4000
    assert (folder / "rank-1.log").stat().st_size == 0


@pytest.mark.parametrize(("later", "number"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_what_is_started_is_found_and_ended(later, number):
    """Another process that has got the number, and started later, is spared."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        start = launcher_process.started_by(os.getpid())[process.pid]
        launcher_process.end_left({process.pid: start - later})
        process.terminate()  # a SIGKILL before this one is what ends it
        assert process.wait() == -number
    assert launcher_process.stat_of(process.pid) is None


# Which hosts answer


def test_a_server_that_goes_is_told_at_the_second_look(tmp_path, monkeypatch):
    def found(name):
        return json.loads((tmp_path / name).read_text())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(launcher_process, "PORT", listening.getsockname()[1])
        join(tmp_path, ["node1", "node1"])
        (tmp_path / "rank-1.log").write_text("no place")
        launcher_process.look_at_hosts(tmp_path)
        assert found("reach.json") == {"node1": OPEN}
        assert not (tmp_path / "lost.json").exists()
        launcher_process.look_at_hosts(tmp_path)
        assert found("lost.json") == {}
    launcher_process.look_at_hosts(tmp_path)
    assert found("lost.json") == {"node1": REFUSED}


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (TimeoutError("timed out"), SILENT),
        (OSError(errno.EHOSTUNREACH, "No route to host"), SILENT),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), CUT),
        (ConnectionRefusedError(), REFUSED),
    ],
)
def test_what_comes_of_a_connection(monkeypatch, error, found):
    def fail(*_):
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert launcher_process.look_at("192.0.2.1") == found


def test_hosts_are_lost_that_answered_before():
    """One that has no network of its own accuses nobody else."""
    before = {"a": OPEN, "b": REFUSED, "c": SILENT, "d": OPEN}
    now = {"a": SILENT, "b": REFUSED, "c": SILENT, "d": OPEN}
    assert launcher_process.lost(before, now) == {"a": SILENT}
    assert launcher_process.lost(before, {**now, "b": SILENT}) == {"a": SILENT, "b": SILENT}
    assert launcher_process.lost({}, now) == {}
    here = os.uname().nodename
    before = dict.fromkeys(("a", "b", here), OPEN)
    assert launcher_process.lost(before, {"a": CUT, "b": CUT, here: OPEN}) == {here: CUT}
