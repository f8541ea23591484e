"""Whether the ranks are trusted: those of a grading run are not."""

from __future__ import annotations

VARIABLE = "SIMLIB_GRADING"
"""Set in the environment of a kernel that must not trust its ranks."""

SCRATCH = "/scratch"
"""Where such a kernel keeps its files in the sandbox: a student's that fill /tmp are not in it."""
