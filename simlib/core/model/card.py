"""What single operations take on one sort of device, as measured, and between the measurements.

A roofline at the rate of a large product says that every shape is computed equally well. So a card
says for each shape how much longer than its roofline an operation takes. Between measured shapes
this slowdown is a mean over the nearest ones, in logarithms: of sizes, as a shape of twice the size
is one step away whatever its size, and of slowdowns, as they multiply times. Waves of tiles are not
in the model: with them, shapes left out of the table of an H100 were met worse.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

VERSION = 1
_NEAREST = 3
_SAME_PLACE = 0.25  # doublings; nearer than this, shapes count as equally near
_OTHER_LAYOUT = 0.5  # doublings that another layout counts for
_LIKE = {"float16": "bfloat16", "bfloat16": "float16"}  # where one of them was not measured
_BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured operation.

    Parameters
    ----------
    sort : str
        ``"product"``, ``"attention"``, ``"attention_backward"``, or the name of an op of torch,
        such as ``"native_layer_norm"``.
    dtype : str
    layout : str
        Of a product's factors, each ``n`` as it is or ``t`` transposed: ``"nt"``. Else empty.
    sizes : tuple of int
        Of a product m, n and k; of attention the heads (times batch), the length of the sequence
        and the width of a head, where it is causal; of any other op the bytes that it reads and
        writes.
    seconds : float
    """

    sort: str
    dtype: str
    layout: str
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Card:
    """Measured operations of one sort of device.

    The file is JSON: ``version`` (1), and the fields below; each row is a list ``[sort, dtype,
    layout, sizes, seconds]``.

    Parameters
    ----------
    name : str
    rates : dict of str to float
        Floating-point operations per second by dtype, of the largest square product.
    memory_Bps : float
    memory_bytes : int
    launch_s : float
        Seconds of the host to begin one operation of a forward pass.
    workspace_bytes : int
    asynchronous : bool
    rows : tuple of Row
    """

    name: str
    rates: Mapping[str, float]
    memory_Bps: float
    memory_bytes: int
    launch_s: float
    workspace_bytes: int
    asynchronous: bool
    rows: tuple[Row, ...] = field(repr=False)

    @classmethod
    def read(cls, path: str | Path) -> Card:
        """The card that a file describes."""
        return cls.of(Path(path).read_text(), str(path))

    @classmethod
    def of_package(cls, name: str) -> Card:
        """A card that simlib has."""
        return cls.of((resources.files(__package__) / f"{name}.json").read_text(), name)

    @classmethod
    def of(cls, text: str, where: str) -> Card:
        """The card that JSON describes; ``where`` names its place in the `ValueError` else."""
        try:
            stored = json.loads(text)
            version = stored.pop("version")
            if version != VERSION:
                raise ValueError(f"its version is {version}, and this simlib reads {VERSION}")
            rows = stored.pop("rows")
            made = [Row(s, d, at, tuple(sizes), took) for s, d, at, sizes, took in rows]
            return cls(**stored, rows=tuple(made))
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            why = f"it has no {wrong}" if isinstance(wrong, KeyError) else wrong
            raise ValueError(f"{where} is no card of a device: {why}") from None

    def slowdown(self, sort: str, dtype: str, layout: str, sizes: tuple[int, ...]) -> float:
        """How many times longer than its roofline an operation takes; 1 where nothing is known."""
        alike = sort, _LIKE.get(dtype, dtype)
        measured = self._measured.get((sort, dtype)) or self._measured.get(alike)
        if measured is None:
            return 1.0
        far = sorted((_distance(row, layout, sizes), slow) for row, slow in measured)[:_NEAREST]
        weights = [(distance + _SAME_PLACE) ** -2 for distance, _ in far]
        logs = sum(w * math.log(slow) for w, (_, slow) in zip(weights, far, strict=True))
        return math.exp(logs / sum(weights))

    @functools.cached_property
    def _measured(self) -> dict[tuple[str, str], list[tuple[Row, float]]]:
        found: dict[tuple[str, str], list[tuple[Row, float]]] = {}
        for row in self.rows:
            slow = row.seconds / self.roofline_s(row)
            found.setdefault((row.sort, row.dtype), []).append((row, slow))
        return found

    def roofline_s(self, row: Row) -> float:
        """What a row would take at the card's rate of large products, or by its bytes."""
        if row.sort == "product":
            m, n, k = row.sizes
            nbytes = _BYTES_OF[row.dtype] * (m * k + k * n + m * n)
            return max(2 * m * n * k / self.rates[row.dtype], nbytes / self.memory_Bps)
        if row.sort.startswith("attention"):
            heads, length, width = row.sizes
            flops = 2 * heads * length**2 * width * (2.5 if "backward" in row.sort else 1)
            return flops / self.rates[row.dtype]
        return row.sizes[0] / self.memory_Bps


def _distance(row: Row, layout: str, sizes: tuple[int, ...]) -> float:
    """How many doublings lie between a row and another shape."""
    steps = (math.log2(max(one, 1) / other) for one, other in zip(sizes, row.sizes, strict=True))
    return math.hypot(*steps) + _OTHER_LAYOUT * (row.layout != layout)
