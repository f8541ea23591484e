"""Whether the ranks are trusted: those of a grading run are not."""

from __future__ import annotations

import os

VARIABLE = "SIMLIB_CONFINEMENT"
"""Set where the ranks are not to be trusted: the module that confines them, see
`core.engines.confinement`."""


def are_ranks_trusted() -> bool:
    """Whether what ranks send may be read as it is, and shown."""
    return VARIABLE not in os.environ
