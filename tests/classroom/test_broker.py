"""The broker of graded worlds: gives what Gloo gives, counts what it carries, believes nobody."""

import os
import pickle
import subprocess
import sys

import pytest
import torch

from simlib.classroom.confinement import relay
from simlib.classroom.confinement.relay import (
    COLLECTIVES,
    Broker,
    Exchange,
    WrongWords,
    difference,
    framed,
)
from simlib.core.environment import VARIABLE
from simlib.core.model.trace import Group, Op, Site
from simlib.core.record import safe_pickle

PROGRAM = """
import torch, torch.distributed as dist, simlib

def main(rank, n):
    x = torch.arange(3.0) + rank
    found = []
    def note(*tensors):
        found.extend(tensor.tolist() for tensor in tensors)
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        total = x.clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, op))
        note(total)
    if n > 1:
        got = torch.zeros(2)
        requests = [dist.isend(x[:2], (rank + 1) % n), dist.irecv(got, (rank - 1) % n, tag=0)]
        for request in requests:
            request.wait()
        note(got)
        if rank == 0:
            sources = [dist.recv(got) for _ in range(n - 1)]
            note(torch.tensor(sorted(sources)))
        else:
            dist.send(x[:2], 0)
    outs = [torch.zeros(3) for _ in range(n)]
    dist.all_gather(outs, x)
    flat = torch.zeros(3 * n)
    dist.all_gather_into_tensor(flat, x)
    note(*outs, flat)
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "a" * rank})
    found.append(objects)
    part = torch.zeros(2)
    dist.reduce_scatter(part, [torch.ones(2) * rank + i for i in range(n)])
    row = torch.zeros(n)
    dist.all_to_all_single(row, torch.arange(float(n)) + 10 * rank)
    rows = list(torch.zeros(n, 2))
    dist.all_to_all(rows, [torch.full((2,), 10.0 * rank + i) for i in range(n)])
    note(part, row, *rows)
    root = n - 1
    y = x.clone()
    dist.broadcast(y, root)
    z = x.clone()
    dist.reduce(z, root)
    gathered = [torch.zeros(3) for _ in range(n)] if rank == root else None
    dist.gather(x, gathered, root)
    piece = torch.zeros(3)
    dist.scatter(piece, [torch.ones(3) * i for i in range(n)] if rank == root else None, root)
    note(y, *([z, *gathered] if rank == root else []), piece)
    even = dist.new_group(list(range(0, n, 2)))
    if rank % 2 == 0:
        w = x.clone()
        dist.all_reduce(w, group=even)
        note(w)
    dist.barrier()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(4, 3) * rank).sum().backward()
    note(model.module.weight.grad)
    return found

if __name__ == "__main__":
    for n in (1, 2, 5):
        print(simlib.run(main, n, timeout_s=60).results)
"""


def printed(tmp_path, **environ):
    """What the program prints."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    environ = os.environ | {"HOME": str(tmp_path)} | environ
    done = subprocess.run(
        [sys.executable, file], env=environ, capture_output=True, text=True, check=True
    )
    return [line for line in done.stdout.splitlines() if line.startswith("[[")]


def test_the_broker_gives_what_gloo_gives(tmp_path):
    by_gloo = printed(tmp_path)
    assert len(by_gloo) == 3
    assert printed(tmp_path, **{VARIABLE: "simlib.classroom.confinement"}) == by_gloo


class Ranks:
    """An `Exchange` of so many ranks, and what it has answered."""

    def __init__(self, size):
        self.answers = {}
        self.exchange = Exchange(size, self._note)

    def _note(self, rank, number, failure, tensors, source):
        self.answers[rank, number] = failure, [tensor.tolist() for tensor in tensors], source

    def send(self, rank, number, dst, *values, ranks=(0, 1, 2)):
        self.exchange.post(rank, number, ("send", "", ranks, dst, 0, torch.tensor(values)))

    def recv(self, rank, number, src, elements=1, ranks=(0, 1, 2)):
        sort = torch.float32, elements
        self.exchange.post(rank, number, ("recv", "", ranks, src, 0, sort))

    def all_reduce(self, rank, number, value, ranks=(0, 1, 2)):
        tensor = torch.tensor([value])
        sort = torch.float32, ((1,),), None
        words = "all_reduce", "", ranks, None, "SUM", [tensor], sort, [(torch.float32, 1)], 4
        self.exchange.post(rank, number, words)


def test_messages_are_answered_when_both_have_come_in_their_order_and_of_one_size():
    ranks = Ranks(3)
    for number, value in enumerate((5.0, 6.0)):
        ranks.send(0, number, 1, value)
    assert not ranks.answers
    ranks.recv(1, 0, None)
    ranks.recv(1, 1, 0)
    assert ranks.answers == {
        (0, 0): (None, [], None),
        (1, 0): (None, [[5.0]], 0),
        (0, 1): (None, [], None),
        (1, 1): (None, [[6.0]], 0),
    }
    ranks.send(0, 2, 1, 5.0, 6.0)
    ranks.recv(1, 2, 0)
    assert len(ranks.answers) == 4  # a message of another size is never carried


def test_a_collective_is_answered_when_all_have_come():
    ranks = Ranks(3)
    for rank in range(3):
        assert not ranks.answers
        ranks.all_reduce(rank, 1, float(rank))
    assert {answer[1][0][0] for answer in ranks.answers.values()} == {3.0}


BROUGHT = {
    "as it should be": [torch.ones(2), torch.ones(2)],
    "an empty tensor's shape": [torch.ones(2), torch.ones(2), torch.zeros(0, 77)],
    "an empty tensor before": [torch.zeros(0, 77, 3), torch.ones(2), torch.ones(2)],
    "a number of tensors": [torch.ones(2), torch.ones(2), torch.zeros(0), torch.zeros(0)],
    "where they are cut": [torch.ones(1), torch.ones(3)],
    "dimensions": [torch.ones(1, 2, 1), torch.ones(2, 1)],
    "a dtype": [torch.ones(2), torch.ones(2, dtype=torch.int16)],
    "an empty tensor's dtype": [torch.ones(2), torch.ones(2), torch.zeros(0, dtype=torch.bool)],
    "what is trained": [torch.nn.Parameter(torch.ones(2)), torch.ones(2)],
    "what is repeated": [torch.ones(1).expand(2), torch.ones(2)],
    "an element more": [torch.ones(2), torch.ones(3)],
}


def taken(kind, brought):
    """All that rank 1 can see of what rank 0 brings to a collective; None where nothing comes."""
    answers = {}
    exchange = Exchange(2, lambda rank, *words: answers.setdefault(rank, words))
    splits = ((2, 2), (2, 2)) if kind == "all_to_all" else None
    sort, sort_of_0 = ((torch.float32, ((2,),) * n, splits) for n in (1 + (kind != "scatter"), 2))
    op = "SUM" if "reduce" in kind else None
    root = {"broadcast": 0, "scatter": 0, "reduce": 1, "gather": 1}.get(kind)
    ours = [] if root == 0 else BROUGHT["as it should be"]
    pieces = {"all_gather": 4, "gather": 4, "scatter": 1, "reduce_scatter": 1}.get(kind, 2)
    takes = [(torch.float32, 2)] * pieces
    exchange.post(1, 1, (kind, "", (0, 1), root, op, ours, sort, takes, 16))
    try:
        exchange.post(0, 1, (kind, "", (0, 1), root, op, brought, sort_of_0, takes, 16))
    except WrongWords:
        return None
    if 1 not in answers or answers[1][1] is not None:
        return None
    seen = [(one.tolist(), one.stride(), one.dtype, one.requires_grad) for one in answers[1][2]]
    return seen, answers[1][3]


@pytest.mark.parametrize("kind", sorted(COLLECTIVES - {"barrier"}))
def test_nothing_but_values_arrives_of_what_a_rank_brings(kind):
    right = taken(kind, BROUGHT["as it should be"])
    assert right[0]
    for what, brought in BROUGHT.items():
        assert taken(kind, brought) in (right, None), what
    assert taken(kind, BROUGHT["an element more"]) is None


def test_who_waits_for_a_dead_rank_is_told():
    ranks = Ranks(3)
    ranks.recv(0, 1, 2)
    ranks.all_reduce(1, 1, 1.0)
    ranks.exchange.died(2)
    ranks.send(0, 2, 2, 5.0)
    ranks.all_reduce(0, 3, 1.0)
    assert len(ranks.answers) == 4
    assert all("rank 2 has died" in failure for failure, *_ in ranks.answers.values())


@pytest.mark.parametrize("elements", [0, 1, 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.bool, torch.complex64])
def test_a_rank_receives_the_elements_that_it_says(kind, elements):
    assert torch.equal(relay.empty(kind, elements), torch.zeros(elements, dtype=kind))


@pytest.mark.parametrize(
    "words",
    [
        ("send", "", (0, 1), 0, 0, torch.zeros(1)),
        ("send", "", (0, 1), 2, 0, torch.zeros(1)),
        ("send", "", (1, 2), 1, 0, torch.zeros(1)),
        ("send", "", (0, 9), 1, 0, torch.zeros(1)),
        ("send", "", (0, 1), 1, 0, "text"),
        ("send", "", (0, 1), 1, 0, torch.zeros(1).expand(1 << 30)),
        ("recv", "", (0, 1), 1, 0, (torch.float32, 1 << 40)),
        ("recv", "", (0, 1), 1, 0, (torch.float32, -1)),
        ("recv", "", (0, 1), 1, "tag", (torch.float32, 1)),
        ("all_reduce", "", (0, 1), None, "__class__", [], (None, (), None), [], 0),
        ("broadcast", "", (0, 1), 7, None, [], (None, (), None), [], 0),
        (
            "all_gather",
            "",
            (0, 1),
            None,
            None,
            [],
            (None, (), None),
            [(torch.uint8, 200 << 20)] * 2,
            0,
        ),
        ("exec", "import os"),
        ("meet", 3, "4"),
    ],
    ids=lambda words: "-".join(str(word)[:12] for word in words[:5]),
)
def test_words_that_no_rank_says_are_refused(words):
    with pytest.raises(WrongWords):
        Exchange(3, print).post(0, 1, words)


@pytest.mark.parametrize(
    "data",
    [
        framed((1, ("exec", 0))),
        (1 << 60).to_bytes(8, "little"),
        (4).to_bytes(8, "little") + b"\x80\x05N.",
        (30).to_bytes(8, "little") + pickle.dumps(os.getcwd)[:30].ljust(30, b"."),
    ],
    ids=["no op", "too long", "no pair", "code"],
)
def test_a_rank_that_says_nonsense_is_cut_off_and_the_others_are_told(data):
    broker = Broker(2)
    try:
        good, bad = broker.theirs
        bad.sendall(data)
        assert bad.recv(1) == b""
        good.settimeout(20)
        good.sendall(framed((1, ("recv", "", (0, 1), 1, 0, (torch.float32, 1)))))
        length = int.from_bytes(good.recv(8), "little")
        number, failure, *_ = safe_pickle.loads_tree(good.recv(length))
        assert number == 1 and "rank 1 has died" in failure
    finally:
        broker.close()


def op(kind, nbytes, peer=None):
    """An op of rank 0 in a record."""
    site = Site(kind, "f", 1, "f", None, "")
    return Op(
        0, 0, kind, Group("", (0, 1, 2)), peer, 0, nbytes, ((1,),), "float32", None, None,
        False, False, site, 0.0, None, None, None, None,
    )  # fmt: skip


def test_a_record_is_compared_with_what_was_carried():
    ranks = Ranks(3)
    ranks.send(0, 1, 1, 5.0)
    ranks.all_reduce(0, 2, 1.0)
    (carried, *_) = ranks.exchange.carried
    right = [op("send", 4, peer=1), op("all_reduce", 4)]
    assert difference(carried, right) is None and difference(carried, right[::-1]) is None
    for wrong in (
        right[:1],
        [*right, op("send", 4, peer=1)],
        [op("send", 4, peer=2), right[1]],
        [right[0], op("all_reduce", 400)],
        [op("recv", 4, peer=1), right[1]],
    ):
        assert difference(carried, wrong)


def test_a_meeting_is_in_the_record_as_a_group_that_was_made():
    ranks = Ranks(3)
    for rank in range(2):
        ranks.exchange.post(rank, 7, ("meet", "one bit", 2))
    assert ranks.answers == {(0, 7): (None, [], None), (1, 7): (None, [], None)}
    (carried, *_) = ranks.exchange.carried
    assert difference(carried, []).startswith("new_group of 0 bytes was sent, but is not in")
    assert difference(carried, [op("new_group", 0)]) is None
    for how_many in (0, 4):
        with pytest.raises(WrongWords, match=f"a collective cannot have {how_many} ranks"):
            ranks.exchange.post(2, 1, ("meet", "x", how_many))
