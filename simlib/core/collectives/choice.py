"""The algorithm of a collective, chosen by name, or by size as in well-known libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import ceil, log2

import numpy as np

from ..model.cluster import Link
from ..model.errors import InvalidCallError, check_count
from . import all_reduce, broadcast, gloo, mpich, parts, reduce
from .schedules import Bytes, Schedule

DEFAULT_POLICY = "mpich"
"""By default, a simulation chooses algorithms as this library does."""


OWN: dict[str, dict[str, Callable[..., Schedule]]] = {
    "broadcast": {
        "flat": broadcast.flat,
        "spread": broadcast.spread,
        "binomial": broadcast.binomial,
        "scatter_all_gather": broadcast.scatter_all_gather,
        "scatter_doubling": broadcast.scatter_doubling,
        "chain": broadcast.chain,
        "double_tree": broadcast.double_tree,
    },
    "scatter": {
        "flat": parts.scatter_flat,
        "spread": parts.scatter_spread,
        "binomial": parts.scatter_binomial,
    },
    "gather": {
        "flat": parts.gather_flat,
        "spread": parts.gather_spread,
        "binomial": parts.gather_binomial,
    },
    "reduce": {
        "flat": reduce.flat,
        "binomial": reduce.binomial,
        "rabenseifner": reduce.rabenseifner,
        "chain": reduce.chain,
        "double_tree": reduce.double_tree,
    },
    "all_reduce": {
        "ring": all_reduce.ring,
        "ring_segmented": all_reduce.ring_segmented,
        "recursive_doubling": all_reduce.recursive_doubling,
        "rabenseifner": all_reduce.rabenseifner,
        "rabenseifner_far": all_reduce.rabenseifner_far,
        "binomial": all_reduce.binomial,
        "double_tree": all_reduce.double_tree,
        "naive": all_reduce.naive,
        "hierarchical": all_reduce.hierarchical,
        "leader": all_reduce.leader,
    },
    "all_gather": {
        "ring": parts.all_gather_ring,
        "recursive_doubling": parts.all_gather_recursive_doubling,
        "bruck": parts.all_gather_bruck,
    },
    "reduce_scatter": {
        "ring": parts.reduce_scatter_ring,
        "recursive_halving": parts.reduce_scatter_recursive_halving,
        "pairwise": parts.reduce_scatter_pairwise,
    },
    "all_to_all": {
        "pairwise": parts.all_to_all_pairwise,
        "spread": parts.all_to_all_spread,
        "bruck": parts.all_to_all_bruck,
    },
    "barrier": {
        "dissemination": all_reduce.barrier_dissemination,
        "binomial": all_reduce.barrier_binomial,
        "flat": all_reduce.barrier_flat,
    },
}
ALGORITHMS = {
    kind: own | mpich.TWO_LEVEL.get(kind, {}) | gloo.ALGORITHMS.get(kind, {})
    for kind, own in OWN.items()
}
"""``{kind: {name: function}}``: the algorithms of each collective, by name."""


def schedule(
    kind: str,
    n: int,
    nbytes: Bytes = 0,
    policy: str = DEFAULT_POLICY,
    *,
    itemsize: int = 1,
    root: int = 0,
    nodes: Sequence[int] | None = None,
    chunks: int | None = None,
    link: Link | None = None,
) -> Schedule:
    """Return the messages of one collective, with the algorithm that a policy chooses.

    Parameters
    ----------
    kind : str
        ``"all_reduce"``, ``"broadcast"``...
    n : int
        Size of the group.
    nbytes : int or array of int
        For all_reduce, broadcast and reduce, the bytes of the vector. For all_gather, gather,
        scatter and reduce_scatter, the bytes of all parts together. For all_to_all, the bytes of
        one rank's parts. For the last five kinds, you can also pass the size of each part: n sizes,
        or n x n sizes from src to dst for all_to_all.
    policy : str
        See `choose`.
    itemsize : int
        Bytes of one element. simlib cuts chunks between elements.
    root : int
        Position of the root.
    nodes : sequence of int, optional
        Node of each position. ``hierarchical``, ``leader``, ``smp`` and the policy ``"mpich"`` use
        the nodes.
    chunks : int, optional
        Number of chunks of a ``chain``, of each block of ``ring_segmented``, or of each of the two
        trees of ``double_tree``.
    link : Link, optional
        The network as one link. ``chain`` and ``double_tree`` use the best number of chunks for
        this link. The policy ``"nccl"`` compares the times of algorithms on this link.

    Returns
    -------
    Schedule

    Raises
    ------
    InvalidCallError
        The collective, algorithm, root or size does not exist.
    """
    total = _total(nbytes)
    if policy == "mpich" and kind == "all_to_all" and np.ptp(nbytes):
        policy = "spread"  # as MPI_Alltoallv: MPICH's table `one_level` names, "alltoallv"
    algorithm = choose(kind, n, total, policy, itemsize=itemsize, link=link, nodes=nodes)
    if not 0 <= root < n:
        raise InvalidCallError(f"root is {root}: the positions in the group are 0 to {n - 1}")
    function = ALGORITHMS[kind][algorithm]
    given = {
        "nbytes": nbytes,
        "itemsize": itemsize,
        "root": root,
        "nodes": nodes,
        "chunks": chunks,
        "link": link,
    }
    takes = inspect.signature(function).parameters
    return function(n, **{name: value for name, value in given.items() if name in takes})


def choose(
    kind: str,
    n: int,
    nbytes: int,
    policy: str = DEFAULT_POLICY,
    *,
    itemsize: int = 1,
    link: Link | None = None,
    nodes: Sequence[int] | None = None,
) -> str:
    """Return the name of the algorithm that a policy chooses.

    Parameters
    ----------
    kind : str
    n : int
        Size of the group.
    nbytes : int
        As in `schedule`.
    policy : str
        ``"mpich"`` (default), ``"nccl"``, ``"gloo"``, or the name of an algorithm.
    itemsize : int
        Bytes of one element. The choice of MPICH also depends on the number of elements.
    link : Link, optional
        The link for ``"nccl"``. The default is 10 Gbit/s Ethernet.
    nodes : sequence of int, optional
        The node of each position, for ``"mpich"``. By default each position has its own node.

    Returns
    -------
    str
        A key of ``ALGORITHMS[kind]``.
    """
    if kind not in ALGORITHMS:
        raise InvalidCallError(f"no collective {kind!r}: choose from {', '.join(ALGORITHMS)}")
    check_count("n", n)
    if policy == "mpich":
        return mpich.choose(kind, n, nbytes, itemsize, nodes)
    if policy == "nccl":
        return nccl(kind, n, nbytes, link or Link(30e-6, 1.25e9))
    if policy == "gloo":
        return gloo.choose(kind, n, nbytes)
    if policy not in ALGORITHMS[kind]:
        names = ", ".join(ALGORITHMS[kind])
        raise InvalidCallError(
            f"there is no algorithm {policy!r} of {kind}: choose from {names}. Or give 'mpich', "
            "'nccl' or 'gloo', which choose an algorithm by size"
        )
    return policy


def nccl(kind: str, n: int, nbytes: int, link: Link) -> str:
    """NCCL's choice. For all_reduce: ring or tree, whichever is predicted to be faster.

    Other collectives use rings, chains and grouped messages. NCCL predicts latency and bandwidth of
    each algorithm from tables for its hardware. This function uses the costs of simlib's algorithms
    on one link. NCCL's tree is a pair of trees with pipelining. `binomial` is a single tree without
    pipelining. So here the ring becomes faster than the tree at smaller sizes than in NCCL.

    **Source** NCCL, src/graph/tuning.cc (NCCL uses the algorithm with the shortest predicted time).
    """
    if kind == "all_reduce":
        ring_s = 2 * (n - 1) * (link.latency_s + nbytes / n / link.bandwidth_Bps)
        tree_s = 2 * ceil(log2(n)) * (link.latency_s + nbytes / link.bandwidth_Bps)
        return "ring" if ring_s <= tree_s else "binomial"
    others = {
        "broadcast": "chain",
        "reduce": "chain",
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "barrier": "binomial",  # a small all_reduce
    }
    return others.get(kind, "spread")  # all_to_all, scatter, gather


def _total(nbytes):
    """The number of bytes by which a policy chooses. For all_to_all, the bytes of the busiest
    rank."""
    if hasattr(nbytes, "ndim") and nbytes.ndim == 2:
        return int(nbytes.sum(axis=1).max())
    return int(sum(nbytes)) if hasattr(nbytes, "__len__") else nbytes
