"""Lesson 11's own pipeline is torch's, message for message; bubbles are their formulas'."""

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jupytext
import pytest
import torch

import simlib

ROOT = Path(__file__).resolve().parent.parent
CONSTANTS = {"SHAPE", "FREE", "SLOW"}


def lesson():
    """What lesson 11 imports and defines, without running anything else of it."""
    notebook = jupytext.read(ROOT / "authoring" / "lessons" / "11_pipelines.py", fmt="py:percent")
    names = {"__name__": "lesson"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept = [statement for statement in ast.parse(cell.source).body if defines(statement)]
            exec(compile(ast.Module(kept, []), "<lesson 11>", "exec"), names)
    return names


def defines(statement):
    if isinstance(statement, ast.Assign):
        return {ast.unparse(target) for target in statement.targets} <= CONSTANTS
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


LESSON = lesson()
PLAIN = {"GPipe": LESSON["gpipe"], "1F1B": LESSON["one_f_one_b"]}


class Schedule(NamedTuple):
    """One of torch's schedules: stages of a rank, and its bubble for K ranks, M micro-batches."""

    stages: int
    of_a_step: Callable
    in_a_row: Callable | None = None
    """Where the ramps of two steps fit together: that of a step after another."""


def one_stage_a_rank(K, M):
    return (K - 1) / (M + K - 1)


def two_stages_a_rank(K, M):
    return (K - 1) / (2 * M + K - 1)


def in_thirds(K, M):
    """A ramp of K - 1 pieces, where each rank has 6 M: F, B and W on two stages."""
    return (K - 1) / (6 * M + K - 1)


TORCHS = {
    "GPipe": Schedule(1, one_stage_a_rank),
    "1F1B": Schedule(1, one_stage_a_rank),
    "Interleaved1F1B": Schedule(2, two_stages_a_rank),
    "LoopedBFS": Schedule(2, two_stages_a_rank),
    "InterleavedZeroBubble": Schedule(2, in_thirds),
    "ZBVZeroBubble": Schedule(2, in_thirds, lambda K, M: 0),
    "DualPipeV": Schedule(2, lambda K, M: (K - 1) / (3 * M + K - 1)),
}


def simulate(function, world_size, args):
    cluster = simlib.Cluster(world_size, 1, LESSON["FREE"], device=LESSON["SLOW"])
    return simlib.simulate(function, world_size, args, cluster=cluster)


ENGINES = {"run": simlib.run, "simulate": simulate}


def in_order(messages):
    """For each pair of ranks, the bytes of all messages in the order in which they were sent."""
    pairs = {}
    for message in sorted(messages, key=lambda message: (message.src, message.send.seq)):
        pairs.setdefault((message.src, message.dst), []).append(message.nbytes)
    return pairs


def of_a_step(messages):
    """Those that carry activations or gradients, and not what torch asks before its first step."""
    return in_order(m for m in messages if m.nbytes == 4 * math.prod(LESSON["SHAPE"]))


def calls(run):
    """By rank: its sends and receives of activations and gradients, in the order of its calls."""
    size = 4 * math.prod(LESSON["SHAPE"])
    return [
        [(op.kind, op.peer) for op in run.trace if (op.rank, op.nbytes) == (rank, size)]
        for rank in range(run.world_size)
    ]


def gradients(results):
    """Those of all stages, in their order, as one vector."""
    of_stage = {stage: found for result in results for stage, found in result.items()}
    return torch.cat([g.flatten() for stage in sorted(of_stage) for g in of_stage[stage]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", PLAIN)
def test_the_lessons_schedules_are_torchs_message_for_message(kind, world_size, engine):
    M, plan = 5, PLAIN[kind](world_size, 5)
    ours = ENGINES[engine](LESSON["train"], world_size, (plan, LESSON["together"]))
    torchs = ENGINES[engine](LESSON["theirs"], world_size, (kind, M))
    assert in_order(ours.trace.messages) == of_a_step(torchs.trace.messages)
    assert sum(ours.messages) == 2 * (world_size - 1) * M
    assert calls(ours) == calls(torchs)
    alone = simlib.run(LESSON["train"], 1, (LESSON["gpipe"](1, M),))
    expected = gradients(alone.results)
    assert expected.abs().max() > 1e-3
    for found in (ours.results, [result[0] for result in torchs.results]):
        torch.testing.assert_close(gradients(found), expected, rtol=1e-5, atol=1e-6)


def test_a_schedule_with_another_order_is_told_apart():
    """The comparison can fail: GPipe's rank 0 has the same messages in another order."""
    plans = [PLAIN[kind](3, 4) for kind in PLAIN]
    runs = [simulate(LESSON["train"], 3, (plan, LESSON["together"])) for plan in plans]
    gpipe, one_f_one_b = map(calls, runs)
    assert gpipe[0] != one_f_one_b[0] and sorted(gpipe[0]) == sorted(one_f_one_b[0])


@pytest.fixture
def in_double(monkeypatch):
    """The lesson's blocks and examples in float64, so that rounding hides nothing."""
    block, examples = LESSON["block"], LESSON["examples"]
    monkeypatch.setitem(LESSON, "block", lambda number: block(number).double())
    monkeypatch.setitem(
        LESSON, "examples", lambda micro: tuple(part.double() for part in examples(micro))
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("kind", TORCHS)
def test_torchs_schedules_have_the_gradients_of_one_process(kind, world_size, engine, in_double):
    M = 2 * world_size  # DualPipeV wants at least as many as there are stages
    args = kind, M, TORCHS[kind].stages, 1, LESSON["block"]
    run = ENGINES[engine](LESSON["theirs"], world_size, args)
    net = torch.nn.Sequential(*map(LESSON["block"], range(8)))
    x, target = (torch.cat(part) for part in zip(*map(LESSON["examples"], range(M)), strict=True))
    torch.nn.functional.mse_loss(net(x), target).backward()
    expected = torch.cat([p.grad.flatten() for p in net.parameters()])
    assert expected.abs().max() > 0.1
    found = gradients([result[0] for result in run.results])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("M", [8, 16, 32])
@pytest.mark.parametrize("kind", TORCHS)
def test_the_bubble_of_torchs_schedules_is_their_formulas(kind, M):
    """Of one step, from first piece to last, and of the second of two, by each rank's own clock."""
    v, of_a_step, in_a_row = TORCHS[kind]
    args = kind, M, v, 2, LESSON["linear"]  # F, B and W take equally long
    two = simulate(LESSON["theirs"], 4, args)
    first = simulate(LESSON["theirs"], 4, (kind, M, v, 1, LESSON["linear"]))
    assert first.bubble().share == pytest.approx(of_a_step(4, M), abs=1e-9)
    for busy_s, (_, (_, second_s)) in zip(first.bubble().busy_s, two.results, strict=True):
        assert 1 - busy_s / second_s == pytest.approx((in_a_row or of_a_step)(4, M), abs=1e-9)


@pytest.mark.parametrize("M", [8, 16, 32])
@pytest.mark.parametrize("kind", [*PLAIN, "Interleaved1F1B"])
def test_the_bubble_of_the_lessons_plans_is_that_of_torchs(kind, M):
    v = TORCHS[kind].stages
    plan = PLAIN[kind](4, M) if kind in PLAIN else LESSON["interleaved"](4, M, v)
    ours = simulate(LESSON["train"], 4, (plan, LESSON["post"], v))
    torchs = simulate(LESSON["theirs"], 4, (kind, M, v))
    expected = TORCHS[kind].of_a_step(4, M)
    assert ours.bubble().share == pytest.approx(expected, abs=1e-9)
    assert torchs.bubble().share == pytest.approx(expected, abs=1e-9)
    alone = simlib.run(LESSON["train"], 1, (LESSON["gpipe"](1, M),))
    torch.testing.assert_close(
        gradients(ours.results), gradients(alone.results), rtol=1e-5, atol=1e-6
    )


def test_1f1b_holds_no_more_for_more_micro_batches():
    def peaks(kind, M):
        run = simulate(LESSON["train"], 4, (PLAIN[kind](4, M), LESSON["together"]))
        return LESSON["activations"](run)

    assert peaks("1F1B", 8) == peaks("1F1B", 16)
    assert min(b - a for a, b in zip(peaks("GPipe", 8), peaks("GPipe", 16), strict=True)) > 8e5


def test_1f1b_by_send_and_recv_hangs_and_gpipe_does_not():
    with pytest.raises(simlib.DeadlockError, match="both send first"):
        simulate(LESSON["train"], 3, (LESSON["one_f_one_b"](3, 4), LESSON["send_first"]))
    assert simulate(LESSON["train"], 3, (LESSON["gpipe"](3, 4), LESSON["send_first"])).bubble()
