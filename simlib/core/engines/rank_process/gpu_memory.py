"""The peaks of a GPU's memory while a rank is in its function, from torch's allocator.

This module does not start CUDA: a rank that has not used a GPU has no peaks.
"""

from __future__ import annotations

import torch

from ...record.oplog import OpLogWriter

PEAKS = "allocated_bytes.all.peak", "reserved_bytes.all.peak"


def reset_peaks() -> None:
    """Count peaks from here on."""
    for device in _devices():
        torch.cuda.reset_peak_memory_stats(device)


def tell_peaks(log: OpLogWriter) -> None:
    """Write the rank's peaks on each GPU that it used into its log."""
    for device in _devices():
        try:
            stats = torch.cuda.memory_stats(device)
        except RuntimeError:  # a GPU that has failed; the rank tells of it by itself
            continue
        allocated, reserved = (stats.get(name, 0) for name in PEAKS)
        if reserved:
            log.tell_gpu_memory(device, allocated, reserved)


def has_used_a_gpu() -> bool:
    """Whether the rank has had memory of a GPU since `reset_peaks`."""
    return any(torch.cuda.max_memory_reserved(device) for device in _devices())


def _devices():
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
