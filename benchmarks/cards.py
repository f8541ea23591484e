"""The GPUs of published runs, from what others measured on such cards; nothing is fitted to a run.

**Products in half precision** of 8192 x 8192 x 8192.

- A100 of 400 W: 258 Tflop/s, of 312 on the data sheet. Read in thonking.ai, "Strangely, Matrix
  Multiplications on GPUs Run Faster When Given Predictable Data" (cuBLAS through torch, normally
  distributed values; 295 where all are 0). The best of all shapes is 271: stas00/ml-engineering,
  compute/accelerator, "Maximum Achievable Matmul FLOPS".
- H100 of 500 W: 608 Tflop/s. No measurement of such a card was found. It is on the straight line
  from an H100 PCIe of 350 W, 493 (zzc0721/torch-performance-test-data, issue 95), to an H200 NVL of
  600 W, 685 (NVIDIA/tilus, pull request 154); neither says which values were
  multiplied. The H100 of 700 W that we measured reaches 801.

**Attention** by FlashAttention-2, which torch took until 2025: 35 % of an H100's 989 Tflop/s (read
of its successor, FlashAttention-3), and on an A100 50 to 73 %, of which the middle is taken.

**Memory** 90 % of the data sheet's bandwidth, as the H100 that we measured; what else is slower
than its bytes say is taken from that H100.
"""

from __future__ import annotations

import dataclasses

from simlib import devices
from simlib.core.model.card import Card, Row

HEADS, LENGTH, WIDTH = 64, 8192, 128
"""Of the attention that the published share stands for: two sequences of Llama 8B."""


def _attending_at(card, flops_per_s, rate):
    """A card whose attention takes ``flops_per_s`` where its products take ``rate``."""
    slow = rate / flops_per_s
    rows = [row for row in card.rows if not row.sort.startswith("attention")]
    for sort in "attention", "attention_backward":
        row = Row(sort, "bfloat16", "", (HEADS, LENGTH, WIDTH), 1.0)
        rows.append(dataclasses.replace(row, seconds=slow * card.roofline_s(row)))
    return dataclasses.replace(card, rows=tuple(rows))


def h100_500w():
    """As Meta's machines have it: 96 GB of HBM2e, 2.4 TB/s, at most 500 W."""
    half = 608e12
    return devices.h100(
        rates={"bfloat16": half, "float16": half, "float32": 50e12},
        memory_Bps=0.9 * 2.4e12,
        memory_bytes=96e9,
        table=_attending_at(Card.of_package("h100"), 0.35 * 989e12, half),
    )


def a100():
    """The SXM of 80 GB and 400 W."""
    half = 258e12
    measured = Card.of_package("h100")
    no_products = [row for row in measured.rows if row.sort != "product"]
    card = dataclasses.replace(measured, rows=tuple(no_products))
    return devices.a100(
        rates={"bfloat16": half, "float16": half, "float32": 19.5e12},
        memory_Bps=0.9 * 2039e9,
        table=_attending_at(card, (0.50 + 0.73) / 2 * 312e12, half),
    )
