"""Every algorithm computes the right thing and costs what its docstring says; and choices."""

from __future__ import annotations

import inspect
import re
from itertools import product
from math import ceil, lcm, log2

import numpy as np
import pytest
from carry import is_right

from simlib.core.collectives import (
    ALGORITHMS,
    KINDS,
    Moves,
    Schedule,
    choose,
    parts_of,
    schedule,
    split,
)
from simlib.core.collectives.broadcast import chain
from simlib.core.collectives.mpich import IN_TWO_LEVELS
from simlib.core.collectives.parts import bruck_in_bulk
from simlib.core.collectives.schedules import best_chunks
from simlib.core.model.cluster import Link
from simlib.core.model.errors import InvalidCallError

EVERY = [(kind, name) for kind in KINDS for name in ALGORITHMS[kind]]
OWN = [(kind, name) for kind, name in EVERY if not name.startswith("gloo")]  # see test_gloo.py
NODES = {
    "alone": lambda n: list(range(n)),
    "together": lambda n: [0] * n,
    "pairs": lambda n: [i // 2 for i in range(n)],
    "dealt": lambda n: [i % 3 for i in range(n)],
    "ragged": lambda n: [0 if i < (2 * n + 2) // 3 else i for i in range(n)],
}


def variants(kind, name, n):
    """Keywords of `schedule` to try: roots, numbers of chunks, nodes."""
    takes = inspect.signature(ALGORITHMS[kind][name]).parameters
    roots = (0, n // 2, n - 1) if "root" in takes else (0, 0, 0)
    if "nodes" in takes:
        return [{"nodes": nodes(n), "root": roots[k % 3]} for k, nodes in enumerate(NODES.values())]
    if "chunks" in takes:
        return [
            {"root": root, "chunks": chunks} for root, chunks in zip(roots, (1, 2, 5), strict=True)
        ]
    return [{"root": root} for root in sorted(set(roots))]


@pytest.mark.parametrize("kind, name", OWN)
def test_it_computes_the_right_thing(kind, name):
    for n in range(1, 18):
        for keywords in variants(kind, name, n):
            for nbytes in (0, 4, 52, 4 * 1000) if n in (1, 5, 8) else (52,):
                found = schedule(kind, n, nbytes, name, itemsize=4, **keywords)
                assert is_right(found), (n, keywords)
                assert (found.kind, found.n) == (kind, n)
                check_chunks(found, nbytes)
                if kind == "all_reduce" and nbytes:  # none beats the lower bounds
                    assert found.bytes_sent.max() * n >= 2 * (n - 1) * nbytes
                    assert found.num_rounds >= ceil(log2(n))


def check_chunks(found, nbytes):
    """They are all the data, in whole elements of 4 bytes; no message is empty."""
    assert all((round_.count > 0).all() for round_ in found.rounds)
    sizes, n = found.chunk_nbytes, found.n
    assert (sizes % 4 == 0).all()
    if found.kind == "all_to_all":
        assert sizes.reshape(n, n).sum(axis=1).tolist() == [nbytes] * n
    else:
        assert sizes.sum() == (0 if found.kind == "barrier" else nbytes)


def costs(function):
    """The three formulas of a docstring's cost lines, and what they hold for."""
    text = " ".join(inspect.getdoc(function).split())
    cost = re.search(r"\*\*Cost\*\* (.*?) \*\*Source\*\*", text)[1]
    found = re.findall(r"(rounds|messages|bytes per rank) `([^`]+)`", cost)
    assert [what for what, _ in found] == ["rounds", "messages", "bytes per rank"], cost
    conditions = {
        what: [words for words in ("power of two", "all nodes") if words in before]
        for what, before in zip(
            ("rounds", "messages", "bytes per rank"), re.split("`[^`]+`", cost), strict=False
        )
    }
    return dict(found), conditions


def names_in_costs(n, nbytes, keywords):
    lg = n.bit_length() - 1
    sizes = np.bincount(np.unique(keywords.get("nodes", [0]), return_inverse=True)[1])
    nodes_s = int(sizes.max())
    return {
        "n": n,
        "nbytes": nbytes,
        "lg": lg,
        "p": 2**lg,
        "extra": n - 2**lg,
        "folds": int(n > 2**lg),
        "lg_up": ceil(log2(n)),
        "k": len(sizes),
        "s": keywords.get("chunks", nodes_s),
        "lg_s": ceil(log2(nodes_s)),
        "root_folded": int(keywords.get("root", 0) in range(1, 2 * (n - 2**lg), 2)),
        "max": max,
        "min": min,
    }, len(set(sizes)) == 1


@pytest.mark.parametrize("kind, name", [of for of in OWN if of[1] not in IN_TWO_LEVELS])
def test_it_costs_what_its_docstring_says(kind, name):
    formulas, conditions = costs(ALGORITHMS[kind][name])
    for n in range(2, 18):
        for keywords in variants(kind, name, n):
            nbytes = 5 * lcm(*range(1, 18))  # every cut is even
            found = schedule(kind, n, nbytes, name, **keywords)
            measured = {
                "rounds": found.num_rounds,
                "messages": found.num_messages,
                "bytes per rank": found.bytes_sent.max(),
            }
            words, is_even = names_in_costs(n, nbytes, keywords)
            holds = {"power of two": n & (n - 1) == 0, "all nodes": is_even}
            needed = []
            for what, formula in formulas.items():
                needed += conditions[what]  # "where ..." holds for what follows
                if all(holds[condition] for condition in needed):
                    value = eval(formula, {"__builtins__": {}}, words)
                    assert measured[what] == pytest.approx(value, rel=1e-12), (what, n, keywords)
            assert found.messages_sent.sum() == found.num_messages


def test_every_algorithm_names_its_source_and_sends_nothing_alone():
    for kind, name in EVERY:
        function = ALGORITHMS[kind][name]
        assert "**Source**" in inspect.getdoc(function), (kind, name)
        nodes = {"nodes": [0]} if "nodes" in inspect.signature(function).parameters else {}
        assert schedule(kind, 1, 100, name, **nodes).rounds == (), (kind, name)


def test_parts_of_any_size():
    sizes = [3, 0, 10, 1]
    for kind in ("all_gather", "gather", "scatter", "reduce_scatter"):
        for name in (name for of, name in OWN if of == kind):
            found = schedule(kind, 4, sizes, name)
            assert is_right(found) and found.chunk_nbytes.tolist() == sizes
    table = np.arange(16).reshape(4, 4)
    for name in (name for of, name in OWN if of == "all_to_all"):
        found = schedule("all_to_all", 4, table, name)
        assert is_right(found)
        sent = table.sum(axis=1) - table.diagonal()
        if name == "bruck":  # a part passes from rank to rank: once for each 1 of its distance
            away = (np.arange(4) - np.arange(4)[:, None]) % 4
            passes = (away % 2 + away // 2) * table
            assert found.bytes_sent.sum() == passes.sum()
        else:
            assert found.bytes_sent.tolist() == sent.tolist()


def test_bruck_in_bulk_sends_what_bruck_sends():
    for n in (*range(1, 10), 16, 17, 39):
        for nbytes in (0, 4 * n, 4 * (3 * n + n // 3), 4 * (n - 1)):
            one_by_one = schedule("all_to_all", n, nbytes, "bruck", itemsize=4)
            in_bulk = bruck_in_bulk(n, nbytes, itemsize=4)
            rounds = zip(one_by_one.rounds, in_bulk.rounds, strict=True)
            for wanted, found in rounds:
                for name in ("src", "dst", "nbytes"):
                    assert (getattr(found, name) == getattr(wanted, name)).all(), (n, nbytes)


def test_split_is_array_split():
    for nbytes, parts in ((0, 3), (8, 3), (4000, 7), (4004, 16)):
        elements = np.zeros(nbytes // 4)
        assert split(nbytes, parts, 4).tolist() == [
            4 * len(part) for part in np.array_split(elements, parts)
        ]


def test_the_best_number_of_chunks_is_the_best():
    link = Link(10e-6, 1e9)
    for n, nbytes in ((8, 10**6), (64, 10**7), (3, 1000), (17, 50)):

        def time_s(s, n=n, nbytes=nbytes):
            return (n + s - 2) * (link.latency_s + nbytes / s / link.bandwidth_Bps)

        best = min(range(1, min(nbytes, 5000) + 1), key=time_s)
        assert abs(best_chunks(n, nbytes, link) - best) <= 1
    assert chain(8, 10**6, link=link).num_rounds == 8 - 2 + best_chunks(8, 10**6, link)
    assert best_chunks(2, 10**6, link) == best_chunks(8, 0, link) == 1
    assert best_chunks(8, 100, Link(0, 1e9)) == 100
    assert chain(3, 65536 * 2 + 1).num_rounds == 3 - 2 + 3


CHOICES = {
    ("mpich", "broadcast"): (
        (8, 12288, "binomial"), (7, 10**9, "binomial"), (8, 12289, "scatter_doubling"),
        (9, 12289, "scatter_all_gather"), (8, 524288, "scatter_doubling"),
        (8, 524289, "scatter_all_gather"),
    ),
    ("mpich", "all_reduce"): (
        (8, 8, "recursive_doubling"), (8, 9, "rabenseifner"), (2, 9, "rabenseifner"),
        (4096, 4095, "recursive_doubling"), (4097, 4096, "rabenseifner"),
    ),
    ("mpich", "reduce"): (
        (8, 2048, "binomial"), (8, 2049, "rabenseifner"), (4096, 4095, "binomial"),
    ),
    ("mpich", "all_gather"): (
        (7, 81919, "bruck"), (7, 81920, "ring"), (8, 524287, "recursive_doubling"),
        (8, 524288, "ring"),
    ),
    ("mpich", "reduce_scatter"): ((8, 524287, "recursive_halving"), (8, 524288, "pairwise")),
    ("mpich", "all_to_all"): (
        (8, 8, "spread"), (9, 9 * 256, "bruck"), (9, 9 * 257, "spread"),
        (8, 8 * 32768, "spread"), (8, 8 * 32769, "pairwise"),
    ),
    ("mpich", "scatter"): ((8, 10**9, "binomial"),),
    ("mpich", "gather"): ((8, 10**9, "binomial"),),
    ("mpich", "barrier"): ((8, 0, "dissemination"),),
    ("nccl", "all_reduce"): ((64, 1000, "binomial"), (64, 10**8, "ring")),
    ("nccl", "broadcast"): ((8, 10**8, "chain"),),
    ("nccl", "all_to_all"): ((8, 10**8, "spread"),),
    ("nccl", "barrier"): ((8, 0, "binomial"),),
    ("ring", "all_reduce"): ((8, 0, "ring"),),
}  # fmt: skip


def test_choices():
    for (policy, kind), cases in CHOICES.items():
        for n, nbytes, name in cases:
            assert choose(kind, n, nbytes, policy) == name, (policy, kind, n, nbytes)
            assert schedule(kind, n, nbytes, policy).algorithm == name
    uneven = np.full((9, 9), 100_000) - np.eye(9, dtype=int)
    assert schedule("all_to_all", 9, uneven).algorithm == "spread"
    assert schedule("all_to_all", 9, np.full((9, 9), 100_000)).algorithm == "pairwise"


def test_every_policy_chooses_for_every_kind_and_the_default_is_mpich():
    for kind, n, nbytes in product(KINDS, (1, 2, 7, 8, 64), (0, 100, 10**5, 10**8)):
        assert choose(kind, n, nbytes, "nccl") in ALGORITHMS[kind]
        assert choose(kind, n, nbytes) == choose(kind, n, nbytes, "mpich")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: schedule("all_sum", 4, 8), "no collective 'all_sum'"),
        (lambda: schedule("all_reduce", 4, 8, "rong"), "no algorithm 'rong' of all_reduce"),
        (lambda: schedule("all_reduce", 0, 8), "n is 0"),
        (lambda: schedule("broadcast", 4, 8, root=4), "root is 4: the positions in the group are"),
        (lambda: schedule("all_reduce", 4, 6, itemsize=4), "6 bytes are not a whole number"),
        (lambda: schedule("all_reduce", 4, -4), "nbytes is -4"),
        (lambda: schedule("all_reduce", 4, 8, "leader"), "give nodes="),
        (lambda: schedule("all_reduce", 4, 8, "leader", nodes=[0]), "each of the 4 positions"),
        (lambda: schedule("broadcast", 4, 8, "chain", chunks=0), "chunks is 0"),
        (lambda: parts_of([1, 2], 3), "2 sizes for 3 parts"),
        (lambda: parts_of([1, -2], 2), "2 sizes for 2 parts"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InvalidCallError, match=words):
        call()


def one(a):
    return np.array([a])


@pytest.mark.parametrize(
    "moves",
    [
        [Moves(one(1), one(0), adds=True)],  # nobody tells rank 1
        [Moves(one(1), one(0)), Moves(one(0), one(1))],  # overwrites instead of adding
    ],
)
def test_the_proof_sees_wrong_schedules(moves):
    assert not is_right(Schedule.of("all_reduce", "wrong", 2, [8], moves))


def test_the_proof_sees_what_is_added_twice_and_what_is_sent_before_it_is_there():
    twice = [Moves(one(0), one(1), adds=True)] * 2
    with pytest.raises(AssertionError, match="twice"):
        is_right(Schedule.of("all_reduce", "wrong", 2, [8], twice))
    with pytest.raises(AssertionError, match="does not have"):
        is_right(Schedule.of("broadcast", "wrong", 3, [8], [Moves(one(1), one(2))], root=0))
