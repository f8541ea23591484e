"""docs/published.md: every figure of the model is what it computes now."""

from __future__ import annotations

import functools
import math

import published
import pytest
from published_tables import networks
from published_tables.rows import Row, Table, lines_of

import simlib

TEXT = published.PAGE.read_text(encoding="utf-8")


@functools.cache
def computed(name):
    return published.TABLES[name]()


def test_the_page_has_each_table_once():
    assert [name for _, name, *_ in published.MARKED.findall(TEXT)] == list(published.TABLES)
    assert TEXT.count("<!-- table:") == TEXT.count("<!-- end -->") == len(published.TABLES)


@pytest.mark.parametrize("name", published.TABLES)
def test_a_table_is_what_the_model_gives(name):
    table = computed(name)
    assert published.tables_in(TEXT)[name] == lines_of(table)
    assert all(math.isfinite(row.miss) for row in table.rows)


def test_formulas_are_met_exactly():
    assert all(abs(row.miss) < 1e-3 for row in computed("formulas").rows)


def test_goyal_is_explained_better_than_by_overlap_alone():
    rows = computed("goyal").rows
    lesson_09 = [row.model for row in rows[:2]]
    assert lesson_09[0] < 1.12 < lesson_09[1]
    ready, halving = rows[3].model, rows[5].model
    assert 1 < halving < ready < lesson_09[0]
    assert all(abs(row.miss) < 0.02 for row in rows[-2:])


# -- what the figures are made of ------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers, millions, operations",
    [
        (networks.resnet([3, 4, 6, 3]), 25.557032, 3.86e9),
        (networks.resnet([3, 4, 23, 3]), 44.549160, 7.57e9),
        (networks.resnet([3, 8, 36, 3]), 60.192808, 11.3e9),
        (networks.vgg16(), 138.357544, 15.5e9),
    ],
)
def test_networks_have_their_parameters(layers, millions, operations):
    assert networks.parameters(layers) == round(millions * 1e6)
    assert sum(layer.operations for layer in layers) == pytest.approx(operations, rel=5e-3)


def test_transformers_have_the_parameters_of_their_names():
    for layers, hidden, billions in ((40, 1536, 1.2), (54, 1920, 2.5), (64, 2304, 4.2)):
        assert round(networks.transformer(layers, hidden)[0] / 1e9, 1) == billions


def test_buckets_are_full_in_the_order_of_backward():
    layers = [networks.Layer(10, 1), networks.Layer(20, 3), networks.Layer(30, 4)]
    nbytes, ready_s = networks.gradients(layers, 1.0, 8.0)
    assert nbytes == [120, 80, 40] and ready_s.tolist() == [5, 8, 9]
    nbytes, ready_s = networks.gradients(layers, 1.0, 8.0, bucket_bytes=200, multiple=64)
    assert nbytes == [256, 64] and ready_s.tolist() == [8, 9]
    # As torch would, simlib's step takes them as they are.
    step = simlib.scale.step_time(
        nbytes, 2, simlib.clusters.loopback(), forward_s=1.0, backward_s=8.0, ready_s=ready_s
    )
    assert step.ready_s.tolist() == [8, 9]


def test_a_figure_that_has_gone_stale_is_told():
    table = Table("network", "gain", ".2f", [Row("a, 3 % more", 2.0, 2.5), Row("b", 0.5, 0.5)])
    page = "Text\n<!-- table: x -->\n<!-- end -->\nmore"
    new = published.filled(page, {"x": lambda: table})
    assert published.tables_in(new)["x"] == [
        "| network | gain, published | model | miss |",
        "| --- | --: | --: | --: |",
        "| a, 3 % more | 2.00 | 2.50 | +25.0 % |",
        "| b | 0.50 | 0.50 | +0.0 % |",
    ]
    assert published.filled(new, {"x": lambda: table}) == new
    stale = new.replace("2.50", "2.40")
    assert published.tables_in(stale)["x"] != lines_of(table)
    assert published.filled(stale, {"x": lambda: table}) == new
