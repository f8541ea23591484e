"""Ring attention and the layer of experts of lesson 18, against one process; its own functions."""

import pytest
import torch
from lesson_programs import names_of
from sampled import sampled

import simlib

ENGINES = {"run": simlib.run, "simulate": simlib.simulate}
S = 120  # two chunks for each of 2, 3, 4 or 5 ranks
EXPERTS = HEADS = 60  # as many for each of 2, 3, 4 or 5 ranks
WORLDS = 2, 3, 4, 5
worlds = pytest.mark.parametrize("world_size", WORLDS)
anywhere = pytest.mark.parametrize("engine, world_size", sampled(ENGINES, WORLDS, count=3))


@pytest.fixture(scope="module")
def lesson():
    """The lesson's functions, and what they need; nothing is run."""
    names = names_of("18_long_sequences_and_experts", are_constants)
    generator = torch.Generator().manual_seed(0)
    names["E"] = EXPERTS
    names["tokens"] = torch.randn(120, names["WIDTH"], generator=generator)
    names["router"] = torch.randn(names["WIDTH"], EXPERTS, generator=generator)
    return names


def are_constants(names):
    """Whether all that is assigned to is in capital letters."""
    return all(name.isupper() for name in names)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "engine, world_size, chunks, causal",
    sampled(ENGINES, WORLDS, ("in_a_row", "zigzag"), (False, True)),
)
def test_ring_attention_is_that_of_one_process(lesson, engine, world_size, chunks, causal):
    run = ENGINES[engine](lesson["forward_and_backward"], world_size, (S, lesson[chunks], causal))
    whole = lesson["in_one_process"](S, causal)
    for rank, found in enumerate(run.results):
        close(found, lesson["cut"](whole, rank, world_size, lesson[chunks]))
    tensor = 4 * S // world_size * lesson["H"] * lesson["DIM"]
    assert run.messages == [3 * world_size - 2] * world_size
    assert run.bytes_sent == [2 * (3 * world_size - 2) * tensor] * world_size
    assert run.findings == []


@worlds
def test_zigzag_leaves_nobody_idle(lesson, world_size):
    def pairs(chunks):
        run = simlib.simulate(
            lesson["forward"], world_size, (S, lesson[chunks], True), cluster=cluster
        )
        pair_s = 4 * lesson["H"] * (S / 2 / world_size) ** 2 * lesson["DIM"] / 1e9
        return run.time_s / pair_s

    cluster = simlib.Cluster(5, 1, simlib.Link(1e-9, 1e15), device=simlib.Device(flops_per_s=1e9))
    assert pairs("in_a_row") == pytest.approx(4 * world_size - 1, rel=1e-3)
    assert pairs("zigzag") == pytest.approx(2 * world_size + 1, rel=1e-3)


@anywhere
def test_attention_by_heads_is_that_of_one_process(lesson, engine, world_size, monkeypatch):
    monkeypatch.setitem(lesson, "H", HEADS)
    run = ENGINES[engine](lesson["ulysses"], world_size, (S,))
    whole = lesson["attention"](*lesson["sequence"](S))
    close(torch.cat(run.results, dim=1), whole)
    assert [(c.kind, c.nbytes) for c in run.trace.collectives] == [
        ("all_to_all", tensors * 4 * whole.numel() // world_size) for tensors in (3, 1)
    ]
    assert run.findings == []


@anywhere
def test_whoever_waits_first_gets_the_same(lesson, engine, world_size):
    runs = [
        ENGINES[engine](lesson["forward"], world_size, (S, lesson["zigzag"], True, first))
        for first in (False, True)
    ]
    for one, other in zip(*(run.results for run in runs), strict=True):
        assert torch.equal(one, other)


@anywhere
def test_the_experts_are_those_of_one_process(lesson, engine, world_size):
    every_expert = lesson["experts_of"](0, 1)
    wanted = lesson["y_and_gradients"](
        lesson["tokens"], lesson["router"], every_expert, lesson["dense"]
    )
    run = ENGINES[engine](lesson["of_rank"], world_size)
    y, x, router = zip(*(result[:3] for result in run.results), strict=True)
    of_experts = [gradient for result in run.results for gradient in result[3:]]
    found = [torch.cat(y), torch.cat(x), sum(router), *of_experts]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * other.abs().max().item(), rtol=1e-4)
    assert [c.kind for c in run.trace.collectives] == ["all_to_all"] * 5
    assert run.findings == []


@anywhere
def test_every_rank_knows_the_same_loads_and_bias(lesson, engine, world_size):
    x, router = lesson["tokens"], lesson["router"]
    run = ENGINES[engine](lesson["balance"], world_size, (20,))
    for loads, bias in run.results:
        assert torch.equal(torch.stack(loads), torch.stack(run.results[0][0]))
        assert torch.equal(bias, run.results[0][1])
        assert loads[0].tolist() == (x @ router).argmax(-1).bincount(minlength=EXPERTS).tolist()
        last = (x @ router + bias).argmax(-1).bincount(minlength=EXPERTS)
        assert loads[-1].tolist() == last.tolist()


@anywhere
def test_a_dropped_token_skips_the_layer(lesson, engine, world_size):
    dropped, unchanged = zip(
        *ENGINES[engine](lesson["capped"], world_size, (0.5,)).results, strict=True
    )
    assert sum(dropped) > 0
    assert dropped == unchanged
    assert (
        ENGINES[engine](lesson["capped"], world_size, (EXPERTS,)).results == [(0, 0)] * world_size
    )
