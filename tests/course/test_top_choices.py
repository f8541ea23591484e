"""Lesson 18's top-k experts against one process and closed forms; its published answers."""

import pytest
import torch
from lesson_programs import ENGINES, names_of, start, written
from sampled import sampled

import simlib

PART = "18_top_choices_of_experts"


def is_given(names):
    return all(name.isupper() for name in names) or names == {"tokens"}


@pytest.fixture(scope="module")
def lesson():
    names = names_of(PART, is_given)
    names["tokens"] = torch.randn(120, names["WIDTH"], generator=torch.Generator().manual_seed(3))
    return names


def by_hand(lesson, k):
    """y and the gradients of the mean of y ** 2, token by token."""
    model = lesson["Model"]()
    rows = []
    for x in model.dense(lesson["tokens"]):
        scores = model.router(x)
        order = scores.argsort(descending=True)[:k]
        shares = scores[order].exp() / scores[order].exp().sum()
        results = [model.experts[str(e)](x) for e in order.tolist()]
        rows.append(x + sum(share * y for share, y in zip(shares, results, strict=True)))
    y = torch.stack(rows)
    y.square().mean().backward()
    return y.detach(), {name: p.grad for name, p in model.named_parameters()}


def close(found, wanted):
    scale = wanted.abs().max().item()
    torch.testing.assert_close(found, wanted, atol=2e-5 * scale, rtol=1e-4)


@pytest.mark.parametrize("engine, R, k", sampled(ENGINES, (1, 2, 4, 8), (2, 3, 5, 8), count=4))
def test_the_layer_is_that_of_one_process_token_by_token(lesson, engine, R, k):
    y, wanted = by_hand(lesson, k)

    def of_rank(rank, world_size):
        model = lesson["Model"](rank, world_size)
        mine = model(lesson["tokens"].chunk(world_size)[rank], lesson["layer"], None, k)
        mine.square().mean().backward()
        return mine.detach(), lesson["gradients"](model)

    run = start(engine, of_rank, R)
    close(torch.cat([mine for mine, _ in run.results]), y)
    for name, gradient in wanted.items():
        found = sum(each[name] for _, each in run.results if name in each)
        close(found / R, gradient)
    assert [c.kind for c in run.trace.collectives] == ["all_to_all"] * 5
    assert run.findings == []


def test_with_one_expert_the_router_learns_nothing(lesson):
    router = by_hand(lesson, 1)[1]["router.weight"]
    assert router.abs().max() < 1e-6 < by_hand(lesson, 2)[1]["router.weight"].abs().max()


@pytest.mark.parametrize(
    "engine, mesh", sampled(ENGINES, ((4, 1), (4, 2), (4, 4), (8, 2), (8, 4)), count=3)
)
def test_the_rule_for_replicas_and_what_the_wrong_ways_get(lesson, engine, mesh):
    (R, ep), wanted = mesh, by_hand(lesson, 2)[1]
    for found in start(engine, lesson["step"], R, ep, lesson["right_sync"]).results:
        for name, gradient in found.items():
            close(gradient, wanted[name])
    for found in simlib.simulate(lesson["step"], R, (ep, lesson["avg_in_group"])).results:
        for name, gradient in found.items():
            close(gradient, wanted[name] * (ep if "experts" in name else 1))
    mixed = simlib.simulate(lesson["step"], R, (ep, lesson["avg_everywhere"])).results[0]
    name, each = "experts.0.0.weight", lesson["E"] // ep
    others = [wanted[f"experts.{place * each}.0.weight"] for place in range(ep)]
    close(mixed[name], sum(others))  # R / ep times each, divided by R, and ep times too large


def test_every_expert_keeps_the_largest_weights(lesson):
    weights, chosen = lesson["route"](torch.randn(50, lesson["E"]))
    for by_weight in (False, True):
        stays = lesson["kept"](weights, chosen, 9, by_weight)
        for e in range(lesson["E"]):
            of_e = [(-w if by_weight else i, s) for i, (w, c, s) in enumerate(
                zip(weights.flatten().tolist(), chosen.flatten().tolist(),
                    stays.flatten().tolist(), strict=True)) if c == e]  # fmt: skip
            assert [s for _, s in sorted(of_e)] == [i < 9 for i in range(len(of_e))]


ANSWERS = {  # what breaks it
    "my_layer": ("order // chosen.shape[1]", "order % len(x)"),
    "my_sync": ("p.grad /= dist.get_world_size()", "p.grad /= dist.get_world_size(group)"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_published_answer_is_right_and_a_broken_one_is_not(name, capsys):
    stub, answered = written(PART, name)
    names = names_of(PART, is_given) | {"said": ("not yet", "right")}
    names["model"] = names["Model"]()
    names["whole"] = names["model"](names["tokens"], names["everyone"]).detach()
    names["model"](names["tokens"], names["everyone"]).square().mean().backward()
    names["one"] = names["gradients"](names["model"])
    broken = answered.replace(*ANSWERS[name])
    assert broken != answered
    said = []
    for source in (stub, answered, broken):
        names["model"] = names["Model"]()
        exec(source, names)
        said.append(capsys.readouterr().out)
    assert "not yet" in said[0] and "right" not in said[0]
    assert "not yet" not in said[1] and said[1].count("right") == said[0].count("not yet")
    assert said[2].count("right") < said[1].count("right")
