"""Lesson 13: averages of two sorts, how old a gradient is, and a replica that is lost."""

import ast
from pathlib import Path

import jupytext
import pytest
import torch

import simlib

ROOT = Path(__file__).resolve().parent.parent
CONSTANTS = {"SHAPES", "SIZES", "OPTIMIZERS", "P", "images"}
CONSTANTS |= {"(images, labels)", "(PUSH, FETCH, GOODBYE)"}


def lesson():
    """What lesson 13 imports and defines, without running anything else of it."""
    path = ROOT / "authoring" / "lessons" / "13_asynchronous_training.py"
    names = {"__name__": "lesson"}
    for cell in jupytext.read(path, fmt="py:percent").cells:
        if cell.cell_type == "code":
            kept = [statement for statement in ast.parse(cell.source).body if defines(statement)]
            exec(compile(ast.Module(kept, []), "<lesson 13>", "exec"), names)
    return names


def defines(statement):
    if isinstance(statement, ast.Assign):
        return {ast.unparse(target) for target in statement.targets} <= CONSTANTS
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef))


LESSON = lesson()
network, apart, together, downpour = (
    LESSON[name] for name in ("network", "apart", "together", "downpour")
)


def of_replicas(run, shards):
    return LESSON["loss_of"](torch.cat(run.results[:shards])).item()


def parameters_and_gradients(name, ranks, steps=8):
    """Theta after so many steps, of gradients averaged and of parameters averaged."""
    return [
        simlib.simulate(LESSON["average"], ranks, (what, name, steps)).results[0]
        for what in ("gradients", "parameters")
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", ["SGD", "momentum"])
def test_averaging_parameters_is_averaging_gradients(name, ranks):
    torch.testing.assert_close(*parameters_and_gradients(name, ranks), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 5])
def test_for_adam_it_is_not(ranks):
    of_gradients, of_parameters = parameters_and_gradients("Adam", ranks)
    assert (of_gradients - of_parameters).abs().max() > 0.01


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_among_equal_workers_a_gradient_is_as_old_as_there_are_others(workers):
    args, cluster = ("gradients", 10 * workers, 0.1), network(workers + 1)
    run = simlib.simulate(apart, workers + 1, args, cluster=cluster)
    ages = LESSON["staleness"](run)
    assert ages[:workers] == list(range(workers))
    assert ages[workers:] == [workers - 1] * 9 * workers


def test_a_slow_worker_leaves_the_mean_age_as_it_is():
    args = ("gradients", 120, 0.1)
    runs = [
        simlib.simulate(apart, 5, args, cluster=network(5), slow=slow) for slow in ({}, {1: 3.0})
    ]
    equal, slow = map(LESSON["staleness"], runs)
    assert abs(sum(equal) - sum(slow)) <= 12
    assert max(slow) > 2 * max(equal)


def test_on_real_ranks_the_mean_age_is_the_same():
    ages = LESSON["staleness"](simlib.run(apart, 4, ("gradients", 60, 0.1)))
    assert len(ages) == 60
    assert abs(sum(ages) / 60 - 2) < 0.2


def test_one_worker_and_a_server_are_sgd():
    alone = simlib.simulate(apart, 2, ("gradients", 32, 0.2), cluster=network(2)).results[0]
    theta, gradient = LESSON["start"](), LESSON["gradients"](1)
    for _ in range(32):
        theta -= 0.2 * gradient(theta)
    assert alone[-1][2] == pytest.approx(LESSON["loss_of"](theta).item(), rel=1e-5)


@pytest.mark.parametrize("workers", [2, 4, 5])
def test_a_loop_with_late_gradients_is_the_server(workers):
    args = ("gradients", 16 * workers, 0.1)
    run = simlib.simulate(apart, workers + 1, args, cluster=network(workers + 1))
    first = min((m for m in run.trace.messages if m.dst == 0), key=lambda m: m.recv.end_s)
    assert first.src == workers
    loop = simlib.simulate(
        lambda rank, world_size: LESSON["delayed"](workers - 1, 0.1, 16 * workers), 1
    )
    assert run.results[0][-1][2] == pytest.approx(loop.results[0], rel=1e-6)


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_a_full_link_sets_the_pace(workers):
    run = simlib.simulate(
        apart, workers + 1, ("gradients", 64, 0.1), cluster=network(workers + 1, 1)
    )
    pair_s = 2 * (10e-6 + (4 * LESSON["P"] + 2) / 125e6)
    assert run.time_s == pytest.approx(1e-3 + 64 * pair_s, rel=1e-3)


@pytest.mark.parametrize("S", [1, 2, 4])
@pytest.mark.parametrize("death_s", [0.0101, 0.03, 0.0613])
def test_downpour_goes_on_without_a_replica(S, death_s):
    options = {"cluster": network(S + 4)}
    whole = simlib.simulate(downpour, S + 4, (S, 64, 0.1), **options)
    death = {"kill": {S + 3: death_s}, "on_death": "continue"}
    lost = simlib.simulate(downpour, S + 4, (S, 64, 0.1), **options, **death)
    assert lost.deaths == {S + 3: death_s}
    assert lost.results[S + 3] is None
    assert of_replicas(lost, S) < of_replicas(whole, S) + 0.1 < 0.5


def test_downpour_goes_on_on_real_ranks():
    run = simlib.run(downpour, 5, (2, 400, 0.05), kill={4: 0.1}, on_death="continue")
    assert set(run.deaths) == {4}
    assert of_replicas(run, 2) < 0.3


def test_figures_are_the_same_in_every_run():
    noise = {"slow": simlib.scale.Jitter("lognormal", spread=0.1, seed=5)}
    runs = [
        simlib.simulate(apart, 4, ("gradients", 48, 0.2), cluster=network(4), **noise)
        for _ in range(2)
    ]
    assert runs[0].results == runs[1].results
    other = {"slow": simlib.scale.Jitter("lognormal", spread=0.1, seed=6)}
    run = simlib.simulate(apart, 4, ("gradients", 48, 0.2), cluster=network(4), **other)
    assert run.results != runs[0].results
