"""The algorithms that MPICH chooses. It depends on the size and on the ranks that share a node.

**Source** MPICH at commit 6a79bf6575c3. maint/tuning/coll/ch4/generic.json says which composition a
collective uses (two levels or one level). src/mpid/ch4/src/ch4_coll_impl.h defines each
composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from . import all_reduce, broadcast, reduce
from .schedules import Schedule, split
from .steps import Moves, by_node, side_by_side

BROADCAST_SHORT, BROADCAST_LONG, BROADCAST_MIN_RANKS = 12288, 524288, 8
REDUCE_SHORT = 2048


def choose(
    kind: str, n: int, nbytes: int, itemsize: int = 1, nodes: Sequence[int] | None = None
) -> str:
    """The name of the algorithm: two levels if several ranks share a node, else `one_level`.

    A broadcast of a long vector uses one level. scatter, gather, all_gather, reduce_scatter and
    all_to_all use one level for all sizes.

    Parameters
    ----------
    nodes : sequence of int, shape (n,), optional
        Node of each position; by default each position has its own node.

    **Source** maint/tuning/coll/ch4/generic.json. If each rank is alone in its node, MPICH makes no
    communicators of nodes (src/mpi/comm/commutil.c, MPIR_Comm_commit). If all ranks are in one
    node, an all_reduce uses one level, but a broadcast still goes through the node's first rank.
    """
    count = n if nodes is None else len(np.unique(nodes))
    name = _two_level(kind, n, nbytes, count) if count < n else None
    return one_level(kind, n, nbytes, itemsize) if name is None else name


def _two_level(kind, n, nbytes, count):
    """The composition for ranks that share nodes. None if it has one level."""
    if kind == "broadcast":
        if n < BROADCAST_MIN_RANKS or nbytes < BROADCAST_SHORT:
            return "smp"
        return "smp_from_root" if nbytes < BROADCAST_LONG and n & (n - 1) == 0 else None
    if kind == "all_reduce":
        return "smp" if count > 1 else None
    if kind == "reduce":
        return "smp" if nbytes <= REDUCE_SHORT else "smp_by_first"
    return "smp" if kind == "barrier" else None


def one_level(kind: str, n: int, nbytes: int, itemsize: int = 1) -> str:
    """MPICH's choice by size, if each node has one rank.

    If a vector has fewer elements than the largest power of two up to the number of ranks, MPICH
    reduces the whole vector and does not cut it.
    For an all_reduce, MPICH ignores ``MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE`` (2 KiB), because its
    table contains 8 bytes. MPICH uses Bruck's all_to_all from 9 ranks on. Its table says from 8
    ranks on, but its code compares with "<=" instead of "<".

    **Source** maint/tuning/coll/mpir/generic.json, and MPIR_Csel_search in
    src/mpi/coll/src/csel.c. The rules are the same in MPICH 3.4 to 5.0.
    """
    is_power = n & (n - 1) == 0
    is_uncut = nbytes // itemsize < 1 << (n.bit_length() - 1)
    if kind == "broadcast":
        if nbytes <= BROADCAST_SHORT or n < BROADCAST_MIN_RANKS:
            return "binomial"
        is_middle = nbytes <= BROADCAST_LONG and is_power
        return "scatter_doubling" if is_middle else "scatter_all_gather"
    if kind == "all_reduce":
        return "recursive_doubling" if nbytes <= 8 or is_uncut else "rabenseifner"
    if kind == "reduce":
        return "binomial" if nbytes <= REDUCE_SHORT or is_uncut else "rabenseifner"
    if kind == "all_gather":
        if nbytes < 81920 and not is_power:
            return "bruck"
        return "recursive_doubling" if nbytes < 524288 and is_power else "ring"
    if kind == "reduce_scatter":
        return "recursive_halving" if nbytes < 524288 else "pairwise"
    if kind == "all_to_all":
        if nbytes <= 256 * n and n > 8:
            return "bruck"
        return "spread" if nbytes <= 32768 * n else "pairwise"
    return "dissemination" if kind == "barrier" else "binomial"  # scatter, gather


# -- In two levels: in the nodes, and among the first ranks of the nodes ---------------------------
#
# Each level is a collective of its own, for which `one_level` chooses by size. A rank continues
# with the next level as soon as it has done its part. It does not wait for other nodes.
#
# **Source** MPICH at commit 6a79bf6575c3, src/mpid/ch4/src/ch4_coll_impl.h (the compositions alpha
# and beta of broadcast and reduce, alpha of all_reduce and barrier); most of them are also in
# src/mpi/coll/*/*_intra_smp.c. One difference: in a node MPICH copies through memory that all ranks
# share, if it can (its release_gather). Here a node's ranks always send messages.

MODULES = {"all_reduce": all_reduce, "broadcast": broadcast, "reduce": reduce}


class _Levels:
    """A collective that is composed of other collectives, level after level.

    Parameters
    ----------
    kind, name : str
    vector : tuple of int
        Bytes of the vector, and bytes of an element.
    nodes : sequence of int, shape (n,)
    root : int or None
    """

    def __init__(self, kind, name, n, vector, nodes, root=None):
        self._kind, self._name, self._n, self._root = kind, name, n, root
        self._nbytes, self._itemsize = vector
        self._members = by_node(n, nodes)
        self._parts = []  # of each level: collectives side by side, and who is in them
        self.firsts = np.array([ranks[0] for ranks in self._members])
        #: Place among the nodes, and in its node, of the root's.
        self.node, self.place = next(
            (node, ranks.tolist().index(root or 0))
            for node, ranks in enumerate(self._members)
            if (root or 0) in ranks
        )

    def in_nodes(self, kind, nodes, root=0):
        """The collective in each of some nodes, grouped by size; ``root`` is a place in a node."""
        by_size = {}
        for node in nodes:
            by_size.setdefault(len(self._members[node]), []).append(self._members[node])
        self._parts.append(
            [(self._chosen(kind, size, root), np.array(alike)) for size, alike in by_size.items()]
        )

    def among_firsts(self, kind, root=0):
        """The collective among the nodes' first ranks."""
        self._parts.append([(self._chosen(kind, len(self.firsts), root), self.firsts[None, :])])

    def hand_over(self, src, dst):
        """One message with the whole vector, from one rank to another."""
        if src != dst:
            sizes = split(self._nbytes, 1, self._itemsize)
            one = Schedule.of("send", "send", 2, sizes, [Moves(np.array([0]), np.array([1]))])
            self._parts.append([(one, np.array([[src, dst]]))])

    def others(self, node):
        """All nodes except one."""
        return [other for other in range(len(self._members)) if other != node]

    @property
    def all(self):
        """All nodes."""
        return range(len(self._members))

    def _chosen(self, kind, n, root):
        if kind == "barrier":
            return all_reduce.barrier_dissemination(n)
        function = getattr(MODULES[kind], one_level(kind, n, self._nbytes, self._itemsize))
        rooted = {} if kind == "all_reduce" else {"root": root}
        return function(n, self._nbytes, self._itemsize, **rooted)

    def schedule(self):
        """The whole collective."""
        cuts = [_cut(part) for level in self._parts for part, _ in level]
        whole = _common(cuts)
        moves = chain.from_iterable(
            side_by_side(*(_embedded(part, groups, whole) for part, groups in level))
            for level in self._parts
        )
        sizes = np.diff(whole)
        return Schedule.of(self._kind, self._name, self._n, sizes, moves, self._root)


def _cut(part):
    """The bytes at which the chunks of a schedule begin, and the byte at which the last chunk
    ends."""
    return np.concatenate(([0], np.cumsum(part.chunk_nbytes)))


def _common(cuts):
    """All cuts of several schedules. The end is repeated often enough for all empty chunks."""
    nbytes = cuts[0][-1]
    inner = np.unique(np.concatenate([cut[cut < nbytes] for cut in cuts]))
    ends = max(int((cut == nbytes).sum()) for cut in cuts)
    return np.concatenate((inner, np.full(ends, nbytes)))


def _embedded(part, groups, whole):
    """A schedule's rounds in several groups at once, with the chunks of the common cut.

    Parameters
    ----------
    groups : ndarray of int, shape (groups, ranks of each)
    """
    cut = _cut(part)
    place = np.searchsorted(whole, cut)  # of the first of several that are alike
    is_end = cut == whole[-1]
    place[is_end] += np.arange(is_end.sum())
    place[-1] = len(whole) - 1
    twice = np.concatenate((place[:-1], place + place[-1]))  # runs may wrap
    for round_ in part.rounds:
        start = place[round_.first]
        count = twice[round_.first + round_.count] - start
        repeated = (np.tile(column, len(groups)) for column in (start, count, round_.adds))
        yield Moves(groups[:, round_.src].ravel(), groups[:, round_.dst].ravel(), *repeated)


def broadcast_smp(
    n: int, nbytes: int, itemsize: int = 1, root: int = 0, nodes: Sequence[int] | None = None
) -> Schedule:
    """Send to the first rank of the root's node, then to all first ranks, then in the nodes.

    MPICH uses it for short vectors, and for fewer than 8 ranks. The root receives its own data
    again in its node.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Bcast_intra_composition_alpha.
    """
    levels = _Levels("broadcast", "smp", n, (nbytes, itemsize), nodes, root)
    levels.hand_over(root, int(levels.firsts[levels.node]))
    levels.among_firsts("broadcast", levels.node)
    levels.in_nodes("broadcast", levels.all)
    return levels.schedule()


def broadcast_smp_from_root(
    n: int, nbytes: int, itemsize: int = 1, root: int = 0, nodes: Sequence[int] | None = None
) -> Schedule:
    """Broadcast in the root's node, then to the nodes' first ranks, then in the other nodes.

    MPICH uses it for middle sizes. If the root is the first rank of its node, this node takes part
    in the last phase too.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Bcast_intra_composition_beta.
    """
    levels = _Levels("broadcast", "smp_from_root", n, (nbytes, itemsize), nodes, root)
    if levels.place:
        levels.in_nodes("broadcast", [levels.node], levels.place)
    levels.among_firsts("broadcast", levels.node)
    levels.in_nodes("broadcast", levels.others(levels.node) if levels.place else levels.all)
    return levels.schedule()


def reduce_smp(
    n: int, nbytes: int, itemsize: int = 1, root: int = 0, nodes: Sequence[int] | None = None
) -> Schedule:
    """Reduce in all nodes except the root's, then among first ranks, then in the root's node.

    MPICH uses it for short vectors. The first ranks reduce to the first rank of the root's node.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Reduce_intra_composition_beta.
    """
    levels = _Levels("reduce", "smp", n, (nbytes, itemsize), nodes, root)
    levels.in_nodes("reduce", levels.others(levels.node))
    levels.among_firsts("reduce", levels.node)
    levels.in_nodes("reduce", [levels.node], levels.place)
    return levels.schedule()


def reduce_smp_by_first(
    n: int, nbytes: int, itemsize: int = 1, root: int = 0, nodes: Sequence[int] | None = None
) -> Schedule:
    """Reduce in all nodes, then among first ranks to rank 0. Rank 0 sends the sum to the root.

    MPICH uses it for long vectors.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Reduce_intra_composition_alpha.
    """
    levels = _Levels("reduce", "smp_by_first", n, (nbytes, itemsize), nodes, root)
    levels.in_nodes("reduce", levels.all)
    levels.among_firsts("reduce")
    levels.hand_over(0, root)
    return levels.schedule()


def all_reduce_smp(
    n: int, nbytes: int, itemsize: int = 1, nodes: Sequence[int] | None = None
) -> Schedule:
    """Reduce in the nodes, all_reduce among their first ranks, broadcast in the nodes.

    MPICH uses it if the ranks are on two or more nodes and share some of them.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Allreduce_intra_composition_alpha.
    """
    levels = _Levels("all_reduce", "smp", n, (nbytes, itemsize), nodes)
    levels.in_nodes("reduce", levels.all)
    levels.among_firsts("all_reduce")
    levels.in_nodes("broadcast", levels.all)
    return levels.schedule()


def barrier_smp(n: int, nodes: Sequence[int] | None = None) -> Schedule:
    """A barrier in the nodes, a barrier among first ranks, and then a broadcast in the nodes.

    MPICH's broadcast sends one byte. Here the broadcast sends no byte.

    **Cost** the sum of its parts.

    **Source** MPICH, ch4_coll_impl.h, MPIDI_Barrier_intra_composition_alpha.
    """
    levels = _Levels("barrier", "smp", n, (0, 1), nodes)
    levels.in_nodes("barrier", levels.all)
    levels.among_firsts("barrier")
    levels.in_nodes("broadcast", levels.all)
    return levels.schedule()


TWO_LEVEL: dict[str, dict[str, Callable[..., Schedule]]] = {
    "broadcast": {"smp": broadcast_smp, "smp_from_root": broadcast_smp_from_root},
    "reduce": {"smp": reduce_smp, "smp_by_first": reduce_smp_by_first},
    "all_reduce": {"smp": all_reduce_smp},
    "barrier": {"smp": barrier_smp},
}
IN_TWO_LEVELS = frozenset(name for names in TWO_LEVEL.values() for name in names)
