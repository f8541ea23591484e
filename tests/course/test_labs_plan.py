"""The lab of a whole run: its step is the mesh lab's, its hours are those of simlib.scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab_pictures import words_of

from simlib import Cluster, Device, Link, labs, scale
from simlib.core.model.errors import InvalidCallError
from simlib.course.labs import plan_model
from simlib.course.labs.mesh import machine
from simlib.course.labs.plan_model import Cut, plan_of, refusal, step_of

JOB = labs.Training(
    layers=32, hidden=4096, heads=32, sequence=2048, batch=1024, vocabulary=51_200, tokens=1e11,
    ranks=64, cluster=machine(), hours=500, price=3, mtbf_s=1e7, checkpoint_Bps=5e9, restart_s=300,
)  # fmt: skip


def planned(job=JOB, tp=8, pp=2, sequences=16, zero=0, recompute=True, interval_s=3600):
    return plan_of(job, tp, pp, sequences, zero, recompute, interval_s)


@pytest.mark.parametrize("tp, pp, sequences, zero", [(8, 2, 16, 0), (4, 4, 1, 1), (8, 1, 4, 3)])
def test_a_step_is_that_of_the_mesh(tp, pp, sequences, zero):
    count = 1024 // (64 // (tp * pp) * sequences)
    cut = Cut(64, tp, pp, count, zero, True, "tp dp pp")
    wanted, found = step_of(JOB.model, cut, JOB.cluster), planned(JOB, tp, pp, sequences, zero).step
    assert (found.times_s, found.kept_bytes) == (wanted.times_s, wanted.kept_bytes)


def test_the_hours_are_those_of_a_run_with_failures():
    found = planned(interval_s=1800)
    assert JOB.steps == 47_684  # 1e11 tokens, 1,024 x 2,048 a step
    assert JOB.checkpoint_s == 14 * JOB.model.parameters / 5e9
    wanted = scale.time_with_failures(
        JOB.steps * found.step.time_s, 1800, JOB.checkpoint_s, 1e7, 64, restart_s=300
    )
    assert found.time_s == pytest.approx(wanted)
    assert found.cost == pytest.approx(3 * 64 * wanted / 3600)
    assert found.times_s["checkpoints"] == pytest.approx(
        found.times_s["steps"] / 1800 * JOB.checkpoint_s
    )


def test_an_interval_too_short_or_too_long_costs_hours():
    best_s = scale.checkpoint_interval(JOB.checkpoint_s, JOB.mtbf_s, 64, formula="exact")
    short, best, long = (planned(interval_s=each * best_s) for each in (0.1, 1, 10))
    assert best.time_s < min(short.time_s, long.time_s)
    assert short.times_s["checkpoints"] > best.times_s["checkpoints"]
    assert long.times_s["lost"] > best.times_s["lost"]
    lucky = planned(replace(JOB, mtbf_s=1e18))
    assert lucky.times_s["lost"] / lucky.time_s < 1e-3


@pytest.mark.parametrize(
    "changes, word, sentence",
    [
        ({"tp": 32, "pp": 4}, "ranks", "tp x pp = 128 is more than 64 ranks"),
        (
            {"sequences": 512},
            "batch",
            "1,024 sequences cannot be divided by dp x sequences = 4 x 512",
        ),
        ({"job": replace(JOB, ranks=48)}, "batch", ""),  # 1,024 sequences on dp = 3
        ({"job": replace(JOB, ranks=48), "tp": 32, "pp": 1}, "ranks", "48 ranks cannot be"),
        ({"job": replace(JOB, heads=12)}, "heads", "12 heads cannot be divided by tp = 8"),
    ],
)
def test_a_choice_that_cannot_be_is_told(changes, word, sentence):
    found = planned(**changes)
    assert found[0] == word and sentence in found[1]


def test_no_step_of_the_plan_is_refused_by_the_mesh_for_another_reason():
    for tp in (1, 8, 32):
        for pp in (1, 16, 32):
            found = planned(tp=tp, pp=pp, sequences=1)
            count = max(1, 1024 // max(1, 64 // (tp * pp)))
            wanted = refusal(JOB.model, Cut(64, tp, pp, count, 0, True, "tp dp pp"))
            assert (found[0] if isinstance(found, tuple) else None) == (wanted and wanted[0])


# ---- the picture


def test_the_title_is_the_plan():
    cut = {"tp": 8, "pp": 2, "sequences": 16}
    words, found = words_of(labs.draw_plan(JOB, **cut)), planned()
    assert f"64 ranks = dp 4 x tp 8 x pp 2: {found.step.time_s:.3g} s a step, " in words
    assert "6.66 billion parameters, 100 billion tokens: 47,684 steps of 1,024 sequences" in words
    assert "; 16 micro-batches of 16 a step" in words
    assert f"costs {found.cost:,.0f}" in words
    assert "days of 20.8 days" in words
    late = labs.draw_plan(replace(JOB, hours=3), tp=8, pp=2)
    assert ": too long" in words_of(late)
    assert "memory does not hold it" in words_of(labs.draw_plan(JOB))
    assert "costs 0.4" in words_of(labs.draw_plan(replace(JOB, price=3 * 0.4 / found.cost), **cut))
    assert "costs" not in words_of(labs.draw_plan(replace(JOB, price=0), tp=8))
    assert "is more than 64 ranks" in words_of(labs.draw_plan(JOB, tp=32, pp=4))


def test_what_is_no_job_is_refused():
    with pytest.raises(InvalidCallError, match="jobs must be a dict from names to labs"):
        labs.draw_plan("a job")
    with pytest.raises(InvalidCallError, match="with at least one entry"):
        labs.plan_lab({})
    with pytest.raises(InvalidCallError, match="cluster has no device"):
        replace(JOB, cluster=Cluster(1, 8, Link(0, 1)))
    with pytest.raises(InvalidCallError, match="tokens is 0"):
        replace(JOB, tokens=0)
    with pytest.raises(InvalidCallError, match="layers is 0"):
        replace(JOB, layers=0)
    assert plan_model.Training is labs.Training
    assert replace(JOB, cluster=Cluster(1, 1, Link(0, 1), device=Device(1e12))).steps == JOB.steps
