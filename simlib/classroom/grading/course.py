"""Where the course's own material lies in its repository."""

from __future__ import annotations

from pathlib import Path

from ...core.environment import ROOT

SOURCES = Path("authoring") / "exercises"
"""Within the repository: the sources of exercises, with solutions and hidden cells."""
EXERCISES = ROOT / SOURCES
WRONG_ANSWERS = ROOT / "authoring" / "wrong_answers"
"""Known wrong answers, a module for each question."""
