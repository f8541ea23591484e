"""Lesson 08's own DDP is torch's: the same weights, the same messages, the same virtual time."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simlib
from benchmarks.ddp import own_ddp

lesson = functools.cache(own_ddp)
ONE_BUCKET_MB, BUCKETS_MB = 1000, 0.002
STEPS = 4


def layers():
    return nn.Sequential(
        nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 3)
    )


def train(rank, world_size, wrap, steps=STEPS):
    """Train from weights that differ between ranks, on data that do; the weights in the end."""
    torch.manual_seed(rank)
    model = wrap(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def both(cap_mb):
    own = functools.partial(lesson()["OwnDDP"], cap_mb=cap_mb)
    return own, functools.partial(DistributedDataParallel, bucket_cap_mb=cap_mb)


def run_both(engine, ranks, cap_mb, **options):
    return [engine(train, ranks, args=(wrap,), **options) for wrap in both(cap_mb)]


def all_reduces(run, rank):
    """(bytes, operation, dtype) of a rank's all_reduces, in their order."""
    ops = run.trace.of_rank(rank)
    return [(op.nbytes, op.reduce_op, op.dtype) for op in ops if op.kind == "all_reduce"]


@pytest.mark.parametrize("cap_mb", [ONE_BUCKET_MB, BUCKETS_MB])
@pytest.mark.parametrize("engine, ranks", [(simlib.run, 2), (simlib.simulate, 4)])
def test_weights_are_torchs_to_the_last_bit(engine, ranks, cap_mb):
    own, torchs = run_both(engine, ranks, cap_mb)
    assert all(torch.equal(w, torchs.results[0]) for w in own.results + torchs.results)


def test_on_more_real_ranks_weights_are_torchs_to_rounding():
    # Gloo adds in an order that depends on a number's place in its bucket, and in torch's first
    # step that is another one.
    own, torchs = run_both(simlib.run, 4, BUCKETS_MB)
    assert all(torch.equal(w, own.results[0]) for w in own.results)
    torch.testing.assert_close(own.results[0], torchs.results[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_after_torchs_first_step_the_messages_are_the_same(engine):
    own, torchs = run_both(engine, 3, BUCKETS_MB)
    for rank in range(3):
        mine, others = all_reduces(own, rank), all_reduces(torchs, rank)
        count = len(mine) // STEPS
        assert count > 1 and mine == mine[:count] * STEPS
        assert others[0][0] == sum(nbytes for nbytes, *_ in mine[:count])
        assert others[1:] == mine[count:]


def step_s(wrap):
    """Virtual seconds that one step more takes, with several buckets."""
    device = simlib.Device(flops_per_s=50e6)
    cluster = simlib.clusters.ethernet_10g(4, device=device)
    short, long = (
        simlib.simulate(train, 4, args=(wrap, steps), cluster=cluster).time_s
        for steps in (STEPS, STEPS + 1)
    )
    return long - short


def test_virtual_time_is_torchs_and_less_than_without_overlap():
    own, torchs = map(step_s, both(BUCKETS_MB))
    off = step_s(functools.partial(lesson()["OwnDDP"], cap_mb=BUCKETS_MB, overlap=False))
    assert own == pytest.approx(torchs, rel=1e-9)
    assert own < off


def test_no_sync_sends_nothing_and_adds_up():
    def main(rank, world_size, wrap):
        torch.manual_seed(0)
        model = wrap(layers())
        torch.manual_seed(rank)
        with model.no_sync():
            model(torch.randn(5, 8)).sum().backward()
        model(torch.randn(5, 8)).sum().backward()
        return [weight.grad for weight in model.parameters()]

    own, torchs = (simlib.simulate(main, 3, args=(wrap,)) for wrap in both(ONE_BUCKET_MB))
    assert all_reduces(own, 0) == all_reduces(torchs, 0) and len(all_reduces(own, 0)) == 1
    for mine, others in zip(own.results, torchs.results, strict=True):
        assert all(map(torch.equal, mine, others))


def test_an_unused_weight_is_told():
    def main(rank, world_size, own_ddp):
        model = own_ddp(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
        model.module[0](torch.ones(1, 2)).sum().backward()

    with pytest.raises(simlib.RankError, match="was not used"):
        simlib.simulate(main, 2, args=(lesson()["OwnDDP"],))
