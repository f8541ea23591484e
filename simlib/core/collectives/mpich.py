"""What MPICH chooses, by size and by who shares a node with whom.

**Source** MPICH at commit 6a79bf6575c3: maint/tuning/coll/ch4/generic.json says which composition a
collective takes (in two levels, or in one), src/mpid/ch4/src/ch4_coll_impl.h what each of them
does. Those of two levels are in `two_level`.
"""

from __future__ import annotations

import numpy as np

BROADCAST_SHORT, BROADCAST_LONG, BROADCAST_MIN_RANKS = 12288, 524288, 8
ALL_REDUCE_IN_TWO_LEVELS = 32768
REDUCE_SHORT = 2048


def choose(kind, n, nbytes, itemsize=1, nodes=None):
    """The name of the algorithm: in two levels where several ranks share a node, else `one_level`.

    Long vectors of broadcast and all_reduce go in one level; scatter, gather, all_gather,
    reduce_scatter and all_to_all do always.

    Parameters
    ----------
    nodes : sequence of int, shape (n,), optional
        Node of each position; where not given, each has one of its own.

    **Source** maint/tuning/coll/ch4/generic.json; where each rank is alone MPICH makes no
    communicators of nodes (src/mpi/comm/commutil.c, MPIR_Comm_commit). All in one node, an
    all_reduce goes in one level; a broadcast goes by way of the node's first rank, too.
    """
    count = n if nodes is None else len(np.unique(nodes))
    name = _two_level(kind, n, nbytes, count) if count < n else None
    return one_level(kind, n, nbytes, itemsize) if name is None else name


def _two_level(kind, n, nbytes, count):
    """The composition where nodes are shared; None for that of one level."""
    if kind == "broadcast":
        if n < BROADCAST_MIN_RANKS or nbytes < BROADCAST_SHORT:
            return "smp"
        return "smp_from_root" if nbytes < BROADCAST_LONG and n & (n - 1) == 0 else None
    if kind == "all_reduce":
        return "smp" if count > 1 and nbytes <= ALL_REDUCE_IN_TWO_LEVELS else None
    if kind == "reduce":
        return "smp" if nbytes <= REDUCE_SHORT else "smp_by_first"
    return "smp" if kind == "barrier" else None


def one_level(kind, n, nbytes, itemsize=1):
    """By size, as MPICH chooses where each node has one rank.

    A vector of fewer elements than ranks is not cut: it is reduced whole.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1), and the default values of MPICH's
    ``MPIR_CVAR_*_MSG_SIZE`` (src/mpi/coll). Left out: Bruck's all_to_all for parts of at most 256
    bytes; they are spread, as those up to 32 KiB.
    """
    is_power = n & (n - 1) == 0
    is_short = nbytes <= REDUCE_SHORT or nbytes // itemsize < 1 << (n.bit_length() - 1)
    if kind == "broadcast":
        if nbytes < BROADCAST_SHORT or n < BROADCAST_MIN_RANKS:
            return "binomial"
        is_middle = nbytes < BROADCAST_LONG and is_power
        return "scatter_doubling" if is_middle else "scatter_all_gather"
    if kind == "all_reduce":
        return "recursive_doubling" if is_short else "rabenseifner"
    if kind == "reduce":
        return "binomial" if is_short else "rabenseifner"
    if kind == "all_gather":
        if nbytes < 81920 and not is_power:
            return "bruck"
        return "recursive_doubling" if nbytes < 524288 and is_power else "ring"
    if kind == "reduce_scatter":
        return "recursive_halving" if nbytes < 524288 else "pairwise"
    if kind == "all_to_all":
        return "spread" if nbytes <= 32768 * n else "pairwise"
    return "dissemination" if kind == "barrier" else "binomial"  # scatter, gather
