"""`held`: what the calling rank holds in memory at this moment of a simulation."""

from __future__ import annotations

from ..model.errors import InvalidCallError
from .this_rank import here


def held():
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
