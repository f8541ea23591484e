"""`simlib.compare`: what runs sent, side by side."""

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex

import simlib
from simlib.core.draw import draw_comparison
from simlib.core.draw.run_pictures import COMMON, OWN, SHARED


def main(rank, world_size, sums, sends=0):
    x = torch.ones(10)
    for _ in range(sums):
        dist.all_reduce(x)
    dist.barrier()
    for _ in range(sends):
        if rank == 0:
            dist.send(x, dst=1)
        elif rank == 1:
            dist.recv(x, src=0)
    return x.sum().item()


def in_halves(rank, world_size):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(torch.ones(10), group=halves[rank // 2])
    dist.barrier()


def rows_of(comparison):
    return [(op.label, op.counts) for op in comparison.ops]


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_what_is_common_comes_first_then_the_differences(engine):
    found = simlib.compare({"two": engine(main, 2, (2,)), "three": engine(main, 2, (3, 4))})
    assert found.names == ("two", "three")
    assert rows_of(found) == [
        ("barrier", (1, 1)),
        ("all_reduce(SUM), 40 B", (2, 3)),
        ("message, 40 B", (0, 4)),
    ]
    assert [op.call for op in found.common] == ["barrier"]
    assert [op.call for op in found.differences] == ["all_reduce(SUM)", "message"]


def test_lines_say_where_each_came_from_and_how_often_and_smaller_groups_are_rows_of_their_own():
    found = simlib.compare(
        {"two": simlib.simulate(main, 2, (2,)), "three": simlib.simulate(main, 2, (3, 1))}
    )
    ((line, count),) = found.differences[0].lines[1].items()
    assert line.endswith("dist.all_reduce(x)") and "test_comparison.py" in line and count == 3
    told = str(found)
    assert "three, ops whose number differs:" in told
    assert "3 x all_reduce(SUM), 40 B" in told and "      3 x" in told
    world, halves = simlib.simulate(main, 4, (1,)), simlib.simulate(in_halves, 4)
    assert rows_of(simlib.compare({"world": world, "halves": halves})) == [
        ("barrier", (1, 1)),
        ("all_reduce(SUM), 40 B", (1, 0)),
        ("all_reduce(SUM), 40 B, 2 ranks", (0, 2)),
    ]


def test_real_and_simulated_ranks_of_one_program_are_alike():
    found = simlib.compare([simlib.run(main, 3, (2, 2)), simlib.simulate(main, 3, (2, 2))])
    assert found.names == ("main", "main 2") and not found.differences


def test_the_picture_has_a_row_for_each_op_and_says_how_many_more():
    one, other = simlib.simulate(main, 2, (1,)), simlib.simulate(main, 2, (2, 1))
    texts = [text.get_text() for text in simlib.compare([one, other]).picture().axes[0].texts]
    assert texts[:2] == ["main", "main 2"]
    assert {"barrier", "all_reduce(SUM), 40 B", "message, 40 B"} <= set(texts)
    many = [(f"op {i}", (i, 1), False) for i in range(50)]
    texts = [text.get_text() for text in draw_comparison(["a", "b"], many).axes[0].texts]
    assert "and 20 more" in texts


def test_the_pictures_colours_say_what_is_common_shared_or_a_runs_own():
    rows = [("all", (2, 2, 2), True), ("two", (3, 3, 0), False), ("one", (1, 4, 0), False)]
    boxes = draw_comparison("abc", rows).axes[0].patches
    colors = [to_hex(box.get_facecolor()) for box in boxes]
    assert colors == [*[COMMON] * 3, *[SHARED] * 2, *[OWN] * 2]


def test_refusals():
    run = simlib.simulate(main, 2, (1,))
    with pytest.raises(simlib.InvalidCallError, match="needs two runs or more"):
        simlib.compare([run])
    with pytest.raises(simlib.InvalidCallError, match="'b' is str, not a run"):
        simlib.compare({"a": run, "b": "run"})
    with pytest.raises(simlib.InvalidCallError, match="a has 2 ranks, b has 3 ranks"):
        simlib.compare({"a": run, "b": simlib.simulate(main, 3, (1,))})
