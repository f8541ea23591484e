"""The memory that one rank used: by category for a simulated rank, or by GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .words import aligned

Held = Mapping[tuple[str, Any], int]
"""Bytes, by category and dtype."""
PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
OTHER = "activations and temporaries"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, OTHER)


@dataclass(frozen=True)
class Ledger:
    """Bytes of the tensors of one rank, as ``{category: bytes}``.

    The categories are ``parameters`` (every `nn.Parameter`), ``gradients`` (the ``.grad`` of a
    parameter), ``optimizer state`` (the tensors in ``.state`` of a `torch.optim.Optimizer`) and
    ``activations and temporaries`` (every other tensor, and the workspaces of matrix products). On
    an asynchronous device, simlib counts the bytes that torch's caching allocator would allocate.
    The allocator rounds each tensor up to a multiple of 512 bytes.

    Attributes
    ----------
    rank : int
    current : dict of str to int
        The present bytes. After the run, these are the bytes at its end.
    peak : dict of str to int
        The bytes at the moment when their sum was largest.
    peak_s : float
        The moment of the peak, in virtual seconds.
    history : list of (float, dict of str to int)
        Times in virtual seconds and the bytes at each time, in order. The list includes the peak.
        For a long run, it contains only some hundred points.
    by_dtype : dict of str to Ledger
        A ledger for the tensors of each dtype, ``{"float32": Ledger, ...}``, at the same moments.
        For example, use ``ledger.by_dtype["float32"].peak["optimizer state"]``. The ledgers of all
        dtypes add up to this ledger.
    reserved_bytes : int, optional
        The most bytes that the allocator had reserved on the device at any time, as in `GpuMemory`.
        None if the device is not asynchronous.
    reserved_at_peak_bytes : int, optional
        The bytes that the allocator had reserved at the peak.
    """

    rank: int
    current: dict
    peak: dict
    peak_s: float
    history: list
    by_dtype: dict = field(default_factory=dict)
    reserved_bytes: int | None = None
    reserved_at_peak_bytes: int | None = None

    @property
    def current_bytes(self) -> int:
        """Bytes of all categories now."""
        return sum(self.current.values())

    @property
    def peak_bytes(self) -> int:
        """Bytes of all categories at the peak."""
        return sum(self.peak.values())

    def __repr__(self):
        rows = [(f"rank {self.rank}, bytes held", "at the peak", "now")]
        for name in CATEGORIES:
            rows.append((name, f"{self.peak[name]:,}", f"{self.current[name]:,}"))
            rows += self._rows_by_dtype(name)
        rows += [("total", f"{self.peak_bytes:,}", f"{self.current_bytes:,}")]
        lines = aligned(rows, left=(0,))
        if self.reserved_bytes is not None:
            at_peak, most = self.reserved_at_peak_bytes, self.reserved_bytes
            lines.append(f"reserved by the allocator: {at_peak:,} at the peak, {most:,} at most")
        return "\n".join(lines)

    def _rows_by_dtype(self, category):
        """The bytes of each dtype, if the rank used more than one floating-point dtype."""
        if sum("float" in dtype for dtype in self.by_dtype) < 2:
            return []
        held = [
            (f"  {dtype}", part.peak[category], part.current[category])
            for dtype, part in self.by_dtype.items()
        ]
        return [(name, f"{peak:,}", f"{now:,}") for name, peak, now in held if peak or now]


@dataclass(frozen=True)
class GpuMemory:
    """The most bytes that one real rank needed on its GPUs, as torch's allocator counted them.

    To compare it with the `Ledger` of the same program in a simulation, use `peak_bytes`. If the
    simulated device is ``asynchronous``, compare `reserved_bytes` as well. The allocator rounds
    each tensor up to 512 bytes, and counts the memory that kernels need while they run. Neither
    number includes the memory of CUDA itself and of NCCL.

    Attributes
    ----------
    rank : int
    allocated : dict of str to int
        ``{"cuda:0": bytes}``: for each device, the most bytes that tensors used at any time.
    reserved : dict of str to int
        For each device, the most bytes that the allocator had reserved at any time.
    """

    rank: int
    allocated: dict
    reserved: dict

    @property
    def peak_bytes(self) -> int:
        """The bytes allocated at the peak of each device, added up."""
        return sum(self.allocated.values())

    @property
    def reserved_bytes(self) -> int:
        """The bytes reserved at the peak of each device, added up."""
        return sum(self.reserved.values())

    def __repr__(self):
        rows = [(f"rank {self.rank}, bytes at the peak", "allocated", "reserved")]
        for device, nbytes in self.allocated.items():
            rows.append((device, f"{nbytes:,}", f"{self.reserved[device]:,}"))
        return "\n".join(aligned(rows, left=(0,)))


def make_ledger(
    rank: int,
    current: Held,
    peak: Held,
    peak_s: float,
    history: Iterable[tuple[float, Held]],
    dtype: Any = None,
) -> Ledger:
    """A `Ledger` of one dtype, or of all dtypes, from ``{(category, dtype): bytes}``.

    The dtypes are torch's. ``history`` contains every dtype that the rank ever used.
    """
    points = [(time_s, by_category(held, dtype)) for time_s, held in history]
    parts = {}
    if dtype is None:
        found = {one for _, held in history for _, one in held}
        names = sorted((str(one).removeprefix("torch."), one) for one in found)
        parts = {
            name: make_ledger(rank, current, peak, peak_s, history, one) for name, one in names
        }
    return Ledger(
        rank, by_category(current, dtype), by_category(peak, dtype), peak_s, points, parts
    )


def by_category(held: Held, dtype: Any = None) -> dict[str, int]:
    """``{category: bytes}`` from ``{(category, dtype): bytes}``, for one dtype or for all."""
    found = dict.fromkeys(CATEGORIES, 0)
    for (category, one), nbytes in held.items():
        if dtype is None or one == dtype:
            found[category] += nbytes
    return found


def in_words(held: Mapping[str, int]) -> str:
    """``{category: bytes}`` as one phrase."""
    return ", ".join(f"{name} {held[name]:,} bytes" for name in CATEGORIES)
