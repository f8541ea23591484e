"""A card: what measured operations say of those between them."""

import dataclasses
import json
import math
import re
import statistics
from importlib import resources

import pytest
import torch
import torch.nn.functional as F
from test_op_time import seconds_of

import simlib
from simlib.core.model.card import Card, Row

H100 = Card.of_package("h100")


def missed(sort, dtype):
    """How far the time of each row is missed, by roofline alone and by the rows of other shapes."""
    rows = [row for row in H100.rows if (row.sort, row.dtype) == (sort, dtype)]
    alone, left_out = [], []
    for row in rows:
        others = tuple(one for one in rows if one.sizes != row.sizes)
        card = dataclasses.replace(H100, rows=others)
        roofline = H100.roofline_s(row)
        slow = card.slowdown(row.sort, row.dtype, row.layout, row.sizes)
        alone.append(abs(roofline / row.seconds - 1))
        left_out.append(abs(roofline * slow / row.seconds - 1))
    return statistics.median(alone), statistics.median(left_out)


@pytest.mark.parametrize(
    "sort, dtype, alone, left_out",
    [
        ("product", "bfloat16", 0.15, 0.06),
        ("product", "float32", 0.03, 0.03),
        ("attention", "bfloat16", 0.45, 0.15),
        ("attention_backward", "bfloat16", 0.57, 0.24),
        ("attention", "float32", 0.37, 0.21),
        ("attention_backward", "float32", 0.38, 0.11),
    ],
)
def test_how_far_shapes_left_out_of_the_table_are_missed(sort, dtype, alone, left_out):
    assert missed(sort, dtype) == pytest.approx((alone, left_out), abs=0.011)


def test_a_measured_shape_alone_in_its_sort_takes_its_measured_time():
    row = Row("product", "float32", "nn", (64, 32, 16), 1.0)
    card = dataclasses.replace(H100, rows=(row,))
    assert card.slowdown("product", "float32", "nn", row.sizes) * card.roofline_s(row) == 1.0
    assert card.slowdown("product", "bfloat16", "nn", row.sizes) == 1.0
    assert H100.slowdown("product", "float16", "nn", row.sizes) != 1.0  # as bfloat16


def test_an_operation_takes_as_much_longer_as_its_table_says():
    sorts = {"product": (3, "tn"), "attention": (3, ""), "attention_backward": (3, "")}
    rows = [Row(s, "float32", layout, (8,) * n, 1.0) for s, (n, layout) in sorts.items()]
    rows.append(Row("native_layer_norm", "float32", "", (8,), 1.0))
    card = dataclasses.replace(H100, rows=tuple(rows))
    device = simlib.Device._of_card(card)
    plain = dataclasses.replace(device, table=None)
    q = torch.rand(1, 2, 64, 16, requires_grad=True)
    a, b = torch.rand(30, 20), torch.rand(30, 10)
    calls = {
        "product": lambda: a.t() @ b,
        "attention": lambda: F.scaled_dot_product_attention(q.detach(), q, q, is_causal=True),
        "native_layer_norm": lambda: F.layer_norm(a, (20,)),
    }
    for sort, call in calls.items():
        slow = next(row.seconds / card.roofline_s(row) for row in rows if row.sort == sort)
        assert sum(seconds_of(call, device)) / sum(seconds_of(call, plain)) == pytest.approx(slow)


def test_an_operation_without_rows_is_like_adding_and_a_convolution_is_not():
    row = Row("add", "float32", "", (8,), 1.0)
    card = dataclasses.replace(H100, rows=(row,))
    device = simlib.Device._of_card(card)
    plain = dataclasses.replace(device, table=None)
    a, weight = torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3)

    def longer(call):
        return sum(seconds_of(call, device)) / sum(seconds_of(call, plain))

    assert longer(lambda: a * a) == pytest.approx(1.0 / card.roofline_s(row))
    assert longer(lambda: F.conv2d(a, weight)) == 1.0


def test_layouts_are_told_apart():
    a, b = torch.rand(64, 64), torch.rand(64, 64)
    shape = "product", "float32"
    rows = Row(*shape, "nn", (64,) * 3, 1.0), Row(*shape, "nt", (64,) * 3, 2.0)
    device = simlib.Device._of_card(dataclasses.replace(H100, rows=rows))
    straight, turned = (seconds_of(call, device) for call in (lambda: a @ b, lambda: a @ b.t()))
    assert sum(turned) > 1.5 * sum(straight)


def test_a_device_is_read_from_a_file(tmp_path):
    path = tmp_path / "card.json"
    path.write_text(H100.text())
    assert simlib.Device.measured(path) == simlib.devices.h100()
    assert simlib.Device.measured(path, launch_s=0.0).launch_s == 0.0
    assert isinstance(hash(simlib.devices.h100()), int)


def test_the_card_of_the_package_is_written_as_cards_are():
    assert resources.files("simlib.core.model").joinpath("h100.json").read_text() == H100.text()


ROW = ["product", "float32", "nn", [8, 8, 8], 1e-6]
GOOD = json.loads(H100.text()) | {"rows": [ROW]}


def changed(at, value):
    return GOOD | {"rows": [ROW, [*ROW[:at], value, *ROW[at + 1 :]]]}


@pytest.mark.parametrize(
    "stored, says",
    [
        (GOOD | {"version": 2}, "the file's version is 2, but this simlib reads 1"),
        ({}, "the file's version is None"),
        ([], "the file is not a JSON object"),
        ({name: value for name, value in GOOD.items() if name != "rates"}, "file has no 'rates'"),
        (GOOD | {"rows": []}, "the file has no rows"),
        (GOOD | {"rows": {}}, "the file's rows is {}"),
        (GOOD | {"launch_s": "fast"}, "the file's launch_s is 'fast'"),
        (GOOD | {"launch_s": -1.0}, "launch_s is -1.0: give a number of at least 0"),
        (GOOD | {"asynchronous": 1}, "the file's asynchronous is 1"),
        (GOOD | {"memory_bytes": True}, "the file's memory_bytes is True"),
        (GOOD | {"memory_Bps": math.nan}, "memory_Bps is nan"),
        (GOOD | {"rates": {"float32": "much"}}, "the file's rates are {'float32': 'much'}"),
        (GOOD | {"rates": {"float32": 1.0, "bf16": 1.0}}, "'bf16', which is not a dtype"),
        (GOOD | {"rows": [ROW, "mm"]}, "row 1 is 'mm', but a row must be"),
        (changed(3, [8, 8]), "row 1 is"),
        (changed(3, [8, 8, 0]), "row 1 is"),
        (changed(3, [8, 8, 8.5]), "row 1 is"),
        (changed(4, 0), "row 1 is"),
        (changed(4, math.inf), "row 1 is"),
        (changed(1, "float64"), "row 1 computes in 'float64', but rates has no such dtype"),
    ],
)
def test_what_is_no_card_is_refused(tmp_path, stored, says):
    path = tmp_path / "card.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(simlib.InvalidCallError, match=re.escape(says)) as refused:
        simlib.Device.measured(path)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("text", [b"[", b"[" * 100_000, b"\xff\xfe", b""])
def test_what_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "card.json"
    path.write_bytes(text)
    with pytest.raises(simlib.InvalidCallError, match="is not a device card"):
        simlib.Device.measured(path)


def test_a_card_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(simlib.InvalidCallError, match="No such file"):
        simlib.Device.measured(tmp_path / "card.json")
