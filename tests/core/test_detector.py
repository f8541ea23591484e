"""The deadlock detector reads logs while ranks write: moments that only a busy machine shows."""

import mmap

import pytest

from simlib.core.diagnose.monitor import DeadlockDetector
from simlib.core.model.errors import DeadlockError
from simlib.core.record.oplog import ASYNC, FUTURE_TAKEN, HEADER, KIND_ID, OpLogWriter
from simlib.core.record.oplog_reader import OpLogReader

NOBODY = -1


class Rank:
    """A rank's log: it writes, the detector reads."""

    def __init__(self, number, size):
        memory = mmap.mmap(-1, HEADER + 4096)
        self.log = OpLogWriter(memory, clock=lambda: 1.0)
        self.reader = OpLogReader(memory, number)
        self.log.define("site", "site", ("cell", 1, "main"))
        self.log.define("group", "group", ("", range(size)))
        self.log.define("signature", "signature", (((1,),), "float32", "SUM", None))

    def post(self, kind, peer=NOBODY, flags=0):
        return self.log.post(KIND_ID[kind], flags, 0, 1, 2, peer, 0, 4)

    def wait_in(self, kind, peer=NOBODY):
        self.log.wait_begin(self.post(kind, peer))


@pytest.fixture
def ranks():
    return [Rank(number, 3) for number in range(3)]


def detector_of(ranks, **options):
    return DeadlockDetector([rank.reader for rank in ranks], {}, **options)


def test_a_rank_whose_message_has_come_is_not_at_rest_yet(ranks):
    ranks[0].post("send", peer=1)  # and it leaves
    ranks[1].wait_in("recv", peer=0)  # has its message: the machine has not let it go on yet
    ranks[2].wait_in("recv", peer=0)
    detector = detector_of(ranks)
    for _ in range(2):
        detector.look([1, 2])
    verdict = detector.verdict([1, 2], {0: "has finished"})
    assert isinstance(verdict, DeadlockError) and set(verdict.sites) == {2}
    assert not detector.all_wait

    ranks[1].log.wait_end(ranks[1].log.last)
    ranks[1].wait_in("recv", peer=2)  # now nobody goes on any more
    for _ in range(2):
        detector.look([1, 2])
    assert set(detector.verdict([1, 2], {0: "has finished"}).sites) == {1, 2}
    assert detector.all_wait


def test_what_a_rank_posts_during_the_look_is_no_part_of_it(ranks, monkeypatch):
    taken = ranks[0].post("all_reduce", flags=ASYNC | FUTURE_TAKEN)
    ranks[0].log.future_taken(taken)
    for rank in ranks[1:]:
        rank.post("all_reduce")
    detector = detector_of(ranks, sleep_count=lambda rank: 7)
    for _ in range(2):
        detector.look([0, 1, 2])
    take_in = detector._take_in

    def and_then_a_bucket_more():
        take_in()
        ranks[0].log.future_taken(ranks[0].post("all_reduce", flags=ASYNC))

    monkeypatch.setattr(detector, "_take_in", and_then_a_bucket_more)
    assert detector.verdict([0, 1, 2], {}) is None
