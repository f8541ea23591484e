"""Lesson 11's own pipeline is torch's, message for message; bubbles are their formulas'."""

import ast
import math
from collections.abc import Callable
from typing import NamedTuple

import jupytext
import pytest
import torch
from lesson_programs import LESSONS, names_of, written
from sampled import sampled
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

import simlib


def given(lesson):
    kept = {"SHAPE", "FREE", "SLOW", "cluster", "X", "TARGET", "waits_for", "wants_to"}
    return names_of(lesson, kept.issuperset)


LESSON, TORCH = map(given, ("11_schedules", "11_torchs_pipelines"))
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


@pytest.mark.parametrize("kind, world_size, engine", sampled(PLAIN, (2, 3, 4, 5), ENGINES))
def test_the_lessons_schedules_are_torchs_message_for_message(kind, world_size, engine):
    M, plan = 5, PLAIN[kind](world_size, 5)
    ours = ENGINES[engine](LESSON["train"], world_size, (plan, LESSON["together"]))
    torchs = ENGINES[engine](TORCH["theirs"], world_size, (kind, M))
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
    for part in (LESSON, TORCH):
        monkeypatch.setitem(part, "block", lambda number: block(number).double())
        monkeypatch.setitem(part, "examples", lambda i: tuple(x.double() for x in examples(i)))


def batch_of(examples):
    return lambda micros: [torch.cat(part) for part in zip(*map(examples, micros), strict=True)]


def in_one_process(micros):
    """The gradients of all eight blocks, of the mean loss over the micro-batches, as one vector."""
    net = torch.nn.Sequential(*map(LESSON["block"], range(8)))
    x, target = batch_of(LESSON["examples"])(micros)
    torch.nn.functional.mse_loss(net(x), target).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


@pytest.mark.parametrize("kind, world_size, engine", sampled(TORCHS, (2, 3, 4), ENGINES))
def test_torchs_schedules_have_the_gradients_of_one_process(kind, world_size, engine, in_double):
    M = 2 * world_size  # DualPipeV wants at least as many as there are stages
    args = kind, M, TORCHS[kind].stages, 1, LESSON["block"]
    run = ENGINES[engine](TORCH["theirs"], world_size, args)
    expected = in_one_process(range(M))
    assert expected.abs().max() > 0.1
    found = gradients([result[0] for result in run.results])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind, M", sampled(TORCHS, (8, 16, 32)))
def test_the_bubble_of_torchs_schedules_is_their_formulas(kind, M):
    """Of one step, from first piece to last, and of the second of two, by each rank's own clock."""
    v, of_a_step, in_a_row = TORCHS[kind]
    args = kind, M, v, 2, TORCH["linear"]  # F, B and W take equally long
    two = simulate(TORCH["theirs"], 4, args)
    first = simulate(TORCH["theirs"], 4, (kind, M, v, 1, TORCH["linear"]))
    assert first.bubble().share == pytest.approx(of_a_step(4, M), abs=1e-9)
    for busy_s, (_, (_, second_s)) in zip(first.bubble().busy_s, two.results, strict=True):
        assert 1 - busy_s / second_s == pytest.approx((in_a_row or of_a_step)(4, M), abs=1e-9)


@pytest.mark.parametrize("kind, M", sampled([*PLAIN, "Interleaved1F1B"], (8, 16, 32)))
def test_the_bubble_of_the_lessons_plans_is_that_of_torchs(kind, M):
    v = TORCHS[kind].stages
    plan = PLAIN[kind](4, M) if kind in PLAIN else LESSON["interleaved"](4, M, v)
    ours = simulate(LESSON["train"], 4, (plan, LESSON["post"], v))
    torchs = simulate(TORCH["theirs"], 4, (kind, M, v))
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


def compiled(backend):
    return lambda number: torch.compile(LESSON["block"](number), backend=backend)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", ENGINES)
def test_compiled_stages_run(engine, backend, in_double):
    args = "1F1B", 4, 1, 1
    run = ENGINES[engine](TORCH["theirs"], 2, (*args, compiled(backend)))
    found = gradients([result[0] for result in run.results])
    torch.testing.assert_close(found, in_one_process(range(4)), rtol=0, atol=1e-14)
    if engine == "simulate":  # where operations are counted, none are compiled away
        plain = simulate(TORCH["theirs"], 2, (*args, LESSON["block"]))
        assert run.time_s == plain.time_s
        assert [ledger.peak for ledger in run.memory] == [ledger.peak for ledger in plain.memory]


def one_pipeline(rank, world_size, M, scale_grads, block, batch, group=None, wrap=None, replica=0):
    """Two steps of 1F1B without zero_grad; torch's stage gets ``wrap(net)``."""
    net = torch.nn.Sequential(
        *map(block, range(8 * rank // world_size, 8 * (rank + 1) // world_size))
    )
    net = wrap(net) if wrap else net
    stage = PipelineStage(net, rank, world_size, torch.device("cpu"), group=group)

    def loss_fn(y, target):
        return torch.nn.functional.mse_loss(y, target) / (1 if scale_grads else M)

    schedule = schedules.Schedule1F1B(stage, M, loss_fn=loss_fn, scale_grads=scale_grads)
    for step in (2 * replica, 2 * replica + 1):
        x, target = batch(range(M * step, M * step + M))
        schedule.step(*[x] * (rank == 0), **{"target": target} if rank == world_size - 1 else {})
    return net


def accumulated(rank, world_size, *args):
    return {rank: [p.grad for p in one_pipeline(rank, world_size, *args).parameters()]}


def two_side_by_side(rank, world_size, kind, M, block, batch):
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "pp"))
    replica, stage = mesh.get_coordinate()

    def wrap(net):
        if kind == "FSDP2":
            return fully_shard(net, mesh=mesh["dp"])
        return DistributedDataParallel(net, process_group=mesh["dp"].get_group())

    args = world_size // 2, M, False, block, batch, mesh["pp"].get_group(), wrap, replica
    net = one_pipeline(stage, *args)
    return {stage: [getattr(p.grad, "full_tensor", lambda g=p.grad: g)() for p in net.parameters()]}


def sums_over_replicas(run):
    """By rank: how many collectives add up gradients of different replicas."""
    kinds = "all_reduce", "reduce_scatter"
    return [sum(op.kind in kinds for op in run.trace.of_rank(r)) for r in range(run.world_size)]


@pytest.mark.parametrize("kind, engine", sampled(("DDP", "FSDP2"), ENGINES))
def test_pipelines_beside_each_other_sum_up_equally_often_for_any_m(kind, engine, in_double):
    """As with no_sync: gradients of a step's micro-batches are added up before they are sent."""
    sums = {}
    for M in (4, 8):
        args = kind, M, LESSON["block"], batch_of(LESSON["examples"])
        run = ENGINES[engine](two_side_by_side, 4, args)
        replicas = [in_one_process(range(first, first + M)) for first in range(0, 4 * M, M)]
        expected = sum(replicas) / 2  # two steps, and the mean of two replicas
        for ranks in (run.results[:2], run.results[2:]):
            torch.testing.assert_close(gradients(ranks), expected, rtol=0, atol=1e-14)
        sums[M] = sums_over_replicas(run)
    assert sums[4] == sums[8] and min(sums[4]) == max(sums[4]) > 0


@pytest.mark.parametrize("scale_grads, engine", sampled((False, True), ENGINES))
def test_gradients_accumulate_over_steps_where_torch_does_not_scale_them(
    scale_grads, engine, in_double
):
    """By default torch divides all gradients by M at the end of each step, those of before too."""
    M = 4
    args = M, scale_grads, LESSON["block"], batch_of(LESSON["examples"])
    run = ENGINES[engine](accumulated, 2, args)
    first, second = in_one_process(range(M)), in_one_process(range(M, 2 * M))
    expected = first / (M if scale_grads else 1) + second
    torch.testing.assert_close(gradients(run.results), expected, rtol=0, atol=1e-14)


def functions_of(lesson):
    """The code of each function, without its docstring."""
    functions, cells = {}, jupytext.read(LESSONS / f"{lesson}.py", fmt="py:percent").cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for one in ast.walk(ast.parse(code)):
        if isinstance(one, ast.FunctionDef):
            one.body = one.body[ast.get_docstring(one) is not None :]
            functions[one.name] = ast.unparse(one)
    return functions


def test_the_parts_of_the_lesson_have_the_same_programs():
    first, second, third = (
        functions_of(part) for part in ("11_pipelines", "11_schedules", "11_torchs_pipelines")
    )
    same = [name for name in first.keys() & second.keys() if first[name] == second[name]]
    assert len(same) == len(first.keys() & second.keys()) == 8
    same = {name for name in second.keys() & third.keys() if second[name] == third[name]}
    assert same == {"gpipe", "one_f_one_b", "block", "examples", "activations"}


@pytest.mark.parametrize(
    "lesson, name, count",
    [
        ("11_pipelines", "follow", 3),
        ("11_pipelines", "mine", 1),
        ("11_schedules", "your_1f1b", 3),
        ("11_schedules", "by_order", 1),
        ("11_torchs_pipelines", "Again", 1),
        ("11_torchs_pipelines", "B_part", 1),
    ],
)
def test_a_published_answer_is_right(lesson, name, count, capsys):
    names = given(lesson)
    for source, verdict in zip(written(lesson, name), ("not yet", "right"), strict=True):
        exec(source, names)
        said = capsys.readouterr().out
        assert said.count(verdict) == count and ("right" in said) != ("not yet" in said), said


def test_interleaved_micro_batches_come_in_groups():
    with pytest.raises(ValueError, match="groups of K = 4"):
        LESSON["interleaved"](4, 6, 2)
