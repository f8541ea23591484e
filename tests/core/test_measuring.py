"""Measuring a card on the CPU of this machine, in a second."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from terminals import Terminal
from test_op_time import Watch

import simlib
from simlib.cli import main
from simlib.core.devices import measuring
from simlib.core.model.card import Card

SHAPES = {"_SIDES": (64,), "_ELEMENTS": (1 << 12,), "_ATTENTION": ((2, 32, 16),)}


@pytest.fixture
def small(monkeypatch):
    """Small shapes, none of which is left out for its time."""
    for name, value in SHAPES.items():
        monkeypatch.setattr(measuring, name, value)
    monkeypatch.setattr(measuring, "CALLS", 1)
    monkeypatch.setattr(measuring._Measuring, "_launch", lambda self: 0.0)


def test_a_measured_card_is_a_device(small, tmp_path):
    said = []
    card = measuring.measure("cpu", 1e6, said.append)
    assert {row.sort for row in card.rows} == {
        *("product", "attention", "attention_backward", "add", "gelu", "sum", "_to_copy"),
        *("native_layer_norm", "_log_softmax", "_fused_adamw_", "gelu_backward"),
        *("native_layer_norm_backward", "_log_softmax_backward_data"),
    }
    assert {row.dtype for row in card.rows} == set(card.rates) == {"float32", "bfloat16"}
    assert "s: measured operations limited by memory in bfloat16. The table" in said[-1]
    (tmp_path / "card.json").write_text(card.text())
    device = simlib.Device.measured(tmp_path / "card.json")
    assert device.table == Card.of(card.text(), "")
    assert not device.asynchronous and device.workspace_bytes == 0


def test_the_small_step_has_as_many_kernels_as_its_time_is_divided_by():
    step = measuring._Measuring("cpu", 1.0, str)._small_step()
    with Watch(simlib.Device(memory_Bps=1e9)) as watch:
        step()
    assert len(watch.found) == measuring.KERNELS_OF_SMALL_STEP


def test_rows_have_the_bytes_that_a_simulation_counts(small, monkeypatch):
    """Otherwise a simulation would look up another place of the table."""
    card = simlib.devices.h100().table
    bare = simlib.Device(rates=card.rates, memory_Bps=1e9)
    device = dataclasses.replace(bare, table=dataclasses.replace(card, rows=()))
    counted = {}

    def note(self, sort, dtype, layout, sizes, call, expected_s):
        with Watch(device) as watch, torch.set_grad_enabled(sort == "attention_backward"):
            call()
        counted[sort, dtype, layout] = sizes, max(watch.found)
        return 1e-3

    monkeypatch.setattr(measuring._Measuring, "_note", note)
    measuring.measure("cpu", 1e6, str)
    for (sort, _, _), (sizes, seconds) in counted.items():
        if len(sizes) == 1:
            assert seconds * 1e9 == pytest.approx(sizes[0], rel=0.3), sort


def test_what_would_take_longer_than_its_share_is_left_out(monkeypatch):
    monkeypatch.setattr(measuring, "_SIDES", (64, 4096))
    monkeypatch.setattr(measuring, "_ELEMENTS", (1 << 12, 1 << 30))
    card = measuring.measure("cpu", 1e-3, str)
    largest = max((max(row.sizes) for row in card.rows), default=0)
    assert largest < 4096 * 32  # a tensor of 1 << 12 elements, and at most 32 bytes for each


def test_the_command_writes_a_card_and_shows_the_remaining_time(
    small, tmp_path, capsys, monkeypatch
):
    path, screen = tmp_path / "card.json", Terminal(monkeypatch)
    assert main(["card", "--out", str(path), "--device", "cpu", "--time", "1"]) == 0
    screen.hang_up()
    assert re.search(r"1 of 1 \|.*\| 00:\d\d<00:00", screen.getvalue())
    assert f"Use it as simlib.Device.measured({str(path)!r})" in capsys.readouterr().out
    assert simlib.Device.measured(path).table.rows


@pytest.mark.parametrize(
    "words, says", [(["--out", "no/card.json"], "no folder"), (["--time", "0"], "seconds above 0")]
)
def test_a_wrong_call_is_refused_before_anything_is_measured(words, says, capsys):
    assert main(["card", *words]) == 2
    assert says in capsys.readouterr().err
