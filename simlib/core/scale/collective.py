"""How long a collective takes on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import Any, NamedTuple

import numpy as np

from ..collectives import mpich
from ..collectives.choice import DEFAULT_POLICY, choose, schedule
from ..collectives.parts import bruck_in_bulk
from ..collectives.schedules import CHUNKS, way_of
from ..collectives.timing import shares_no_link
from ..collectives.timing import time_of as time_of_schedule
from ..model.cluster import Cluster, Topology
from ..model.errors import InvalidCallError, check_count, check_type
from .case import Case, Counts, Placement, Seconds, common_step_s, count_of
from .solvers import IN_TURN, SOLVERS

FEW_ROUNDS = frozenset(
    {
        "binomial",
        "bruck",
        "dissemination",
        "rabenseifner",
        "rabenseifner_far",
        "recursive_doubling",
        "recursive_halving",
        "scatter_doubling",
    }
)
"""Algorithms of about lg n rounds. simlib times them message by message."""

ONE_ROUND = {("broadcast", "spread"), ("scatter", "spread"), ("gather", "spread")}
ALIKE = (
    "no messages share a link, or the ranks start together and all messages of a round are alike"
)
MAX_MESSAGES = 8_000_000
MAX_SHARING, MAX_SHARING_RANKS = 20_000, 512
MAX_IN_NODES = 1_200_000  # of `hierarchical`: 2,100 ranks in nodes of 8, some seconds


def time_of(
    kind: str,
    n: Counts,
    nbytes: float = 0,
    cluster: Cluster | None = None,
    algorithm: str = DEFAULT_POLICY,
    *,
    starts: Seconds | None = None,
    placement: Placement = "block",
    itemsize: int = 4,
    root: int = 0,
    chunks: int | None = None,
    eager_limit_bytes: int | None = None,
) -> Any:
    """Return the seconds from the last rank's start of a collective to the last rank's end.

    The result is the same as with `simulate` on the same cluster, but simlib needs no threads or
    tensors. If there is a closed form, simlib uses it. Otherwise simlib computes the times message
    by message with numpy.

    Parameters
    ----------
    kind : str
        ``"all_reduce"``, ``"broadcast"``...
    n : int or sequence of int
        The number of ranks, for example 100,000.
    nbytes : int
        For all_reduce, broadcast and reduce, the bytes of the vector. For all_gather, gather,
        scatter and reduce_scatter, the bytes of all parts together. For all_to_all, the bytes of
        one rank's parts.
    cluster : Cluster
    algorithm : str
        An algorithm such as ``"ring"``, or a library that chooses the algorithm: ``"mpich"``,
        ``"nccl"`` or ``"gloo"``. The default is ``"mpich"``, as in `simulate`.
    starts : sequence of float, optional
        The second at which each rank begins. By default all ranks begin together.
    placement : {"block", "round_robin"} or list of int
        As in `Topology`.
    itemsize : int
        Bytes of one element. simlib cuts chunks between elements.
    root : int
    chunks : int, optional
        Number of chunks of a chain, of each block of ``ring_segmented``, or of each tree of
        ``double_tree``. The default is the same as in `simulate`. For ``chain`` and
        ``double_tree``, the default is the best number for the link between nodes.
    eager_limit_bytes : int, optional
        Messages of at most this many bytes do not wait for their receiver, as in `simulate` with
        ``sends="eager"``. If any message may be so small, `time_of` follows all messages one by
        one.

    Returns
    -------
    float, or ndarray of float if ``n`` is a sequence

    Raises
    ------
    InvalidCallError
        An argument is invalid, or the exact time would take too long to compute. In the second
        case, the error names the cases that are quick.

    Examples
    --------
    >>> import simlib
    >>> cluster = simlib.clusters.infiniband_hdr(nodes=100_000)
    >>> round(simlib.scale.time_of("all_reduce", 100_000, 400_000_000, cluster, "ring"), 6)
    0.431996

    **Cost** O(n) memory. On 100,000 ranks it takes up to 0.2 s for a ring, and 0.5 s for trees.
    """
    options = Options(placement, itemsize, root, chunks, eager_limit_bytes)
    if np.ndim(n):
        if starts is not None:
            raise InvalidCallError("starts= needs one number of ranks: give one n, not several")
        asked = [Asked(kind, size, nbytes, cluster, algorithm) for size in np.asarray(n).tolist()]
        return np.array([_time_of(one, None, options) for one in asked])
    return _time_of(Asked(kind, n, nbytes, cluster, algorithm), starts, options)


def ends_of(
    kind: str,
    n: int,
    nbytes: float = 0,
    cluster: Cluster | None = None,
    algorithm: str = DEFAULT_POLICY,
    *,
    starts: Seconds | None = None,
    **options: Any,
) -> np.ndarray:
    """Return when each rank has done its part of a collective. Parameters are as for `time_of`.

    Returns
    -------
    ndarray of float, shape (n,)
        The second at which each rank is done, on the same clock as ``starts``. Without ``starts``,
        all ranks begin at 0.
    """
    asked = Asked(kind, n, nbytes, cluster, algorithm)
    return _solve(_case(asked, starts, Options(**options), last_only=False))


def sync_time(
    ranks: Counts,
    nbytes: float,
    cluster: Cluster,
    *,
    algorithm: str = "ring",
    placement: Placement = "block",
    itemsize: int = 4,
) -> Any:
    """Return T_sync(R): the seconds to all_reduce gradients of ``nbytes`` bytes on R ranks.

    Parameters
    ----------
    ranks : int or sequence of int
    nbytes : int
    cluster : Cluster
    algorithm, placement, itemsize
        As for `time_of`.

    Returns
    -------
    float, or ndarray of float if ``ranks`` is a sequence

    Examples -------- If a ring spends most of its time moving bytes, the time hardly grows with the
    number of ranks. If it spends most of its time on the latencies of rounds, the time grows in
    proportion to the number of ranks:

    >>> import simlib
    >>> cluster = simlib.clusters.infiniband_hdr(nodes=100_000)
    >>> simlib.scale.sync_time([10, 100, 1_000, 100_000], 400_000_000, cluster).round(4).tolist()
    [0.0288, 0.0321, 0.036, 0.432]
    """
    return time_of(
        "all_reduce", ranks, nbytes, cluster, algorithm, placement=placement, itemsize=itemsize
    )


@dataclass(frozen=True)
class Options:
    """The keywords of `time_of`, except ``starts``."""

    placement: Placement = "block"
    itemsize: int = 4
    root: int = 0
    chunks: int | None = None
    eager_limit_bytes: int | None = None


class Asked(NamedTuple):
    """The collective whose time the caller wants: the first arguments of `time_of`."""

    kind: str
    n: Counts
    nbytes: float
    cluster: Cluster | None
    algorithm: str


def _time_of(asked, starts, options):
    case = _case(asked, starts, options, last_only=True)
    return float(_solve(case).max() - case.starts.max())


def _case(asked, starts, options, *, last_only):
    kind, n, nbytes, cluster, algorithm = asked
    itemsize, root, chunks = options.itemsize, options.root, options.chunks
    check_type("cluster", cluster, Cluster)
    n, nbytes = count_of("n", n), count_of("nbytes", nbytes, low=0)
    check_count("itemsize", itemsize)
    if options.eager_limit_bytes is not None:
        check_count("eager_limit_bytes", options.eager_limit_bytes, low=0)
    topology = Topology(cluster, n, options.placement)
    name = choose(
        kind, n, nbytes, algorithm,
        itemsize=itemsize, link=cluster.inter, nodes=topology.node_of,
    )  # fmt: skip
    if not 0 <= root < n:
        raise InvalidCallError(f"root is {root}: ranks are 0 to {n - 1}")
    if nbytes % itemsize:
        raise InvalidCallError(
            f"{nbytes} bytes are not a whole number of elements of {itemsize} bytes"
        )
    chunks = CHUNKS[name](n, nbytes, chunks, cluster.inter) if name in CHUNKS else 1
    return Case(
        kind=kind,
        algorithm=name,
        topology=way_of(name, topology, np.arange(n)),
        nbytes=nbytes,
        starts=_checked_starts(starts, n),
        itemsize=itemsize,
        root=root,
        chunks=chunks,
        last_only=last_only,
        eager_limit_bytes=-1 if options.eager_limit_bytes is None else options.eager_limit_bytes,
    )


def _checked_starts(starts, n):
    if starts is None:
        return np.zeros(n)
    starts = np.array(starts, dtype=float)
    if starts.shape != (n,) or not np.isfinite(starts).all():
        raise InvalidCallError(
            f"starts has shape {starts.shape}: give one moment in seconds for each of {n} ranks"
        )
    return starts


def _solve(case):
    if case.n == 1:
        return case.starts.copy()
    solver, _ = SOLVERS.get((case.kind, case.algorithm), (None, ""))
    ends = solver(case) if solver and not case.may_be_eager else None
    return _message_by_message(case) if ends is None else ends


def _message_by_message(case):
    """Find the ends of ranks by following the messages of the schedule."""
    messages = _messages_of(case)
    if messages > MAX_MESSAGES:
        raise _too_many(case, messages)
    found = _schedule(case)
    members = np.arange(case.n)
    is_nothing_sent = case.nbytes == case.envelope_bytes == 0
    is_private = case.links_are_private and case.is_even
    limit = case.eager_limit_bytes
    if limit >= 0 and any((round_.nbytes <= limit).any() for round_ in found.rounds):
        if found.num_messages > MAX_SHARING:
            raise _too_many(case, found.num_messages)
        return time_of_schedule(found, case.topology, members, case.starts, eager_limit_bytes=limit)
    if case.algorithm in FEW_ROUNDS and (is_private or is_nothing_sent):
        return _each_alone(case, found)
    if not shares_no_link(found, case.topology, members):
        ends = _in_step(case, found)
        if ends is not None:
            return ends
        few_moments = case.start_together and (
            found.num_rounds == 1
            or case.n <= MAX_SHARING_RANKS
            or case.algorithm == "hierarchical"
            and found.num_messages <= MAX_IN_NODES
        )
        if found.num_messages > MAX_SHARING and not few_moments:
            raise _too_many(case, found.num_messages)
    return time_of_schedule(found, case.topology, members, case.starts)


def _schedule(case):
    """The messages of the algorithm. Parts of an all_to_all that travel together are one chunk."""
    if (case.kind, case.algorithm) == ("all_to_all", "bruck"):
        return bruck_in_bulk(case.n, case.nbytes, case.itemsize)
    return schedule(
        case.kind,
        case.n,
        case.nbytes,
        case.algorithm,
        itemsize=case.itemsize,
        root=case.root,
        nodes=case.topology.node_of,
        chunks=case.chunks,
    )


def _messages_of(case):
    """A rough upper bound on the number of messages."""
    if (case.kind, case.algorithm) in ONE_ROUND:
        return case.n
    if case.algorithm in FEW_ROUNDS:
        return 2 * case.n * (log2(case.n) + 1)
    if case.algorithm == "ring_segmented":
        return (case.chunks + 1) * case.n * case.n
    if case.algorithm in mpich.IN_TWO_LEVELS:
        nodes, lanes = case.nodes_and_lanes
        rings = 0
        if case.nbytes > mpich.BROADCAST_SHORT and case.kind in ("broadcast", "all_reduce"):
            rings = case.n * lanes + (nodes**2 if case.kind == "broadcast" else 0)
        return 4 * case.n * (log2(case.n) + 1) + rings
    if case.algorithm == "hierarchical":
        nodes, lanes = case.nodes_and_lanes
        return 2 * nodes * lanes * (nodes + lanes)
    if case.algorithm == "double_tree":
        return (4 if case.kind == "all_reduce" else 2) * case.chunks * case.n
    of_a_rank = 2 if (case.kind, case.algorithm) in SOLVERS else 12  # Gloo's have three for one
    return of_a_rank * case.n * max(case.n, case.chunks)


def _too_many(case, messages):
    solver, when = SOLVERS.get((case.kind, case.algorithm), (None, ALIKE))
    if case.may_be_eager if solver else case.eager_limit_bytes >= 0:
        is_all = when == IN_TURN
        when = "no message is eager" if is_all else f"{when}. In addition, no message may be eager"
    return InvalidCallError(
        f"{case.kind} by {case.algorithm!r} on {case.n:,} ranks has about {messages:,.0f} "
        "messages. simlib cannot follow so many messages one by one. It can compute the time of so "
        f"many ranks only if {when}"
    )


def _each_alone(case, found):
    """Ends if no message slows another, and each rank sends and receives at most one in a round."""
    latency_s, bandwidth_Bps = case.topology.latency_s(0, 1), case.topology.bandwidth_Bps(0, 1)
    ready = case.starts.copy()
    for round_ in found.rounds:
        src, dst, nbytes = round_.src, round_.dst, round_.nbytes
        if case.is_even:
            step_s = latency_s + (nbytes + case.envelope_bytes) / bandwidth_Bps
        else:
            step_s = case.step_s(src, dst, nbytes)
        end = np.maximum(ready[src], ready[dst]) + step_s
        ready[src] = end
        ready[dst] = np.maximum(ready[dst], end)
        if case.reduce_Bps < inf:
            ready[dst] += nbytes * round_.adds / case.reduce_Bps
    return ready


def _in_step(case, found):
    """Ends, computed round by round. None if messages of a round do not begin and end together."""
    ready = case.starts.copy()
    for round_ in found.rounds:
        now = ready.max()
        begin = np.maximum(ready[round_.src], ready[round_.dst])
        if (begin < now).any() or np.ptp(round_.nbytes):
            return None
        step_s = common_step_s(case, round_.src, round_.dst, int(round_.nbytes[0]))
        if step_s is None:
            return None
        ready[round_.src] = ready[round_.dst] = now + step_s
        added = np.bincount(round_.dst, round_.nbytes * round_.adds, case.n)
        ready += added / case.reduce_Bps
    return ready


BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def algbw(nbytes: float, time_s: float) -> float:
    """Return the algorithm bandwidth, in bytes per second: ``nbytes / time_s``.

    **Source** nccl-tests, doc/PERFORMANCE.md.
    """
    return nbytes / time_s


def busbw(kind: str, n: int, nbytes: float, time_s: float) -> float:
    """Return the bus bandwidth: bytes per second on each rank's link. Compare it for any n.

    The bus bandwidth is `algbw` times a factor. For all_reduce the factor is 2 (n-1)/n. For
    all_gather, reduce_scatter, all_to_all, gather and scatter the factor is (n-1)/n. For broadcast
    and reduce the factor is 1.

    **Source** nccl-tests, doc/PERFORMANCE.md.
    """
    if kind not in BUS_FACTOR:
        kinds = ", ".join(BUS_FACTOR)
        raise InvalidCallError(f"{kind!r} has no bus bandwidth: choose from {kinds}")
    return algbw(nbytes, time_s) * BUS_FACTOR[kind](n)
