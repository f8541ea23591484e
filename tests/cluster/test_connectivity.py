"""Which hosts answer: connections that are accepted, refused, or come to nothing."""

import errno
import json
import os
import socket

import pytest

from simlib.cluster.batch import launcher_process as connectivity
from simlib.cluster.batch.launcher_process import CUT, OPEN, REFUSED, SILENT

HERE = os.uname().nodename


@pytest.fixture
def listening(monkeypatch):
    """A socket that stands for a host's ssh server."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        monkeypatch.setattr(connectivity, "PORT", found.getsockname()[1])
        yield found


def join(folder, rank, host, address="127.0.0.1"):
    place = {"host": host, "address": address}
    (folder / f"rank-{rank}.json").write_text(json.dumps(place))


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_a_server_that_goes_is_told_at_the_second_look(listening, tmp_path):
    join(tmp_path, 0, "node1")
    join(tmp_path, 1, "node1")
    (tmp_path / "rank-1.log").write_text("no place")
    connectivity.look_at_hosts(tmp_path)
    assert read(tmp_path, "reach.json") == {"node1": OPEN}
    assert not (tmp_path / "lost.json").exists()
    connectivity.look_at_hosts(tmp_path)
    assert read(tmp_path, "lost.json") == {}
    listening.close()
    connectivity.look_at_hosts(tmp_path)
    assert read(tmp_path, "lost.json") == {"node1": REFUSED}


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
    assert connectivity.look_at("192.0.2.1") == found


def test_hosts_are_lost_that_answered_before():
    before = {"a": OPEN, "b": REFUSED, "c": SILENT, "d": OPEN}
    now = {"a": SILENT, "b": REFUSED, "c": SILENT, "d": OPEN}
    assert connectivity.lost(before, now) == {"a": SILENT}
    assert connectivity.lost(before, {**now, "b": SILENT}) == {"a": SILENT, "b": SILENT}
    assert connectivity.lost({}, now) == {}


def test_a_host_without_a_network_of_its_own_accuses_nobody_else():
    before = dict.fromkeys(("a", "b", HERE), OPEN)
    assert connectivity.lost(before, {"a": CUT, "b": CUT, HERE: OPEN}) == {HERE: CUT}
