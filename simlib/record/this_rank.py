"""`compute`: time that a rank spends on its own, in every engine."""

from __future__ import annotations

import numbers
import threading
import time

from ..model.errors import InvalidCallError

here = threading.local()
"""What belongs to the simulated rank of this thread, see `simlib.engines.virtual.per_rank`."""


def compute(seconds):
    """Let the calling rank be busy for so long: it sleeps, or its virtual clock goes on.

    Parameters
    ----------
    seconds : float
        In a simulation with ``slow={rank: factor}``, that many times longer on this rank.

    Raises
    ------
    InvalidCallError
        Where ``seconds`` is no number, or negative.
    """
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):
        raise InvalidCallError(f"compute(seconds={seconds!r}): give a number of seconds, 0 or more")
    getattr(here, "advance", time.sleep)(seconds)
