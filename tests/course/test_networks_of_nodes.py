"""Lesson 05, networks of many nodes: its answers, and its claims against closed forms."""

import random
from collections import Counter

import pytest
from lesson_programs import names_of, written

import simlib
from simlib.core.model.cluster import Topology

LESSON = "05_networks_of_many_nodes"
WRITES = {"ring_s": 8, "hierarchical": 3, "ring_order": 3}
CARD_BPS, HOP_S, UPLINK_S = 50e9, 7e-6, 1e-6


@pytest.fixture(scope="module")
def lesson():
    return names_of(LESSON, lambda names: all(name.isupper() for name in names))


@pytest.mark.parametrize("name, count", WRITES.items())
def test_an_answer_in_its_place_is_right(name, count, lesson, capsys):
    for source, word in zip(written(LESSON, name), ("not yet", "right"), strict=True):
        exec(source, dict(lesson))
        said = capsys.readouterr().out
        assert said.count(word) == count and said.count("not yet") + said.count("right") == count


@pytest.mark.parametrize("key", ["node_of[r]", "leaf_of[r]"])
def test_a_ring_sorted_by_only_one_of_nodes_and_leaves_is_refused(key, lesson, capsys):
    stub = next(iter(written(LESSON, "ring_order")))
    kept = "list(range(len(node_of)))"
    assert kept in stub
    exec(stub.replace(kept, f"sorted(range(len(node_of)), key=lambda r: {key})"), dict(lesson))
    assert "not yet" in capsys.readouterr().out


@pytest.mark.parametrize("node_of", [[0, 0, 1, 1], [0, 1, 2, 2, 1, 0], [0, 1, 0, 1, 1, 1, 0, 0]])
def test_two_sums_sends_as_many_times_the_bytes_as_a_node_has_ranks(node_of, lesson):
    nodes = max(node_of) + 1
    per_node, numel = len(node_of) // nodes, len(node_of) * 12
    least = 2 * (nodes - 1)
    assert lesson["between"](lesson["two_sums"], node_of, numel) == pytest.approx(per_node * least)
    sent = lesson["between"](lesson["flat"], node_of, numel, all_reduce="hierarchical")
    assert sent == pytest.approx(least)


def in_pods(nodes, per_leaf):
    """Messages that leave each group of nodes, if a ring visits the nodes in this order."""
    leaves = [node // per_leaf for node in nodes]
    after = leaves[1:] + leaves[:1]
    return Counter(leaf for leaf, then in zip(leaves, after, strict=True) if leaf != then)


@pytest.mark.parametrize("order", ["in order", "alternating"])
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_the_busiest_uplink_sets_the_pace_of_the_ring(order, ratio, lesson):
    nodes, nbytes = lesson["ORDERS"][order], lesson["N"]
    most = max(in_pods(nodes, 4).values())
    card_Bps = min(CARD_BPS, 4 * CARD_BPS / ratio / most)
    wanted_s = 126 * (HOP_S + UPLINK_S + nbytes / 64 / (8 * card_Bps))
    asked = {"placement": lesson["ranks_in"](nodes)}
    found_ms = lesson["timed_ms"](lesson["flat"], lesson["fat_tree"](8, ratio), **asked)
    assert found_ms == pytest.approx(wanted_s * 1e3, rel=1e-9)


def test_in_random_order_all_nodes_of_some_group_send_to_others():
    chance = random.Random(7)
    orders = [chance.sample(range(32), 32) for _ in range(300)]
    most = [max(in_pods(nodes, 4).values()) for nodes in orders]
    assert most.count(4) > 0.97 * len(most)
    pods = in_pods(chance.sample(range(8 * 384), 8 * 384), 384)
    assert 384 / 7 > 50 and max(pods.values()) / (384 / 7) == pytest.approx(6.2, abs=0.2)


def test_cards_send_what_the_exit_ticket_says(lesson):
    cluster = simlib.Cluster(16, 8, lesson["CARD"], lesson["NVLINK"], rails=8, direct_cards=True)
    options = {"cluster": cluster, "expand": True, "all_reduce": "hierarchical"}
    run = simlib.simulate(lesson["flat"], 128, (1280,), **options)
    node_of = Topology(cluster, 128).node_of
    sent = Counter()
    for w in run.wire:
        sent[w.src] += w.nbytes * (node_of[w.src] != node_of[w.dst])
    assert {nbytes / 5120 for nbytes in sent.values()} == {2 * 15 / 16 / 8}
