"""How long single operations take on one kind of device: measured times, and estimates.

A roofline at the rate of a large product assumes that a device computes every shape equally well.
Real devices do not. So a card contains measured times, and says for each shape how many times
longer than its roofline an operation takes. For a shape between the measured ones, this slowdown is
a mean over the nearest measured shapes. The model uses the logarithms of sizes and slowdowns, so a
doubling of any size counts as one step. The model leaves out waves of tiles. A test with shapes
that were not in the table of an H100 gave worse predictions with waves of tiles.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

VERSION = 1
_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "rates": (dict,),
    "memory_Bps": (int, float),
    "memory_bytes": (int,),
    "launch_s": (int, float),
    "workspace_bytes": (int,),
    "asynchronous": (bool,),
}
"""The fields of a card in addition to its rows, and their types."""
_WITH_SHAPES = "product", "attention", "attention_backward"
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
        For a product, one letter for each factor, such as ``"nt"``: ``n`` if the factor is used as
        it is, ``t`` if it is transposed. Empty for other ops.
    sizes : tuple of int
        For a product: m, n and k. For causal attention: the heads (times batch), the length of the
        sequence and the width of a head. For any other op: the bytes that it reads and writes.
    seconds : float
    """

    sort: str
    dtype: str
    layout: str
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Card:
    """Measured operations of one kind of device.

    The file is JSON. It contains ``version`` (1) and the fields below. Each row is a list ``[sort,
    dtype, layout, sizes, seconds]``.

    Parameters
    ----------
    name : str
    rates : dict of str to float
        Floating-point operations per second by dtype, measured with the largest square product.
    memory_Bps : float
    memory_bytes : int
    launch_s : float
        Seconds that the host needs to launch one operation of a forward pass.
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
        return cls.of(Path(path).read_bytes(), str(path))

    @classmethod
    def of_package(cls, name: str) -> Card:
        """A card that is part of simlib, by its name."""
        return cls.of((resources.files(__package__) / f"{name}.json").read_text(), name)

    @classmethod
    def of(cls, text: str | bytes, where: str) -> Card:
        """The card that JSON describes.

        Raises
        ------
        ValueError
            The JSON describes no card. The message begins with ``where``.
        """
        try:
            stored = json.loads(text)
            if not isinstance(stored, dict):
                raise ValueError("the file is not a JSON object")
            _check_fields(stored)
            rows = [_row(at, row, stored["rates"]) for at, row in enumerate(stored["rows"])]
        except (ValueError, RecursionError) as wrong:
            raise ValueError(f"{where} is not a device card: {wrong}") from None
        return cls(**{name: stored[name] for name in _FIELDS} | {"rows": tuple(rows)})

    def text(self) -> str:
        """The JSON that describes the card, with one row on each line."""
        fields = {"version": VERSION} | {name: getattr(self, name) for name in _FIELDS}
        head = json.dumps(fields | {"rows": []}, indent=1).removesuffix("[]\n}")
        rows = (json.dumps([r.sort, r.dtype, r.layout, r.sizes, r.seconds]) for r in self.rows)
        return head + "[\n  " + ",\n  ".join(rows) + "\n ]\n}\n"

    def slowdown(self, sort: str, dtype: str, layout: str, sizes: tuple[int, ...]) -> float:
        """Return how many times longer than its roofline an operation takes. Without rows it is 1.

        If an operation only moves bytes and the card has no rows for it, simlib uses the rows of
        addition.
        """
        sorts = (sort, "add") if len(sizes) == 1 else (sort,)
        tried = ((one, like) for one in sorts for like in (dtype, _LIKE.get(dtype, dtype)))
        measured = next((found for one in tried if (found := self._measured.get(one))), None)
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
        """Seconds that the operation of a row would take at the card's full rate or bandwidth."""
        if row.sort == "product":
            m, n, k = row.sizes
            nbytes = _BYTES_OF[row.dtype] * (m * k + k * n + m * n)
            return max(2 * m * n * k / self.rates[row.dtype], nbytes / self.memory_Bps)
        if row.sort.startswith("attention"):
            heads, length, width = row.sizes
            flops = 2 * heads * length**2 * width * (2.5 if "backward" in row.sort else 1)
            return flops / self.rates[row.dtype]
        return row.sizes[0] / self.memory_Bps


def _check_fields(stored: dict) -> None:
    version = stored.get("version")
    if version != VERSION:
        raise ValueError(f"the file's version is {version!r}, but this simlib reads {VERSION}")
    for name, kinds in {**_FIELDS, "rows": (list,)}.items():
        if name not in stored:
            raise ValueError(f"the file has no {name!r}")
        value = stored[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"the file's {name} is {_short(value)}, which has the wrong type")
    if not all(_is_positive(rate) for rate in stored["rates"].values()):
        raise ValueError(f"the file's rates are {_short(stored['rates'])}: give numbers above 0")
    if not _is_positive(stored["memory_Bps"]):
        raise ValueError(f"memory_Bps is {_short(stored['memory_Bps'])}: give a number above 0")
    if not stored["rows"]:
        raise ValueError("the file has no rows")


def _row(at: int, row: Any, rates: Mapping[str, float]) -> Row:
    """Check the row at a place, and return it as a `Row`."""
    good = isinstance(row, list) and len(row) == 5 and [type(one) for one in row[:3]] == [str] * 3
    if good:
        sort, dtype, layout, sizes, seconds = row
        has_shape = sort in _WITH_SHAPES
        good = isinstance(sizes, list) and len(sizes) == (3 if has_shape else 1)
        good = good and all(type(size) is int and size > 0 for size in sizes)
        good = good and _is_positive(seconds)
        if good and has_shape and not (dtype in rates and dtype in _BYTES_OF):
            raise ValueError(f"row {at} computes in {_short(dtype)}, but rates has no such dtype")
    if not good:
        raise ValueError(
            f"row {at} is {_short(row)}, but a row must be [sort, dtype, layout, sizes, seconds]"
        )
    return Row(sort, dtype, layout, tuple(sizes), seconds)


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _distance(row: Row, layout: str, sizes: tuple[int, ...]) -> float:
    """By how many doublings a row's shape differs from another shape."""
    steps = (math.log2(max(one, 1) / other) for one, other in zip(sizes, row.sizes, strict=True))
    return math.hypot(*steps) + _OTHER_LAYOUT * (row.layout != layout)
