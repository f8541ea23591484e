"""The parts of a question's points, for checks and for grading. Pure Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

NO_RESULT = "gave no result"
"""The output for a rank without an answer: the run was cut short, or the rank has died."""

VALUE, TRAFFIC, TIME, MEMORY = PARTS = ("value", "traffic", "time", "memory")
"""The part for the value. Without it no other part is earned."""


def parts_of(points: Any) -> dict[str, int]:
    """``{part: points}`` from a question's points. A single number is for the value."""
    return dict(points) if isinstance(points, dict) else {VALUE: points}


def complaint_about(points: object) -> str | None:
    """A sentence if points are neither a whole number nor parts with one each, else None."""
    if is_whole(points):
        return None
    if not isinstance(points, dict) or VALUE not in points or not set(points) <= set(PARTS):
        return f"points={points!r}: give a whole number, or points for {', '.join(PARTS)}"
    wrong = [part for part, each in points.items() if not is_whole(each)]
    return f"points={points!r}: {wrong[0]} needs a whole number above 0" if wrong else None


def is_whole(number: object) -> bool:
    """Whether a value is a whole number above 0."""
    return type(number) is int and number > 0


def in_words(parts: Mapping[str, int], lost: Collection[str]) -> str:
    """The earned parts, as a line: ``"By part: value 2 of 2, traffic 0 of 1."``."""
    each = [f"{part} {0 if part in lost else of} of {of}" for part, of in parts.items()]
    return f"By part: {', '.join(each)}."
