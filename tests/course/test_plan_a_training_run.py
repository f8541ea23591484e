"""Lesson 17's own functions: its plans, the program that proves one wrong, what corrects it."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lesson_programs import names_of, written
from sampled import sampled

import simlib
from simlib import labs, scale
from simlib.course.labs.plan_model import plan_of

SMALL = simlib.Cluster(
    4, 2, simlib.Link(30e-6, 1.25e9), simlib.Link(5e-6, 12.5e9), simlib.Device(1e10), rails=2
)
JOBS = "laptops", "ethernet", "nvlink"
RECORDED = Path(__file__).resolve().parents[2] / "notebooks" / "recorded" / "plan" / "steps.json"


def are_given(names):
    """Whether all that is assigned to is a job or in capital letters, and nothing is worked out."""
    worked_out = {"LAYER", "LOGITS", "F_s", "B_s"}
    return all(name in JOBS or name.isupper() and name not in worked_out for name in names)


@pytest.fixture(scope="module")
def lesson():
    """The first part's functions, its jobs and what they need; nothing is run."""
    return names_of("17_plan_a_training_run", are_given)


@pytest.fixture(scope="module")
def second():
    """The same of the second part."""
    return names_of("17_prove_it_wrong", are_given)


@pytest.fixture(scope="module")
def third():
    """The same of the third part, and the plans that its cells find."""
    names = names_of("17_what_the_run_costs", are_given)
    names["CUTS"] = {R: (8, 8, 1, 1, False) for R in names["SIZES"]} | {128: (8, 16, 1, 0, False)}
    names["GPT_3_S"] = {
        R: plan_of(replace(names["nvlink"], ranks=R), *cut, 3600).step.time_s
        for R, cut in names["CUTS"].items()
    }
    names["STEP_S"] = dict(zip(names["JOBS"], (58.9, 0.359, 25.5), strict=True))
    return names


@pytest.mark.parametrize("name", JOBS)
def test_the_plans_of_one_stage_are_the_labs(lesson, name):
    job, count = lesson[name], 0
    for choice in itertools.product((1, 2, 8, 16), (1,), (1, 4), (0, 1, 2, 3), (False, True)):
        parts, plan = lesson["step_parts"](job, *choice), plan_of(job, *choice, 3600)
        assert (parts is None) == isinstance(plan, tuple), choice
        if parts:
            count += 1
            assert sum(parts.values()) == pytest.approx(plan.step.time_s, rel=1e-9)
            assert lesson["kept_bytes"](job, *choice) == pytest.approx(plan.step.nbytes, rel=1e-9)
    assert count >= 8


@pytest.mark.parametrize("name", JOBS)
def test_of_a_pipeline_the_even_formula_promises_too_little(lesson, name):
    job = lesson[name]
    for tp, pp in itertools.product((1, 8), (4, 8)):
        parts, plan = lesson["step_parts"](job, tp, pp), plan_of(job, tp, pp, 1, 0, True, 3600)
        if parts:
            assert sum(parts.values()) < plan.step.time_s


def test_the_figures_of_the_text(lesson):
    """What the prose says of plans, to the digits that it has."""
    jobs = {name: lesson["plans"](lesson[name]) for name in JOBS}
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


CORRECTED = {
    "laptops": (1, 4, 58.90, (7, 7, 7, 3)),
    "ethernet": (1, 8, 0.3587, (1, 4, 4, 4, 4, 3, 3, 1)),
    "nvlink": (8, 8, 25.51, (12,) * 8),
}


@pytest.mark.parametrize("name", CORRECTED)
def test_the_corrected_figures_of_the_text(third, name):
    tp, pp, time_s, layers = CORRECTED[name]
    step = plan_of(third[name], tp, pp, 1, 1, False, 3600).step
    assert step.time_s == pytest.approx(time_s, rel=2e-4)
    assert step.layers == layers


WRITES = {
    "state_bytes": ("lesson", "17_plan_a_training_run", 4),
    "fastest": ("lesson", "17_plan_a_training_run", 3),
    "thumb": ("second", "17_prove_it_wrong", 2),
    "ends_of": ("second", "17_prove_it_wrong", 4),
    "young_s": ("third", "17_what_the_run_costs", 3),
    "cheapest": ("third", "17_what_the_run_costs", 3),
}


@pytest.mark.parametrize("function", WRITES)
def test_an_answer_in_its_place_is_right(function, request, capsys):
    """In place of the stub, with the check's cell; as stored it says "not yet"."""
    fixture, name, count = WRITES[function]
    names = dict(request.getfixturevalue(fixture))
    for source, verdict in zip(written(name, function), ("not yet", "right"), strict=True):
        exec(source, names)
        said = capsys.readouterr().out
        assert said.count(verdict) == count and ("right" in said) != ("not yet" in said), said


def predicted_s(second, axes, M, shape):
    """The step of the lesson's program by the corrected formula, for any mesh."""
    pp, dp, tp = axes.values()
    S, H, N, V, seconds = shape.S, shape.H, shape.N, shape.V, second["labs"].axis_time
    layer_s = N * (24 * S * H**2 + 4 * S**2 * H) / tp / 1e10
    logits_s = N * 2 * S * H * V / tp / 1e10
    again_s = N * 2 * S**2 * H / tp / 1e10  # torch's attention computes its scores again
    sum_s = seconds("all_reduce", 4 * N * S * H, tp, 1, SMALL)
    loss_s = sum(seconds("all_reduce", 4 * n * N * S, tp, 1, SMALL) for n in (1, 2))
    F_s, B_s, ready_s = [], [], []
    for layers in shape.layers:
        F_s.append(layers * (layer_s + 2 * sum_s))
        B_s.append(layers * (2 * layer_s + again_s + 2 * sum_s))
    F_s[0] += sum_s  # of the words' vectors
    F_s[-1] += logits_s + loss_s
    B_s[-1] += 2 * logits_s + sum_s  # of the gradient before the logits
    hop = seconds("broadcast", 4 * N * S * H, min(pp, 2), tp * dp, SMALL)
    ends = scale.uneven_pipeline_ends(M, forward_s=F_s, backward_s=B_s, message_s=hop)
    for stage, layers in enumerate(shape.layers):
        count = 12 * H**2 * layers + V * H * (stage in (0, pp - 1))
        ready_s.append(seconds("all_reduce", 4 * count / tp, dp, tp, SMALL))
    tie = seconds("all_reduce", 4 * V * H / tp, min(pp, 2), tp * dp, SMALL)
    return max(ends) + tie + max(ready_s[0], ready_s[-1])


MESHES = (1, 1, 1, 4), (2, 2, 2, 4), (4, 2, 1, 8), (2, 1, 4, 4), (1, 4, 2, 2)


@pytest.mark.parametrize("mesh", [mesh for (mesh,) in sampled(MESHES, count=3)])
def test_a_step_takes_as_long_as_predicted_and_learns_the_same(second, mesh):
    pp, dp, tp, M = mesh
    step, axes = second["train_step"], {"pp": pp, "dp": dp, "tp": tp}
    shape = second["Shape"]((4 // pp,) * pp, V=2048)
    job = step, pp * dp * tp, (axes, M, shape)
    run = simlib.simulate(*job, cluster=SMALL, all_reduce="ring")
    took_s = max(time_s for time_s, _ in run.results)
    assert predicted_s(second, axes, M, shape) == pytest.approx(took_s, rel=0.005)
    whole = {"pp": 1, "dp": 1, "tp": 1}, M * dp, replace(shape, layers=(4,))
    alone = simlib.simulate(step, 1, whole, cluster=replace(SMALL, device=None))
    squares = [flat.double().square().sum() for _, flat in run.results]
    wanted = alone.results[0][1].double().square().sum()
    torch.testing.assert_close(sum(squares) / dp, wanted, rtol=1e-5, atol=0)


JOB_S = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", JOB_S)
def test_the_recorded_plans_take_as_long_as_predicted(second, name):
    """With half a forward of attention more in the slowest stage, for torch's scores."""
    job_name, (pp, dp, tp), layers = second["CUTS"][name]
    job = labs.three_jobs()[job_name]
    step = plan_of(job, tp, pp, 1, 0, False, 3600, layers).step
    flops = max(layers) * job.batch // dp * 2 * job.sequence**2 * job.hidden / tp
    scores_s = flops / job.cluster.device.flops_per_s
    miss = 0.025 if name == "64 GPUs" else 0.005  # there, messages and sums share the cards
    assert step.time_s + scores_s == pytest.approx(JOB_S[name], rel=miss)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOB_S)
def test_a_recorded_plan_is_what_the_lessons_program_takes(second, name):
    assert JOB_S.keys() == second["CUTS"].keys()
    assert second["in_code"](name) == pytest.approx(JOB_S[name], rel=1e-6)
