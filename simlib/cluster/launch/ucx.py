"""A setting for UCX, through which MPICH sends: how long messages go over Ethernet."""

from __future__ import annotations

import os
from pathlib import Path

SCHEME = "UCX_RNDV_SCHEME"
DEVICES = Path("/sys/class/infiniband")


def settings():
    """Variables that MPI_Init should find, beside those that are set already: a dict.

    UCX sends long messages as if network cards could move them from memory to memory (RDMA). TCP
    cannot, and hosts that exchange large tensors then send in turns: an all_reduce of 10 MB takes
    up to 1.7 times as long (docs/design/cluster.md). Where there is such a card, UCX knows
    best.
    """
    has_card = DEVICES.is_dir() and any(DEVICES.iterdir())
    return {} if has_card or SCHEME in os.environ else {SCHEME: "am"}
