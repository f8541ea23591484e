"""Lesson 11's own pipeline is torch's, message for message; bubbles are their formulas'."""

import ast
import math
from pathlib import Path

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
@pytest.mark.parametrize("world_size", [2, 3, 4])
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


@pytest.mark.parametrize("M", [8, 16])
@pytest.mark.parametrize("kind", PLAIN)
def test_the_bubble_of_one_stage_a_rank(kind, M):
    expected = 3 / (M + 3)
    ours = simulate(LESSON["train"], 4, (PLAIN[kind](4, M), LESSON["together"]))
    torchs = simulate(LESSON["theirs"], 4, (kind, M))
    assert ours.bubble().share == pytest.approx(expected, abs=1e-9)
    assert torchs.bubble().share == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("M", [8, 16])
def test_the_bubble_of_interleaved_stages(M):
    expected = 3 / (2 * M + 3)
    plan = LESSON["interleaved"](4, M, 2)
    ours = simulate(LESSON["train"], 4, (plan, LESSON["post"], 2))
    torchs = simulate(LESSON["theirs"], 4, ("Interleaved1F1B", M, 2))
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
