"""The fluid network against one in fractions, and against examples worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import hypothesis
import pytest
from fluid import Flow, clusters, exact_ends, fair_rates, network_ends
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import SEED

from simlib.core.clockwork.network import Network
from simlib.core.model.cluster import Cluster, Link, Topology
from simlib.core.model.errors import InvalidCallError

SECOND = Link(1.0, 100.0)  # 1 s and 100 B/s: easy to reckon with


def flat(n, inter=SECOND, **more):
    return Topology(Cluster(n, 1, inter, **more), n)


def test_a_message_by_all_cards_shares_each_of_them():
    # 1 -> 2 goes by both cards: 200 B at 200 B/s alone. Beside 0 -> 2, which takes half of card 0,
    # both halves have 50 B/s: its rate is 100 B/s.
    topology = Topology(Cluster(2, 2, SECOND, rails=2, direct_cards=True), 4)
    for others, ends in (((), [2.0]), ((100,), [3.0, 3.0])):
        network = Network(topology)
        found = [network.start(0.0, 1, 2, 200, topology.of_ring(range(4)))]
        found += [network.start(0.0, 0, 2, nbytes) for nbytes in others]
        network.advance(10.0)
        assert [transfer.end_s for transfer in found] == ends


def test_a_transfer_is_exact_alone_and_while_others_come_and_go_beside_it():
    topology = flat(2, Link(30e-6, 1.25e9))
    for nbytes in (0, 1, 3, 1000, 12345677):
        (end,) = network_ends(topology, [(0.1, 0, 1, nbytes)])
        assert end == (0.1 + 30e-6) + nbytes / 1.25e9
    # They share the nodes' links, which have enough for all: the rate is worked out again and
    # again, and stays what it is.
    cluster = Cluster(2, 2, Link(30e-6, 10e9), intra=Link(0.0, 1.25e9))
    others = [(i / 7e4, 1, 3, 1000 + i) for i in range(50)]
    messages = [(0.0, 0, 2, 10**6 + 1), *others]
    assert network_ends(Topology(cluster, 4), messages)[0] == 30e-6 + (10**6 + 1) / 1.25e9


EXAMPLES = {
    "the envelope travels too": (flat(2, envelope_bytes=50), [(0, 0, 1, 150)], [1 + 200 / 100]),
    # 0 -> 2 alone from 1 s to 3 s: 200 of its 300 B. From 3 s both draw 50 B/s: its last 100 B last
    # to 5 s, where 1 -> 2 has 100 of 200 B; alone again, the rest takes 1 s: 6 s.
    "overlap in part": (flat(3), [(0, 0, 2, 300), (2, 1, 2, 200)], [5, 6]),
    # Three into one: a third each until 4 s (100 B); then 100 B are left of one and 200 of the
    # other, half each: 6 s, and 100 B alone: 7 s.
    "incast": (flat(4), [(0, 0, 3, 100), (0, 1, 3, 200), (0, 2, 3, 300)], [4, 6, 7]),
    # Four nodes, disjoint pairs, but one backbone of 150 B/s with 2 s of its own: latency 3 s, then
    # 75 B/s each. When 0 -> 1 has its 150 B (5 s), 2 -> 3 has 150 of 350 B left to itself: 100 B/s,
    # the limit of its node: 7 s.
    "backbone": (flat(4, backbone=Link(2, 150)), [(0, 0, 1, 150), (0, 2, 3, 350)], [5, 7]),
    # 0 sends to 1 and 2, 3 sends to 2; node 0's up and node 2's down link are shared. All 50 B/s
    # until 0 -> 1 has its 50 B (2 s); node 2 still divides its 100: both end at 5 s.
    "left over": (flat(4), [(0, 0, 1, 50), (0, 0, 2, 200), (0, 3, 2, 200)], [2, 5, 5]),
    # 1 s of latency each, paid at the same time; then 100 B at 100 B/s, one after the other.
    "in turn": (flat(2), [(0, 0, 1, 100)] * 10, [*range(2, 12)]),
    "at once": (flat(2, in_order=False), [(0, 0, 1, 100)] * 10, [11] * 10),
    # 0 -> 2 has three messages, 1 -> 2 one of 300 B: half each all along. The fluid model gives
    # each of the four a quarter: at 5 s the three have their 100 B, 200 B of the other are left.
    "pairs share": (flat(3), [(0, 0, 2, 100)] * 3 + [(0, 1, 2, 300)], [3, 5, 7, 7]),
    "messages share": (
        flat(3, in_order=False), [(0, 0, 2, 100)] * 3 + [(0, 1, 2, 300)], [5, 5, 5, 7],
    ),
    "an empty one waits for those before it and holds nobody up": (
        flat(2),
        [(0, 0, 1, 300), (0.5, 0, 1, 0), (0.5, 0, 1, 0), (0.5, 0, 1, 100), (0, 1, 0, 0)],
        [4, 4, 4, 5, 1],
    ),
    "full duplex": (flat(2), [(0, 0, 1, 100), (0, 1, 0, 100)], [2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_by_hand(name):
    topology, messages, ends = EXAMPLES[name]
    assert network_ends(topology, messages) == ends


def test_max_min_is_not_equal_shares():
    # Into rank 3 of node 1 go 0, 1, 2 of node 0 (up link 90 B/s) and 4, alone on node 2:
    # node 1's down link of 300 B/s would give 75 each, node 0's up link gives 30: 4 gets its 210.
    cluster = Cluster(3, 3, Link(0.0, 300.0), intra=Link(0.0, 1000.0))
    topology = Topology(cluster, 5, [0, 0, 0, 1, 2])
    topology.link_bandwidth_Bps[topology.links(0, 3)[1]] = 90.0
    messages = [(0, 0, 3, 60), (0, 1, 3, 60), (0, 2, 3, 60), (0, 4, 3, 420)]
    assert network_ends(topology, messages) == [2, 2, 2, 2]


def test_a_network_takes_over_those_who_wait_for_their_turn():
    topology = flat(2)
    past, network = Network(topology), Network(topology)
    transfers = [past.start(0.0, 0, 1, 100) for _ in range(3)]
    past.advance(1.5)
    assert network.absorb(past, 1.5) == transfers
    assert network.advance(1e30) == transfers
    assert [transfer.end_s for transfer in transfers] == [2, 3, 4]


def test_a_message_within_a_free_node_takes_no_time():
    topology = Topology(Cluster(1, 2, SECOND), 2)
    network = Network(topology)
    transfer = network.start(3.0, 0, 1, 10**9)
    assert network.next_event_s == 3.0
    assert network.advance(3.0) == [transfer] and transfer.end_s == 3.0


def test_advance_returns_what_has_ended_in_order_of_end_then_start():
    network = Network(flat(8))
    late = network.start(0.0, 0, 1, 300)
    first = network.start(0.0, 2, 3, 100)
    second = network.start(0.0, 4, 5, 100)
    assert network.advance(1.99) == []
    assert network.advance(2.0) == [first, second]
    assert late.end_s is None and "under way" in repr(late)
    assert network.next_event_s == 4.0
    assert network.advance(inf) == [late]
    assert network.next_event_s == inf and "4 s" in repr(late)


def test_a_start_during_a_pause_is_seen():
    network = Network(flat(3))
    network.start(0.0, 0, 2, 300)
    network.start(2.0, 1, 2, 200)  # without an advance in between
    assert [transfer.end_s for transfer in network.advance(100.0)] == [5.0, 6.0]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda n: n.start(0.5, 0, 1, 1), "time cannot go back from 1.0 s to 0.5 s"),
        (lambda n: n.advance(0.5), "time cannot go back"),
        (lambda n: n.advance(float("nan")), "time cannot go back"),
        (lambda n: n.start(1.0, 0, 0, 1), "rank 0 sends to itself"),
        (lambda n: n.start(1.0, 0, 2, 1), "dst is 2: ranks are 0 to 1"),
        (lambda n: n.start(1.0, -1, 1, 1), "src is -1"),
        (lambda n: n.start(1.0, 0, 1, -1), "nbytes is -1"),
    ],
)
def test_refusals(call, words):
    network = Network(flat(2))
    network.advance(1.0)
    with pytest.raises(InvalidCallError, match=words):
        call(network)


@st.composite
def situations(draw):
    """A topology and messages on it: few round numbers, so that much coincides."""
    cluster = draw(clusters([50.0, 100.0, 150.0, inf], st.none()))
    world_size = cluster.max_ranks
    hypothesis.assume(world_size > 1)
    topology = Topology(cluster, world_size, draw(st.sampled_from(["block", "round_robin"])))
    rank = st.integers(0, world_size - 1)
    message = st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.25]), rank, rank, st.sampled_from([0, 50, 100, 333])
    ).filter(lambda m: m[1] != m[2])
    return topology, draw(st.lists(message, min_size=1, max_size=12))


@hypothesis.seed(SEED)
@settings(max_examples=300)
@given(situations())
def test_network_is_the_network_in_fractions(situation):
    topology, messages = situation
    assert network_ends(topology, messages) == pytest.approx(
        exact_ends(topology, messages), rel=1e-12, abs=1e-12
    )


@hypothesis.seed(SEED)
@settings(max_examples=100)
@given(situations(), st.lists(st.floats(0, 10), max_size=6))
def test_looking_in_between_changes_nothing(situation, looks):
    topology, messages = situation
    network, ends = Network(topology), []
    messages = sorted(messages)
    moments = sorted([(t, None) for t in looks] + [(m[0], m) for m in messages], key=lambda m: m[0])
    for time_s, message in moments:
        if message is None:
            ends += network.advance(time_s)
        else:
            network.start(*message)
    ends += network.advance(1e30)
    assert [transfer.end_s for transfer in ends] == sorted(transfer.end_s for transfer in ends)
    ordered = sorted(ends, key=lambda transfer: transfer._order)
    assert [transfer.end_s for transfer in ordered] == network_ends(topology, messages)


def test_the_oracle_itself():
    # Two links of 1, three flows: one on both, one on each; 1/2 everywhere.
    flows = [Flow(0, 1, ("a", "b")), Flow(0, 1, ("a",)), Flow(0, 1, ("b",))]
    half = Fraction(1, 2)
    assert fair_rates(flows, {"a": Fraction(1), "b": Fraction(1)}) == [half, half, half]
