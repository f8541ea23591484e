"""Numbers as plain text."""

from __future__ import annotations

from .words import number


def seconds_text(time_s):
    """Seconds as a short text: ``"1.5 s"``, ``"12 ms"``, ``"3.2 us"``."""
    if not time_s:
        return "0 s"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    scale, unit = next(((s, u) for s, u in units if abs(time_s) >= s), (1e-6, "us"))
    return f"{number(time_s / scale)} {unit}"


def aligned(rows):
    """Rows of cells as lines with straight columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
