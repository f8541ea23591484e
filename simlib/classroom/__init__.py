"""Exercises of a class: checks of answers, grading in a sandbox, how graded ranks are confined."""

from __future__ import annotations

from typing import Any

PUBLIC = {"guess": "checks.verdict"}
"""What this package adds to the names of `simlib`, and the modules that have it."""


def register() -> None:
    """Nothing: the environment of a grading run names what confines its ranks."""


def add_commands(commands: Any) -> None:
    """Add this package's commands to the command line's parsers."""
    from . import grading

    grading.add_commands(commands)
