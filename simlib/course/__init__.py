"""What the lessons use: labs, which are sliders over a picture, and data to train on."""

from __future__ import annotations

from typing import Any

PUBLIC = {"digits": "datasets.digits", "letters": "datasets.letters"}
"""What this package adds to the names of `simlib`, and the modules that have it."""


def register() -> None:
    """Nothing: lessons use what the others have."""


def add_commands(commands: Any) -> None:
    """Nothing: the course has no commands."""
