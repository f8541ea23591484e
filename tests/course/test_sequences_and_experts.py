"""Ring attention and the layer of experts of lesson 18, against one process; its own functions."""

import pytest
import torch
from lab_pictures import check_places_of_words
from lesson_programs import names_of, written
from sampled import sampled

import simlib
from simlib.course.labs.sequences import draw_chunks, draw_experts, draw_ring, draw_weights

ENGINES = {"run": simlib.run, "simulate": simlib.simulate}
S = 120  # two chunks for each of 2, 3, 4 or 5 ranks
EXPERTS = HEADS = 60  # as many for each of 2, 3, 4 or 5 ranks
WORLDS = 2, 3, 4, 5
worlds = pytest.mark.parametrize("world_size", WORLDS)
anywhere = pytest.mark.parametrize("engine, world_size", sampled(ENGINES, WORLDS, count=3))


FIRST, SECOND, THIRD = "18_long_sequences_and_experts", "18_masks_and_heads", "18_tokens_to_experts"


@pytest.fixture(scope="module")
def first():
    return names_of(FIRST, are_constants)


@pytest.fixture(scope="module")
def lesson():
    """The functions of the part with masks, and what they need; nothing is run."""
    return names_of(SECOND, are_constants)


@pytest.fixture(scope="module")
def experts():
    """The same of the part on experts."""
    names = names_of(THIRD, are_constants)
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
def test_without_a_mask_the_ring_is_one_process(first, engine, world_size):
    run = ENGINES[engine](first["forward_and_backward"], world_size, (S,))
    close(torch.cat(run.results, dim=2), first["in_one_process"](S))
    assert run.messages == [3 * world_size - 2] * world_size
    assert run.findings == []
    waits_first = ENGINES[engine](first["forward"], world_size, (S, True))
    for one, other in zip(run.results, waits_first.results, strict=True):
        assert torch.equal(one[0], other)


@anywhere
def test_the_experts_are_those_of_one_process(experts, engine, world_size):
    every_expert = experts["experts_of"](0, 1)
    wanted = experts["y_and_gradients"](
        experts["tokens"], experts["router"], every_expert, experts["dense"]
    )
    run = ENGINES[engine](experts["of_rank"], world_size)
    y, x, router = zip(*(result[:3] for result in run.results), strict=True)
    of_experts = [gradient for result in run.results for gradient in result[3:]]
    found = [torch.cat(y), torch.cat(x), sum(router), *of_experts]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * other.abs().max().item(), rtol=1e-4)
    assert [c.kind for c in run.trace.collectives] == ["all_to_all"] * 5
    assert run.findings == []


@anywhere
def test_every_rank_knows_the_same_loads_and_bias(experts, engine, world_size):
    x, router = experts["tokens"], experts["router"]
    run = ENGINES[engine](experts["balance"], world_size, (20,))
    for loads, bias in run.results:
        assert torch.equal(torch.stack(loads), torch.stack(run.results[0][0]))
        assert torch.equal(bias, run.results[0][1])
        assert loads[0].tolist() == (x @ router).argmax(-1).bincount(minlength=EXPERTS).tolist()
        last = (x @ router + bias).argmax(-1).bincount(minlength=EXPERTS)
        assert loads[-1].tolist() == last.tolist()


@anywhere
def test_a_dropped_token_skips_the_layer(experts, engine, world_size):
    dropped, unchanged = zip(
        *ENGINES[engine](experts["capped"], world_size, (0.5,)).results, strict=True
    )
    assert sum(dropped) > 0
    assert dropped == unchanged
    assert (
        ENGINES[engine](experts["capped"], world_size, (EXPERTS,)).results == [(0, 0)] * world_size
    )


@anywhere
def test_the_mean_makes_gradients_of_experts_as_many_times_too_large(experts, engine, world_size):
    everywhere = experts["experts_of"](0, 1)
    job = experts["tokens"], experts["router"], everywhere, experts["dense"]
    wanted = experts["y_and_gradients"](*job)[3] / experts["tokens"].numel()
    for ep in {1, world_size}:
        run = ENGINES[engine](experts["mean_loss"], world_size, (ep,))
        close(run.results[0][1], world_size * wanted)


def is_given(names):
    return are_constants(names) or names <= {"tokens", "router", "whole"}


ANSWERS = {  # where it is, what breaks it
    "my_merge": (FIRST, "a * u_a", "u_a"),
    "my_ring": (FIRST, "kv = coming", "pass"),
    "my_chunks": (SECOND, "2 * R - 1 - rank", "R + rank"),
    "my_ulysses": (SECOND, "transpose(0, 1)\n    groups", "transpose(0, 1).flip(0)\n    groups"),
    "my_splits": (THIRD, "theirs.sum", "counts.sum"),
    "my_layer": (THIRD, "p[:, None] * ", ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_published_answer_is_right_and_a_broken_one_is_not(name, capsys):
    part, *wrong = ANSWERS[name]
    stub, answered = written(part, name)
    names = {"q": None} | names_of(part, is_given)
    broken = answered.replace(*wrong)
    assert broken != answered
    said = []
    for source in (stub, answered, broken):
        exec(source, names)
        said.append(capsys.readouterr().out)
    assert "not yet" in said[0] and "right" not in said[0]
    assert "not yet" not in said[1] and said[1].count("right") == max(1, said[0].count("not yet"))
    assert said[2].count("right") < said[1].count("right")


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_are_drawn_and_told(lesson, dark):
    cuts = {"in a row": lesson["in_a_row"], "zig-zag": lesson["zigzag"]}
    choices = [[1, 2, 1, 0, 1], [1, 3, 1, 2, 0], [2, 1, 1], []]
    told = {
        "Step 1: rank 0 has the keys of rank 3": draw_ring(4),
        "in 3 x 3 blocks": draw_weights(3),
        "Chunks in a row: of 36 pairs rank 0 computes 3": draw_chunks(4, cuts),
        "Chunks zig-zag: of 36 pairs rank 0 computes 9, rank 1 computes 9": draw_chunks(4, cuts),
        "Of 13 tokens expert 0 gets 2, expert 1 gets 7": draw_experts(choices),
    }
    for words, figure in told.items():
        assert words in figure.words
        check_places_of_words(figure, dark)
