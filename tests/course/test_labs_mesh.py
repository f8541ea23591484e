"""The lab of meshes: its model against simlib.scale, simulate and papers; its picture."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from lab_pictures import boxes_of, check_places_of_words, words_of

import simlib
from simlib import Cluster, Device, Link, labs, scale
from simlib.course.labs import mesh, plan_model
from simlib.course.labs.plan_model import Cut, Transformer, refusal, step_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MODEL = Transformer(32, 4096, 32, 2048, 1024, 51_200)
DEFAULT = Cut(64, 8, 2, 16, 0, True, "tp dp pp")
MACHINE = mesh.machine()


def step(model=MODEL, cluster=MACHINE, **changes):
    return step_of(model, replace(DEFAULT, **changes), cluster)


# ---- the model


@pytest.mark.parametrize(
    "layers, hidden, heads, billions, batch",
    [(24, 2304, 24, 1.7, 512), (80, 12288, 96, 145.6, 2304)],
)
def test_parameters_and_operations_are_those_of_the_paper(layers, hidden, heads, billions, batch):
    """Narayanan et al. 2021, table 1 and equation 3: 96 B s l h^2 (1 + s / 6h + V / 16 l h)."""
    model = Transformer(layers, hidden, heads, 2048, batch, 51_200)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.03)
    ratio = 1 + 2048 / (6 * hidden) + 51_200 / (16 * layers * hidden)
    formula = 96 * batch * 2048 * layers * hidden**2 * ratio
    assert batch * sum(model.flops(True)) == pytest.approx(formula)
    assert model.flops(False)[1] == 2 * model.flops(False)[0]


@pytest.mark.parametrize("tp, pp, count", [(1, 4, 8), (8, 4, 4), (4, 2, 3), (8, 1, 2)])
@pytest.mark.parametrize("even", [True, False])
def test_a_step_is_that_of_the_pipeline_model(tp, pp, count, even):
    """One replica, followed message by message: the logits are computed on the last stage alone."""
    model = replace(MODEL, batch=24)
    layers = (32 // pp,) * pp if even else ()
    found = step(model, ranks=tp * pp, tp=tp, pp=pp, num_microbatches=count, layers=layers)
    s, h, V = 2048, 4096, 51_200
    share = 24 / count / tp / 62.4e12
    layer_s, logits_s = share * (24 * s * h**2 + 4 * s**2 * h), share * 2 * s * h * V
    nbytes = 2 * 24 // count * s * h
    inside = Cluster(1, 8, Link(2e-6, 25e9), Link(5e-6, 150e9))
    reduced_s = scale.time_of("all_reduce", tp, nbytes, inside, "ring", itemsize=2)
    last = [stage == pp - 1 for stage in range(pp)]
    pairs = list(zip(found.layers, last, strict=True))
    forward_s = [n * (layer_s + 2 * reduced_s) + end * logits_s for n, end in pairs]
    backward_s = [n * (3 * layer_s + 4 * reduced_s) + end * 2 * logits_s for n, end in pairs]
    across = Cluster(pp, 1, Link(2e-6, 25e9), Link(5e-6, 150e9))
    if tp * pp <= 8:
        across = Cluster(1, pp, Link(2e-6, 25e9), Link(5e-6, 150e9))
    times = {"forward_s": forward_s, "backward_s": backward_s, "message_bytes": nbytes}
    wanted_s = scale.pipeline_time(pp, count, across, **times).time_s
    if pp > 1:  # the gradients of the embedding and of its copy
        pair = replace(across, nodes=min(2, across.nodes))
        wanted_s += scale.time_of("all_reduce", 2, 2 * V * h // tp, pair, "ring", itemsize=2)
    assert found.time_s == pytest.approx(wanted_s, rel=1e-6)
    assert found.times_s["dp"] == pytest.approx(0, abs=1e-12)
    slowest_s = max(map(sum, zip(forward_s, backward_s, strict=True)))
    assert found.times_s["compute"] + found.times_s["tp"] == pytest.approx(count * slowest_s)


def test_no_way_to_divide_few_layers_is_faster_than_the_one_found():
    """Every way to divide 10 layers over 3 and 4 stages, and the one that is taken."""
    model = replace(MODEL, layers=10, batch=48)
    for pp in (2, 3, 4):
        cut = {"ranks": 8 * pp, "tp": 4, "pp": pp, "num_microbatches": 12}
        all_s = [
            step(model, **cut, layers=layers).time_s
            for layers in product(range(1, 10), repeat=pp)
            if sum(layers) == 10
        ]
        assert step(model, **cut).time_s == pytest.approx(min(all_s), rel=0.01)


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_tensor_parallelism_is_that_of_its_model(tp):
    model = replace(MODEL, batch=8)
    found = step(model, ranks=tp, tp=tp, pp=1, num_microbatches=1)
    cluster = replace(MACHINE, nodes=2)
    compute_s = found.times_s["compute"]
    wanted = scale.tensor_parallel_time(
        3 * 32, 2 * 8 * 2048 * 4096, tp, cluster, forward_s=compute_s / 2, backward_s=compute_s / 2,
        itemsize=2,
    )  # fmt: skip
    assert found.time_s == pytest.approx(wanted.time_s, rel=1e-6)


def test_megatrons_efficiency_is_the_one_of_docs_published():
    """8.7 billion parameters on 8 GPUs: 79.6 % published, 80.2 % by the model without attention."""
    model = Transformer(76, 3072, 32, 1024, 8, 51_200)
    found = step(model, ranks=8, tp=8, pp=1, num_microbatches=1)
    assert found.times_s["compute"] / found.time_s == pytest.approx(0.802, abs=0.01)


def test_the_reduction_over_dp_is_zeros():
    nbytes = 2 * MODEL.parameters / 8
    even = int(nbytes) // 8 * 8
    cluster = Cluster(4, 1, Link(2e-6, 25e9), Link(5e-6, 150e9))
    reduced, scattered, gathered = (
        scale.time_of(kind, 4, even, cluster, "ring", itemsize=2)
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    wanted = (
        reduced,
        scattered + gathered,
        16 * scattered + gathered,
        16 * scattered + 32 * gathered,
    )
    whole = {"ranks": 32, "pp": 1}
    found = [step(zero=zero, **whole).times_s["dp"] for zero in range(4)]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_bytes_are_those_of_the_paper():
    """7.5 billion parameters on 64 ranks: 120, 31.4, 16.6, 1.9 GB (Rajbhandari et al. 2019)."""
    model = replace(MODEL, layers=36, vocabulary=57_000)
    ratio = 7.5e9 / model.parameters
    kept = [
        (found.nbytes - found.kept_bytes["activations"]) * ratio / 1e9
        for found in (step(model, tp=1, pp=1, zero=zero) for zero in range(4))
    ]
    assert kept == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.02)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_state_is_that_of_zero_time(zero):
    found = step(tp=1, pp=1, zero=zero).kept_bytes
    wanted = scale.zero_time(
        zero, 2 * MODEL.parameters, 64, Cluster(64, 1, Link(0, 1e9)), forward_s=1, backward_s=2,
        optimizer_bytes=12 * MODEL.parameters, itemsize=2, bucket_bytes=4e9,
    )  # fmt: skip
    kept = wanted.parameter_bytes, wanted.gradient_bytes, wanted.optimizer_bytes
    names = "parameters", "gradients", "optimizer state"
    assert [found[name] for name in names] == pytest.approx(kept, rel=1e-6)


def test_activations_are_those_of_the_micro_batches_in_flight():
    """Korthikanti et al. 2022: s b h (10 + 24/t + 5 a s / (h t)) a layer, or 2 s b h."""
    sbh = 2048 * 16 * 4096
    layer = sbh * (10 + 24 / 8 + 5 * 32 * 2048 / (4096 * 8))
    even = {"layers": (16, 16)}
    found = step(recompute=False, **even).kept_bytes["activations"]
    assert found == pytest.approx(2 * 16 * layer)
    assert step(**even).kept_bytes["activations"] == pytest.approx(2 * 16 * 2 * sbh + layer)
    one = step(num_microbatches=1, recompute=False, **even)  # never two in flight: the last stage
    logits = 8 * 256 * 2048 * 51_200 / 8
    assert one.kept_bytes["activations"] == pytest.approx(16 * 16 * layer + logits)


def test_the_first_and_the_last_stage_hold_the_embedding():
    layers, h, V, s = (10, 12, 10), 4096, 51_200, 2048
    found = [MODEL.stage_parameters(layers, stage) for stage in range(3)]
    layer = 12 * h**2 + 13 * h
    assert found == [10 * layer + (V + s) * h, 12 * layer, 10 * layer + V * h]
    assert MODEL.stage_parameters((32,), 0) == MODEL.parameters


def reduce_in_groups(rank, world_size, stride, size, nbytes):
    """All groups along an axis all_reduce at once."""
    block = stride * size
    for first in (b + k for b in range(0, world_size, block) for k in range(stride)):
        group = dist.new_group(list(range(first, first + block, stride)))
        if (rank - first) % stride == 0 and first <= rank < first + block:
            own = group
    dist.all_reduce(torch.zeros(nbytes // 4), group=own)


@pytest.mark.parametrize("axis", ["tp", "dp", "pp"])
@pytest.mark.parametrize("order", ["tp dp pp", "dp pp tp", "pp tp dp"])
def test_groups_that_go_at_once_do_not_hold_one_another_up(axis, order):
    cut = Cut(16, 4, 2, 1, 0, True, order)
    cluster = Cluster(4, 4, Link(2e-6, 25e9), Link(5e-6, 150e9), rails=4)
    nbytes = 1 << 18
    args = cut.stride(axis), cut.size(axis), nbytes
    run = simlib.simulate(reduce_in_groups, 16, args, cluster=cluster, all_reduce="ring")
    found_s = plan_model._seconds("all_reduce", cut, axis, nbytes, cluster)
    assert run.time_s == pytest.approx(found_s, rel=1e-6)


@pytest.mark.parametrize(
    "changes, word, sentence",
    [
        ({"ranks": 8}, "ranks", "tp x pp = 16 is more than 8 ranks"),
        ({"tp": 64, "ranks": 128}, "heads", "32 heads cannot be divided by tp = 64"),
        ({"pp": 64, "tp": 1}, "layers", "32 layers are too few for pp = 64 stages"),
        ({"num_microbatches": 512}, "batch", "1,024 sequences cannot be divided by dp x micro-bat"),
    ],
)
def test_a_cut_that_cannot_be_is_told(changes, word, sentence):
    found, why = refusal(MODEL, replace(DEFAULT, **changes))
    assert found == word and sentence in why
    assert refusal(MODEL, DEFAULT) is None


# ---- the picture


def test_the_title_is_the_step():
    words = words_of(labs.draw_mesh())
    assert f"64 ranks = dp 4 x tp 8 x pp 2: {step().time_s:.3g} s a step |" in words
    assert "6.66 billion parameters (32 layers of 4,096); 1,024 sequences of 2,048 a step" in words
    assert "on each replica 16 micro-batches of 16" in words
    assert "layers of the stages: 16, 16" in words
    assert mesh.layers_text((2, *(3,) * 8, 1)) == "2, 3 (x 8), 1"
    assert "a step, but memory does not hold it" in words_of(labs.draw_mesh(64, 1, 1, 16))
    assert "4,096 ranks, tp 8 x pp 16: 1,024 sequences cannot be divided by dp x micro" in (
        words_of(labs.draw_mesh(4096, 8, 16, 64))
    )


def test_messages_that_would_queue_have_no_answer():
    cluster = Cluster(1, 1, Link(0.0, 1e7), device=Device(1e14))
    words = words_of(labs.draw_mesh(8, 1, 8, 8, cluster=cluster))
    assert "for a micro-batch and" in words and "so messages would queue" in words


def squares(figure, zorder, width):
    """Boxes of this width: (left, top, colour)."""
    boxes = boxes_of(figure, zorder)
    return [(x0, y0, color) for x0, x1, y0, _, color in boxes if x1 - x0 == pytest.approx(width)]


def test_the_map_is_grey_empty_or_green():
    figure = labs.draw_mesh()
    cells = squares(figure, 2, mesh.CELL_WIDTH - 0.04)
    assert len(cells) == 36
    for x, y, color in cells:
        tp = mesh.MAP[round((x - mesh.MAP_LEFT) / mesh.CELL_WIDTH)]
        pp = mesh.MAP[round((y - mesh.MAP_TOP) / mesh.CELL_HEIGHT)]
        cut = replace(DEFAULT, tp=tp, pp=pp)
        if refusal(MODEL, cut):
            assert color == mesh.OUT
        else:
            assert (color == "#ffffff") == (not step(tp=tp, pp=pp).fits)


def test_the_fastest_that_fits_has_a_rim_of_its_own():
    figure = labs.draw_mesh()
    ((x, y, _),) = squares(figure, 3, mesh.CELL_WIDTH - 0.09)
    tp = mesh.MAP[round((x - mesh.MAP_LEFT) // mesh.CELL_WIDTH)]
    pp = mesh.MAP[round((y - mesh.MAP_TOP) // mesh.CELL_HEIGHT)]
    fitting = {
        (tp, pp): step(tp=tp, pp=pp).time_s
        for tp in mesh.MAP
        for pp in mesh.MAP
        if not refusal(MODEL, replace(DEFAULT, tp=tp, pp=pp)) and step(tp=tp, pp=pp).fits
    }
    assert (tp, pp) == min(fitting, key=fitting.get)


def test_bars_of_time_add_up_to_the_step():
    figure, found = labs.draw_mesh(), step()
    widths = []
    for drawn in figure.axes[0].collections:
        boxes = [path.vertices for path in drawn.get_paths()]
        if len(boxes) == 5 and boxes[0][:, 0].min() == mesh.BARS:
            widths = [float(np.ptp(box[:, 0])) for box in boxes]
    shares = [found.times_s[part] / found.time_s for part in plan_model.PARTS]
    assert np.array(widths) / mesh.BARS_WIDTH == pytest.approx(shares)


def test_other_models_and_clusters_can_be_given():
    device = Device(312e12, 80e9)
    cluster = Cluster(1, 8, Link(2e-6, 25e9), Link(5e-6, 300e9), device, rails=8)
    model = {"layers": 96, "hidden": 12288, "heads": 96, "batch": 1536}
    words = words_of(labs.draw_mesh(1024, 8, 16, 64, 1, cluster=cluster, **model))
    assert "175 billion parameters (96 layers of 12,288)" in words
    assert labs.draw_mesh(8, 8, 1, cluster=replace(cluster, device=Device(1e14)))  # no limit


# ---- eight ranks as a cube


@pytest.mark.parametrize("dark", [False, True])
def test_the_groups_of_a_cube_are_those_of_a_mesh(dark):
    figure = labs.draw_groups("dp pp tp")
    check_places_of_words(figure, dark)
    at = np.arange(8).reshape(2, 2, 2)  # the last axis of an array has neighbours, so dp
    for name, axis in (("dp", 2), ("pp", 1), ("tp", 0)):
        groups = sorted(np.moveaxis(at, axis, 2).reshape(-1, 2).tolist())
        pairs = ", ".join(f"{one} and {two}" for one, two in groups)
        assert f"Groups along {name}: {pairs}." in figure.in_words()


def test_an_axis_takes_as_long_as_the_collective_where_its_ranks_are():
    cluster = Cluster(16, 4, Link(30e-6, 1.25e9), Link(5e-6, 1e10), rails=4)
    pair, group = [0, 1], [0, 0, 1, 1, 2, 2, 3, 3]  # 0, 2, 4, ... on nodes of four
    for kind, how, size, stride, nodes in (
        ("all_reduce", "ring", 8, 2, group), ("broadcast", "binomial", 2, 8, pair),
    ):  # fmt: skip
        near = replace(cluster, nodes=len(set(nodes)))
        told_s = scale.time_of(kind, size, 1 << 20, near, how, placement=nodes, itemsize=2)
        assert labs.axis_time(kind, 1 << 20, size, stride, cluster) == pytest.approx(told_s)
    assert labs.axis_time("all_reduce", 1 << 20, 1, 1, cluster) == 0


def test_a_map_of_cuts_says_what_it_shows():
    words = labs.draw_mesh().in_words()
    assert words.startswith("64 ranks = dp 4 x tp 8 x pp 2: ") and "bubble" in words
    assert "optimizer state" in words and "The fastest that fits is tp " in words
    assert "tp x pp = 32 is more than 8 ranks" in labs.draw_mesh(8, 8, 4).in_words()
