"""Lesson 13 d: its answers, DiLoCo and fragments against plain loops, and old answers' means."""

import contextlib
import io
import re

import pytest
import torch
from lesson_programs import names_of, written

import simlib

PART = "13_for_large_models"
CONSTANTS = {"SHAPES", "SIZES", "P", "AVG", "images", "labels", "NESTEROV", "HOW"}
CONSTANTS |= {"REWARDS", "VARIANTS"}
LESSON = names_of(PART, CONSTANTS.issuperset)
P, H, ROUNDS = LESSON["P"], 3, 3
WRITTEN = {"your_rounds": 4, "round_s": 3}


def simulated(program, *args, ranks=4):
    return simlib.simulate(program, ranks, args, **LESSON["HOW"])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_folded_answer_is_right_and_a_stub_is_not_yet(name):
    for code, verdict in zip(written(PART, name), ("not yet", "right"), strict=True):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names_of(PART, CONSTANTS.issuperset))
        assert printed.getvalue().count(verdict) == WRITTEN[name], printed.getvalue()


def test_rounds_that_average_gradients_in_each_step_are_not_yet_right():
    _, code = written(PART, "your_rounds")
    worse = re.sub(r"( *)inner\.step", r"\1dist.all_reduce(mine.grad, op=AVG)\n\1inner.step", code)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(worse, names_of(PART, CONSTANTS.issuperset))
    assert "bytes: not yet, you sent" in printed.getvalue()


def adamw_step(theta, g, m, v, t, rate=0.004, eps=1e-8, decay=0.01):
    """AdamW as its paper has it, in place."""
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    theta.mul_(1 - rate * decay)
    theta -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + eps)


def by_hand(state="local", fragments=1, late=0, steps=H * ROUNDS, every=H):
    """The agreed theta in the end, of four workers that one process plays."""
    draw = [LESSON["gradients"](rank) for rank in range(4)]
    mine, m, v = LESSON["start"]().repeat(4, 1), torch.zeros(4, P), torch.zeros(4, P)
    agreed, momentum, sent = LESSON["start"](), torch.zeros(P), {}
    for step in range(1, steps + 1):
        t = (step - 1) % every + 1 if state == "reset" else step
        for rank, gradient in enumerate(draw):
            adamw_step(mine[rank], gradient(mine[rank]), m[rank], v[rank], t)
        for f, numbers in enumerate(torch.arange(P).tensor_split(fragments)):
            if step % every == (f + 1) * every // fragments % every:
                sent[f] = step, agreed[numbers] - mine[:, numbers].mean(0)
            if f in sent and (step == sent[f][0] + late or step == steps):
                d = sent.pop(f)[1]
                momentum[numbers] = 0.9 * momentum[numbers] + d
                agreed[numbers] -= 0.7 * (0.9 * momentum[numbers] + d)
                mine[:, numbers] = agreed[numbers]
                if state == "averaged":
                    m[:], v[:] = m.mean(0), v.mean(0)
                if state == "reset":
                    m.zero_(), v.zero_()
    return mine[0]


@pytest.mark.parametrize("state", ["local", "averaged", "reset"])
def test_diloco_is_four_workers_played_by_one_process(state):
    run = simulated(LESSON["diloco"], H, state, True, 1, H * ROUNDS)
    expected = LESSON["loss_of"](by_hand(state)).item()
    assert run.results == pytest.approx([expected] * 4, abs=1e-4)
    sent = [c.nbytes for c in run.trace.collectives]
    assert sent == [4 * P] * ROUNDS * (3 if state == "averaged" else 1)


@pytest.mark.parametrize("fragments, late", [(1, 0), (4, 2), (4, 1), (2, 3)])
def test_streaming_is_the_same_by_hand(fragments, late):
    run = simulated(LESSON["streaming"], 8, fragments, late, 20)
    theta = by_hand(fragments=fragments, late=late, steps=20, every=8)
    assert run.results[0] == pytest.approx(LESSON["loss_of"](theta).item(), abs=1e-4)
    sent = [c.nbytes for c in run.trace.collectives]
    assert max(sent) == 4 * -(-P // fragments)


def test_diloco_sends_a_share_of_the_bytes_of_data_parallel_training():
    one, other = (
        sum(m.nbytes for m in simulated(LESSON[name], *args).wire)
        for name, args in (("data_parallel", (True, 8)), ("diloco", (4, "local", True, 1, 8)))
    )
    assert one == 4 * other


def test_weights_make_the_mean_of_old_answers_that_of_new_ones():
    """Against the gradient that autograd finds for the expected reward."""
    random = torch.Generator().manual_seed(0)
    theta = torch.randn(8, generator=random, requires_grad=True)
    q = torch.softmax(torch.randn(8, generator=random), 0)
    p = torch.softmax(theta, 0)
    (right,) = torch.autograd.grad(p @ LESSON["REWARDS"], theta)
    p = p.detach()
    means = {}
    for name, variant in LESSON["VARIANTS"].items():
        gain = variant(p / q) * (LESSON["REWARDS"] - q @ LESSON["REWARDS"])
        means[name] = (q * gain) @ (torch.eye(8) - p)  # over all answers of the old policy
    torch.testing.assert_close(means["weights"], right)
    assert (means["no weights"] - right).abs().max() > 0.01
