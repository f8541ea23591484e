"""Lesson 15's graphs: answers are right, a pass keeps values, DDPOptimizer moves no byte."""

import contextlib
import io

import pytest
import torch
from lesson_programs import names_of, written

import simlib

LESSON = "15_what_the_compiler_sends"
MM_S, ALL_REDUCE_S = 2 * 512**3 / 400e9, 30e-6 * 2 + 4 * 512**2 / 1.25e9
CLUSTER = simlib.clusters.ethernet_10g(2, device=simlib.Device(flops_per_s=400e9))


@pytest.fixture(scope="module")
def lesson():
    return names_of(LESSON)


@pytest.fixture(scope="module")
def nodes(lesson):
    return simlib.run(lesson["traced"], 2, args=(lesson["step"],)).results[0]


def said(source, names):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(source, names)
    return text.getvalue()


def test_the_answers_in_their_places_are_right(lesson, nodes):
    requests = lesson["requests"]
    seen = {requests: simlib.run(lesson["compiled"], 2, args=(requests,))}
    for function in ("your_sum", "your_pass"):
        names = {**lesson, "seen": seen, "nodes": nodes}
        stored, answered = written(LESSON, function)
        assert "not yet" in said(stored, names)
        assert f"{function}: right" in said(answered, names)


def test_requests_are_summed_between_three_graphs(lesson):
    run = simlib.run(lesson["compiled"], 2, args=(lesson["requests"],))
    assert [len(ops) for ops in run.results[0][1]] == [1, 2, 1]
    inputs = []
    for rank in range(2):
        generator = torch.Generator().manual_seed(rank)
        inputs.append([torch.randn(4, 4, generator=generator) for _ in range(3)])
    y = sum(x @ A for x, A, _ in inputs)
    for (found, _), (x, _, B) in zip(run.results, inputs, strict=True):
        torch.testing.assert_close(found, y + torch.relu(x @ B))


def of_step(given):
    """What `step` returns on each rank, from one process."""
    ys = sum(x @ A + torch.relu(torch.relu(x @ B) @ C) for x, A, B, C in given)
    return [ys + torch.relu(x @ B) @ A for x, A, B, _ in given]


@pytest.mark.parametrize("order", ["nodes", "reordered"])
def test_an_order_keeps_the_values_and_takes_as_long_as_the_formula(lesson, nodes, order):
    given = nodes if order == "nodes" else lesson["reordered"](nodes)
    run = simlib.simulate(lesson["execute"], 2, args=(given,), cluster=CLUSTER)
    expected = of_step([lesson["inputs_of"](rank) for rank in range(2)])
    for found, one_process in zip(run.results, expected, strict=True):
        torch.testing.assert_close(found, one_process, rtol=1e-4, atol=1e-5)
    waits_s = 2 * ALL_REDUCE_S if order == "nodes" else ALL_REDUCE_S - MM_S
    assert run.time_s == pytest.approx(4 * MM_S + waits_s, rel=1e-3)


def moved(nodes, name, behind):
    """The nodes, with one of them behind another one."""
    (node,) = (one for one in nodes if one[0] == name)
    rest = [one for one in nodes if one[0] != name]
    at = [one[0] for one in rest].index(behind) + 1
    return [*rest[:at], node, *rest[at:]]


@pytest.mark.parametrize("name, behind, words", [
    ("wait_tensor", "add", "add comes before one of its inputs"),
    ("all_reduce", "b_1", "all_reduce comes before one of its inputs"),
    ("all_reduce", "relu", "all_reduce could start earlier"),
    ("wait_tensor_1", "all_reduce_1", "wait_tensor_1 could come later"),
    ("relu", "mm_3", "mm_2 comes before one of its inputs"),
])  # fmt: skip
def test_a_wrong_order_is_refused(lesson, nodes, name, behind, words):
    right = lesson["reordered"](nodes)
    assert lesson["verdict_on"](right, nodes) == "right"
    assert lesson["verdict_on"](moved(right, name, behind), nodes) == f"not yet: {words}"


def test_a_dropped_wait_and_a_wait_before_its_last_use_are_refused(lesson, nodes):
    twice = [*nodes, ("add_2", "aten.add.Tensor", ("add_1", "wait_tensor"), ())]
    right = lesson["reordered"](twice)
    assert lesson["verdict_on"](right, twice) == "right"
    without = [node for node in right if node[0] != "wait_tensor"]
    for wrong in (without, moved(right, "wait_tensor", "add_1")):
        words = lesson["verdict_on"](wrong, twice)
        assert words == "not yet: add comes before one of its inputs"


def test_a_pass_is_wrong_only_where_an_op_changes_memory(lesson):
    wrong = []
    for trace in ("traced", "without_changes"):
        graph = simlib.run(lesson[trace], 2, args=(lesson["masked"],)).results[0]
        run = simlib.simulate(lesson["execute"], 2, args=(lesson["reordered"](graph),))
        wrong.append(bool(run.results[0][0].any()))
    assert wrong == [True, False]


def test_ddpoptimizer_changes_the_graphs_and_no_byte(lesson):
    runs = [simlib.run(lesson["with_ddp"], 2, args=(split,)) for split in (True, False)]
    assert [run.results for run in runs] == [[4, 4], [1, 1]]
    sent = [[(c.kind, c.nbytes) for c in run.trace.collectives] for run in runs]
    assert sent[0] == sent[1] and sent[0][-8:] == [("all_reduce", 1 << 20)] * 8
