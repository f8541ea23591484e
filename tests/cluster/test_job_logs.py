"""What the ranks of a job write down: logs in files, clocks of several hosts."""

import json
import queue
import threading
import time

import pytest
import torch

from simlib.cluster import rendezvous
from simlib.cluster.batch import logs
from simlib.cluster.batch.logs import _slept_on
from simlib.core.record.oplog import HEADER, KIND_ID, NOBODY


class Clock:
    """Moves a second with every reading."""

    def __init__(self, start_s=100.0):
        self.now_s = start_s

    def __call__(self):
        self.now_s += 1
        return self.now_s


def post(writer):
    site = writer.define("here", "site", ("a.py", 3, "main"))
    group = writer.define("world", "group", ("", range(2)))
    signature = writer.define("x", "signature", (((1,),), "float32", "SUM", None))
    kind = KIND_ID["all_reduce"]
    return writer.post(kind, 0, site, group, signature, NOBODY, NOBODY, 4)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "rank-0.log"
    return path, logs.writer(logs.create(path), Clock())


def test_a_log_is_read_while_it_is_written(written):
    path, writer = written
    log = logs.LogFile(path, 0)
    assert log.state == (0, 0) and log.entered_s is None
    writer.enter()
    start = post(writer)
    writer.wait_begin(start)
    assert log.state == (1, start)
    writer.wait_end(start)
    assert log.state == (2, 0)
    (op,) = log.ops(0, {})
    assert (op.kind, op.post_s, op.wait_s, op.end_s) == ("all_reduce", 102, 103, 104)
    post(writer)
    log.refresh()
    assert [op.seq for op in log.ops(0, {})] == [0, 1]


def test_times_are_on_the_clock_of_rank_0(written):
    path, writer = written
    writer.enter()
    post(writer)
    writer.leave()
    log = logs.LogFile(path, 0)
    log.offset_s = 100
    log.refresh()
    assert (log.entered_s, log.left_s) == (1, 3)
    assert log.ops(log.entered_s, {})[0].post_s == 1


def test_a_log_that_is_not_there_or_not_all_there(written):
    path, writer = written
    assert logs.LogFile(path.with_name("other"), 0).ops(0, {}) == []
    post(writer)
    log = logs.LogFile(path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: HEADER + 16])
    log.refresh()
    assert log.ops(0, {}) == []
    path.write_bytes(whole)
    log.refresh()
    assert len(log.ops(0, {})) == 1


def test_a_header_that_is_here_before_its_records(written):
    """The pages of a file may come from another host in any order."""
    path, writer = written
    post(writer)
    whole = path.read_bytes()
    path.write_bytes(whole[:HEADER] + bytes(len(whole) - HEADER))
    log = logs.LogFile(path, 0)
    log.refresh()
    assert log.ops(0, {}) == []
    path.write_bytes(whole)
    log.refresh()
    assert len(log.ops(0, {})) == 1


def test_a_finished_log_takes_no_room(written):
    path, writer = written
    post(writer)
    logs.trim(path)
    assert path.stat().st_size < 1000
    log = logs.LogFile(path, 0)
    log.refresh()
    assert len(log.ops(0, {})) == 1


def test_a_rank_sleeps_if_a_fresh_look_says_so(written):
    path, writer = written
    log = logs.LogFile(path, 0)
    assert log.sleeps == (0, None)
    memory = writer._memory
    logs.write_sleeps(memory, 7, 41)
    log.refresh()
    assert log.sleeps == (7, 41)
    assert _slept_on((6, 41), (7, 41)) == 41
    assert _slept_on((7, 41), (7, 41)) is None  # the supervisor has not looked again
    assert _slept_on((6, 40), (7, 41)) is None  # it was awake in between
    assert _slept_on((6, None), (7, None)) is None


class Store:
    """A store of torch's, between threads."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, 30)
            return self._values[key]


class Group:
    """Messages between threads, as by a process group."""

    class Done:
        def wait(self):
            return True

    def __init__(self, lines, rank):
        self._lines = lines
        self._rank = rank
        self.sent = 0

    def send(self, tensors, dst, tag):
        self.sent += 1
        self._lines[self._rank, dst].put(tensors[0].clone())
        return self.Done()

    def recv(self, tensors, src, tag):
        tensors[0].copy_(self._lines[src, self._rank].get(timeout=30))
        return self.Done()


def test_clocks_of_other_hosts(monkeypatch):
    hosts, ahead_s = ["a", "b", "a", "b"], [0.0, 50.0, 0.0, 50.0]
    mine = threading.local()
    true_time = time.perf_counter
    monkeypatch.setattr(rendezvous.time, "perf_counter", lambda: true_time() + mine.ahead_s)
    lines = {(src, dst): queue.Queue() for src in range(4) for dst in range(4)}
    store, found = Store(), {}

    def rank(number):
        torch.set_num_threads(1)
        mine.ahead_s = ahead_s[number]
        found[number] = rendezvous.align(Group(lines, number), store, number, hosts)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[2] == (0, 0)
    assert found[1] == found[3] == tuple(json.loads(store.get("clock/1")))
    offset_s, error_s = found[1]
    assert error_s > 0
    assert abs(offset_s - 50) <= error_s


@pytest.mark.parametrize(("enough_s", "rounds"), [(-1, rendezvous.FEW), (1e9, rendezvous.ROUNDS)])
def test_a_slow_network_is_asked_less_often(monkeypatch, enough_s, rounds):
    monkeypatch.setattr(rendezvous, "ENOUGH_S", enough_s)
    lines = {(src, dst): queue.Queue() for src in range(2) for dst in range(2)}
    groups, store = [Group(lines, rank) for rank in range(2)], Store()
    answering = threading.Thread(target=rendezvous.align, args=(groups[0], store, 0, ["a", "b"]))
    answering.start()
    rendezvous.align(groups[1], store, 1, ["a", "b"])
    answering.join()
    assert [group.sent for group in groups] == [rounds, rounds]
