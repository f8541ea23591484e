"""The two trees of `collectives.steps`: their shape, colours, and number of chunks."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import numpy as np
import pytest

from simlib.core.collectives import schedule
from simlib.core.collectives.schedules import best_tree_chunks
from simlib.core.collectives.steps import edges_of, levels
from simlib.core.model.cluster import Link


@pytest.mark.parametrize("n", [*range(2, 18), 64, 65, 1000])
def test_who_has_children_in_one_tree_is_a_leaf_of_the_other(n):
    edges = edges_of(n)
    others = set(range(1, n))
    inner = []
    for tree in (0, 1):
        here = edges.tree == tree
        parent = dict(zip(edges.child[here].tolist(), edges.parent[here].tolist(), strict=True))
        assert set(parent) == others and set(parent.values()) <= {0, *others}
        inner.append(set(parent.values()) - {0})
        depth = dict.fromkeys(others, 0)
        for rank in others:
            above = rank
            while above:
                above, depth[rank] = parent[above], depth[rank] + 1
        assert max(depth.values()) == levels(n) == ceil(log2(n))
        assert [depth[rank] - 1 for rank in edges.child[here].tolist()] == (
            edges.level[here].tolist()
        )
    assert not inner[0] & inner[1]


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all_reduce"])
def test_each_rank_sends_one_message_and_receives_one_in_a_round(kind):
    for n in (*range(2, 18), 127, 128, 1000):
        for round_ in schedule(kind, n, 8000, "double_tree", chunks=5).rounds:
            assert np.bincount(round_.src).max() == np.bincount(round_.dst).max() == 1
    sent = schedule("all_reduce", 64, 6400, "double_tree", chunks=10).bytes_sent
    assert Counter(sent.tolist())[12800] > 20 and sent.max() == 12800  # twice the vector


def test_the_best_number_of_chunks_is_the_best():
    link = Link(10e-6, 1e9)
    for n, nbytes in ((8, 10**6), (64, 10**7), (5, 1000), (17, 50)):

        def time_s(s, n=n, nbytes=nbytes):
            return (ceil(log2(n)) + s - 1) * (
                link.latency_s + nbytes / (2 * s) / link.bandwidth_Bps
            )

        best = min(range(1, min(nbytes // 2, 5000) + 1), key=time_s)
        assert abs(best_tree_chunks(n, nbytes, link) - best) <= 1
        rounds = 4 * (ceil(log2(n)) + best_tree_chunks(n, nbytes, link) - 1)
        assert schedule("all_reduce", n, nbytes, "double_tree", link=link).num_rounds == rounds
    assert best_tree_chunks(2, 10**6, link) == best_tree_chunks(8, 0, link) == 1
    assert best_tree_chunks(8, 101, Link(0, 1e9)) == 51
    assert schedule("reduce", 3, 2 * 65536 + 2, "double_tree").num_rounds == 2 * (2 + 2 - 1)
