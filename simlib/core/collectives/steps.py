"""The steps of which collectives consist. Each is a generator of `Moves`, one for each round.

``n`` ranks have positions 0 to n-1, and ``v`` is a position counted from the root. If n is not a
power of two, p is the largest power of two below n. Then n - p ranks first send their part to a
neighbour, and get the result from this neighbour at the end ("folding"; Rabenseifner 2004, ICCS,
LNCS 3036).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ..model.errors import InvalidCallError


class Moves(NamedTuple):
    """One round of an algorithm. If a field is a single value, it applies to all messages.

    Attributes
    ----------
    src, dst : ndarray of int
        The sender and the receiver of each message, as positions in the group.
    first, count : ndarray of int or int
        The message carries chunks ``first .. first + count - 1``, modulo the number of chunks.
    adds : ndarray of bool or bool
        Whether the receiver adds the received chunks to its own chunks. If not, they replace its
        own.
    order : ndarray of int, optional
        A list of chunks, for messages that carry chunks which are not consecutive. ``first`` and
        ``count`` are then places in this list.
    """

    src: np.ndarray
    dst: np.ndarray
    first: np.ndarray | int = 0
    count: np.ndarray | int = 1  # type: ignore[assignment]  # a tuple has a method of that name
    adds: np.ndarray | bool = False
    order: np.ndarray | None = None


def powers_below(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [1 << k for k in range((n - 1).bit_length())]


# -- rings -----------------------------------------------------------------------------------------


def ring_reduce_scatter(n: int) -> Iterator[Moves]:
    """n - 1 rounds: chunk c travels from rank c + 1 to rank c, and each rank adds its data.

    In round k rank r passes chunk r - k - 1 on. At the end rank r has the whole sum of chunk r.
    """
    ranks, nxt, twice = _ring(n)
    for k in range(n - 1):
        yield Moves(ranks, nxt, twice[n - k - 1 : 2 * n - k - 1], adds=True)


def ring_all_gather(n: int) -> Iterator[Moves]:
    """n - 1 rounds: chunk c travels round the ring from rank c, and each rank copies it.

    In round k rank r passes chunk r - k on. At the end every rank has all chunks.
    """
    ranks, nxt, twice = _ring(n)
    for k in range(n - 1):
        yield Moves(ranks, nxt, twice[n - k : 2 * n - k])


def _ring(n):
    """Ranks, their next ranks, and all ranks twice in a row. A slice of these is "r - k, modulo
    n"."""
    ranks = np.arange(n)
    return ranks, (ranks + 1) % n, np.concatenate((ranks, ranks))


# -- exchanges over growing and shrinking distances ------------------------------------------------


class Folding:
    """Of n ranks, p = 2^lg n take part, and n - p are folded into a neighbour.

    Each of the first n - p even ranks is folded into the odd rank after it. With ``into_even``,
    each of the first n - p odd ranks is folded into the even rank before it. ``rank_of[j]`` is the
    position of participant j. The participant represents the ranks, and the chunks, from
    ``first[j]`` up to ``first[j + 1]``. This is one rank, or two ranks if the participant has a
    folded neighbour.
    """

    def __init__(self, n: int, into_even: bool = False) -> None:
        self.n = n
        self.p = 1 << (n.bit_length() - 1)
        extra = n - self.p
        pairs = 2 * np.arange(extra)
        self.folded, self._takers = (pairs + 1, pairs) if into_even else (pairs, pairs + 1)
        j = np.arange(self.p + 1)
        self.first = j + np.minimum(j, extra)
        self.rank_of = self.first[:-1] + ((j[:-1] < extra) & (not into_even))

    def in_(
        self, first: np.ndarray | int = 0, count: int = 1, adds: bool = True
    ) -> Iterator[Moves]:
        """The folded ranks send their part to their neighbours."""
        yield Moves(self.folded, self._takers, first, count, adds)

    def out(self, first: np.ndarray | int = 0, count: int = 1) -> Iterator[Moves]:
        """The folded ranks get the result."""
        yield Moves(self._takers, self.folded, first, count)

    def exchange_all(self) -> Iterator[Moves]:
        """lg p rounds: ranks at distance 1, 2, 4, ... exchange all their data and add."""
        j = np.arange(self.p)
        for d in powers_below(self.p):
            yield Moves(self.rank_of, self.rank_of[j ^ d], adds=True)

    def halving(self, first: np.ndarray) -> Iterator[Moves]:
        """lg p rounds: at distance p/2, p/4, ..., 1 each rank sends the half that it will not keep.

        At the end participant j has the sum of chunks ``first[j]`` up to ``first[j + 1]``.
        """
        j = np.arange(self.p)
        for d in reversed(powers_below(self.p)):
            theirs = (j ^ d) & -d  # the first participant of the partner's half
            count = first[theirs + d] - first[theirs]
            yield Moves(self.rank_of, self.rank_of[j ^ d], first[theirs], count, adds=True)

    def doubling(self, first: np.ndarray) -> Iterator[Moves]:
        """lg p rounds: at distance 1, 2, 4, ... each rank sends all its data. They double every
        time."""
        j = np.arange(self.p)
        for d in powers_below(self.p):
            mine = j & -d  # the first participant whose chunks this one has by now
            yield Moves(
                self.rank_of, self.rank_of[j ^ d], first[mine], first[mine + d] - first[mine]
            )

    def halving_from_near(self) -> Iterator[Moves]:
        """`halving` of p chunks in the other order: the largest halves at distance 1, then 2, 4...

        At the end participant j has the sum of chunk ``backwards[j]``, which is j with its bits
        reversed.
        """
        j, backwards = np.arange(self.p), self.backwards
        for d in powers_below(self.p):
            half = self.p // (2 * d)
            theirs = backwards[j ^ d] & -half  # the first chunk of the half that the partner keeps
            yield Moves(self.rank_of, self.rank_of[j ^ d], theirs, half, adds=True)

    @property
    def backwards(self) -> np.ndarray:
        """The number of each participant with its bits in reverse."""
        j, found = np.arange(self.p), np.zeros(self.p, dtype=np.int64)
        for d in powers_below(self.p):
            found += np.where(j & d, self.p // (2 * d), 0)
        return found

    def doubling_from_far(self) -> Iterator[Moves]:
        """The rounds of `halving_from_near` backwards: each rank sends all its data."""
        j, backwards = np.arange(self.p), self.backwards
        for d in reversed(powers_below(self.p)):
            count = self.p // (2 * d)
            yield Moves(self.rank_of, self.rank_of[j ^ d], backwards & -count, count)

    def gather_from_far(self, root: int) -> Iterator[Moves]:
        """Gather the result of `halving_from_near`: at distance p/2, p/4, ... half of the ranks
        send.

        Parameters
        ----------
        root : int
            The participant that gets all chunks.
        """
        j, backwards = np.arange(self.p), self.backwards
        for d in reversed(powers_below(self.p)):
            count = self.p // (2 * d)
            leave = j[(j ^ root) // d == 1]  # in the root's part so far, not in its half
            first = backwards[leave] & -count
            yield Moves(self.rank_of[leave], self.rank_of[leave ^ d], first, count)


# -- trees -----------------------------------------------------------------------------------------


def binomial_broadcast(n: int, root: int, count: int = 1) -> Iterator[Moves]:
    """ceil(lg n) rounds: ranks with the data send the data on, over half the distance every
    time."""
    for d in reversed(powers_below(n)):
        v = np.arange(0, n - d, 2 * d)
        yield Moves((v + root) % n, (v + d + root) % n, count=count)


def binomial_reduce(n: int, root: int, count: int = 1) -> Iterator[Moves]:
    """ceil(lg n) rounds: the broadcast backwards, so sums go down the tree."""
    for d in powers_below(n):
        v = np.arange(0, n - d, 2 * d)
        yield Moves((v + d + root) % n, (v + root) % n, count=count, adds=True)


def binomial_scatter(n: int, root: int) -> Iterator[Moves]:
    """ceil(lg n) rounds: each rank passes on the chunks of the farther half of its ranks."""
    for d in reversed(powers_below(n)):
        v = np.arange(0, n - d, 2 * d)
        child = (v + d + root) % n
        yield Moves((v + root) % n, child, child, np.minimum(d, n - v - d))


def binomial_gather(n: int, root: int) -> Iterator[Moves]:
    """ceil(lg n) rounds: the scatter backwards."""
    for d in powers_below(n):
        v = np.arange(0, n - d, 2 * d)
        child = (v + d + root) % n
        yield Moves(child, (v + root) % n, child, np.minimum(d, n - v - d))


def in_turn(n: int, root: int) -> Iterator[np.ndarray]:
    """The other ranks, one for each round, by distance from the root."""
    for v in range(1, n):
        yield np.array([(root + v) % n])


# -- several groups at once ------------------------------------------------------------------------


def embed(moves: Iterable[Moves], members: np.ndarray, bounds: np.ndarray) -> Iterator[Moves]:
    """The same moves among some ranks of a larger group, on some of its chunks.

    Parameters
    ----------
    members : ndarray of int
        Position in the larger group of each rank.
    bounds : ndarray of int
        Chunk c of the moves stands for the chunks from ``bounds[c]`` up to ``bounds[c + 1]`` of the
        larger group.
    """
    for src, dst, first, count, adds, _ in moves:
        start = bounds[first]
        yield Moves(members[src], members[dst], start, bounds[first + count] - start, adds)


def side_by_side(*all_moves: Iterable[Moves]) -> Iterator[Moves]:
    """Several groups that work at the same time: the k-th rounds of all groups become one round."""
    for together in zip_longest(*all_moves):
        present = [moves for moves in together if moves is not None]
        columns = zip(*(np.broadcast_arrays(*moves[:5]) for moves in present), strict=True)
        yield Moves(*(np.concatenate(column) for column in columns))


# -- who shares a node with whom -------------------------------------------------------------------


def by_node(n: int, nodes: Sequence[int] | np.ndarray | None) -> list[np.ndarray]:
    """Arrays of the positions of each node, with nodes in order of their first position."""
    if nodes is None or len(nodes) != n:
        raise InvalidCallError(f"give nodes= a list with the node of each of the {n} positions")
    order = np.argsort(nodes, kind="stable")
    begin = np.flatnonzero(np.diff(np.asarray(nodes)[order]) != 0) + 1
    return sorted(np.split(order, begin), key=lambda positions: positions[0])


# -- two binary trees at work at once, each with half of the chunks --------------------------------
#
# Of n ranks one is the root. The others, v = 1 to n - 1 places from it, are numbered along a binary
# search tree, in which odd numbers are leaves. The second tree has the same shape, but it is
# mirrored if n - 1 is even, and shifted by one place if n - 1 is odd. So a rank with children in
# one tree is a leaf in the other, and no rank sends to more than two. The root is above both trees.
#
# The edges have two colours. No rank has two edges of one colour to children, or two to parents. A
# pair of rounds first uses the edges of the first colour, then those of the second. So each rank
# sends one message and receives one in every round, and each chunk moves one level in every pair.
#
# **Source** Sanders, Speck and Traeff 2009, Parallel Computing 35(12), "Two-tree algorithms for
# full bandwidth broadcast, reduction and scan". The paper's rule for colours takes O(log n) for one
# rank. This module finds all colours by walking along the edges, in O(n).


class Edges(NamedTuple):
    """The edges of both trees, as arrays: first the first tree, and sorted by child in each tree.

    Attributes
    ----------
    parent, child : ndarray of int
        Places, counted from the root. The root is 0.
    tree : ndarray of int
        The tree of each edge: 0 or 1.
    level : ndarray of int
        The level of each edge: 0 for edges from the root, 1 for the edges below these, ...
    colour : ndarray of int
        0 or 1. In a chain of edges that depend on each other, the first edge has 0.
    """

    parent: np.ndarray
    child: np.ndarray
    tree: np.ndarray
    level: np.ndarray
    colour: np.ndarray


def levels(n: int) -> int:
    """How many edges are between the root and the lowest rank."""
    return (n - 1).bit_length()


def edges_of(n: int) -> Edges:
    """The `Edges` of two trees of n ranks.

    **Cost** O(n).
    """
    count = n - 1
    number, above, level = _search_tree(count)
    place = np.append(0, count + 1 - number if count % 2 == 0 else number % count + 1)
    parent = np.concatenate((above, place[above]))
    child = np.concatenate((number, place[number]))
    tree = np.repeat((0, 1), count)
    order = np.lexsort((tree, child))
    parent, child, tree = parent[order], child[order], tree[order]
    return Edges(parent, child, tree, np.tile(level, 2)[order], _colours(parent, child))


def _search_tree(count):
    """A search tree of the numbers 1 to count: the parent of each number (0 for the top), and its
    depth.

    If the lowest bit of a number is d, the tree has d - 1 smaller numbers below it, and at most d -
    1 larger numbers.
    """
    number = np.arange(1, count + 1)
    lowest = number & -number
    above = number - lowest | 2 * lowest
    above = np.where(above > count, number - lowest, above)
    level = np.zeros(count + 1, dtype=np.int64)
    for d in reversed(powers_below(count + 1)):
        here = number[lowest == d]
        level[here] = np.where(above[here - 1] > 0, level[above[here - 1]] + 1, 0)
    return number, above, level[1:]


def _colours(parent, child):
    """0 or 1 for each edge, different from the parent's other edge and from the child's other
    edge."""
    beside = _other_with(child), _other_with(parent)
    colour = [-1] * len(child)
    for edge in range(len(child)):
        for first in (0, 1) if colour[edge] < 0 else ():
            here, turn, side = edge, 0, first
            while here >= 0 and (colour[here] < 0 or here == edge):
                colour[here] = turn
                here, turn, side = beside[side][here], 1 - turn, 1 - side
                if here == edge:
                    break  # once round
    return np.array(colour, dtype=np.int64)


def _other_with(ends):
    """For each edge the other edge with the same end, as a list; -1 if there is none."""
    order = np.argsort(ends, kind="stable")
    same = np.flatnonzero(ends[order][1:] == ends[order][:-1])
    other = np.full(len(ends), -1)
    other[order[same]], other[order[same + 1]] = order[same + 1], order[same]
    return other.tolist()


def two_tree_broadcast(n: int, root: int, s: int) -> Iterator[Moves]:
    """2 (ceil(lg n) + s - 1) rounds: s chunks go down each tree. Chunk 2 j + t is in tree t."""
    edges = edges_of(n)
    parent, child = (edges.parent + root) % n, (edges.child + root) % n
    for here, chunk in _waves(edges, edges.level, s):
        yield Moves(parent[here], child[here], chunk)


def two_tree_reduce(n: int, root: int, s: int) -> Iterator[Moves]:
    """As many rounds as `two_tree_broadcast`: sums go up the trees."""
    edges = edges_of(n)
    parent, child = (edges.parent + root) % n, (edges.child + root) % n
    for here, chunk in _waves(edges, levels(n) - 1 - edges.level, s):
        yield Moves(child[here], parent[here], chunk, adds=True)


def _waves(edges, begin, s):
    """For each round the edges in use, and their chunks.

    Parameters
    ----------
    begin : ndarray of int
        The pair of rounds in which each edge carries its first chunk.
    """
    for pair in range(begin.max(initial=-s) + s):
        number = pair - begin
        is_busy = (number >= 0) & (number < s)
        for colour in (0, 1):
            here = np.flatnonzero(is_busy & (edges.colour == colour))
            yield here, 2 * number[here] + edges.tree[here]
