"""Lesson 17's own functions: its planner is the lab's, its program takes as long as it predicts."""

import itertools
from dataclasses import replace

import pytest
import torch
from lesson_programs import names_of
from sampled import sampled

import simlib
from simlib import scale
from simlib.course.labs.plan_model import plan_of

SMALL = simlib.Cluster(
    4, 2, simlib.Link(30e-6, 1.25e9), simlib.Link(5e-6, 12.5e9), simlib.Device(1e10), rails=2
)
JOBS = "medium", "laptops", "ethernet", "nvlink"


@pytest.fixture(scope="module")
def lesson():
    """The lesson's functions, its jobs and what they need; nothing is run."""
    return names_of("17_plan_a_training_run", are_given)


def are_given(names):
    """Whether all that is assigned to is a job or in capital letters, and nothing is worked out."""
    return all(name in JOBS or name.isupper() and name != "BEST" for name in names)


@pytest.mark.parametrize("name", JOBS[1:])
def test_the_lessons_planner_is_the_labs(lesson, name):
    job, count = lesson[name], 0
    for choice in itertools.product((1, 2, 8, 16), (1, 4, 8), (1, 4), (0, 1, 2, 3), (False, True)):
        parts, plan = lesson["step_parts"](job, *choice), plan_of(job, *choice, 3600)
        assert (parts is None) == isinstance(plan, tuple), choice
        if parts:
            count += 1
            assert sum(parts.values()) == pytest.approx(plan.step.time_s, rel=1e-9)
            assert lesson["kept_bytes"](job, *choice) == pytest.approx(plan.step.nbytes, rel=1e-9)
    assert count >= 24


def predicted_s(lesson, pp, dp, tp, M):
    """The step of the lesson's program: its formula, for any mesh."""
    L, S, H, N = (lesson[name] for name in "LSHN")
    seconds = lesson["seconds"]
    f = L * N * (24 * S * H**2 + 4 * S**2 * H) / (pp * tp) / 1e10
    sums = 2 * (L // pp) * seconds("all_reduce", 4 * N * S * H, tp, 1, SMALL)
    hop = seconds("broadcast", 4 * N * S * H, min(pp, 2), (pp - 1) * tp * dp, SMALL)
    times = {"forward_s": f + sums, "backward_s": 2 * f + sums}
    grads = seconds("all_reduce", 4 * 12 * H**2 * L / (pp * tp), dp, tp, SMALL)
    return scale.even_pipeline_time(pp, M, **times, message_s=hop) + grads


MESHES = (1, 1, 1, 4), (2, 2, 2, 4), (4, 2, 1, 8), (2, 1, 4, 4), (1, 4, 2, 2)


@pytest.mark.parametrize("mesh", [mesh for (mesh,) in sampled(MESHES, count=3)])
def test_a_step_takes_as_long_as_predicted_and_learns_the_same(lesson, mesh):
    pp, dp, tp, M = mesh
    step, axes = lesson["train_step"], {"pp": pp, "dp": dp, "tp": tp}
    run = simlib.simulate(step, pp * dp * tp, (axes, M), cluster=SMALL, all_reduce="ring")
    took_s = max(time_s for time_s, *_ in run.results)
    assert predicted_s(lesson, pp, dp, tp, M) == pytest.approx(took_s, rel=0.05)
    whole = {"pp": 1, "dp": 1, "tp": 1}
    alone = simlib.simulate(step, 1, (whole, M * dp), cluster=replace(SMALL, device=None))
    squares = [flat.double().square().sum() for _, flat, _ in run.results]
    wanted = alone.results[0][1].double().square().sum()
    torch.testing.assert_close(sum(squares) / dp, wanted, rtol=1e-5, atol=0)


def test_the_figures_of_the_text(lesson):
    """What the prose says of plans, to the digits that it has."""
    jobs = {name: lesson["plans"](lesson[name]) for name in JOBS[1:]}
    fastest = {name: (round(found[0][0], 3), *found[0][1:3]) for name, found in jobs.items()}
    assert fastest == {
        "laptops": (56.563, 1, 4),
        "ethernet": (0.288, 1, 8),
        "nvlink": (25.302, 8, 4),
    }
    lean = {name: lesson["lean"](lesson[name], found) for name, found in jobs.items()}
    assert {name: plan[1:5] for name, plan in lean.items()} == {
        "laptops": (1, 4, 1, 1),
        "ethernet": (1, 8, 1, 1),
        "nvlink": (8, 8, 1, 1),
    }
    dp_alone = min(plan[0] for plan in jobs["ethernet"] if plan[1:3] == (1, 1))
    assert dp_alone / fastest["ethernet"][0] == pytest.approx(4.04, abs=0.01)
    published = sum(lesson["step_parts"](lesson["nvlink"], 8, 16).values())
    assert published == pytest.approx(34.13, abs=0.01)  # 32 s in Megatron-LM's README


def missed(lesson, name, tp, pp, stage):
    """By which shares the formulas of memory and of compute miss what a stage's own code takes."""
    job = lesson[name]
    alone = lesson["stage_alone"], 1, (job, tp, pp, stage)
    run = simlib.simulate(*alone, cluster=job.cluster, data=False)
    compute_s = lesson["step_parts"](job, tp, pp)["compute"] * job.ranks / (job.batch * tp * pp)
    held = run.memory[0].peak_bytes
    return lesson["kept_bytes"](job, tp, pp) / held - 1, compute_s * run.results[0] / run.time_s - 1


def test_the_formulas_and_real_code_of_a_stage(lesson):
    """Right inside; on the first and the last stage they leave out what stands there alone."""
    first, second, last = (missed(lesson, "ethernet", 1, 8, stage) for stage in (0, 1, 7))
    assert first == pytest.approx((-0.42, 0.17), abs=0.01)
    assert second == pytest.approx((0.09, 0.17), abs=0.01)
    assert last == pytest.approx((-0.39, -0.30), abs=0.01)


@pytest.mark.slow
def test_the_formula_of_memory_is_right_on_a_stage_of_gpt_3(lesson):
    assert missed(lesson, "nvlink", 8, 16, 1)[0] == pytest.approx(0, abs=0.005)


def waits_in_a_row(K, M, is_1f1b, early):
    """How many messages a step of equal stages waits for, one after the other."""
    forward_s, hop_s = 2e-3, 1e-4

    def step(rank, world_size):
        words, inbox, sent = [("F", i) for i in range(M)] + [("B", i) for i in range(M)], {}, []
        if is_1f1b:
            ahead = min(M, K - rank - 1)
            words = [("F", i) for i in range(ahead)]
            words += [word for i in range(M - ahead) for word in (("F", ahead + i), ("B", i))]
            words += [("B", i) for i in range(M - ahead, M)]

        def posted(kind, i):
            src = rank + (-1 if kind == "F" else 1)
            return torch.distributed.irecv(torch.empty(1), src=src) if 0 <= src < K else None

        if early:
            inbox = {word: posted(*word) for word in words}
        for kind, i in words:
            request = inbox[kind, i] if early else posted(kind, i)
            if request:
                request.wait()
            simlib.compute(forward_s if kind == "F" else 2 * forward_s)
            dst = rank + (1 if kind == "F" else -1)
            if 0 <= dst < K:
                sent.append(torch.distributed.isend(torch.ones(1), dst=dst))
        for request in sent:
            request.wait()

    run = simlib.simulate(step, K, cluster=simlib.Cluster(K, 1, simlib.Link(hop_s, float("inf"))))
    return (run.time_s - (M + K - 1) * 3 * forward_s) / hop_s


@pytest.mark.parametrize("K, M", [(2, 4), (3, 6), (5, 4)])
def test_the_table_of_messages_in_a_row(K, M):
    N = M + K - 2
    assert waits_in_a_row(K, M, False, False) == pytest.approx(2 * N)
    assert waits_in_a_row(K, M, False, True) == pytest.approx(2 * (K - 1))
    assert waits_in_a_row(K, M, True, False) == pytest.approx(M + 1 if K == 2 else 2 * N - 1)
    assert waits_in_a_row(K, M, True, True) == pytest.approx(2 * (N - N // K))
