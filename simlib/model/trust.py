"""Whether the ranks are trusted: those of a grading run are not."""

from __future__ import annotations

VARIABLE = "SIMLIB_GRADING"
"""Set in the environment of a kernel that must not trust its ranks."""

OWN_SANDBOX = "SIMLIB_OWN_SANDBOX"
"""Set where each process of a student's makes a sandbox of its own, within that of the run."""

SCRATCH = "/scratch"
"""Where such a kernel keeps its files in the sandbox: a student's that fill /tmp are not in it."""

NO_RESULT = "gave no result"
"""Of a rank that did not answer: a run that was cut short, or a death that nobody planned."""
