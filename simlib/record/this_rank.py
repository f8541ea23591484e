"""What the calling rank does and has: `compute`, time spent on its own; `held`, its memory."""

from __future__ import annotations

import numbers
import threading
import time

from ..model.errors import InvalidCallError

here = threading.local()
"""What belongs to the simulated rank of this thread, see `simlib.engines.virtual.per_rank`."""


def compute(seconds: float) -> None:
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


def held() -> dict[str, int]:
    """Bytes that the calling rank holds now, as ``{category: bytes}``.

    The categories are those of a `Ledger` (`run.memory`): parameters, gradients, optimizer state,
    activations and temporaries. Asking takes no virtual time and allocates nothing.

    Returns
    -------
    dict of str to int

    Raises
    ------
    InvalidCallError
        Where nobody counts: outside of `simulate`, or on a cluster without a device.
    """
    meter = getattr(here, "meter", None)
    if meter is None:
        raise InvalidCallError(
            "simlib.held() is for ranks of simlib.simulate on a cluster with a device: give it "
            "cluster=Cluster(..., device=Device(...)), or memory=True"
        )
    return meter.ledger().current
