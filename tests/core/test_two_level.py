"""MPICH's collectives in two levels: their levels, when they are taken, and what they save."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from carry import is_right

import simlib
from simlib import Cluster, Link, scale
from simlib.core.collectives import choose, schedule
from simlib.core.collectives.mpich import TWO_LEVEL as ALGORITHMS
from simlib.core.model.errors import InvalidCallError

EVERY = [(kind, name) for kind, names in ALGORITHMS.items() for name in names]
FOUR_OF_EIGHT = np.arange(32) // 8


def rounds_of(kind, name, n, nbytes, **more):
    return schedule(kind, n, nbytes, name, **more).num_rounds


@pytest.mark.parametrize("root", [0, 8, 13])
def test_the_levels_are_collectives_one_after_the_other(root):
    for nbytes in (1000, 20_000, 1_000_000):
        in_node, among = (
            {kind: rounds_of(kind, "mpich", n, nbytes) for kind in ("broadcast", "reduce")}
            for n in (8, 4)
        )
        passed_on = {0: 0, 8: 0, 13: 1}[root]
        wanted = {
            ("broadcast", "smp"): in_node["broadcast"] + among["broadcast"] + passed_on,
            ("broadcast", "smp_from_root"): (1 + passed_on) * in_node["broadcast"]
            + among["broadcast"],
            ("reduce", "smp"): 2 * in_node["reduce"] + among["reduce"],
            ("reduce", "smp_by_first"): in_node["reduce"] + among["reduce"] + (root > 0),
        }
        for (kind, name), rounds in wanted.items():
            more = {"root": root, "nodes": FOUR_OF_EIGHT}
            assert rounds_of(kind, name, 32, nbytes, **more) == rounds, (kind, name, nbytes)
        everywhere = in_node["reduce"] + rounds_of("all_reduce", "mpich", 4, nbytes)
        found = rounds_of("all_reduce", "smp", 32, nbytes, nodes=FOUR_OF_EIGHT)
        assert found == everywhere + in_node["broadcast"]
    assert rounds_of("barrier", "smp", 32, 0, nodes=FOUR_OF_EIGHT) == 3 + 2 + 3


@pytest.mark.parametrize("kind, name", EVERY)
def test_sizes_at_which_a_level_cuts_the_vector(kind, name):
    """Levels cut it in different ways; also into more parts than it has elements."""
    sizes = (4, 3072), (4096, 3), (4, 150_001), (4096, 17)
    for n, (itemsize, elements) in product((3, 9, 18, 20, 40), sizes):
        for nodes in (np.arange(n) // 9, np.arange(n) % 2, np.arange(n) * 2 // 3):
            for root in {0, n - 1, n // 2}:
                nbytes = 0 if kind == "barrier" else itemsize * elements
                more = {"itemsize": itemsize, "nodes": nodes, "root": root}
                found = schedule(kind, n, nbytes, name, **more)
                assert found.nbytes == nbytes and (found.chunk_nbytes % itemsize == 0).all()
                assert is_right(found), (n, nodes, itemsize, root)


@pytest.mark.parametrize("kind, name", EVERY)
def test_where_each_rank_is_alone_there_is_one_level(kind, name):
    for nbytes in (0, 100, 20_000, 2_000_000):
        nbytes = 0 if kind == "barrier" else nbytes
        found = schedule(kind, 12, nbytes, name, nodes=range(12))
        wanted = schedule(kind, 12, nbytes, "mpich")
        for one, other in zip(found.rounds, wanted.rounds, strict=True):
            assert (one.src == other.src).all() and (one.nbytes == other.nbytes).all()


@pytest.mark.parametrize(
    "kind, n, nodes, nbytes, name",
    [
        ("broadcast", 32, 4, 12287, "smp"),
        ("broadcast", 32, 4, 12288, "smp_from_root"),
        ("broadcast", 32, 4, 524287, "smp_from_root"),
        ("broadcast", 32, 4, 524288, "scatter_doubling"),
        ("broadcast", 32, 4, 524292, "scatter_all_gather"),
        ("broadcast", 24, 4, 12287, "smp"),
        ("broadcast", 24, 4, 12288, "binomial"),
        ("broadcast", 24, 4, 12292, "scatter_all_gather"),
        ("broadcast", 6, 3, 10**9, "smp"),
        ("broadcast", 7, 1, 10**9, "smp"),
        ("all_reduce", 32, 4, 10**6, "smp"),
        ("all_reduce", 32, 1, 8, "recursive_doubling"),
        ("all_reduce", 32, 32, 8, "recursive_doubling"),
        ("reduce", 32, 4, 2048, "smp"),
        ("reduce", 32, 4, 2049, "smp_by_first"),
        ("reduce", 32, 32, 2048, "binomial"),
        ("barrier", 32, 4, 0, "smp"),
        ("barrier", 32, 1, 0, "smp"),
        ("barrier", 32, 32, 0, "dissemination"),
        ("all_gather", 32, 4, 100, "recursive_doubling"),
        ("gather", 32, 4, 100, "binomial"),
    ],
)
def test_choices(kind, n, nodes, nbytes, name):
    nodes_of = np.arange(n) * nodes // n
    assert choose(kind, n, nbytes, nodes=nodes_of) == name
    assert schedule(kind, n, nbytes, nodes=nodes_of).algorithm == name
    cluster = Cluster(nodes, n // nodes, Link(1e-6, 1e9))
    takes = scale.time_of(kind, n, nbytes // 4 * 4, cluster)
    assert takes == scale.time_of(kind, n, nbytes // 4 * 4, cluster, name)
    if nodes < n:  # without nodes= each rank has its own
        assert not choose(kind, n, nbytes).startswith("smp")
    # One uneven node is enough.
    assert choose("barrier", 5, 0, nodes=[0, 1, 2, 3, 3]) == "smp"
    assert choose("barrier", 5, 0, nodes=[4, 1, 2, 3, 0]) == "dissemination"


def test_a_simulation_takes_it_and_a_group_does_by_its_own_nodes():
    def main(rank, n):
        x = torch.arange(5.0) + rank
        dist.all_reduce(x)
        apart = dist.new_group([0, 2, 4])
        if rank in (0, 2, 4):
            y = torch.ones(1)
            dist.all_reduce(y, group=apart)
        dist.broadcast(x, 3)
        dist.reduce(x, 1)
        return x.tolist() if rank == 1 else None

    cluster = Cluster(3, 2, Link(1.0, 100.0))
    run = simlib.simulate(main, 6, cluster=cluster, expand=True)
    assert run.results[1] == [6.0 * (15 + 6 * i) for i in range(5)]
    pairs = {}
    for message in run.wire:
        pairs.setdefault(message.nbytes, []).append((message.src, message.dst))
    assert {(src, dst) for src, dst in pairs[4]} <= {(a, b) for a in (0, 2, 4) for b in (0, 2, 4)}
    # What crosses the network comes from, and goes to, first ranks.
    firsts = {(src, dst) for src, dst in pairs[20] if src // 2 != dst // 2}
    assert firsts <= {(a, b) for a in (0, 2, 4) for b in (0, 2, 4)}


def test_what_two_levels_take_by_hand_and_on_100_000_ranks():
    # 4 nodes of 2, 1 s and 8 B/s between, nothing in the node. Four firsts exchange 8 B twice: 4 s.
    # In one level the first exchange is in the node, then two share each link: 2 (1 + 2) s.
    cluster = Cluster(4, 2, Link(1.0, 8.0))
    assert scale.time_of("all_reduce", 8, 8, cluster) == 4
    assert scale.time_of("all_reduce", 8, 8, cluster, "recursive_doubling") == 6
    many = 100_000
    cluster = simlib.clusters.nvlink_nodes(nodes=many // 8)
    in_node_s = cluster.intra.latency_s + 1024 / cluster.intra.bandwidth_Bps
    narrow_Bps = min(cluster.intra.bandwidth_Bps, cluster.inter.bandwidth_Bps)
    between_s = cluster.intra.latency_s + cluster.inter.latency_s + 1024 / narrow_Bps
    # 12,500 first ranks: 13 exchanges, and one more before and after for those beyond 8,192.
    found = scale.time_of("all_reduce", many, 1024, cluster)
    assert found == pytest.approx(6 * in_node_s + 15 * between_s, rel=1e-9)
    assert scale.time_of("barrier", many, 0, cluster) > 0
    # No ring is in these, so 32,768 ranks are few messages.
    for kind, nbytes in (("reduce", 4_000_000), ("all_reduce", 20_000)):
        assert scale.time_of(kind, 8 * 4096, nbytes, simlib.clusters.nvlink_nodes(4096)) > 0
    with pytest.raises(InvalidCallError, match="'smp_from_root' on 100,000 ranks"):
        scale.time_of("broadcast", many, 50_000, cluster, "smp_from_root")
