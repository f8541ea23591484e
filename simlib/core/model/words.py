"""Numbers, ranks and collectives as short texts, for pictures, tables and sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any


def short_bytes(nbytes: float) -> str:
    """Bytes as a short text: ``"4 B"``, ``"1.2 kB"``, ``"10 MB"`` (1 kB = 1,000 B)."""
    unit, scale = bytes_unit(nbytes)
    return f"{number(nbytes / scale)} {unit}"


def bytes_unit(nbytes: float) -> tuple[str, float]:
    """The unit for a number of bytes, and how many bytes the unit has."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, scale) for unit, scale in units if nbytes >= scale), ("B", 1))


def number(value: float) -> str:
    """A number as text, with three significant digits, or all digits of a larger number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def seconds_text(time_s: float | None) -> str:
    """Seconds as a short text: ``"1.5 s"``, ``"12 ms"``, ``"3.2 us"``."""
    if not time_s:
        return "0 s"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    scale, unit = next(((s, u) for s, u in units if abs(time_s) >= s), (1e-6, "us"))
    return f"{number(time_s / scale)} {unit}"


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Rows of cells as lines with straight columns. Columns are right-aligned, except in
    ``left``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(range(len(row)), row, widths, strict=True)
        lines.append("  ".join(c.ljust(w) if at in left else c.rjust(w) for at, c, w in cells))
    return [line.rstrip() for line in lines] if left else lines


def ranks_text(run: Any) -> str:
    """The number of ranks and the kind of engine: ``"4 real ranks"``."""
    return f"{run.world_size:,} {run.engine} rank{'s' * (run.world_size != 1)}"


MAX_LINES = 12
"""A text with a line for each rank shows at most this many lines."""
MAX_NAMES = 16
"""A text names at most this many ranks one by one."""


def shortened(lines: list[str], ranks: Sequence[int] = ()) -> list[str]:
    """The first of many lines, and a line that says how many more ranks there are."""
    if len(lines) <= MAX_LINES:
        return lines
    shown = MAX_LINES - 2
    left = sum(ranks[shown:]) if ranks else len(lines) - shown
    return [*lines[:shown], f"  ... and {left:,} more ranks"]


def ranks_in_words(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0 and 2``, ``ranks 0 to 5``, ``ranks 0, 2, 4, ... (512 ranks)``."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > MAX_NAMES:
        names = ", ".join(map(str, ranks[: MAX_NAMES // 2]))
        return f"ranks {names}, ... ({len(ranks):,} ranks)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
