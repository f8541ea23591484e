"""Plain messages take short cuts in `simulate`. The long way gives the same to the bit."""

import math
import random

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.diagnose.matching import Matcher
from simlib.core.record import group, oplog_reader, pending
from simlib.core.record.transports import plain_group

LONG_WAY = ((group, "MAX_CHECKED", -1), (plain_group, "MOST_BYTES", -1), (pending, "FEW", 0))
"""The constants that let each message take the long way in the simulating process."""
KINDS = torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64
SHAPES = (4,), (2, 3), (), (0,), (1, 5), (20_000,)


def tensor_of(draw, dtype, shape, rank):
    """A tensor to send, or a buffer: whole, a part of another one, negated lazily, with a grad."""
    x = torch.arange(2 * math.prod(shape) + 2).add(rank + draw.randrange(9)).to(dtype)
    x = x[1 : 1 + math.prod(shape)].reshape(shape)
    form = draw.randrange(4)
    if form == 0 and dtype.is_floating_point:
        return x.requires_grad_()
    if form == 1 and dtype is torch.float32:
        return torch._neg_view(x)
    return torch.nn.Parameter(x.detach(), False) if form == 2 else x


def program(rank, world_size, seed, is_long):
    """Random exchanges. All ranks draw the same numbers, and each rank does its part."""
    before = [(vars(module), name, vars(module)[name]) for module, name, _ in LONG_WAY]
    for module, name, value in LONG_WAY if is_long else ():
        vars(module)[name] = value
    draw, found = random.Random(seed), []
    part = dist.new_group([0, 2, 3])
    for number in range(12):
        members, where = draw.choice([([0, 1, 2, 3], None), ([0, 2, 3], part)])
        shift, tag, times = draw.randrange(1, len(members)), draw.randrange(2), draw.randrange(1, 4)
        dtype, shape, sort = draw.choice(KINDS), draw.choice(SHAPES), draw.randrange(4)
        tensors = [tensor_of(draw, dtype, shape, at) for at in range(6 * len(members))]
        order = [draw.sample(range(2), 2) for _ in members]
        is_reversed, is_shared = draw.random() < 0.5, draw.random() < 0.1
        tag = tag if sort else 2 + number  # a receive of any source takes none of another exchange
        simlib.compute(draw.choice([0.0, 0.0, 1e-6, 1e-3]) * rank)
        if rank not in members:
            continue
        at = members.index(rank)
        dst, src = members[(at + shift) % len(members)], members[at - shift]
        own, room = tensors[6 * at : 6 * at + 3], tensors[6 * at + 3 : 6 * at + 6]
        if is_shared:
            room = room[:1] * 3  # several receives into one buffer: a finding
        for _ in range(times):
            sides = (dist.isend, own, dst), (dist.irecv, room, src if sort else None)
            if sort == 1:
                request = dist.isend(own[0], dst, where, tag)
                dist.recv(room[0], src, where, tag)
                request.wait()
            else:
                requests = []
                for call, some, peer in (sides[way] for way in order[at]):
                    requests += [call(x, peer, where, tag) for x in some]
                for request in requests[::-1] if is_reversed else requests:
                    request.wait()
        found += [x.detach().clone() for x in room]
    dist.barrier()
    for values, name, value in before:
        values[name] = value
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("eager_limit_bytes", [None, 100])
def test_short_cuts_change_nothing(monkeypatch, seed, eager_limit_bytes):
    def simulated(is_long):
        args = seed, is_long
        return simlib.simulate(program, 4, args, eager_limit_bytes=eager_limit_bytes)

    short = simulated(False)
    monkeypatch.setattr(Matcher, "_meets_first", lambda *_: False)
    monkeypatch.setattr(oplog_reader, "FEW", math.inf)
    long = simulated(True)
    assert len(short.trace.ops) > 150 and short.trace.ops == long.trace.ops
    assert short.table() == long.table()
    assert list(map(str, short.findings)) == list(map(str, long.findings))
    for one, other in zip(sum(short.results, []), sum(long.results, []), strict=True):
        assert one.dtype == other.dtype and one.tolist() == other.tolist()
