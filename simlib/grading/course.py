"""Where the course's own material lies in its repository."""

from __future__ import annotations

from ..model.package import ROOT

EXERCISES = ROOT / "authoring" / "exercises"
"""Their sources, with solutions and hidden cells."""
WRONG_ANSWERS = ROOT / "authoring" / "wrong_answers"
"""Known wrong answers, a module for each exercise."""
