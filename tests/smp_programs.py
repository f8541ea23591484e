"""Programs of ranks as in `rank_programs`: MPICH's collectives in two levels.

Written from MPICH at commit 6a79bf6575c3: src/mpid/ch4/src/ch4_coll_impl.h for the levels,
maint/tuning/coll for what a level takes. A rank knows its node (``node_comm``) and, if it is the
first one there, the first ones of the others (``node_roots_comm``).
"""

from __future__ import annotations

import rank_programs
from rank_programs import Recv, Send, nodes_in_order


class Node:
    """What a rank knows of the nodes."""

    def __init__(self, r, node_of):
        nodes = nodes_in_order(node_of)
        self._all = nodes
        (self.mine,) = (ranks for ranks in nodes if r in ranks)
        self.firsts = [ranks[0] for ranks in nodes]
        self.is_first = self.mine[0] == r

    def place(self, rank):
        """``MPIR_Get_intranode_rank``: None where the other one lives elsewhere."""
        return self.mine.index(rank) if rank in self.mine else None

    def number(self, rank):
        """``MPIR_Get_internode_rank``."""
        return next(number for number, ranks in enumerate(self._all) if rank in ranks)


def taken(kind, n, m, itemsize):
    """What a level of n ranks takes."""
    power = 2 ** (n.bit_length() - 1)
    if kind == "barrier":
        return "dissemination"
    if kind == "broadcast":
        if n < 8 or m <= 12288:
            return "binomial"
        return "scatter_doubling" if n == power and m <= 524288 else "scatter_all_gather"
    limit, short = {"reduce": (2048, "binomial"), "all_reduce": (8, "recursive_doubling")}[kind]
    return short if m <= limit or m // itemsize < power else "rabenseifner"


def level(kind, r, ranks, m, itemsize, root=0):
    """One level: r's program among some ranks, of which the root is at a place."""
    if len(ranks) == 1:
        return []
    program = rank_programs.written()[f"{kind}_{taken(kind, len(ranks), m, itemsize)}"]
    steps = program(ranks.index(r), len(ranks), m=m, itemsize=itemsize, root=root)
    return [[post._replace(peer=ranks[post.peer]) for post in step] for step in steps]


def broadcast_smp(r, n, m, root, itemsize, node_of, **_):
    node, steps = Node(r, node_of), []
    if node.place(root):  # not None, not 0
        steps += [[Send(node.mine[0], m)]] if r == root else []
        steps += [[Recv(root, m)]] if node.is_first else []
    if node.is_first:
        steps += level("broadcast", r, node.firsts, m, itemsize, node.number(root))
    return steps + level("broadcast", r, node.mine, m, itemsize)


def broadcast_smp_from_root(r, n, m, root, itemsize, node_of, **_):
    node, steps = Node(r, node_of), []
    if node.place(root):
        steps += level("broadcast", r, node.mine, m, itemsize, node.place(root))
    if node.is_first:
        steps += level("broadcast", r, node.firsts, m, itemsize, node.number(root))
    if not node.place(root):
        steps += level("broadcast", r, node.mine, m, itemsize)
    return steps


def reduce_smp(r, n, m, root, itemsize, node_of, **_):
    node, steps = Node(r, node_of), []
    if node.place(root) is None:
        steps += level("reduce", r, node.mine, m, itemsize)
    if node.is_first:
        steps += level("reduce", r, node.firsts, m, itemsize, node.number(root))
    if node.place(root) is not None:
        steps += level("reduce", r, node.mine, m, itemsize, node.place(root))
    return steps


def reduce_smp_by_first(r, n, m, root, itemsize, node_of, **_):
    node = Node(r, node_of)
    steps = level("reduce", r, node.mine, m, itemsize)
    if node.is_first:
        steps += level("reduce", r, node.firsts, m, itemsize)
    if root != 0:
        steps += [[Send(root, m)]] if r == 0 else []
        steps += [[Recv(0, m)]] if r == root else []
    return steps


def all_reduce_smp(r, n, m, itemsize, node_of, **_):
    node = Node(r, node_of)
    steps = level("reduce", r, node.mine, m, itemsize)
    if node.is_first:
        steps += level("all_reduce", r, node.firsts, m, itemsize)
    return steps + level("broadcast", r, node.mine, m, itemsize)


def barrier_smp(r, n, node_of, **_):
    node = Node(r, node_of)
    steps = level("barrier", r, node.mine, 0, 1)
    if node.is_first:
        steps += level("barrier", r, node.firsts, 0, 1)
    return steps + level("broadcast", r, node.mine, 0, 1)
