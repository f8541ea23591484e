"""The presets of devices: what they promise, and that they compute."""

from __future__ import annotations

import pytest
import torch

import simlib
from simlib import devices

PRESETS = [getattr(devices, name) for name in devices.__all__]


@pytest.mark.parametrize("preset", PRESETS, ids=devices.__all__)
def test_a_preset_has_a_source_and_fields_that_can_be_replaced(preset):
    found = preset(launch_s=1.0, memory_bytes=7)
    assert (found.launch_s, found.memory_bytes) == (1.0, 7)
    assert "**Source**" in preset.__doc__
    assert preset is devices.h100 or "by data sheet" in preset.__doc__
    assert (found.table is None) == (preset is not devices.h100)


def test_the_measured_card_stays_below_its_data_sheet():
    """That of the H100 SXM: 989 and 67 Tflop/s, 3.35 TB/s."""
    measured = devices.h100()
    shares = (
        measured.rates["bfloat16"] / 989.4e12,
        measured.rates["float32"] / 67e12,
        measured.memory_Bps / 3.35e12,
    )
    assert [round(share, 2) for share in shares] == [0.81, 0.77, 0.90]  # the docstring says so


def test_rates_of_dense_products():
    """The generations, each about two to three times the one before."""
    half = [
        preset().rates["bfloat16"] / 1e12 for preset in (devices.a100, devices.h200, devices.b200)
    ]
    assert half == [312, 989.5, 2250]
    assert devices.laptop_cpu().rates["float32"] == pytest.approx(358.4e9)
    assert "float64" not in devices.l4().rates  # its data sheet does not say


def one_product(rank, world_size):
    torch.mm(*torch.empty(2, 4096, 4096, dtype=torch.bfloat16))


def test_a_rank_on_a_node_of_h100s_takes_the_measured_time():
    cluster = simlib.clusters.h100_nodes(1)
    run = simlib.simulate(one_product, 2, cluster=cluster, data=False)
    launch_s = cluster.device.launch_s
    assert run.time_s == pytest.approx(173.4e-6 + launch_s, rel=0.1)  # measured: 173.4 us
