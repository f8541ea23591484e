"""Who shares a node with whom."""

from __future__ import annotations

import numpy as np

from ..model.errors import InvalidCallError


def by_node(n, nodes):
    """Positions of each node, as arrays, nodes in order of their first position."""
    if nodes is None or len(nodes) != n:
        raise InvalidCallError(f"give nodes=, the node of each of the {n} positions")
    order = np.argsort(nodes, kind="stable")
    begin = np.flatnonzero(np.diff(np.asarray(nodes)[order]) != 0) + 1
    return sorted(np.split(order, begin), key=lambda positions: positions[0])
