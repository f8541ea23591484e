"""Devices to simulate, each with where its figures come from.

Every function takes fields of `Device` as well, which replace what is set here:
``h100(memory_bytes=94e9)``.
"""

from __future__ import annotations

from typing import Any

from .model.card import Card
from .model.cluster import Device

__all__ = ["h100"]


def h100(**more: Any) -> Device:
    """An NVIDIA H100 SXM of 80 GB, by single operations that were measured on one.

    **Source** medians of 20 calls with torch 2.11 and CUDA 13, TF32 off: matrix products in three
    layouts, causal attention, normalisation, cross entropy and the fused AdamW, in float32 and
    bfloat16. Products and norms that took less than 30 us are left out: there the host was timed.
    Cross entropy stands for `log_softmax`. ``launch_s`` is that of one addition in a loop; a
    backward pass and layers in Python take several times as long for each operation.
    """
    return Device._of_card(Card.of_package("h100"), **more)
