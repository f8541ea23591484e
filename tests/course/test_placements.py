"""Lesson 12's placements: published answers are right, and the own programs are torch's."""

import re
from pathlib import Path

import jupytext
import pytest
import torch
import torch.distributed as dist
from lab_pictures import words_of
from torch.distributed.device_mesh import init_device_mesh

import simlib
from simlib import labs
from simlib.course.labs import hybrid

LESSONS = Path(__file__).parents[2] / "authoring" / "lessons"
PLACE, SAVE = "12_ways_to_place_tensors", "12_ways_to_save_and_clip"


def cells_of(lesson):
    return jupytext.read(LESSONS / f"{lesson}.py", fmt="py:percent").cells


def answer_to(lesson, function):
    """The published answer: the block of code that defines the function."""
    texts = [cell.source for cell in cells_of(lesson) if cell.cell_type == "markdown"]
    blocks = re.findall(
        rf"^    def {function}\(.*?(?=\n\n\S|\n\n</)", "\n".join(texts), re.M | re.S
    )
    assert len(blocks) == 1, function
    return re.sub(r"^    ", "", blocks[0], flags=re.M)


def said_by(lesson, function, capsys):
    """What the check of a function prints, with the published answer in its place."""
    code = [cell.source for cell in cells_of(lesson) if cell.cell_type == "code"]
    at = next(n for n, text in enumerate(code) if f"\ndef {function}(" in f"\n{text}")
    check = next(
        n for n, text in enumerate(code[at:], at) if '"not yet"' in text or "'not yet'" in text
    )
    names = {"__name__": "lesson"}
    for text in code[:at]:
        if "simlib.guess(" not in text and "_lab(" not in text:  # what only shows something
            exec(text.replace("draw(held)\n", "\n").removesuffix("draw(held)"), names)
    capsys.readouterr()
    for text in code[at : check + 1]:
        stub = re.compile(rf"^def {function}\(.*?(?=\n\n\n|\Z)", re.M | re.S)
        exec(stub.sub(lambda _: answer_to(lesson, function), text), names)
    return capsys.readouterr().out


WRITES = {  # the part, and how often its check says "right"
    "cost": (PLACE, 11),
    "over_the_network": (PLACE, 16),
    "hsdp_step": (SAVE, 4),
    "total_norm": (SAVE, 6),
}


@pytest.mark.parametrize("function", WRITES)
def test_an_answer_in_its_place_is_right(function, capsys):
    lesson, count = WRITES[function]
    said = said_by(lesson, function, capsys)
    assert said.count("right") == count and "not yet" not in said


def steps_sends(rank, world_size, nodes, way, count, microbatches):
    """The collectives of a step, as the lab's model has them."""
    mesh = init_device_mesh("cpu", (nodes, world_size // nodes), mesh_dim_names=("far", "near"))
    group = mesh["near"].get_group() if way == "HSDP" else dist.group.WORLD
    whole, shard = torch.zeros(count), torch.zeros(count // group.size())
    for _ in range(microbatches if way != "data parallel" else 0):
        dist.all_gather_single(whole, shard, group=group)
        dist.all_gather_single(whole, shard, group=group)
        dist.reduce_scatter_single(shard, whole, group=group)
    if way == "HSDP":
        dist.all_reduce(shard, group=mesh["far"].get_group())
    if way == "data parallel":
        dist.all_reduce(whole)


@pytest.mark.parametrize("nodes, per_node, microbatches", [(2, 4, 1), (3, 2, 2), (4, 3, 3)])
def test_the_lab_is_timed_like_a_simulation(nodes, per_node, microbatches):
    count, between = 360, simlib.Link(30e-6, 1.25e6)
    cluster = simlib.Cluster(nodes, per_node, inter=between, intra=hybrid.INSIDE)
    rings = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
    model = hybrid.sent_s(nodes, per_node, 4 * count, 30e-6, 1.25e6, microbatches)
    for way in hybrid.WAYS:
        args = nodes, way, count, microbatches
        run = simlib.simulate(steps_sends, nodes * per_node, args=args, cluster=cluster, **rings)
        assert run.time_s == pytest.approx(model[way], rel=1e-6), way


def test_the_labs_title_compares_hsdp_with_fsdp():
    words = words_of(labs.draw_hybrid(128, 8, 14e9, 10e-6, 25e9, 1))
    assert "1,024 ranks in 128 nodes: HSDP sends for the shorter time, by 1.27 x" in words
    assert "data parallel 112 GB; FSDP 109 MB; HSDP 14 GB" in words


@pytest.mark.parametrize(
    "changed, times", [((128, 14e9, 25e9, 1), 1.27), ((128, 14e9, 25e9, 32), 6.2),
                       ((1024, 1e8, 25e9, 4), 33), ((128, 14e9, 200e9, 4), 1.02 / 1.12)],
)  # fmt: skip
def test_the_text_tells_what_the_lab_shows(changed, times):
    nodes, nbytes, bandwidth_Bps, microbatches = changed
    model = hybrid.sent_s(nodes, 8, nbytes, 10e-6, bandwidth_Bps, microbatches)
    assert model["FSDP"] / model["HSDP"] == pytest.approx(times, rel=0.01)
