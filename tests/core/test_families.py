"""Every collective by name, and patterns of messages: times against ranks' programs in fractions.

`pytest -s -n 0 tests/core/test_families.py` prints a line for each: cases, and the largest relative
difference found; the slow tests have ten times as many cases. A new algorithm is found by
itself: its messages are then read out of its schedule, until `rank_programs` has a program for it.
"""

from __future__ import annotations

import os
import re
import sys
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import rank_programs
import torch
import torch.distributed as dist
from collective_calls import KINDS_OF_PARTS, call
from fluid import ExactNetwork, placed
from rank_programs import Recv, Send, programs_of, programs_of_schedule, take

import simlib
from simlib import Cluster, Device, Link, scale
from simlib.core.collectives import ALGORITHMS, schedule, timing
from simlib.core.model.cluster import Topology
from simlib.core.model.errors import InvalidCallError

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(rank_programs)
SEED = int(os.environ["SEED"])
RELATIVE = 1e-9
MORE = pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
"""How many cases: as few as find most, or ten times as many."""
FAMILIES = [(kind, name) for kind, names in ALGORITHMS.items() for name in names]
ROOTED = ("broadcast", "scatter", "gather", "reduce")

SLOW, FAST, ODD = Link(1.0, 100.0), Link(0.25, 1000.0), Link(30e-6, 1.25e9)
LAYOUTS = [
    (12, 1, SLOW, None, None, "block"),
    (3, 4, SLOW, None, None, "block"),
    (3, 4, SLOW, None, None, "round_robin"),
    (3, 4, SLOW, FAST, None, "block"),
    (4, 3, ODD, Link(5e-6, 3e9), None, "round_robin"),
    (12, 1, SLOW, None, Link(0.5, 250.0), "block"),
    (3, 4, ODD, None, Link(1e-6, 2e9), "round_robin"),
    (2, 6, SLOW, FAST, Link(0.5, 130.0), "block"),
    (1, 12, SLOW, FAST, None, "block"),
    (6, 2, Link(0.0, 100.0), Link(0.0, inf), None, "round_robin"),
]
"""Nodes, ranks of each, links between, in and behind them, and who lives where."""


@dataclass
class Case:
    """One collective, or some messages, of n ranks on a cluster."""

    n: int
    m: int
    itemsize: int
    root: int
    chunks: int
    cluster: Cluster
    placement: str
    starts: list
    eager_limit_bytes: float
    is_ring: bool = False

    @property
    def node_of(self):
        return placed(self.cluster, self.n, self.placement)

    @property
    def eager(self):
        """As a keyword of `simlib.simulate` and `scale`; none where nothing is eager."""
        limit = self.eager_limit_bytes
        return {} if limit < 0 else {"eager_limit_bytes": int(limit)}

    def take(self, programs, more=Fraction(0)):
        """Ends of the ranks and times of the messages, in fractions."""
        device = self.cluster.device
        reduce_Bps = device.reduce_Bps if device else inf
        ring = range(self.n) if self.is_ring else ()
        network = ExactNetwork(self.cluster, self.node_of, more, ring)
        return take(programs, network, self.starts, reduce_Bps, self.eager_limit_bytes)

    def moved_by_rounding(self, programs, ends, times=None):
        """How far the ends move when each message has some 1e-15 of the bytes more, in two ways.

        With ``times``, the messages' too: two may change places, and the ends stay.
        """
        more = Fraction(max(self.m, 1), 2**55)
        moved = [self.take(programs, way * more) for way in (1, -1)]
        largest = max(difference(ends_then, ends) for ends_then, _ in moved)
        if times is None:
            return largest
        return max(largest, *(difference_of_messages(sorted_(then), times) for _, then in moved))


def cases_of(family, count, for_simulate=False):
    """So many cases: layouts in turn, each with and without eager messages; the rest is drawn."""
    random = np.random.default_rng([SEED, zlib.crc32(repr((family, for_simulate)).encode())])

    def one_of(*choices):
        return choices[random.integers(len(choices))]

    first = int(random.integers(2 * len(LAYOUTS)))
    for number in range(first, first + count):
        nodes, ranks, inter, intra, backbone, placement = LAYOUTS[number % len(LAYOUTS)]
        n = one_of(1, 2, 3, 5, 7, 8, 11, 12, 12)
        itemsize = one_of(1, 4)
        small = inter.bandwidth_Bps < 1e6
        m = itemsize * one_of(0, 1, 3, 35, 1003, 840 if small else 1_000_003)
        if for_simulate and family[0] in KINDS_OF_PARTS:
            m = itemsize * n * (m // itemsize // n)  # torch has equal parts
        m = 0 if family[0] == "barrier" else m
        spread_s = one_of(0.0, 1.0, 5.0) * (inter.latency_s + m / inter.bandwidth_Bps)
        uplink = one_of(None, None, Link(inter.latency_s, inter.bandwidth_Bps * one_of(0.6, 2.0)))
        limits = (0, m // (2 * n), m // n + 1, m // 2, 2 * m)
        yield Case(
            n=n,
            m=m,
            itemsize=itemsize,
            root=int(random.integers(n)) if family[0] in ROOTED else 0,
            chunks=one_of(1, 2, 4),
            cluster=Cluster(
                nodes, ranks, inter, intra, backbone=backbone,
                device=one_of(None, Device(reduce_Bps=0.7 * inter.bandwidth_Bps)),
                envelope_bytes=one_of(0, 0, 10),
                in_order=bool(one_of(True, True, False)),
                rails=one_of(1, 1, 2, ranks),
                direct_cards=bool(one_of(False, True)),
                nodes_per_leaf=uplink and one_of(1, 2, 3),
                uplink=uplink,
            ),
            placement=placement,
            starts=(random.random(n) * spread_s).tolist(),
            eager_limit_bytes=one_of(*limits) if (number + number // 10) % 2 else -1,
            is_ring=family[0] != "messages" and family[1] in ("ring", "chain"),
        )  # fmt: skip


def programs_for(kind, name, case):
    """The program of each rank: our own one, or what the schedule says."""
    given = {"m": case.m, "root": case.root, "itemsize": case.itemsize, "chunks": case.chunks}
    found = programs_of(kind, name, case.n, node_of=case.node_of, **given)
    return programs_of_schedule(schedule_for(kind, name, case)) if found is None else found


def schedule_for(kind, name, case):
    return schedule(
        kind, case.n, case.m, name, itemsize=case.itemsize, root=case.root, nodes=case.node_of,
        chunks=case.chunks,
    )  # fmt: skip


def difference(found, wanted):
    """The largest relative difference."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    assert found.shape == wanted.shape
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-12)).max(initial=0.0))


def by_pair(messages):
    """Starts and ends of each pair's messages, each sorted: ``(src, dst, start_s, end_s)``."""
    pairs = defaultdict(list)
    for src, dst, *times in messages:
        pairs[int(src), int(dst)].append(times)
    return sorted_(pairs)


def sorted_(times):
    """The times of each pair's messages, each sorted."""
    return {pair: np.sort(np.array(of_pair), axis=0) for pair, of_pair in times.items()}


def difference_of_messages(found, times):
    wanted = sorted_(times)
    assert found.keys() == wanted.keys()
    return max((difference(found[pair], wanted[pair]) for pair in wanted), default=0.0)


def holds(off, case, programs, ends, times=None):
    """Whether a difference is one of rounding.

    A few programs of a hundred rounds multiply in each what was small before, in fractions too, and
    in a few the order of two things that happen at one moment decides: there no two ways of adding
    agree, and a difference may be as large as rounding makes it.
    """
    return off <= RELATIVE or off <= 100 * case.moved_by_rounding(programs, ends, times)


def tell(family, way, largest):
    """A line of the table, for ``pytest -s``."""
    sorts = {"eager": [], "rendezvous": [], "multiplying": []}
    for case, off in largest:
        sort = "eager" if case.eager_limit_bytes >= 0 else "rendezvous"
        sorts[sort if off <= RELATIVE else "multiplying"].append(off)
    assert len(sorts["multiplying"]) <= 1 + len(largest) // 10
    found = ", ".join(f"{len(offs):3} {sort} {max(offs):.1e}"
                      for sort, offs in sorts.items() if offs)  # fmt: skip
    print(f"\n{way:10} {' '.join(family):34} {found}", end="")


@MORE
@pytest.mark.parametrize("kind, name", FAMILIES)
def test_times_of_a_schedule(kind, name, times):
    largest = []
    for case in cases_of((kind, name), 6 * times):
        programs = programs_for(kind, name, case)
        ends, messages_times = case.take(programs)
        found, wire = timing.time_of(
            schedule_for(kind, name, case),
            Topology(case.cluster, case.n, case.placement),
            range(case.n),
            case.starts,
            expand=True,
            eager_limit_bytes=case.eager_limit_bytes,
        )
        messages = by_pair(zip(wire.src, wire.dst, wire.start_s, wire.end_s, strict=True))
        off = max(difference(found, ends), difference_of_messages(messages, messages_times))
        assert holds(off, case, programs, ends, messages_times), case
        largest.append((case, off))
    tell((kind, name), "timing", largest)


@MORE
@pytest.mark.parametrize("kind, name", FAMILIES)
def test_times_of_the_cost_model(kind, name, times):
    largest = []
    for case in cases_of((kind, name), 8 * times):
        asked = kind, case.n, case.m, case.cluster, name
        more = {"starts": case.starts, "placement": case.placement, "itemsize": case.itemsize,
                "root": case.root, "chunks": case.chunks, **case.eager}  # fmt: skip
        try:
            found = scale.ends_of(*asked, **more)
            time_s = scale.time_of(*asked, **more)
        except InvalidCallError:
            continue  # it refuses what would take long
        programs = programs_for(kind, name, case)
        ends, _ = case.take(programs)
        begin = max(case.starts)
        off = max(difference(found, ends), difference(begin + time_s, max(ends)))
        assert holds(off, case, programs, ends), case
        largest.append((case, off))
    assert largest
    tell((kind, name), "scale", largest)


def one_call(rank, n, kind, m, itemsize, root, start_s):
    """One collective of so many bytes, as `simlib.collectives.schedule` counts them."""
    simlib.compute(seconds=start_s[rank])
    numel = m // itemsize // (n if kind in KINDS_OF_PARTS else 1)
    call(kind, n, numel, root, dtype={1: torch.uint8, 4: torch.float32}[itemsize])
    return time.perf_counter()


@MORE
@pytest.mark.parametrize("kind, name", FAMILIES)
def test_times_of_a_simulation(kind, name, times):
    largest = []
    for case in cases_of((kind, name), times, for_simulate=True):
        is_cut = name in ("chain", "double_tree")
        if is_cut and case.cluster.inter.latency_s == 0:  # then each byte is a chunk
            case.m = min(case.m, 12 * case.itemsize)
        case.chunks = rank_programs.chunks_of(name, case.n, case.m, case.cluster.inter)
        args = kind, case.m, case.itemsize, case.root, case.starts
        run = simlib.simulate(
            one_call, case.n, args, cluster=case.cluster, placement=case.placement, expand=True,
            **{kind: name}, **case.eager,
        )  # fmt: skip
        programs = programs_for(kind, name, case)
        ends, messages_times = case.take(programs)
        messages = by_pair((w.src, w.dst, w.start_s, w.end_s) for w in run.wire)
        off = max(difference(run.results, ends), difference_of_messages(messages, messages_times))
        assert holds(off, case, programs, ends, messages_times), case
        largest.append((case, off))
    tell((kind, name), "simulate", largest)


# -- messages between two ranks --------------------------------------------------------------------


# By the sizes of some messages: who sends them to whom, one after the other; a list at once.
PATTERNS = {
    "one message": lambda n, sizes: [(0, n - 1, sizes[0])],
    "many of one pair": lambda n, sizes: [[(0, n - 1, nbytes) for nbytes in sizes]],
    "fan in": lambda n, sizes: [[(rank, 0, sizes[rank]) for rank in range(1, n)]],
    "fan out": lambda n, sizes: [[(0, rank, sizes[rank]) for rank in range(1, n)]],
    "ring": lambda n, sizes: [[(r, (r + 1) % n, sizes[k]) for r in range(n)] for k in range(3)],
    "both ways": lambda n, sizes: [
        [(0, n - 1, sizes[0]), (n - 1, 0, sizes[1])], [(0, n - 1, sizes[2])]
    ],
    # Half of the ranks send to the other half: links of nodes and the backbone are shared.
    "crossing": lambda n, sizes: [
        [(r, r + n // 2, sizes[r]) for r in range(n // 2)] for _ in range(2)
    ],
    # Some messages to each of two others, all under way at once.
    "many at many": lambda n, sizes: [
        [(r, (r + d) % n, sizes[(r + d) % len(sizes)]) for r in range(n) for d in (1, 2, 1)]
    ],
    "ping-pong": lambda n, sizes: [
        message for nbytes in sizes for message in ((0, n - 1, nbytes), (n - 1, 0, nbytes))
    ],
    "from hand to hand": lambda n, sizes: [
        (r, r + 1, nbytes) for nbytes in sizes[:3] for r in range(n - 1)
    ],
}  # fmt: skip


def programs_of_messages(n, together):
    """Programs of messages: those of a list are posted at once."""
    programs = [[] for _ in range(n)]
    for messages in together:
        steps = defaultdict(list)
        for src, dst, nbytes in messages if isinstance(messages, list) else [messages]:
            steps[src].append(Send(dst, nbytes))
            steps[dst].append(Recv(src, nbytes))
        for rank, step in steps.items():
            programs[rank].append(step)
    return programs


def follow(rank, n, programs, starts):
    """A rank goes through its program, with isend and irecv."""
    simlib.compute(seconds=starts[rank])
    for step in programs[rank]:
        works = [
            (dist.isend if isinstance(post, Send) else dist.irecv)(
                torch.zeros(post.nbytes, dtype=torch.uint8), post.peer
            )
            for post in step
        ]
        for work in works:
            work.wait()
    return time.perf_counter()


@MORE
@pytest.mark.parametrize("name", PATTERNS)
def test_times_of_messages(name, times):
    largest = []
    for case in cases_of(("messages", name), 3 * times):
        case.n = n = max(case.n, 3)
        random = np.random.default_rng(case.m + SEED)
        case.starts = (random.random(n) * (max(case.starts, default=0) or 1e-3)).tolist()  # no ties
        sizes = random.integers(0, case.m + 1, 12).tolist()
        case.cluster = replace(case.cluster, device=None)  # one's own code adds what it gets
        programs = programs_of_messages(n, PATTERNS[name](n, sizes))
        run = simlib.simulate(
            follow, n, (programs, case.starts), cluster=case.cluster, placement=case.placement,
            **case.eager,
        )  # fmt: skip
        ends, _ = case.take(programs)
        off = difference(run.results, ends)
        assert holds(off, case, programs, ends), (case, sizes)
        largest.append((case, off))
    tell(("messages", name), "simulate", largest)


# -- that all this can fail ------------------------------------------------------------------------


@pytest.mark.parametrize("kind, name", FAMILIES)
def test_programs_send_what_the_schedules_send(kind, name):
    """Step by step; so a case that hides a wrong size behind a slow link does no harm."""
    for case in cases_of((kind, name), 5):
        ours = programs_for(kind, name, case)
        theirs = programs_of_schedule(schedule_for(kind, name, case))
        assert sent(kind, ours) == sent(kind, theirs), case


def sent(kind, programs):
    """The messages of each step, in an order of their own; those of a barrier add nothing."""
    return [
        [
            sorted((type(p).__name__, *(p[:2] if kind == "barrier" else p)) for p in step)
            for step in program
            if step
        ]
        for program in programs
    ]


def test_every_program_is_of_a_family():
    """And the names of programs are right: each that is written is used."""
    begins = tuple(f"{kind}_" for kind in ALGORITHMS)
    written = {name for name in rank_programs.written() if name.startswith(begins)}
    assert written <= {f"{kind}_{name}" for kind, name in FAMILIES}
    assert len(written) >= 35


def test_the_page_of_names_has_right_names():
    page = Path(__file__).parents[2] / "docs/design/families.md"
    rows = re.findall(r"^\| `(\w+)` (.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    named = {(kind, name) for kind, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(named) > 20 and named <= set(FAMILIES)


@pytest.mark.parametrize(
    "limit, ends, times",
    [
        # The receiver comes at 5 s. 100 B take 1 s and 1 s more.
        (-1, [7.0, 7.0], (5.0, 7.0)),
        (100, [0.0, 5.0], (0.0, 2.0)),
        (99, [7.0, 7.0], (5.0, 7.0)),
    ],
)
def test_the_reference_by_hand(limit, ends, times):
    network = ExactNetwork(Cluster(2, 1, SLOW), [0, 1])
    programs = [[[Send(1, 100)]], [[Recv(0, 100)]]]
    found = take(programs, network, [0, 5], eager_limit_bytes=limit)
    assert found == (ends, {(0, 1): [times]})
