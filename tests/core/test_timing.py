"""Times of collectives: against programs of their ranks in fractions, and examples by hand."""

from __future__ import annotations

from itertools import product
from math import inf, sqrt

import hypothesis
import numpy as np
import pytest
from closed_forms import NETWORKS
from fluid import clusters, through_network
from fluid import fair_rates as fair_rates_in_fractions
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import SEED

from simlib.core.collectives import (
    ALGORITHMS,
    KINDS,
    Moves,
    Schedule,
    schedule,
    sharing,
    timing,
)
from simlib.core.collectives.mpich import IN_TWO_LEVELS
from simlib.core.collectives.timing import time_of
from simlib.core.model.cluster import Cluster, Device, Link, Topology
from simlib.core.model.errors import InvalidCallError


def flat(n, link, **more):
    return Topology(Cluster(n, 1, link, **more), n)


def seconds(found, topology, starts=None):
    n = found.n
    return time_of(found, topology, range(n), np.zeros(n) if starts is None else starts)


# -- closed forms, written down from the papers ----------------------------------------------------


def test_the_chain_takes_n_plus_s_minus_2_steps_and_the_best_s_comes_near_the_best_real_number():
    nbytes = 64 * 7 * 1000
    for link, n, chunks in product(NETWORKS.values(), (2, 3, 5, 8, 33, 64), (1, 7, 64)):
        found = seconds(schedule("broadcast", n, nbytes, "chain", chunks=chunks), flat(n, link))
        step_s = link.latency_s + nbytes / chunks / link.bandwidth_Bps
        assert found.max() == pytest.approx((n + chunks - 2) * step_s, rel=1e-9)
    link, n, nbytes = NETWORKS["10 Gbit/s"], 32, 10**8
    found = seconds(schedule("broadcast", n, nbytes, "chain", link=link), flat(n, link)).max()
    a, draw_s = link.latency_s, nbytes / link.bandwidth_Bps
    bound = (sqrt((n - 2) * a) + sqrt(draw_s)) ** 2  # at s = sqrt(nbytes b (n - 2) / a)
    assert bound <= found <= bound * 1.001


# -- examples by hand ------------------------------------------------------------------------------

SECOND = Link(1.0, 100.0)


TWO = Moves(np.array([0, 1]), np.array([2, 2]), np.array([0, 1]))
EXAMPLES = {
    # Seven send 100 B each to rank 0 at once: 1 s, then 700 B at 100 B/s.
    "incast": (schedule("gather", 8, 800, "spread"), flat(8, SECOND), None, [8] * 8),
    # 100, 200 and 300 B: a third each until 4 s, half each until 6 s, alone until 7 s.
    "unequal parts": (
        schedule("gather", 4, [9, 100, 200, 300], "spread"), flat(4, SECOND), None, [7, 4, 6, 7],
    ),
    # A ring of 4: in each round four messages of 50 B cross a backbone of 100 B/s (2 s more of
    # latency): 25 B/s each, so 3 s + 2 s for each of 6 rounds.
    "backbone": (
        schedule("all_reduce", 4, 200, "ring"),
        flat(4, SECOND, backbone=Link(2.0, 100.0)),
        None,
        [30] * 4,
    ),
    # One round, 0 -> 2 and 1 -> 2 (300 and 200 B), rank 1 comes at 2 s but a rendezvous within one
    # round needs both: rank 2 is there at 0. 0 -> 2 draws alone from 1 s, both from 3 s: 5 s, 6 s.
    "other starts": (
        Schedule.of("gather", "two", 3, [300, 200, 0], [TWO], root=2),
        flat(3, SECOND),
        [0, 2, 0],
        [5, 6, 6],
    ),
    # Rank 3 of 4 comes at 10 s. Binomial broadcast from 0: 2 gets it (2 s), then 0 -> 1, 2 -> 3.
    "who meets a late rank waits": (
        schedule("broadcast", 4, 100, "binomial"), flat(4, SECOND), [0, 0, 0, 10], [4, 4, 12, 12],
    ),
    # 2 nodes of 4 ranks, ring of 8, chunks of 100 B, 14 rounds. Round robin: every message crosses;
    # four share each node's link: 1 s + 4 s a round.
    "round robin": (
        schedule("all_reduce", 8, 800, "ring"),
        Topology(Cluster(2, 4, SECOND), 8, "round_robin"),
        None,
        [14 * 5] * 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_by_hand(name):
    found, topology, starts, ends = EXAMPLES[name]
    assert seconds(found, topology, starts).tolist() == ends


def test_two_level_ring_in_blocks():
    # 2 nodes of 4 ranks, ring of 8, chunks of 100 B, 14 rounds. From each node one message leaves
    # in a round, alone on its link: 1 s + 1 s, the others are done sooner (nothing in the node).
    # Rank 3 waits 2 s in each round; so, round by round, do ranks farther off, and after 7 rounds
    # every rank has come to wait: 14 rounds of 2 s.
    ring = schedule("all_reduce", 8, 800, "ring")
    assert seconds(ring, Topology(Cluster(2, 4, SECOND), 8, "block")).max() == 14 * 2.0


def test_reductions_cost_what_the_device_says():
    # Ring of 4: 100 B received and added at 50 B/s in each of the first 3 rounds: 2 s more each.
    for backbone in (None, Link(0.0, 400.0)):
        topology = flat(4, SECOND, device=Device(reduce_Bps=50.0), backbone=backbone)
        ends = seconds(schedule("all_reduce", 4, 400, "ring"), topology)
        assert ends.tolist() == [6 * 2.0 + 3 * 2.0] * 4


# -- against Network -------------------------------------------------------------------------------


@st.composite
def situations(draw):
    """A collective on a cluster: members in some order, starts; few round numbers or many odd."""
    cluster = draw(clusters([50.0, 100.0, 130.0, 1000.0, inf], st.just(Device(reduce_Bps=75.0))))
    world_size = draw(st.integers(1, cluster.max_ranks))
    topology = Topology(cluster, world_size, draw(st.sampled_from(["block", "round_robin"])))
    n = draw(st.integers(1, world_size))
    members = draw(st.permutations(range(world_size)))[:n]
    kind = draw(st.sampled_from(KINDS))
    nbytes = draw(st.sampled_from([0, 8, 100, 840, 1003]))
    name = draw(st.sampled_from(sorted(ALGORITHMS[kind])))
    more = {"root": draw(st.integers(0, n - 1)), "chunks": draw(st.integers(1, 4))}
    found = schedule(kind, n, nbytes, name, nodes=topology.node_of[members], **more)
    times = st.sampled_from([0.0, 0.0, 0.5, 3.0]) | st.floats(0, 10)
    return found, topology, members, draw(st.lists(times, min_size=n, max_size=n))


@hypothesis.seed(SEED)
@settings(max_examples=100)
@given(situations(), st.sampled_from([-1, -1, 0, 50, 10**6]))
def test_time_of_is_what_programs_of_the_ranks_take(situation, eager_limit_bytes):
    found, topology, members, starts = situation
    hypothesis.assume(found.num_messages <= 60)
    limit = {"eager_limit_bytes": eager_limit_bytes}
    wanted, times = through_network(found, topology, members, starts, **limit)
    ends, wire = time_of(found, topology, members, starts, expand=True, **limit)
    assert ends == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-9)
    for (src, dst), of_pair in times.items():
        here = (wire.src == src) & (wire.dst == dst)
        mine = np.sort(np.stack((wire.start_s[here], wire.end_s[here]), axis=1), axis=0)
        assert mine == pytest.approx(np.sort(np.array(of_pair), axis=0), rel=1e-9, abs=1e-9)
    assert (time_of(found, topology, members, starts, **limit) == ends).all()
    if found.num_messages:
        members = np.array(members)
        assert wire.src.tolist() == [members[p] for r in found.rounds for p in r.src]
        assert wire.dst.tolist() == [members[p] for r in found.rounds for p in r.dst]
        assert wire.nbytes.sum() == found.bytes_sent.sum()
        assert np.bincount(wire.round).tolist() == [len(r) for r in found.rounds]


@hypothesis.seed(SEED)
@settings(max_examples=100)
@given(situations())
def test_both_ways_agree_where_no_link_is_shared(situation):
    found, topology, members, starts = situation
    members, starts = np.array(members), np.array(starts)
    patterns = timing._patterns(found, topology, members)
    alone = timing._shares_no_link(patterns.values(), topology)
    hypothesis.assume(alone and found.rounds)
    shared, _ = sharing.through_shared_links(found, topology, members, starts)
    lone, _ = timing._each_alone(found, patterns, topology, starts, inf, expand=False)
    assert shared == pytest.approx(lone, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_message_per_rank_and_round_shares_nothing_on_a_flat_cluster(kind):
    topology = flat(13, SECOND)
    in_nodes = {"hierarchical", "leader", *IN_TWO_LEVELS}
    for name in set(ALGORITHMS[kind]) - {"spread", *in_nodes}:
        if not name.startswith("gloo"):
            found = schedule(kind, 13, 1000, name)
            patterns = timing._patterns(found, topology, np.arange(13)).values()
            assert timing._shares_no_link(patterns, topology), name


def test_shared_links_are_noticed():
    found = schedule("all_reduce", 8, 800, "ring")
    for cluster, placement, shares in (
        (Cluster(2, 4, SECOND), "block", False),
        (Cluster(2, 4, SECOND), "round_robin", True),
        (Cluster(8, 1, SECOND, backbone=SECOND), "block", True),
        (Cluster(8, 1, SECOND, backbone=Link(1.0, inf)), "block", False),
        (Cluster(2, 4, Link(1.0, inf)), "round_robin", False),
    ):
        topology = Topology(cluster, 8, placement)
        patterns = timing._patterns(found, topology, np.arange(8)).values()
        assert timing._shares_no_link(patterns, topology) is not shares
    # Round 0: 0 -> 4; round 1: 1 -> 5. Ranks 0 to 3 share a node: nothing keeps 1 from being first.
    topology = Topology(Cluster(2, 4, SECOND), 8)
    moves = [Moves(np.array([0]), np.array([4])), Moves(np.array([1]), np.array([5]))]
    found = Schedule.of("gather", "two", 8, [100] * 8, moves, root=0)
    assert seconds(found, topology).tolist() == [3, 3, 0, 0, 3, 3, 0, 0]


def test_fair_rates_are_those_in_fractions():
    class On:
        def __init__(self, row, free):
            self.links = tuple(int(link) for link in row if link != free)

    random = np.random.default_rng(SEED)
    for _ in range(200):
        links = int(random.integers(1, 8))
        paths = random.integers(0, links + 1, (int(random.integers(1, 10)), 3))
        paths[:, 0] = random.integers(0, links, len(paths))
        for row in paths:  # a link is crossed once
            row[1:][row[1:] == row[0]] = links
            row[2] = links if row[2] == row[1] else row[2]
        bandwidth_Bps = np.append(random.integers(1, 6, links) * 10.0, inf)
        wanted = fair_rates_in_fractions(
            [On(row, links) for row in paths], dict(enumerate(map(int, bandwidth_Bps[:-1])))
        )
        found = sharing.fair_rates(paths, bandwidth_Bps)
        assert found == pytest.approx(np.array([float(rate) for rate in wanted]), rel=1e-12)


def test_the_same_to_the_bit():
    found = schedule("all_reduce", 24, 10007, "ring")
    topology = Topology(Cluster(6, 4, NETWORKS["1 Gbit/s"]), 24, "round_robin")
    starts = np.linspace(0, 1e-3, 24)
    first = seconds(found, topology, starts)
    assert all((seconds(found, topology, starts) == first).all() for _ in range(5))
    assert (starts == np.linspace(0, 1e-3, 24)).all()  # not written to


def test_a_ring_of_1024_in_step_has_its_closed_form_even_where_links_are_shared():
    n, link = 1024, NETWORKS["10 Gbit/s"]
    topology = Topology(Cluster(128, 8, link), n, "round_robin")
    ranks = np.arange(n)
    rounds = [Moves(ranks, (ranks + 1) % n, ranks, adds=True)] * 20
    found = Schedule.of("all_reduce", "some rounds of a ring", n, np.full(n, 4000), rounds)
    step_s = link.latency_s + 8 * 4000 / link.bandwidth_Bps
    assert seconds(found, topology) == pytest.approx(np.full(n, 20 * step_s), rel=1e-9)


@pytest.mark.parametrize(
    "members, starts, words",
    [
        ([0, 1, 2], [0, 0, 0], "4 ranks, but there are 3 members and 3 starts"),
        ([0, 1, 2, 2], [0] * 4, "twice among the members"),
        ([0, 1, 2, 9], [0] * 4, "must be ranks from 0 to 3"),
    ],
)
def test_refusals(members, starts, words):
    with pytest.raises(InvalidCallError, match=words):
        time_of(schedule("barrier", 4), flat(4, SECOND), members, starts)


def test_an_eager_message_overtakes_one_that_waits_for_its_receiver():
    # Three from 0 to 1 in one round: 0, 100 and 0 B. Rank 1 comes at 5 s. The empty ones start at
    # once and end at 1 s; the other at 5 s, and ends at 7 s.
    moves = [Moves(np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([0, 1, 2]))]
    found = Schedule.of("gather", "three", 2, [0, 100, 0], moves, root=1)
    late = [0.0, 5.0]
    ends, wire = time_of(found, flat(2, SECOND), [0, 1], late, expand=True, eager_limit_bytes=0)
    assert ends.tolist() == [7.0, 7.0]
    assert wire.end_s.tolist() == [1.0, 7.0, 1.0]
    # With both there from the start they go in order: the last waits for the one before it.
    _, wire = time_of(found, flat(2, SECOND), [0, 1], [0, 0], expand=True, eager_limit_bytes=0)
    assert wire.end_s.tolist() == [1.0, 2.0, 2.0]


def test_an_eager_message_of_a_rank_that_adds_up_overtakes_none():
    # Rank 0 has 100 B at 2 s and adds them up until 12 s; only then, at 7 s, rank 1 has rank 3's.
    # At 12 s rank 0 sends rank 1 100 B, then an empty one, which is eager and waits for them.
    adds = np.array([True, False])
    arrive = Moves(np.array([2, 3]), np.array([0, 1]), np.array([1, 1]), adds=adds)
    leave = Moves(np.array([0, 0]), np.array([1, 1]), np.array([1, 0]))
    found = Schedule.of("reduce", "two", 4, [0, 100], [arrive, leave], root=1)
    cluster = flat(4, SECOND, device=Device(reduce_Bps=10.0))
    late = [0.0, 0.0, 0.0, 5.0]
    ends, wire = time_of(found, cluster, range(4), late, expand=True, eager_limit_bytes=0)
    assert wire.start_s.tolist() == [0.0, 5.0, 12.0, 12.0]
    assert wire.end_s.tolist() == [2.0, 7.0, 14.0, 14.0]
    assert ends.tolist() == [14.0, 14.0, 2.0, 7.0]
