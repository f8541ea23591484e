"""Lesson 07's streams of data: its published answers, its shares, and its sums."""

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from lesson_programs import LESSONS, names_of, written

import simlib

LESSON = "07_streams_of_data"
SAMPLES = [100 * shard + k for shard, n in enumerate((5, 3, 4, 6, 2, 5, 4, 3, 6, 4, 2, 4))
           for k in range(n)]  # fmt: skip


def lesson():
    return names_of(LESSON, lambda names: names <= {"SIZES", "SHARDS", "x"})


def check_cell(words):
    """The first code cell with these words."""
    cells = (LESSONS / f"{LESSON}.py").read_text(encoding="utf-8").split("\n# %%")
    return next(cell.partition("\n")[2] for cell in cells if words in cell)


@pytest.mark.parametrize("function", ["share", "ordered"])
def test_an_inline_answer_in_its_place_is_right(function, capsys):
    names = lesson() | {"x": torch.randn(48, 1000)}
    for source, verdict in zip(written(LESSON, function), ("not yet", "right"), strict=True):
        exec(source, names)
        said = capsys.readouterr().out
        assert re.findall("not yet|right", said) == 3 * [verdict], said


def resumable():
    """The lesson's names, with the published methods in their class."""
    names = lesson()
    text = (LESSONS / f"{LESSON}.py").read_text(encoding="utf-8")
    answer = re.search(r"^#     (def __iter__.*?)^# </details>", text, re.M | re.S)[1]
    exec(re.sub(r"^#(     )?", "", answer, flags=re.M).split("Counts only")[0], names)
    names["Resumable"].__iter__ = names["__iter__"]
    names["Resumable"].state_dict = names["state_dict"]
    return names


def test_the_published_methods_are_right_and_the_stored_ones_are_not(capsys):
    check = check_cell("engine, workers, *worlds")
    for names, verdict in ((lesson(), "not yet"), (resumable(), "right")):
        exec(check, names)
        assert re.findall("not yet|right", capsys.readouterr().out) == 3 * [verdict]


@pytest.mark.parametrize("worlds, steps", [((1, 5), 7), ((6, 2, 1), 2), ((3, 4, 2, 5), 1)])
def test_every_sample_comes_once_on_any_numbers_of_ranks(worlds, steps):
    names, done, seen = resumable(), {}, Counter()
    for world, size in enumerate(worlds):
        stop = steps if world < len(worlds) - 1 else None
        results = simlib.simulate(names["piece"], size, args=(done, stop, 0)).results
        assert all(state == results[0][1] for _, state in results)
        seen.update(sum((samples for samples, _ in results), []))
        done = results[0][1]
        assert done == {k: sum(s // 100 == k for s in seen.elements()) for k in range(12)}
    assert seen == Counter(SAMPLES)


def test_workers_that_do_not_know_their_number_read_all_of_their_rank():
    for workers, times in ((0, 1), (2, 2), (3, 3)):
        results = simlib.run(lesson()["by_rank"], 2, args=(workers,)).results
        assert Counter(sum(results, [])) == Counter(times * SAMPLES)


def test_dealt_gives_each_shard_one_reader():
    dealt = lesson()["dealt"]
    for R, W in product(range(1, 7), range(1, 4)):
        shards = [
            s for rank, worker in product(range(R), range(W)) for s in dealt(rank, R, worker, W)
        ]
        assert sorted(shards) == list(range(12))


def test_ranks_agree_on_the_first_and_on_the_last_end():
    lengths = [sum(s // 100 % 4 == rank for s in SAMPLES) for rank in range(4)]
    assert lengths == [13, 12, 10, 13]
    left = np.array([[min(2, max(0, n - 2 * k)) for n in lengths] for k in range(7)])
    for op, steps in (("MIN", 5), ("MAX", 7)):
        run = simlib.simulate(
            lesson()["agreed"], 4, args=(getattr(torch.distributed.ReduceOp, op),)
        )
        assert run.results == [left.sum(1)[:steps].tolist()] * 4
        assert len(run.trace.collectives) == 2 * steps + 1


def test_ways_to_sum_are_right_and_whole_numbers_have_equal_bits():
    names, x = lesson(), torch.randn(48, 1000, generator=torch.Generator().manual_seed(7))
    for numbers, bits in ((x, False), ((10 * x).round(), True)):
        exact = numbers.double().numpy().sum(0)
        for way, R in (("first", 4), ("two ranks", 2), ("two buckets", 4), ("two pieces", 4)):
            got = simlib.run(names["summed"], R, args=(numbers, way)).results[0]
            np.testing.assert_allclose(got, exact, atol=1e-4)
            assert not bits or (got.double().numpy() == exact).all()


def test_a_fixed_order_is_batch_invariant():
    names = lesson() | {"W": torch.randn(512, 512)}
    exec(check_cell("def fixed(rows)").split("rows, W")[0], names)
    rows = torch.randn(24, 512)
    whole = names["fixed"](rows)
    assert torch.equal(torch.cat([names["fixed"](few) for few in rows.split(5)]), whole)
    assert torch.allclose(whole.double(), rows.double() @ names["W"].double(), atol=1e-3)
