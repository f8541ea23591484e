"""Ring attention and the layer of experts of lesson 18, against one process; its own functions."""

import ast
from pathlib import Path

import jupytext
import pytest
import torch

import simlib

LESSON = Path(__file__).parents[2] / "authoring" / "lessons" / "18_long_sequences_and_experts.py"
KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
ENGINES = {"real": simlib.run, "simulated": simlib.simulate}
S = 120  # two chunks for each of 2, 3, 4 or 5 ranks
EXPERTS = HEADS = 60  # as many for each of 2, 3, 4 or 5 ranks
engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
worlds = pytest.mark.parametrize("world_size", [2, 3, 4, 5])


@pytest.fixture(scope="module")
def lesson():
    """The lesson's functions, and what they need; nothing is run."""
    source = "\n\n".join(
        cell.source
        for cell in jupytext.read(LESSON, fmt="py:percent").cells
        if cell.cell_type == "code"
    )
    kept = [
        node
        for node in ast.parse(source).body
        if isinstance(node, KEPT) or (isinstance(node, ast.Assign) and is_constant(node))
    ]
    names = {"__name__": "lesson"}
    exec(compile(ast.Module(kept, []), str(LESSON), "exec"), names)
    generator = torch.Generator().manual_seed(0)
    names["E"] = EXPERTS
    names["tokens"] = torch.randn(120, names["WIDTH"], generator=generator)
    names["router"] = torch.randn(names["WIDTH"], EXPERTS, generator=generator)
    return names


def is_constant(node):
    """Whether all that is assigned to is in capital letters."""
    names = [name for target in node.targets for name in ast.walk(target)]
    return all(name.id.isupper() for name in names if isinstance(name, ast.Name))


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["plain", "causal"])
@pytest.mark.parametrize("chunks", ["in_a_row", "zigzag"])
@worlds
@engines
def test_ring_attention_is_that_of_one_process(lesson, engine, world_size, chunks, causal):
    run = engine(lesson["forward_and_backward"], world_size, (S, lesson[chunks], causal))
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


@worlds
@engines
def test_attention_by_heads_is_that_of_one_process(lesson, engine, world_size, monkeypatch):
    monkeypatch.setitem(lesson, "H", HEADS)
    run = engine(lesson["ulysses"], world_size, (S,))
    whole = lesson["attention"](*lesson["sequence"](S))
    close(torch.cat(run.results, dim=1), whole)
    assert [(c.kind, c.nbytes) for c in run.trace.collectives] == [
        ("all_to_all", tensors * 4 * whole.numel() // world_size) for tensors in (3, 1)
    ]
    assert run.findings == []


@worlds
@engines
def test_whoever_waits_first_gets_the_same(lesson, engine, world_size):
    runs = [
        engine(lesson["forward"], world_size, (S, lesson["zigzag"], True, first))
        for first in (False, True)
    ]
    for one, other in zip(*(run.results for run in runs), strict=True):
        assert torch.equal(one, other)


@worlds
@engines
def test_the_experts_are_those_of_one_process(lesson, engine, world_size):
    every_expert = lesson["experts_of"](0, 1)
    wanted = lesson["y_and_gradients"](
        lesson["tokens"], lesson["router"], every_expert, lesson["dense"]
    )
    run = engine(lesson["of_rank"], world_size)
    y, x, router = zip(*(result[:3] for result in run.results), strict=True)
    of_experts = [gradient for result in run.results for gradient in result[3:]]
    found = [torch.cat(y), torch.cat(x), sum(router), *of_experts]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * other.abs().max().item(), rtol=1e-4)
    assert [c.kind for c in run.trace.collectives] == ["all_to_all"] * 5
    assert run.findings == []


@worlds
@engines
def test_every_rank_knows_the_same_loads_and_bias(lesson, engine, world_size):
    x, router = lesson["tokens"], lesson["router"]
    run = engine(lesson["balance"], world_size, (20,))
    for loads, bias in run.results:
        assert torch.equal(torch.stack(loads), torch.stack(run.results[0][0]))
        assert torch.equal(bias, run.results[0][1])
        assert loads[0].tolist() == (x @ router).argmax(-1).bincount(minlength=EXPERTS).tolist()
        last = (x @ router + bias).argmax(-1).bincount(minlength=EXPERTS)
        assert loads[-1].tolist() == last.tolist()


@worlds
@engines
def test_a_dropped_token_skips_the_layer(lesson, engine, world_size):
    dropped, unchanged = zip(*engine(lesson["capped"], world_size, (0.5,)).results, strict=True)
    assert sum(dropped) > 0
    assert dropped == unchanged
    assert engine(lesson["capped"], world_size, (EXPERTS,)).results == [(0, 0)] * world_size
