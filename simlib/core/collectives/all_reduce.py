"""all_reduce: every rank has a vector, and every rank gets the sum of all vectors. Also barrier.

The lower bounds are ceil(lg n) rounds and 2 (n-1)/n nbytes sent by each rank (Patarasuk and Yuan
2009, JPDC 69(2)).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from .schedules import Schedule, ring_chunks, split, tree_chunks
from .steps import (
    Folding,
    Moves,
    binomial_broadcast,
    binomial_reduce,
    by_node,
    embed,
    in_turn,
    powers_below,
    ring_all_gather,
    ring_reduce_scatter,
    side_by_side,
    two_tree_broadcast,
    two_tree_reduce,
)

if TYPE_CHECKING:
    from ..model.cluster import Link


def ring(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """A reduce-scatter and an all_gather round a ring: the fewest bytes, but the most rounds.

    **Cost** rounds `2 * (n - 1)`, messages `2 * n * (n - 1)`, bytes per rank
    `2 * (n - 1) * nbytes / n`.

    **Source** Patarasuk and Yuan 2009, JPDC 69(2).
    """
    moves = chain(
        ring_reduce_scatter(n),  # rank r now has the sum of chunk r
        ring_all_gather(n),
    )
    return Schedule.of("all_reduce", "ring", n, split(nbytes, n, itemsize), moves)


def ring_segmented(n: int, nbytes: int, itemsize: int = 1, chunks: int | None = None) -> Schedule:
    """`ring` in phases. Each of n blocks has s chunks, and each phase adds up one chunk of a block.

    In phase j the j-th chunks of all blocks travel round the ring, and ranks add them up. After the
    last phase, whole blocks travel round the ring. A rank needs extra memory for one chunk, not for
    a block. In this model a rank adds up a chunk before it continues. So the phases cost (s - 1) (n
    - 1) latencies and save no time. With one chunk for each block, the algorithm is `ring`.

    Parameters
    ----------
    chunks : int, optional
        Number of chunks of each block, s. By default each chunk has at most 1 MiB.

    **Cost** rounds `(s + 1) * (n - 1)`, messages `n * (s + 1) * (n - 1)`, bytes per rank
    `2 * (n - 1) * nbytes / n`.

    **Source** Open MPI, coll_base_allreduce.c, ompi_coll_base_allreduce_intra_ring_segmented (which
    uses `ring` if a block is smaller than a segment). Here, as in `ring`, rank r gets the sum of
    block r. In Open MPI, rank r gets the sum of the block after block r.
    """
    s = ring_chunks(n, nbytes, chunks)
    blocks = split(nbytes, n, itemsize)
    sizes = np.concatenate([split(int(block), s, itemsize) for block in blocks])
    each_chunk = (
        moves._replace(first=moves.first * s + j)
        for j in range(s)
        for moves in ring_reduce_scatter(n)
    )
    whole_blocks = embed(ring_all_gather(n), np.arange(n), np.arange(n + 1) * s)
    return Schedule.of("all_reduce", "ring_segmented", n, sizes, chain(each_chunk, whole_blocks))


def recursive_doubling(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """Ranks exchange whole vectors at distance 1, 2, 4, ...: the fewest rounds, for short vectors.

    **Cost** rounds `lg + 2 * folds`, messages `p * lg + 2 * extra`, bytes per rank
    `(lg + folds) * nbytes`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    folding = Folding(n)
    moves = chain(folding.in_(), folding.exchange_all(), folding.out())
    return Schedule.of("all_reduce", "recursive_doubling", n, split(nbytes, 1, itemsize), moves)


def rabenseifner(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """A reduce-scatter by halving, then an all_gather by doubling, with few rounds and few bytes.

    The algorithm cuts the vector into p chunks. Ranks send the largest halves to the neighbour at
    distance 1, as in MPICH and Open MPI. If neighbours share a node, few bytes leave the node.

    **Cost** rounds `2 * lg + 2 * folds`, messages `2 * p * lg + 2 * extra`, bytes per rank
    `2 * (p - 1) * nbytes / p + folds * nbytes`.

    **Source** Rabenseifner 2004, ICCS, LNCS 3036; Thakur, Rabenseifner and Gropp 2005, IJHPCA
    19(1). Direction: MPICH, allreduce_intra_reduce_scatter_allgather.c; Open MPI,
    coll_base_allreduce.c, ompi_coll_base_allreduce_intra_redscat_allgather.
    """
    folding = Folding(n)
    return _halved_and_doubled(
        "rabenseifner",
        folding,
        nbytes,
        itemsize,
        folding.halving_from_near(),  # participant j now has the sum of one chunk
        folding.doubling_from_far(),
    )


def rabenseifner_far(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """`rabenseifner` in the other direction: ranks send the largest halves to distance p/2.

    Rounds and bytes are the same. But if a node has several ranks, numbered in sequence, all their
    largest halves leave the node at once.

    **Cost** rounds `2 * lg + 2 * folds`, messages `2 * p * lg + 2 * extra`, bytes per rank
    `2 * (p - 1) * nbytes / p + folds * nbytes`.

    **Source** Rabenseifner 2004, ICCS, LNCS 3036: both directions are right.
    """
    folding = Folding(n)
    chunk = np.arange(folding.p + 1)
    return _halved_and_doubled(
        "rabenseifner_far",
        folding,
        nbytes,
        itemsize,
        folding.halving(chunk),  # participant j now has the sum of chunk j
        folding.doubling(chunk),
    )


def _halved_and_doubled(name, folding, nbytes, itemsize, halving, doubling):
    whole = folding.p
    moves = chain(folding.in_(count=whole), halving, doubling, folding.out(count=whole))
    chunks = split(nbytes, whole, itemsize)
    return Schedule.of("all_reduce", name, folding.n, chunks, moves)


def binomial(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """Reduce down a binomial tree to rank 0, then broadcast back up the tree.

    **Cost** rounds `2 * lg_up`, messages `2 * (n - 1)`, bytes per rank `max(lg_up, 1) * nbytes`.

    **Source** Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1).
    """
    moves = chain(binomial_reduce(n, 0), binomial_broadcast(n, 0))
    return Schedule.of("all_reduce", "binomial", n, split(nbytes, 1, itemsize), moves)


def double_tree(
    n: int, nbytes: int, itemsize: int = 1, chunks: int | None = None, link: Link | None = None
) -> Schedule:
    """Sums go up two binary trees to rank 0 and down again, in s chunks: see `steps`.

    No rank sends more than 2 nbytes, which is hardly more than in a ring. Filling and emptying the
    pipelines takes only about 4 lg n rounds. In NCCL both trees contain all ranks, and some chunks
    go down a tree while other chunks still go up.

    Parameters
    ----------
    chunks : int, optional
        Number of chunks of each tree, s.
    link : Link, optional
        Without ``chunks``, s is the best number for this link. Without both, a chunk has 64 KiB.

    **Cost** rounds `4 * (lg_up + s - 1)`, messages `4 * s * (n - 1)`, bytes per rank
    `min(n, 4) / 2 * nbytes`.

    **Source** Sanders, Speck and Traeff 2009, Parallel Computing 35(12); for all_reduce, NCCL 2.4
    (Jeaugey 2019, "Massively Scale Your Deep Learning Training with NCCL 2.4").
    """
    s = tree_chunks(n, nbytes, chunks, link)
    moves = chain(two_tree_reduce(n, 0, s), two_tree_broadcast(n, 0, s))
    return Schedule.of("all_reduce", "double_tree", n, split(nbytes, 2 * s, itemsize), moves)


def naive(n: int, nbytes: int, itemsize: int = 1) -> Schedule:
    """The ranks send their vectors to rank 0 one by one. Rank 0 sends the sum to them one by one.

    **Cost** rounds `2 * (n - 1)`, messages `2 * (n - 1)`, bytes per rank `(n - 1) * nbytes`.

    **Source** the obvious first version.
    """
    zero = np.array([0])
    moves = chain(
        (Moves(other, zero, adds=True) for other in in_turn(n, 0)),
        (Moves(zero, other) for other in in_turn(n, 0)),
    )
    return Schedule.of("all_reduce", "naive", n, split(nbytes, 1, itemsize), moves)


def hierarchical(
    n: int, nbytes: int, itemsize: int = 1, nodes: Sequence[int] | None = None
) -> Schedule:
    """Rings: reduce-scatter in each node, all_reduce across nodes, all_gather in each node.

    s is the number of ranks in the largest node, and k is the number of nodes. The algorithm cuts
    the vector into s lanes, and each lane into k chunks. The ranks of a node divide the lanes among
    themselves. A rank of a smaller node may own several lanes. All lanes cross the network at the
    same time.

    Parameters
    ----------
    nodes : sequence of int, shape (n,)
        Node of each position.

    **Cost** rounds `2 * (s - 1) + 2 * (k - 1)`; if all nodes have s ranks: messages
    `2 * n * (s - 1) + 2 * n * (k - 1)`, bytes per rank
    `2 * (s - 1) * nbytes / s + 2 * (k - 1) * nbytes / n`.

    **Source** Jia et al. 2018, arXiv 1807.11205. Reduce-scatter in the node is from Horovod
    (``HOROVOD_HIERARCHICAL_ALLREDUCE``).
    """
    members = by_node(n, nodes)
    k, lanes = len(members), max(map(len, members))
    # cuts[i][l]: the first lane of local rank l of node i
    cuts = [np.concatenate(([0], np.cumsum(split(lanes, len(ranks))))) for ranks in members]
    owners = np.array(
        [np.repeat(ranks, np.diff(cut)) for ranks, cut in zip(members, cuts, strict=True)]
    )

    def in_nodes(step):
        each = zip(members, cuts, strict=True)
        return side_by_side(*(embed(step(len(ranks)), ranks, cut * k) for ranks, cut in each))

    def across(step):
        return side_by_side(
            *(
                embed(step(k), owners[:, lane], np.arange(lane * k, lane * k + k + 1))
                for lane in range(lanes)
            )
        )

    moves = chain(
        in_nodes(ring_reduce_scatter),  # each rank now has its node's sum of its lanes
        across(ring_reduce_scatter),
        across(ring_all_gather),  # each rank now has the sum of its lanes
        in_nodes(ring_all_gather),
    )
    chunks = split(nbytes, lanes * k, itemsize)
    return Schedule.of("all_reduce", "hierarchical", n, chunks, moves)


def leader(n: int, nbytes: int, itemsize: int = 1, nodes: Sequence[int] | None = None) -> Schedule:
    """Each node reduces to its first rank. First ranks run a ring, and broadcast in their nodes.

    In the nodes, the algorithm uses binomial trees. s is the number of ranks in the largest node,
    and k is the number of nodes.

    Parameters
    ----------
    nodes : sequence of int, shape (n,)
        Node of each position.

    **Cost** rounds `2 * lg_s + 2 * (k - 1)`, messages `2 * (n - k) + 2 * k * (k - 1)`, bytes per
    rank `max(lg_s * nbytes + 2 * (k - 1) * nbytes / k, (s > 1) * nbytes)`.

    **Source** Jia et al. 2018, arXiv 1807.11205 (three phases: reduce in the node, ring of the
    nodes' masters, broadcast in the node).
    """
    members = by_node(n, nodes)
    k = len(members)
    whole, own = np.array([0, k]), np.arange(k + 1)
    leaders = np.array([ranks[0] for ranks in members])

    def in_nodes(step):
        return side_by_side(*(embed(step(len(ranks), 0), ranks, whole) for ranks in members))

    moves = chain(
        in_nodes(binomial_reduce),
        embed(ring_reduce_scatter(k), leaders, own),
        embed(ring_all_gather(k), leaders, own),
        in_nodes(binomial_broadcast),
    )
    return Schedule.of("all_reduce", "leader", n, split(nbytes, k, itemsize), moves)


# -- barrier: no rank leaves before all ranks have entered -----------------------------------------
#
# Its messages have no bytes. A receiver that "adds" learns which ranks have entered.

NOTHING = np.array([0])


def barrier_dissemination(n: int) -> Schedule:
    """In round k each rank r sends a notice to rank r + 2^k. It takes ceil(lg n) rounds for any n.

    **Cost** rounds `lg_up`, messages `n * lg_up`, bytes per rank `0`.

    **Source** Hensgen, Finkel and Manber 1988, International Journal of Parallel Programming 17(1).
    """
    ranks = np.arange(n)
    moves = (Moves(ranks, (ranks + d) % n, adds=True) for d in powers_below(n))
    return Schedule.of("barrier", "dissemination", n, NOTHING, moves)


def barrier_binomial(n: int) -> Schedule:
    """Notices of arrival go down a binomial tree to rank 0. Then rank 0's notice goes back up.

    **Cost** rounds `2 * lg_up`, messages `2 * (n - 1)`, bytes per rank `0`.

    **Source** Mellor-Crummey and Scott 1991, ACM TOCS 9(1), on tree barriers.
    """
    moves = chain(binomial_reduce(n, 0), binomial_broadcast(n, 0))
    return Schedule.of("barrier", "binomial", n, NOTHING, moves)


def barrier_flat(n: int) -> Schedule:
    """Each rank in turn sends a notice to rank 0. Then rank 0 sends a notice to each in turn.

    **Cost** rounds `2 * (n - 1)`, messages `2 * (n - 1)`, bytes per rank `0`.

    **Source** the obvious first version.
    """
    moves = chain(
        (Moves(other, NOTHING, adds=True) for other in in_turn(n, 0)),
        (Moves(NOTHING, other) for other in in_turn(n, 0)),
    )
    return Schedule.of("barrier", "flat", n, NOTHING, moves)
