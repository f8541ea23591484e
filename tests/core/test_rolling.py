"""Logs that roll over: what is kept is right, the rest is summed up, and all is bounded."""

import mmap
import threading

import pytest

from simlib.core.diagnose.monitor import DeadlockDetector
from simlib.core.model.errors import DeadlockError
from simlib.core.model.trace import Evicted
from simlib.core.record.oplog import (
    ANY_SOURCE,
    ASYNC,
    FUTURE_TAKEN,
    HEADER,
    KIND_ID,
    REQUEST,
    SEGMENTS,
    OpLogWriter,
)
from simlib.core.record.rolling import RollingReader

NOBODY = -1
SEGMENT = 512
RING = HEADER + SEGMENTS * SEGMENT


class Rank:
    """A rank's log, which rolls over."""

    def __init__(self, number, size, forgotten):
        memory = mmap.mmap(-1, RING)
        self.now = 0.0
        self.log = OpLogWriter(memory, clock=lambda: self.now)
        self.log.roll_over(SEGMENT)
        self.reader = RollingReader(memory, number, SEGMENT, {}, forgotten)
        self.log.define("site", "site", ("cell", 1, "main"))
        self.log.define("group", "group", ("", range(size)))
        self.log.define("signature", "signature", (((1,),), "float32", "SUM", None))

    def post(self, kind, peer=NOBODY, flags=0):
        self.now += 1.0
        return self.log.post(KIND_ID[kind], flags, 0, 1, 2, peer, 0, 4)

    def call(self, kind, peer=NOBODY):
        start = self.post(kind, peer)
        self.log.wait_begin(start)
        self.log.wait_end(start)
        return start


class Watched:
    """Ranks, and the detector that keeps up with them."""

    def __init__(self, size):
        self.forgotten = Evicted(size)
        self.ranks = [Rank(number, size, self.forgotten) for number in range(size)]
        self.detector = DeadlockDetector([rank.reader for rank in self.ranks], {})

    def kept(self):
        ops = [op for rank in self.ranks for op in rank.reader.ops(0, {})]
        ops.sort(key=lambda op: (op.post_s, op.rank))
        return self.forgotten.without_halves(ops)


@pytest.fixture
def two():
    return Watched(2)


def test_what_is_kept_of_many_rounds_is_their_end_and_all_is_bounded(two):
    first, second = two.ranks
    most = 0
    for number in range(1000):
        first.call("send", 1)
        second.call("recv", 0)
        for rank in two.ranks:
            rank.call("all_reduce")
        assert not two.detector.keep_up(), number
        most = max(most, *(sum(rank.reader.sizes) for rank in two.ranks))
    assert most * 72 <= RING
    ops = two.kept()
    for rank in range(2):
        seqs = [op.seq for op in ops if op.rank == rank]
        assert seqs == list(range(seqs[0], 2000)) and len(seqs) >= 6 * (SEGMENT // 72 - 1)
        assert two.forgotten.ops[rank] == seqs[0]
    assert all(
        op.done and op.call in ("send(dst=1)", "recv(src=0)", "all_reduce(SUM)") for op in ops
    )
    sent = sum(op.kind == "send" for op in ops) + two.forgotten.sent[0, 1][0]
    received = sum(op.kind == "recv" for op in ops) + two.forgotten.received[1][0]
    joint = sum(op.kind == "all_reduce" for op in ops if op.rank == 0) + two.forgotten.collectives
    assert sent == received == joint == 1000
    assert two.forgotten.sent[0, 1][1] == 4 * two.forgotten.sent[0, 1][0]
    assert not two.detector.findings()
    first.call("all_reduce")
    second.call("barrier")  # a mismatch is known as soon as it is read
    assert two.detector.keep_up()
    assert "calls barrier, but" in str(two.detector.mismatch())


def test_a_rank_whose_log_reaches_less_far_back_leaves_no_halves(two):
    """It also writes down pieces of its work, and has three messages still to receive."""
    first, second = two.ranks
    for _ in range(300):
        first.call("send", 1)
        for _ in range(3):
            second.call("barrier")
            first.call("barrier")
        second.call("recv", 0)
        for _ in range(6):
            second.log.end_piece(second.log.begin_piece("step", ()))
        two.detector.keep_up()
    assert two.forgotten.ops[1] > two.forgotten.ops[0]
    for _ in range(3):
        first.post("send", 1)
    ops = two.kept()
    sends = [op for op in ops if op.kind == "send"]
    recvs = [op for op in ops if op.kind == "recv"]
    assert len(sends) == len(recvs) + 3
    barriers = [
        [op.seq for op in ops if op.rank == rank and op.kind == "barrier"] for rank in (0, 1)
    ]
    assert len(barriers[0]) == len(barriers[1]) > 0


def test_an_op_that_is_open_for_many_rounds_is_known_and_ends(two):
    first, second = two.ranks
    request = first.post("recv", 1, flags=ASYNC | REQUEST)
    any_source = second.post("recv", flags=ASYNC | REQUEST | ANY_SOURCE)
    never = second.post("send", 0, flags=ASYNC | REQUEST)
    for _ in range(500):
        for rank in two.ranks:
            rank.call("all_reduce")
        two.detector.keep_up()
    assert [rank.reader.sizes[1] for rank in two.ranks] == [1, 2]
    assert first.reader.requests_never_waited() == [0]
    told = [finding.message for finding in two.detector.findings()]
    assert any("irecv" in words and "never got a message" in words for words in told), told
    assert any("isend" in words and "has no wait()" in words for words in told), told

    first.log.future_taken(request)
    assert first.reader.futures_taken() == [request]
    first.log.wait_begin(request)
    assert first.reader.waiting_site({}).op == "irecv(src=1)"
    first.now = 7777.0
    first.log.wait_end(request)
    first.reader.read_on()
    assert first.reader.op_at(request, 0, 0, {}).end_s == 7777.0
    second.log.wait_end(any_source)
    first.post("send", 1)
    second.log.found_peer(any_source, 0)
    for _ in range(3):
        two.detector.keep_up()
    assert [rank.reader.sizes[1] for rank in two.ranks] == [0, 1]
    assert two.forgotten.received == [[1, 4], [1, 4]]
    assert len(two.detector.findings()) == 1 and second.reader.offset_of(1) == never


def test_a_deadlock_after_many_rounds_is_told(two):
    first, second = two.ranks
    waits = first.post("all_reduce", flags=ASYNC)
    for _ in range(300):
        second.call("send", 0)
        first.call("recv", 1)
        assert not two.detector.keep_up()
    first.log.wait_begin(waits)  # posted before the first roll-over
    second.log.wait_begin(second.post("recv", 0))
    for _ in range(2):
        two.detector.keep_up()
        two.detector.look([0, 1])
    verdict = two.detector.verdict([0, 1], {})
    assert isinstance(verdict, DeadlockError) and set(verdict.sites) == {0, 1}
    assert "all_reduce(SUM)" in str(verdict) and "recv(src=0)" in str(verdict)


def test_a_piece_of_work_that_lasts_is_known_while_it_is_open_and_names_are_forgotten(two):
    """Each step has another number; an epoch that lasts keeps its name."""
    (rank, _) = two.ranks
    open_ = rank.log.begin_piece("epoch", (("number", 7),))
    most = 0
    for step in range(3000):
        piece = rank.log.begin_piece("step", (("number", step),))
        rank.call("all_reduce")
        rank.log.end_piece(piece)
        two.detector.keep_up()
        names = rank.reader._definitions["piece"]
        most = max(most, len(rank.log.numbers) + len(rank.log._pieces) + len(names))
    assert most < 100
    epoch, *steps = rank.reader.pieces(0)
    assert (epoch.name, epoch.numbers) == ("epoch", {"number": 7})
    last = [step.numbers["number"] for step in steps]
    assert last == list(range(last[0], 3000)) and 10 < len(last) < 60
    rank.log.end_piece(open_)
    for _ in range(3):
        two.detector.keep_up()
    assert "epoch" not in [piece.name for piece in rank.reader.pieces(0)]


def test_a_definition_longer_than_the_ring_loses_no_op(two):
    first, second = two.ranks
    shapes = tuple((number, 1) for number in range(2 * RING // 4))
    done = threading.Event()

    def post():
        for rank in two.ranks:
            rank.call("all_reduce")
            rank.log.begin_piece("step", (("number", 1 << 8 * SEGMENT),))
            number = rank.log.define("long", "signature", (shapes, "float32", "SUM", None))
            rank.log.post(KIND_ID["all_reduce"], 0, 0, 1, number, NOBODY, 0, 8)
            rank.call("all_reduce")
        done.set()

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    while not done.is_set():
        two.detector.keep_up()
        done.wait(0.001)
    two.detector.keep_up()
    for rank in two.ranks:
        *_, long, after = rank.reader.ops(0, {})
        assert (long.shapes, after.shapes) == (shapes, ((1,),))
        assert rank.reader.dropped == 0
        assert rank.reader.pieces(0)[0].numbers["number"] == 1 << 8 * SEGMENT
    second.call("barrier")
    first.call("all_reduce")
    assert two.detector.keep_up()


def test_touched_buffers_are_told_however_long_ago(two):
    (rank, _) = two.ranks
    request = rank.post("send", 1, flags=ASYNC | REQUEST)
    rank.log.wait_end(request)
    rank.log.tell_race("written", request, 0, ("cell", 5, "main"))
    for _ in range(300):
        rank.call("barrier")
        two.detector.keep_up()
    ((how, op, other, site),) = rank.reader.races({})
    assert (how, op.kind, op.seq, other, site.lineno) == ("written", "send", 0, None, 5)


@pytest.mark.parametrize("at_once", [None, 3])
def test_ranks_wait_for_a_kernel_that_takes_in_a_few_ops_at_a_time_and_loses_none(two, at_once):
    two.detector._at_once = at_once or two.detector._at_once
    done = threading.Event()

    def post():
        for _ in range(200):
            for rank in two.ranks:
                rank.call("barrier")
        done.set()

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    taken = [0, 0]
    while not done.is_set() or taken != [200, 200]:
        assert not two.detector.keep_up()
        before, taken = taken, list(two.detector._taken)
        for rank, first, now in zip(two.ranks, before, taken, strict=True):
            assert (at_once is None or now - first <= at_once) and rank.reader._first <= now
    thread.join()
    for rank in two.ranks:
        assert rank.reader.count == 200 and rank.reader.dropped == 0
        assert [op.seq for op in rank.reader.ops(0, {})][-1] == 199
    assert not two.detector.findings()


def test_a_flag_set_late_is_seen(two):
    (rank, _) = two.ranks
    op = rank.post("all_reduce", flags=ASYNC)
    for _ in range(30):
        rank.call("barrier")
    rank.log.future_taken(op)
    rank.log.wait_failed(op)
    two.detector.keep_up()
    now = rank.reader.op_at(op, 0, 0, {})
    flags, *_ = rank.reader._flags_and_times(op)
    assert flags & FUTURE_TAKEN and now.failed_s is not None and now.end_s is None
