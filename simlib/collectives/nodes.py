"""Who shares a node with whom."""

from __future__ import annotations

import numpy as np

from ..model.errors import InvalidCallError


def by_node(n, nodes):
    """Positions of each node, as arrays, nodes in order of their first position."""
    if nodes is None or len(nodes) != n:
        raise InvalidCallError(f"give nodes=, the node of each of the {n} positions")
    members = {}
    for position, node in enumerate(nodes):
        members.setdefault(int(node), []).append(position)
    return [np.array(positions) for positions in members.values()]
