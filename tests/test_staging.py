"""Jobs on hosts that share no folder, without hosts: both sides are on this machine."""

import pytest
from test_job_logs import post

from simlib.engines.batch import logs, staging
from simlib.engines.batch.staging import Files
from simlib.record.oplog import COMMITTED, HEADER

LOG = [HEADER, COMMITTED]


class Carried:
    """A log that is written in one folder, and its copy in another."""

    def __init__(self, here, there):
        here.mkdir()
        there.mkdir()
        self._files, self._copy = Files(here, LOG), Files(there, LOG)
        self._told = None
        self.path = here / "rank-0.log"
        self.writer = logs.writer(logs.create(self.path))
        self.log = logs.LogFile(there / "rank-0.log", 0)

    def look(self, **options):
        """Carry what has changed; returns how much of it was not the header."""
        messages, self._told = self._files.changes("rank-0.log", self._told, **options)
        for message, content in messages:
            self._copy.apply(message, content)
        self.log.refresh(anew=True)
        return sum(len(content) for message, content in messages if message["at"])

    def ops(self):
        return self.log.ops(0, {})


@pytest.fixture
def carried(tmp_path):
    return Carried(tmp_path / "here", tmp_path / "there")


def test_an_op_that_was_sent_under_way_ends_in_the_copy(carried):
    start = post(carried.writer)
    carried.writer.wait_begin(start)
    carried.look()
    assert [(op.done, op.wait_s is None) for op in carried.ops()] == [(False, False)]
    carried.writer.wait_end(start)
    carried.look()
    assert [op.done for op in carried.ops()] == [True]
    assert carried.look() == 0


def test_the_last_look_takes_what_the_header_does_not_tell(carried):
    start = post(carried.writer)
    carried.look()
    carried.writer.ended(start)  # nobody waited for it
    assert carried.look() == 0
    carried.look(is_last=True)
    assert [op.done for op in carried.ops()] == [True]
    assert carried.look(is_last=True) == 0


def test_only_blocks_that_have_changed_are_sent_again(carried):
    starts = [post(carried.writer) for _ in range(3 * staging.BLOCK // 64)]
    carried.look()
    carried.writer.wait_end(starts[0])
    assert carried.look() == staging.BLOCK


def test_the_header_comes_after_all_that_it_tells_of(carried, monkeypatch):
    monkeypatch.setattr(staging, "PIECE", staging.BLOCK)
    for _ in range(staging.BLOCK // 64 + 100):
        post(carried.writer)
    assert carried.look() == staging.BLOCK
    assert carried.ops() == []
    carried.look()
    assert len(carried.ops()) == staging.BLOCK // 64 + 100
