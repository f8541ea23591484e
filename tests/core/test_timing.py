"""Times of collectives: against `Network` message by message, closed forms, examples by hand."""

from __future__ import annotations

import os
from math import inf, sqrt

import hypothesis
import numpy as np
import pytest
from closed_forms import CLOSED_FORMS, NETWORKS, SIZES
from fluid import fair_rates as fair_rates_in_fractions
from fluid import through_network
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import sampled

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

SEED = int(os.environ["SEED"])
EVERY = [(kind, name) for kind in KINDS for name in ALGORITHMS[kind]]


def flat(n, link, **more):
    return Topology(Cluster(n, 1, link, **more), n)


def seconds(found, topology, starts=None):
    n = found.n
    return time_of(found, topology, range(n), np.zeros(n) if starts is None else starts)


# -- closed forms, written down from the papers ----------------------------------------------------


@pytest.mark.parametrize("form, network", sampled(CLOSED_FORMS, NETWORKS))
def test_closed_forms(form, network):
    (kind, name), link = form, NETWORKS[network]
    a, b = link.latency_s, 1 / link.bandwidth_Bps
    for n in (2, 3, 4, 5, 7, 8, 16, 31, 33, 64):
        for nbytes in SIZES:
            found = seconds(schedule(kind, n, nbytes, name, itemsize=4), flat(n, link)).max()
            wanted = CLOSED_FORMS[kind, name](n, nbytes, a, b)
            # Rings: the largest part travels on in every step, so that all steps last as long.
            assert found == pytest.approx(wanted, rel=1e-9), (n, nbytes)


@pytest.mark.parametrize("link", NETWORKS.values(), ids=NETWORKS)
def test_the_chain_takes_n_plus_s_minus_2_steps(link):
    for n in (2, 3, 5, 8, 33, 64):
        for chunks in (1, 7, 64):
            nbytes = 64 * 7 * 1000
            found = seconds(schedule("broadcast", n, nbytes, "chain", chunks=chunks), flat(n, link))
            step_s = link.latency_s + nbytes / chunks / link.bandwidth_Bps
            assert found.max() == pytest.approx((n + chunks - 2) * step_s, rel=1e-9)


def test_the_chain_with_the_best_number_of_chunks_comes_near_the_best_real_number():
    link, n, nbytes = NETWORKS["10 Gbit/s"], 32, 10**8
    found = seconds(schedule("broadcast", n, nbytes, "chain", link=link), flat(n, link)).max()
    a, draw_s = link.latency_s, nbytes / link.bandwidth_Bps
    bound = (sqrt((n - 2) * a) + sqrt(draw_s)) ** 2  # at s = sqrt(nbytes b (n - 2) / a)
    assert bound <= found <= bound * 1.001


# -- examples by hand ------------------------------------------------------------------------------

SECOND = Link(1.0, 100.0)


def test_incast():
    # Seven send 100 B each to rank 0 at once: 1 s, then 700 B at 100 B/s.
    ends = seconds(schedule("gather", 8, 800, "spread"), flat(8, SECOND))
    assert ends.tolist() == [8.0] * 8


def test_incast_of_unequal_parts():
    # 100, 200 and 300 B: a third each until 4 s, half each until 6 s, alone until 7 s.
    ends = seconds(schedule("gather", 4, [9, 100, 200, 300], "spread"), flat(4, SECOND))
    assert ends.tolist() == [7.0, 4.0, 6.0, 7.0]


def test_shared_backbone():
    # A ring of 4: in each round four messages of 50 B cross a backbone of 100 B/s (2 s more of
    # latency): 25 B/s each, so 3 s + 2 s for each of 6 rounds.
    topology = flat(4, SECOND, backbone=Link(2.0, 100.0))
    assert seconds(schedule("all_reduce", 4, 200, "ring"), topology).tolist() == [30.0] * 4


def test_two_level_ring_by_placement():
    # 2 nodes of 4 ranks, ring of 8, chunks of 100 B, 14 rounds.
    # Block: from each node one message leaves in a round, alone on its link: 1 s + 1 s, the others
    # are done sooner (nothing in the node). Rank 3 waits 2 s in each round; so, round by round, do
    # ranks farther off, and after 7 rounds every rank has come to wait: 14 rounds of 2 s.
    # Round robin: every message crosses; four share each node's link: 1 s + 4 s a round, 14 rounds.
    cluster = Cluster(2, 4, SECOND)
    ring = schedule("all_reduce", 8, 800, "ring")
    assert seconds(ring, Topology(cluster, 8, "block")).max() == 14 * 2.0
    assert seconds(ring, Topology(cluster, 8, "round_robin")).tolist() == [14 * 5.0] * 8


def test_two_concurrent_transfers_with_different_starts():
    # One round, 0 -> 2 and 1 -> 2 (300 and 200 B), rank 1 comes at 2 s but a rendezvous within one
    # round needs both: rank 2 is there at 0. 0 -> 2 draws alone from 1 s, both from 3 s: 5 s, 6 s.
    moves = [Moves(np.array([0, 1]), np.array([2, 2]), np.array([0, 1]))]
    found = Schedule.of("gather", "two", 3, [300, 200, 0], moves, root=2)
    ends = time_of(found, flat(3, SECOND), [0, 1, 2], [0.0, 2.0, 0.0])
    assert ends.tolist() == [5.0, 6.0, 6.0]


def test_ranks_wait_for_those_they_meet_only():
    # Rank 3 of 4 comes at 10 s. Binomial broadcast from 0: 2 gets it (2 s), then 0 -> 1, 2 -> 3.
    found = schedule("broadcast", 4, 100, "binomial")
    ends = time_of(found, flat(4, SECOND), range(4), [0, 0, 0, 10.0])
    assert ends.tolist() == [4.0, 4.0, 12.0, 12.0]


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
    bandwidths = st.sampled_from([50.0, 100.0, 130.0, 1000.0, inf])
    links = st.builds(Link, st.sampled_from([0.0, 0.5, 1.0]), bandwidths)
    cluster = Cluster(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(links),
        draw(st.none() | links),
        device=draw(st.none() | st.just(Device(reduce_Bps=75.0))),
        backbone=draw(st.none() | links),
        envelope_bytes=draw(st.sampled_from([0, 0, 10])),
        in_order=draw(st.booleans()),
        rails=draw(st.sampled_from([1, 1, 2, 3])),
    )
    world_size = draw(st.integers(1, cluster.max_ranks))
    placement = draw(st.sampled_from(["block", "round_robin"]))
    topology = Topology(cluster, world_size, placement)
    n = draw(st.integers(1, world_size))
    members = draw(st.permutations(range(world_size)))[:n]
    kind = draw(st.sampled_from(KINDS))
    found = schedule(
        kind,
        n,
        draw(st.sampled_from([0, 8, 100, 840, 1003])),
        draw(st.sampled_from(sorted(ALGORITHMS[kind]))),
        root=draw(st.integers(0, n - 1)),
        nodes=topology.node_of[members],
        chunks=draw(st.integers(1, 4)),
    )
    times = st.sampled_from([0.0, 0.0, 0.5, 3.0]) | st.floats(0, 10)
    return found, topology, members, draw(st.lists(times, min_size=n, max_size=n))


@hypothesis.seed(SEED)
@settings(max_examples=150)
@given(situations(), st.sampled_from([-1, -1, 0, 50, 10**6]))
def test_time_of_is_what_network_gives(situation, eager_limit_bytes):
    found, topology, members, starts = situation
    device = topology.cluster.device
    reduce_Bps = device.reduce_Bps if device else inf
    limit = {"eager_limit_bytes": eager_limit_bytes}
    wanted, times = through_network(found, topology, members, starts, reduce_Bps, **limit)
    ends, wire = time_of(found, topology, members, starts, expand=True, **limit)
    assert ends == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-9)
    assert np.stack((wire.start_s, wire.end_s), axis=1) == pytest.approx(
        np.array(times).reshape(-1, 2), rel=1e-9, abs=1e-9
    )
    assert (time_of(found, topology, members, starts, **limit) == ends).all()
    if found.num_messages:
        members = np.array(members)
        assert wire.src.tolist() == [members[p] for r in found.rounds for p in r.src]
        assert wire.dst.tolist() == [members[p] for r in found.rounds for p in r.dst]
        assert wire.nbytes.sum() == found.bytes_sent.sum()
        assert np.bincount(wire.round).tolist() == [len(r) for r in found.rounds]


SHARED = (None, None), (Link(0.3, 170.0), None), (None, Link(0.1, 210.0))


@pytest.mark.parametrize("family, eager_limit_bytes, shared", sampled(EVERY, (-1, 200), SHARED))
def test_ranks_out_of_step_on_shared_links(family, eager_limit_bytes, shared):
    # Ranks come at odd times, so that messages of different rounds meet on the nodes' links.
    random, (kind, name), (intra, backbone) = np.random.default_rng(SEED), family, shared
    cluster = Cluster(3, 4, SECOND, intra, backbone=backbone)
    topology = Topology(cluster, 11, "round_robin")
    starts = random.uniform(0, 9, 11)
    members = random.permutation(11)
    found = schedule(kind, 11, 1603, name, nodes=topology.node_of[members], chunks=4)
    limit = {"eager_limit_bytes": eager_limit_bytes}
    wanted, _ = through_network(found, topology, members, starts, **limit)
    ends = time_of(found, topology, members, starts, **limit)
    assert ends == pytest.approx(np.array(wanted), rel=1e-9)


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


def test_messages_of_different_rounds_on_one_link_are_noticed():
    # Round 0: 0 -> 4; round 1: 1 -> 5. Ranks 0 to 3 share a node: nothing keeps 1 from being first.
    topology = Topology(Cluster(2, 4, SECOND), 8)
    moves = [Moves(np.array([0]), np.array([4])), Moves(np.array([1]), np.array([5]))]
    found = Schedule.of("gather", "two", 8, [100] * 8, moves, root=0)
    assert time_of(found, topology, range(8), np.zeros(8)).tolist() == [3, 3, 0, 0, 3, 3, 0, 0]


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
    found = Schedule.of(
        "all_reduce",
        "some rounds of a ring",
        n,
        np.full(n, 4000),
        [Moves(np.arange(n), (np.arange(n) + 1) % n, np.arange(n), adds=True)] * 20,
    )
    step_s = link.latency_s + 8 * 4000 / link.bandwidth_Bps
    assert seconds(found, topology) == pytest.approx(np.full(n, 20 * step_s), rel=1e-9)


@pytest.mark.parametrize(
    "members, starts, words",
    [
        ([0, 1, 2], [0, 0, 0], "4 ranks with 3 members and 3 starts"),
        ([0, 1, 2, 2], [0] * 4, "twice among the members"),
        ([0, 1, 2, 9], [0] * 4, "ranks of the world, 0 to 3"),
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
