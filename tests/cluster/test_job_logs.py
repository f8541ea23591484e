"""What the ranks of a job write down: logs in files, clocks of several hosts."""

import itertools
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


def read(path):
    """The ops that are in a log."""
    log = logs.LogFile(path, 0)
    log.refresh()
    return log.ops(0, {})


def test_a_log_is_read_while_it_is_written(written):
    """Times are on the clock of rank 0."""
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
    writer.leave()
    log.offset_s = 100
    log.refresh()
    assert (log.entered_s, log.left_s) == (1, 6)
    assert [(op.seq, op.post_s) for op in log.ops(log.entered_s, {})] == [(0, 1), (1, 4)]


def test_a_log_that_is_not_there_or_not_all_there(written):
    """The pages of a file may come from another host in any order."""
    path, writer = written
    assert read(path.with_name("other")) == []
    post(writer)
    whole = path.read_bytes()
    for part in (whole[: HEADER + 16], whole[:HEADER] + bytes(len(whole) - HEADER)):
        log = logs.LogFile(path, 0)
        path.write_bytes(part)
        log.refresh()
        assert log.ops(0, {}) == []
        path.write_bytes(whole)
        log.refresh()
        assert len(log.ops(0, {})) == 1
    logs.trim(path)  # a finished log takes no room
    assert path.stat().st_size < 1000
    assert len(read(path)) == 1


def test_a_rank_sleeps_if_a_fresh_look_says_so(written):
    path, writer = written
    log = logs.LogFile(path, 0)
    assert log.sleeps == (0, None)
    logs.write_sleeps(writer._memory, 7, 41)
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

    def set(self, key, value):
        self._values.setdefault(key, queue.Queue()).put(value)

    def get(self, key):
        value = self._values.setdefault(key, queue.Queue()).get(timeout=30)
        self.set(key, value)
        return value


class Group:
    """Messages between threads, as by a process group."""

    def __init__(self, lines, rank):
        self._lines = lines
        self._rank = rank
        self.sent = 0

    def wait(self):
        return True

    def send(self, tensors, dst, tag):
        self.sent += 1
        self._lines[self._rank, dst].put(tensors[0].clone())
        return self

    def recv(self, tensors, src, tag):
        tensors[0].copy_(self._lines[src, self._rank].get(timeout=30))
        return self


def aligned(hosts, begin=lambda rank: None):
    """What each rank finds of its clock, the groups, and the store, by threads."""
    lines = {pair: queue.Queue() for pair in itertools.product(range(len(hosts)), repeat=2)}
    groups, store, found = [Group(lines, rank) for rank in range(len(hosts))], Store(), {}

    def work(rank):
        torch.set_num_threads(1)
        begin(rank)
        found[rank] = rendezvous.align(groups[rank], store, rank, hosts)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, groups, store


def test_clocks_of_other_hosts(monkeypatch):
    mine, true_time = threading.local(), time.perf_counter
    monkeypatch.setattr(rendezvous.time, "perf_counter", lambda: true_time() + mine.ahead_s)
    found, _, store = aligned(
        ["a", "b", "a", "b"], lambda rank: setattr(mine, "ahead_s", 50.0 * (rank % 2))
    )
    assert found[0] == found[2] == (0, 0)
    assert found[1] == found[3] == tuple(json.loads(store.get("clock/1")))
    offset_s, error_s = found[1]
    assert error_s > 0
    assert abs(offset_s - 50) <= error_s


@pytest.mark.parametrize(("enough_s", "rounds"), [(-1, rendezvous.FEW), (1e9, rendezvous.ROUNDS)])
def test_a_slow_network_is_asked_less_often(monkeypatch, enough_s, rounds):
    monkeypatch.setattr(rendezvous, "ENOUGH_S", enough_s)
    assert [group.sent for group in aligned(["a", "b"])[1]] == [rounds, rounds]
