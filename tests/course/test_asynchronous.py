"""Lesson 13: averages of two sorts, how old a gradient is, and a replica that is lost."""

import contextlib
import io

import pytest
import torch
from lesson_programs import names_of, written
from quick import one_of
from sampled import SEED, sampled

import simlib

CONSTANTS = {"SHAPES", "SIZES", "OPTIMIZERS", "P", "images", "labels", "WHAT"}
CONSTANTS |= {"PUSH", "FETCH", "GOODBYE"}
PARTS = "13_asynchronous_training", "13_cost_of_staleness", "13_downpour_and_hogwild"
LESSON, SECOND, THIRD = (names_of(part, CONSTANTS.issuperset) for part in PARTS)
network, apart, together = (LESSON[name] for name in ("network", "apart", "together"))
downpour, P = THIRD["downpour"], sum(LESSON["SIZES"])
SECOND["P"] = P


def simulated(program, ranks, *args, gbit=10, **options):
    return simlib.simulate(program, ranks, args, cluster=network(ranks, gbit), **options)


def of_replicas(run, shards):
    return LESSON["loss_of"](torch.cat(run.results[:shards])).item()


def parameters_and_gradients(name, ranks, steps=8):
    """Theta after so many steps, of gradients averaged and of parameters averaged."""
    return [
        simulated(LESSON["average"], ranks, what, name, steps).results[0]
        for what in ("gradients", "parameters")
    ]


@pytest.mark.parametrize("name, ranks", sampled(("SGD", "momentum"), (2, 3, 5), count=2))
def test_averaging_parameters_is_averaging_gradients(name, ranks):
    torch.testing.assert_close(*parameters_and_gradients(name, ranks), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 5])
def test_for_adam_it_is_not(ranks):
    of_gradients, of_parameters = parameters_and_gradients("Adam", ranks)
    assert (of_gradients - of_parameters).abs().max() > 0.01


@pytest.mark.parametrize("workers", [workers for (workers,) in sampled((1, 4, 7), count=2)])
def test_among_equal_workers_a_gradient_is_as_old_as_there_are_others(workers):
    ages = LESSON["staleness"](simulated(apart, workers + 1, "gradients", 10 * workers, 0.1))
    assert ages[:workers] == list(range(workers))
    assert ages[workers:] == [workers - 1] * 9 * workers


def test_a_slow_worker_leaves_the_mean_age_as_it_is():
    equal, slow = (
        LESSON["staleness"](simulated(apart, 5, "gradients", 120, 0.1, slow=slow))
        for slow in ({}, {1: 3.0})
    )
    assert abs(sum(equal) - sum(slow)) <= 12
    assert max(slow) > 2 * max(equal)


def test_on_real_ranks_the_mean_age_is_the_same():
    ages = LESSON["staleness"](simlib.run(apart, 4, ("gradients", 60, 0.1)))
    assert len(ages) == 60
    assert abs(sum(ages) / 60 - 2) < 0.2


def run_cells(part, name, before="", answered=True):
    """Run the cells of a stub, shorter, and perhaps with its answer: (names, what it prints)."""
    names, code = names_of(part, CONSTANTS.issuperset), written(part, name)[answered]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for text in (before, code.replace("256 //", "32 //").replace("128", "16")):
            exec(text, names)
    return names, printed.getvalue()


FIELD = """
ages, rates = (0, 1, 3, 7), (0.1, 0.2, 0.4)
field = [[0.0] * 3 for _ in ages]
for d, rate in ((0, 0.4), (1, 0.1), (3, 0.2), (7, 0.1)):
    field[ages.index(d)][rates.index(rate)] = loss_of_server(d, rate)
"""
NO_FIELD = "ages, rates, field = (0, 1, 3, 7), (0.4, 0.1, 0.2), [[0.0] * 3] * 4"
WRITTEN = {
    "serve": (0, ""),
    "outer": (0, "show = lambda outer: None"),
    "delayed": (1, FIELD),
    "shards_to_ask": (1, "P = 6634"),
    "replica": (2, ""),
    "bytes_of_shard": (2, ""),
}


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("name", one_of(3, {name: name for name in WRITTEN}, first=SEED))
def test_a_folded_answer_is_right_and_a_stub_is_not_yet(name, answered):
    part, before = WRITTEN[name]
    printed = run_cells(PARTS[part], name, before, answered)[1]
    assert ("right" in printed, "not yet" in printed) == (answered, not answered), printed


def test_programs_of_gradients_alone_are_those_of_the_first_part():
    args = {"together": (4, 8), "apart": (5, 32)}
    for name, (ranks, count) in args.items():
        one = simulated(LESSON[name], ranks, "gradients", count, 0.2).results[0]
        assert one == simulated(SECOND[name], ranks, count, 0.2).results[0]


def sgd(steps, rate):
    """Theta after so many steps of one worker."""
    theta, gradient = LESSON["start"](), LESSON["gradients"](1)
    for _ in range(steps):
        theta -= rate * gradient(theta)
    return theta


def test_one_worker_and_a_server_are_sgd():
    alone = simulated(apart, 2, "gradients", 32, 0.2).results[0]
    assert alone[-1][2] == pytest.approx(LESSON["loss_of"](sgd(32, 0.2)).item(), rel=1e-5)


@pytest.mark.parametrize("workers", [2, 5])
def test_a_loop_with_late_gradients_is_the_server(workers):
    run = simulated(apart, workers + 1, "gradients", 16 * workers, 0.1)
    first = min((m for m in run.trace.messages if m.dst == 0), key=lambda m: m.recv.end_s)
    assert first.src == workers
    draw = [LESSON["gradients"](rank) for rank in (workers, *range(1, workers))]
    names = run_cells(PARTS[1], "delayed", NO_FIELD)[0]
    loss = names["delayed"](draw, workers - 1, 0.1, 16 * workers)
    assert run.results[0][-1][2] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("workers", [4, 16])
def test_a_full_link_sets_the_pace(workers):
    run = simulated(apart, workers + 1, "gradients", 64, 0.1, gbit=1)
    pair_s = 2 * (10e-6 + (4 * P + 2) / 125e6)
    assert run.time_s == pytest.approx(1e-3 + 64 * pair_s, rel=1e-3)


@pytest.mark.parametrize("S, death_s", sampled((1, 2, 4), (0.0101, 0.03, 0.0613), count=2))
def test_downpour_goes_on_without_a_replica(S, death_s):
    whole = simulated(downpour, S + 4, S, 64, 0.1)
    lost = simulated(downpour, S + 4, S, 64, 0.1, kill={S + 3: death_s}, on_death="continue")
    assert lost.deaths == {S + 3: death_s}
    assert lost.results[S + 3] is None
    assert of_replicas(lost, S) < of_replicas(whole, S) + 0.1 < 0.5


@pytest.mark.parametrize(
    "engine, lost",
    sampled(("simulate", "run"), (({}, 0.2), ({4: 0.1}, 0.2), ({2: 0.05, 3: 0.15}, 0.3)), count=2),
)
def test_other_replicas_go_on_and_reach_the_loss(engine, lost):
    """Three replicas, 400 steps each: with one lost as with all; a single one has a third."""
    kill, reached = lost
    death = {"kill": kill, "on_death": "continue"} if kill else {}
    run = getattr(simlib, engine)(downpour, 5, (2, 400, 0.05), **death)
    assert set(run.deaths) == set(kill)
    assert all(run.results[rank] is None for rank in kill)
    assert of_replicas(run, 2) < reached


def test_figures_of_a_lost_replica_are_those_of_the_lesson():
    runs = [
        simulated(downpour, 6, 2, 64, 0.1, **death)
        for death in ({}, {"kill": {5: 0.03}, "on_death": "continue"})
    ]
    assert [of_replicas(run, 2) for run in runs] == pytest.approx([0.285, 0.295], abs=6e-4)
    assert [1e3 * run.time_s for run in runs] == pytest.approx([69.4, 69.4], abs=0.06)


@pytest.mark.parametrize("replicas, is_asked", sampled((1, 2, 3), (True, False)))
def test_staleness_comes_with_replicas_and_not_with_cuts(replicas, is_asked, monkeypatch):
    if is_asked:
        monkeypatch.setitem(SECOND, "shards_to_ask", asked_shards)
    steps, ranks = 12, 10 + 2 * replicas
    run = simulated(SECOND["split"], ranks, steps, 0.1)
    ages = SECOND["staleness"](run, range(10, ranks, 2))
    assert ages[replicas:] == [replicas - 1] * replicas * (steps - 1)
    pushed = [m for m in run.trace.messages if m.src == 11 and m.dst < 10]
    assert len(pushed) == steps * (1 if is_asked else 10)
    assert sum(m.nbytes for m in pushed) == 4 * steps * (663 if is_asked else P)
    if replicas == 1:
        found = torch.cat(run.results[:10])
        torch.testing.assert_close(found, sgd(steps, 0.1), rtol=0, atol=1e-6)


def asked_shards(a, b, S=10):
    """The answer of the lesson."""
    ends = [part.max().item() + 1 for part in torch.arange(P).tensor_split(S)]
    return [s for s in range(S) if [0, *ends][s] < b and ends[s] > a]


def test_which_shards_hold_a_layer():
    border = sum(LESSON["SIZES"][:2])
    assert asked_shards(0, border) == list(range(10))
    assert asked_shards(border, P) == [9]


def keep(theta, agreed, momentum):
    return theta


PROGRAMS = {
    "together": (together, 4, ("gradients", 24, 0.2)),
    "parameters together": (together, 3, ("parameters", 16, 0.2)),
    "apart": (apart, 5, ("gradients", 48, 0.2)),
    "parameters apart": (apart, 4, ("parameters", 48, 0.2)),
    "local": (LESSON["local"], 4, (4, False, keep, 16)),
    "Adam": (LESSON["average"], 3, ("parameters", "Adam", 8)),
    "downpour": (downpour, 6, (2, 16, 0.1, 2, 4, True, 4)),
    "split": (SECOND["split"], 14, (8, 0.1)),
}


def digits_of(run):
    """All that a run has of figures, as text, so that the last digit counts."""
    results = [r.tolist() if isinstance(r, torch.Tensor) else r for r in run.results]
    return repr((results, run.time_s, list(run.bytes_sent), LESSON["staleness"](run)))


def noisy(program, ranks, args, seed):
    noise = simlib.scale.Jitter("lognormal", spread=0.1, seed=seed)
    return simulated(program, ranks, *args, slow=noise)


@pytest.mark.parametrize("name", [name for (name,) in sampled(PROGRAMS, count=3)])
def test_figures_are_the_same_to_the_last_digit_in_every_run(name):
    one, again, other = (digits_of(noisy(*PROGRAMS[name], seed)) for seed in (5, 5, 6))
    assert one == again != other


def test_figures_of_a_death_are_the_same_in_every_run():
    death = {"kill": {5: 0.013}, "on_death": "continue"}
    one, other = (simulated(downpour, 6, 2, 16, 0.1, **death) for _ in range(2))
    assert digits_of(one) == digits_of(other)


def test_a_band_is_as_wide_as_its_seeds_make_it():
    """Of eight seeds: losses apart differ, together they do not."""

    def losses(program, ranks, steps, seed):
        run = noisy(program, ranks, ("gradients", steps, 0.2), seed)
        return tuple(loss for _, _, loss in run.results[0])

    assert len({losses(apart, 5, 48, seed)[-1] for seed in range(8)}) > 5
    assert len({losses(together, 4, 12, seed) for seed in range(2)}) == 1


def test_the_race_is_named_with_its_line():
    run = simulated(THIRD["apart"], 3, 16, 0.2, seed=2)
    (race,) = [finding for finding in run.findings if finding.kind == "race"]
    assert "recv(src=any)" in race.message
    assert [(site.function, site.lineno) for site in race.sites.values()] == [("apart", 6)]
