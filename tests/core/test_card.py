"""A card: what measured operations say of those between them."""

import dataclasses
import json
import statistics

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


def test_layouts_are_told_apart():
    a, b = torch.rand(64, 64), torch.rand(64, 64)
    shape = "product", "float32"
    rows = Row(*shape, "nn", (64,) * 3, 1.0), Row(*shape, "nt", (64,) * 3, 2.0)
    device = simlib.Device._of_card(dataclasses.replace(H100, rows=rows))
    straight, turned = (seconds_of(call, device) for call in (lambda: a @ b, lambda: a @ b.t()))
    assert sum(turned) > 1.5 * sum(straight)


def stored(**changes):
    fields = {name: getattr(H100, name) for name in H100.__dataclass_fields__} | changes
    return {"version": 1} | fields | {"rows": [dataclasses.astuple(row) for row in H100.rows]}


def test_a_device_is_read_from_a_file(tmp_path):
    path = tmp_path / "card.json"
    path.write_text(json.dumps(stored()))
    assert simlib.Device.measured(path) == simlib.devices.h100()
    assert simlib.Device.measured(path, launch_s=0.0).launch_s == 0.0
    assert isinstance(hash(simlib.devices.h100()), int)


@pytest.mark.parametrize(
    "text, says",
    [
        (json.dumps(stored() | {"version": 2}), "no card of a device: its version is 2, and this"),
        ("{}", "is no card of a device: it has no 'version'"),
        ("[", "is no card of a device"),
    ],
)
def test_what_is_no_card_is_refused(tmp_path, text, says):
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(simlib.InvalidCallError, match=says):
        simlib.Device.measured(path)
