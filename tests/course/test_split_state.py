"""Lesson 12's own programs are torch's: tensor parallelism DTensor's, ZeRO-3 FSDP2's, to the byte.

And all of them give one process's gradients, on real and on simulated ranks.
"""

import ast
import functools
import inspect
import itertools
import types
from pathlib import Path

import jupytext
import pytest
import torch
from lab_pictures import check_places_of_words, words_of
from lesson_programs import ENGINES, LESSONS, names_of, start, written
from quick import one_of
from sampled import SEED, sampled
from torch import nn

import simlib
from benchmarks.lesson import lesson_names
from simlib.course import shards
from simlib.course.labs import cut_pictures

SOURCES = Path(__file__).parents[2] / "authoring"
SIZES = [784, 60, 60, 60, 60, 60, 60]  # rows, and flat layers, can be cut by 2, 3, 4 and 5
T, D, H, HEADS = 60, 120, 240, 60  # so can tokens, numbers of a layer and heads
RANKS = (2, 3, 4, 5)
WHERE = sampled(ENGINES, RANKS)
WANTED = {
    "12_tensors_and_state": {
        "Enter", "Leave", "LeaveTwice", "weights", "gradients", "block_weights", "block",
        "block_step", "sequence_step", "all_gather", "reduce_scatter", "Gather", "Scatter",
    },
    "12_the_state_of_training": {"Flat", "Unit", "Zero", "train", "torchs", "two_steps"},
    "12_the_time_of_shards": {"checkpoint_on"},
    "12_two_axes_at_once": {"Cut", "enter", "leave", "weights", "own_mlp", "torchs_mlp"},
}  # fmt: skip
NOTHING = {"activations and temporaries": 0}
AXIS = {"q": 0, "k": 0, "v": 0, "out": 1, "up": 0, "down": 1}


def small_layer(number):
    torch.manual_seed(number)
    sizes = SIZES[number - 1 : number + 1]
    return nn.Sequential(nn.Linear(*sizes), *[nn.ReLU()] * (number < 6))


@functools.cache
def lesson(engine):
    """The programs of all parts, on a smaller network; on real ranks nobody counts memory."""
    found = {}
    for part, wanted in WANTED.items():
        names = lesson_names(part, wanted)
        names |= {"T": T, "D": D, "H": H, "HEADS": HEADS, "AXIS": AXIS, "make": small_layer}
        if engine == "run":
            names["simlib"] = types.SimpleNamespace(held=NOTHING.copy, span=simlib.span)
        found |= {name: names[name] for name in wanted}
    return found


def sent(run, *kinds):
    """By rank: the collectives of these kinds, in their order."""
    return [
        [(op.kind, op.nbytes, op.dtype, op.reduce_op) for op in run.trace.of_rank(rank)
         if op.kind in kinds]
        for rank in range(run.world_size)
    ]  # fmt: skip


# Tensor parallelism


@pytest.mark.parametrize("engine, ranks, needs_gradient", sampled(ENGINES, RANKS, (True, False)))
def test_own_mlp_sends_what_dtensor_sends(engine, ranks, needs_gradient):
    names, calls = lesson(engine), 2 if needs_gradient else 1
    own, torchs = (
        start(engine, names[program], ranks, needs_gradient)
        for program in ("own_mlp", "torchs_mlp")
    )
    assert sent(own, "all_reduce") == sent(torchs, "all_reduce")
    assert sent(own, "all_reduce")[0] == [("all_reduce", T * D * 4, "float32", "SUM")] * calls
    for mine, others in zip(own.results, torchs.results, strict=True):
        torch.testing.assert_close(mine, others)


@pytest.mark.parametrize("engine, ranks", WHERE)
def test_gradients_of_the_own_mlp_are_those_of_one_process(engine, ranks):
    names = lesson(engine)
    pair = names["Enter"].apply, names["Leave"].apply
    (one,) = start(engine, names["gradients"], 1, *pair).results
    run = start(engine, names["gradients"], ranks, *pair)
    for rank, found in enumerate(run.results):
        x, a, a_bias, b, b_bias = one
        cut = [x, a.chunk(ranks)[rank], a_bias.chunk(ranks)[rank]]
        cut += [b.chunk(ranks, dim=1)[rank], b_bias]
        for mine, right in zip(found, cut, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


def test_a_sum_backward_as_well_gives_gradients_r_times_too_large():
    names = lesson("run")
    pair = names["Enter"].apply, names["LeaveTwice"].apply
    (one,) = start("run", names["gradients"], 1, *pair).results
    for found in start("run", names["gradients"], 3, *pair).results:
        torch.testing.assert_close(found[0], 3 * one[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[4], one[4], rtol=1e-4, atol=1e-4)  # after the sum


@pytest.mark.parametrize(
    "engine, ranks, program", sampled(ENGINES, RANKS, ("block_step", "sequence_step"))
)
def test_a_cut_block_has_the_gradients_of_one_process(engine, ranks, program):
    names = lesson(engine)
    one = start(engine, names["block_step"], 1).results[0][1]
    found = [gradients for _, gradients in start(engine, names[program], ranks).results]
    for name, whole in one.items():
        parts = [mine[name] for mine in found]
        parts = [torch.cat(parts, AXIS[name])] if name in AXIS else parts
        for part in parts:
            torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-3)


# State in shards


def all_collectives(run):
    return sent(run, "all_gather", "reduce_scatter", "all_reduce")


@pytest.mark.parametrize("engine, ranks, reshard", sampled(ENGINES, RANKS, (True, False)))
def test_own_zero_3_sends_what_fsdp2_sends(engine, ranks, reshard):
    names = lesson(engine)
    own = start(engine, names["train"], ranks, 3, 24, reshard)
    fsdp = start(engine, names["torchs"], ranks, 24, reshard)
    assert all_collectives(own) == all_collectives(fsdp)
    layers = 6
    counts = [(2 if reshard else 1) * layers * 2, layers * 2]  # two steps
    assert [
        sum(kind == one for kind, *_ in all_collectives(own)[0])
        for one in ("all_gather", "reduce_scatter")
    ] == counts
    assert weights_of(own, 1) == pytest.approx(weights_of(fsdp, 2), abs=2e-3)


def weights_of(run, tensors):
    """All weights as one list; of a rank's parts so many make a layer, one after the other."""
    ranks = [parts for *_, parts in run.results]
    whole = [torch.cat(parts) for parts in zip(*ranks, strict=True)]
    assert len(whole) == 6 * tensors
    return torch.cat(whole).tolist()


@pytest.mark.parametrize("ranks", [ranks for (ranks,) in sampled(RANKS, count=2)])
def test_ledgers_of_zero_and_of_fsdp2_follow_the_formula(ranks):
    names = lesson("simulate")
    P = sum(a * b + b for a, b in itertools.pairwise(SIZES))
    programs = [(names["train"], (stage, 24), stage, 6) for stage in (1, 2, 3)]
    programs += [(names["train"], (0, 24), 0, 12), (names["torchs"], (24,), 3, 12)]
    for program, args, stage, tensors in programs:
        run = start("simulate", program, ranks, *args)
        cut = [ranks if stage >= first else 1 for first in (3, 2, 1)]
        right = [nbytes * P // parts for nbytes, parts in zip((4, 4, 8), cut, strict=True)]
        right[2] += 4 * tensors  # Adam's counts of steps
        for held, *_ in run.results:
            assert list(held.values())[:3] == right


@pytest.mark.parametrize("engine, ranks", sampled(ENGINES, RANKS, count=2))
def test_zero_trains_as_plain_data_parallelism_does(engine, ranks):
    names = lesson(engine)
    plain = start(engine, names["train"], ranks, 0, 24).results[0][1]
    plain = [torch.cat(pair) for pair in zip(plain[::2], plain[1::2], strict=True)]
    for stage in (1, 2, 3):
        found = [parts for *_, parts in start(engine, names["train"], ranks, stage, 24).results]
        for parts, right in zip(zip(*found, strict=True), plain, strict=True):
            # A matrix product may round otherwise where its tensor begins elsewhere in memory; on
            # real ranks sums do, too, and Adam makes much of the rounding of small gradients.
            least = 1e-5 if engine == "simulate" else 2e-3
            torch.testing.assert_close(torch.cat(parts), right, rtol=0, atol=least)


def gradients_in_shards(rank, world_size, zero, make, stage):
    """What a rank's shards get as gradients from its own examples and the others'."""
    layers = [make(number) for number in range(1, 7)]
    units = [zero(layer, stage) for layer in layers]
    nn.Sequential(*layers)(examples(rank)).square().mean().backward()
    return [unit.shard.grad for unit in units]


def examples(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(5, 784, generator=generator)


@pytest.mark.parametrize("engine, ranks, stage", sampled(ENGINES, RANKS, (1, 2, 3)))
def test_gradients_in_shards_are_those_of_one_process(engine, ranks, stage):
    args = lesson(engine)["Zero"], small_layer, stage
    found = start(engine, gradients_in_shards, ranks, *args).results
    net = nn.Sequential(*(small_layer(number) for number in range(1, 7)))
    net(torch.cat([examples(rank) for rank in range(ranks)])).square().mean().backward()
    for layer, parts in zip(net, zip(*found, strict=True), strict=True):
        whole = torch.cat([p.grad.flatten() for p in layer.parameters()])
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-7)


def test_prefetch_hides_what_fsdp2_waits_for_on_cpus():
    names = lesson("simulate")

    def step_s(program, *args):
        return start("simulate", program, 4, *args).mfu("step", number=1).time_s[0]

    waits = step_s(names["train"], 3, 24, True, False)
    assert step_s(names["torchs"], 24) == pytest.approx(waits, rel=1e-9)
    assert step_s(names["train"], 3, 24, True, True) < waits


@pytest.mark.parametrize("name", ["Flat", "Unit", "Zero", "make", "two_steps", "train"])
def test_the_module_has_what_the_second_part_builds(name):
    source = (LESSONS / "12_the_state_of_training.py").read_text(encoding="utf-8")
    built = next(one for one in ast.parse(source).body if getattr(one, "name", None) == name)
    own = inspect.getsource(getattr(shards, name))
    assert ast.unparse(built).replace("simlib.", "") == ast.unparse(ast.parse(own))


# What learners write, and the pictures


WRITTEN = {
    "12_tensors_and_state": ("mlp_by_hand", "all_reduced"),
    "12_the_state_of_training": ("zero_1", "kept"),
    "12_the_time_of_shards": ("mixed_step", "mixed_bytes"),
    "12_two_axes_at_once": ("mesh_step", "exposed_s"),
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("part", one_of(2, {part: part for part in WRITTEN}, first=SEED))
def test_a_folded_answer_in_its_place_is_right(part, number, capsys):
    names = names_of(part, lambda names: all(map(str.isupper, names)))
    sources = written(part, WRITTEN[part][number])
    for source, verdict in zip(sources, ("not yet", "right"), strict=True):
        exec(compile(source, part, "exec", dont_inherit=True), names)
        said = capsys.readouterr().out
        assert verdict in said and ("right" in said) != ("not yet" in said), said


@pytest.mark.parametrize("name", ["draw_matrix_cuts", "draw_zero", "draw_block_cuts"])
def test_a_picture_has_room_for_its_words_and_is_told(name):
    figure = getattr(cut_pictures, name)()
    for dark in (False, True):
        check_places_of_words(figure, dark)
    assert " rank" in figure.words


def test_the_picture_of_zero_has_the_bytes_of_the_stages():
    written = words_of(cut_pictures.draw_zero(8))
    for nbytes in (16, 9, 5.5, 2):
        assert f"{nbytes:g} bytes per parameter" in written


# Checkpoints


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_of_four_ranks_is_loaded_on_fewer(engine, tmp_path):
    program = lesson(engine)["checkpoint_on"]
    saved = start(engine, program, 4, str(tmp_path), True).results[0][0]
    assert len(list(tmp_path.glob("*.distcp"))) == 4
    for ranks in (1, 2, 3, 5):
        for loaded, shape in start(engine, program, ranks, str(tmp_path), False).results:
            assert all(map(torch.equal, loaded, saved))
            assert shape[0] == 60 // ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, choice", [("sharded", (True, False, 1)), ("sharded, again, 4", (True, True, 4))]
)
def test_the_ledgers_of_exercise_5_are_those_of_its_program(name, choice):
    """With 2 layers, 8 ranks, and in MB."""
    path = SOURCES / "exercises" / "12_tensors_and_state.py"
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    names, check = {}, next(c.source for c in cells if "MEASURED = {" in c.source)
    for cell in cells:
        if cell.metadata.get("role") == "setup":
            exec(cell.source, names)
    exec(check.partition("def ledgers")[0], names)
    cards = simlib.clusters.h100_nodes(1)
    run = simlib.simulate(
        names["train"],
        8,
        (2, *choice),
        cluster=cards,
        data=False,
        algorithms="nccl",
        timeout_s=None,
    )
    found = [nbytes / 1e6 for nbytes in run.memory[0].peak.values()]
    found.append(run.mfu("step", number=1).time_s[0])
    assert list(names["MEASURED"][name][1]) == pytest.approx(found, abs=0.5, rel=1e-3)
