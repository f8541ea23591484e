"""Devices to simulate, each with the source of its figures.

Every function also takes fields of `Device`. They replace the values that are set here:
``h100(memory_bytes=94e9)``.

Only `h100` was measured. The other devices have the figures of the vendor's data sheet: rates of
dense matrices, without sparsity, at the highest clock. A real card does not sustain these rates or
this bandwidth. The H100 that we measured reached 81 % of its data sheet's rate in bfloat16, 77 % in
float32, and 90 % of the bandwidth. Data sheets lack two figures. ``launch_s`` of a GPU is *assumed*
to be the same as on the measured host. ``workspace_bytes`` is twice torch's default of
``CUBLAS_WORKSPACE_CONFIG``, because two threads call cuBLAS: forward and backward. The default is
8.125 MiB, and 32 MiB from Hopper on. A GB of a GPU's memory is 2**30 bytes. The driver keeps about
1 % of it.
"""

from __future__ import annotations

from typing import Any

from ..model.card import Card
from ..model.cluster import Device

__all__ = ["a100", "b200", "h100", "h200", "l4", "laptop_cpu", "rtx_4090"]

_LAUNCH_S = 7.7e-6
_GB, _TERA = 2**30, 1e12


def workspace_bytes_of(generation: int) -> int:
    """Bytes that cuBLAS needs on an NVIDIA GPU, by the first number of its compute capability."""
    return 2 * (32 * 2**20 if generation in (9, 10) else (2 * 4096 + 8 * 16) * 1024)


def h100(**more: Any) -> Device:
    """An NVIDIA H100 SXM of 80 GB, by measurements of single operations on such a GPU.

    **Source** medians of 20 calls with torch 2.11 and CUDA 13, TF32 off: matrix products in three
    layouts, causal attention, normalisation, cross entropy and the fused AdamW, in float32 and
    bfloat16. Products and norms that took less than 30 us are left out, because the host
    determined these times. float16 is assumed to be as fast as bfloat16, and `log_softmax` uses the
    measurements of cross entropy. ``launch_s`` is the time to launch one addition in a loop; a
    backward pass and layers in Python take several times as long for each operation.
    """
    return Device._of_card(Card.of_package("h100"), **more)


def a100(**more: Any) -> Device:
    """An NVIDIA A100 SXM of 80 GB, by data sheet.

    **Source** NVIDIA A100 Tensor Core GPU data sheet: bfloat16 and float16 312 Tflop/s, float32
    19.5 (TF32 off), float64 19.5 (tensor cores), 2,039 GB/s.
    """
    rates = _rates(half=312, single=19.5, double=19.5)
    return _gpu(rates, 80, 2039e9, 8, more)


def h200(**more: Any) -> Device:
    """An NVIDIA H200 SXM of 141 GB, by data sheet.

    **Source** NVIDIA H200 Tensor Core GPU data sheet: bfloat16 and float16 1,979 Tflop/s with
    sparsity, half of it without; float32 67 (TF32 off), float64 67 (tensor cores), 4.8 TB/s.
    """
    rates = _rates(half=1979 / 2, single=67, double=67)
    return _gpu(rates, 141, 4.8e12, 9, more)


def b200(**more: Any) -> Device:
    """An NVIDIA B200 of 180 GB, one of the eight of an HGX board, by data sheet.

    **Source** NVIDIA Blackwell Architecture Technical Brief, HGX B200: bfloat16 and float16 4,500
    Tflop/s with sparsity, half of it without; float32 80 (TF32 off), float64 40, 8 TB/s. Memory:
    NVIDIA DGX B200 data sheet, 1,440 GB of eight.
    """
    rates = _rates(half=4500 / 2, single=80, double=40)
    return _gpu(rates, 180, 8e12, 10, more)


def l4(**more: Any) -> Device:
    """An NVIDIA L4 of 24 GB, by data sheet. Its power limit of 72 W makes it throttle early.

    **Source** NVIDIA L4 Tensor Core GPU data sheet: bfloat16 and float16 242 Tflop/s with sparsity,
    half of it without; float32 30.3 (TF32 off), 300 GB/s.
    """
    return _gpu(_rates(half=242 / 2, single=30.3), 24, 300e9, 8, more)


def rtx_4090(**more: Any) -> Device:
    """An NVIDIA GeForce RTX 4090 of 24 GB, by data sheet.

    **Source** NVIDIA Ada GPU Architecture white paper, appendix A: bfloat16 and float16, added up
    in float32, 165.2 Tflop/s; float32 82.6 (TF32 off), 1,008 GB/s.
    """
    return _gpu(_rates(half=165.2, single=82.6), 24, 1008e9, 8, more)


def laptop_cpu(**more: Any) -> Device:
    """The four cores of a laptop, an Intel Core i7-1165G7 with 16 GB, by data sheet.

    **Source** Intel product specifications, Core i7-1165G7: 4 cores at 2.8 GHz (no turbo),
    DDR4-3200 on 2 channels of 8 bytes, 51.2 GB/s. Each core multiplies and adds 16 numbers of
    float32 in a cycle, 8 of float64 (AVX-512, one unit). 16 GB and a ``launch_s`` of 2 us are
    *assumed*.
    """
    single = 4 * 2.8e9 * 2 * 16
    fields = {
        "rates": {"float32": single, "float64": single / 2},
        "memory_Bps": 51.2e9,
        "memory_bytes": 16 * _GB,
        "launch_s": 2e-6,
    }
    return Device(**(fields | more))


def _rates(half: float, single: float, double: float | None = None) -> dict[str, float]:
    """Operations per second by dtype, without the dtypes that the data sheet lacks."""
    teraflops = {"bfloat16": half, "float16": half, "float32": single, "float64": double}
    return {dtype: rate * _TERA for dtype, rate in teraflops.items() if rate is not None}


def _gpu(
    rates: dict[str, float],
    gigabytes: int,
    memory_Bps: float,
    generation: int,
    more: dict[str, Any],
) -> Device:
    fields = {
        "rates": rates,
        "memory_Bps": memory_Bps,
        "memory_bytes": gigabytes * _GB,
        "launch_s": _LAUNCH_S,
        "workspace_bytes": workspace_bytes_of(generation),
        "asynchronous": True,
    }
    return Device(**(fields | more))
