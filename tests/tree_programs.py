"""Programs of ranks as in `rank_programs`: two trees, from the paper's figures."""

from __future__ import annotations

from collections import defaultdict

from rank_programs import Recv, Send, cut, from_root

# -- two trees: Sanders, Speck and Traeff 2009 -----------------------------------------------------


def hang(ranks, above, parent_of):
    """A binary search tree of ranks in a row below a rank; its left part is full."""
    if not ranks:
        return
    top = 2 ** (len(ranks).bit_length() - 1) - 1
    parent_of[ranks[top]] = above
    hang(ranks[:top], ranks[top], parent_of)
    hang(ranks[top + 1 :], ranks[top], parent_of)


def two_trees(line):
    """The parent of each rank in both trees; the first rank of the line is above both."""
    others = line[1:]
    rows = others, others[::-1] if len(others) % 2 == 0 else others[1:] + others[:1]
    trees = {}, {}
    for row, tree in zip(rows, trees, strict=True):
        hang(row, line[0], tree)
    return trees


def painted(line, trees):
    """The colour of each edge: those at one parent differ, and so do those at one child.

    An edge is its child and its tree. The lowest edge of those that hang together has colour 0.
    """
    colour = {}

    def paint(edge, wanted):
        if edge in colour:
            assert colour[edge] == wanted
            return
        colour[edge] = wanted
        child, tree = edge
        for other in edges:
            same_parent = trees[tree][child] == trees[other[1]][other[0]]
            if other != edge and (same_parent or other[0] == child):
                paint(other, 1 - wanted)

    edges = [(child, tree) for child in line[1:] for tree in (0, 1)]
    for edge in edges:
        if edge not in colour:
            paint(edge, 0)
    return colour


def depth_of(rank, tree):
    return 0 if rank not in tree else 1 + depth_of(tree[rank], tree)


def along_two_trees(r, n, m, root, itemsize, chunks, upwards):
    """The k-th chunk gets to depth d in pair k + d of rounds, in the round of its edge's colour.

    Against the arrows it leaves depth d in pair k + height - d.
    """
    line = from_root(n, root)
    trees = two_trees(line)
    colour, sizes = painted(line, trees), cut(m, 2 * chunks, itemsize)
    height = max((depth_of(rank, tree) for tree in trees for rank in line), default=0)
    steps = defaultdict(list)
    for (child, tree), round_ in colour.items():
        depth, parent = depth_of(child, trees[tree]), trees[tree][child]
        src, dst = (child, parent) if upwards else (parent, child)
        for k in range(chunks):
            moment = k + (height - depth if upwards else depth), round_
            if r == dst:
                steps[moment].append(Recv(src, sizes[2 * k + tree], upwards))
            if r == src:
                steps[moment].append(Send(dst, sizes[2 * k + tree]))
    assert all(len({type(post) for post in step}) == len(step) for step in steps.values())
    return [steps[moment] for moment in sorted(steps)]


def broadcast_double_tree(r, n, m, root, itemsize, chunks, **_):
    return along_two_trees(r, n, m, root, itemsize, chunks, upwards=False)


def reduce_double_tree(r, n, m, root, itemsize, chunks, **_):
    return along_two_trees(r, n, m, root, itemsize, chunks, upwards=True)


def all_reduce_double_tree(r, n, m, itemsize, chunks, **_):
    given = {"root": 0, "itemsize": itemsize, "chunks": chunks}
    return [*reduce_double_tree(r, n, m, **given), *broadcast_double_tree(r, n, m, **given)]
