"""Two binary trees that work at once, each with half of the chunks: full bandwidth in few rounds.

Of n ranks one is the root. The others, v = 1 to n - 1 places from it, are numbered along a binary
search tree: odd numbers are leaves. The second tree has the same shape, mirrored where n - 1 is
even and shifted by one place where it is odd. So who has children in one tree is a leaf in the
other, and no rank sends to more than two. The root stands outside, above the tops of both.

The edges have two colours: no rank has two edges of one colour to children, nor to parents. In a
pair of rounds the edges of the first colour are used, then those of the second: each rank sends
one message and receives one in every round, and each chunk gets one level further in every pair.

**Source** Sanders, Speck and Traeff 2009, Parallel Computing 35(12), "Two-tree algorithms for full
bandwidth broadcast, reduction and scan". The paper's rule for colours takes O(log n) for one rank;
here they are found by walking along the edges, in O(n).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .steps import Moves, powers_below


class Edges(NamedTuple):
    """The edges of both trees, sorted by child, the first tree's first: arrays.

    Attributes
    ----------
    parent, child : ndarray of int
        In places from the root; 0 is the root.
    tree : ndarray of int
        0 or 1.
    level : ndarray of int
        0 from the root, 1 below that, ...
    colour : ndarray of int
        0 or 1. Of edges that depend on each other, in a chain, the first one has 0.
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
    """Numbers 1 to count, the number above each (0 above the top), and how deep each lies.

    A number whose lowest bit is d has d - 1 smaller ones below it, and at most as many larger ones.
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
    """0 or 1 for each edge, unlike that of the other edge of its parent and of its child."""
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
    """Of each edge the other one with the same end, as a list; -1 where there is none."""
    order = np.argsort(ends, kind="stable")
    same = np.flatnonzero(ends[order][1:] == ends[order][:-1])
    other = np.full(len(ends), -1)
    other[order[same]], other[order[same + 1]] = order[same + 1], order[same]
    return other.tolist()


def two_tree_broadcast(n: int, root: int, s: int) -> Iterator[Moves]:
    """2 (ceil(lg n) + s - 1) rounds; s chunks of each tree run down: chunk 2 j + t is tree t's."""
    edges = edges_of(n)
    parent, child = (edges.parent + root) % n, (edges.child + root) % n
    for here, chunk in _waves(edges, edges.level, s):
        yield Moves(parent[here], child[here], chunk)


def two_tree_reduce(n: int, root: int, s: int) -> Iterator[Moves]:
    """As many rounds; sums run up."""
    edges = edges_of(n)
    parent, child = (edges.parent + root) % n, (edges.child + root) % n
    for here, chunk in _waves(edges, levels(n) - 1 - edges.level, s):
        yield Moves(child[here], parent[here], chunk, adds=True)


def _waves(edges, begin, s):
    """For each round the edges in use, and their chunks.

    Parameters
    ----------
    begin : ndarray of int
        In which pair of rounds each edge has its first chunk.
    """
    for pair in range(begin.max(initial=-s) + s):
        number = pair - begin
        is_busy = (number >= 0) & (number < s)
        for colour in (0, 1):
            here = np.flatnonzero(is_busy & (edges.colour == colour))
            yield here, 2 * number[here] + edges.tree[here]
