"""What Gloo sends: its schedules give the right result, and the bytes of Gloo on real sockets."""

import dataclasses
import sys

import numpy as np
import pytest
from carry import is_right
from collective_calls import call

import simlib
from simlib.core.collectives import gloo
from simlib.core.collectives.timing import time_of
from simlib.core.model.cluster import Cluster, Link, Topology
from simlib.core.model.errors import InvalidCallError

KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "scatter", "gather", "all_to_all")
SUMS = ("gloo_all_reduce", "gloo_all_reduces")
EVERY = [(kind, name) for kind, names in gloo.ALGORITHMS.items() for name in names]


def build(kind, name, n, nbytes, root=0):
    rooted = {"root": root} if kind in ("reduce", "broadcast", "scatter", "gather") else {}
    return gloo.ALGORITHMS[kind][name](n, nbytes, itemsize=4, **rooted)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_every_schedule_gives_the_right_result(kind, name):
    for n in range(1, 18):
        found = build(kind, name, n, 12 * n, root=n // 2)
        assert is_right(found, padded=True), n
        if kind == "reduce_scatter":  # everybody gets the whole sum
            everywhere = dataclasses.replace(found, kind="all_reduce")
            assert is_right(everywhere, padded=True), n


def log2(n):
    return n.bit_length() - 1


@pytest.mark.parametrize("n", range(2, 18))
def test_costs_are_as_documented(n):
    size = 4 * 2 * n * 5  # whole segments: every rank sends the same
    assert gloo.all_reduce(n, size, itemsize=4).num_rounds == 4 * (n - 1)
    assert set(gloo.all_reduce(n, size, itemsize=4).bytes_sent) == {2 * (n - 1) * size // n}
    assert gloo.reduce(n, size, itemsize=4).num_rounds == 2 * n
    assert gloo.reduce(n, 1 << 25, itemsize=4).num_rounds == (2 * n + 2 if n < 16 else 2 * n)
    assert set(gloo.reduce(n, size, itemsize=4).bytes_sent[1:]) == {size}
    assert gloo.broadcast(n, size).num_rounds == 1 + log2(n)
    assert gloo.all_gather(n, n * size).num_rounds == (4 if n == 2 else 2 * (n - 1))
    assert set(gloo.all_gather(n, n * size).bytes_sent) == {(n - 1) * size}
    assert gloo.scatter(n, n * size).num_rounds == gloo.gather(n, n * size).num_rounds == 2
    assert gloo.all_to_all(n, n * size).num_rounds == (3 if n == 2 else 2)
    assert gloo.barrier(n).num_rounds == 2 * log2(2 * n - 1)
    for schedule in (gloo.broadcast(n, size), gloo.scatter(n, n * size), gloo.gather(n, n * size)):
        assert schedule.num_messages == 3 * (n - 1)  # two notices and the data


def test_the_root_of_a_broadcast_sends_to_its_children_at_the_same_time():
    """By hand, four ranks, root 1: 2 and 3 hear from 1, then 0 from 2."""
    told, first, second = gloo.broadcast(4, 100, root=1).rounds
    assert list(zip(told.src, told.dst, strict=True)) == [(2, 1), (3, 1), (0, 2)]
    data = first.nbytes > 0
    assert list(zip(first.src[data], first.dst[data], strict=True)) == [(1, 2), (1, 3)]
    assert list(zip(second.src, second.dst, second.nbytes, strict=True)) == [(2, 0, 0), (2, 0, 100)]


def test_segments_of_an_all_reduce():
    """10 MB, 4 ranks: at most 1 MiB, as many for each rank: 12 of 833,336 and what is left."""
    lengths = gloo.all_reduce(4, 10_000_000, itemsize=4).chunk_nbytes
    assert lengths.tolist() == [833_336] * 11 + [10_000_000 - 11 * 833_336]


def test_two_ranks_that_gather_use_one_direction_after_the_other():
    """By hand: 1 MB at 1 MB/s. Halves of 0.5 s: there; there and back; back. Latency: 4 rounds."""
    topology = Topology(Cluster(2, 1, Link(0.001, 1e6)), 2)
    assert time_of(gloo.all_gather(2, 2_000_000), topology, range(2), np.zeros(2)) == pytest.approx(
        [1.5 + 0.004, 1.5 + 0.004]
    )


def test_four_ranks_hear_a_broadcast_in_three_times_one_message():
    """By hand: root to 1 and 2 at half rate, then 1 to 3. A notice, then two hops."""
    topology = Topology(Cluster(4, 1, Link(0.001, 1e6)), 4)
    ends = time_of(gloo.broadcast(4, 1_000_000), topology, range(4), np.zeros(4))
    assert ends == pytest.approx([2.002, 3.003, 2.002, 3.003])


def test_sizes_that_are_no_whole_elements_are_refused():
    for build_it in (gloo.all_reduce, gloo.reduce, gloo.broadcast):
        with pytest.raises(InvalidCallError, match="6 bytes are not a whole number"):
            build_it(4, 6, itemsize=4)


def test_nothing_is_sent_for_an_empty_sum():
    assert gloo.all_reduce(4, 0).rounds == gloo.reduce(4, 0).rounds == ()


# On real sockets


def bytes_between_ranks(rank, world_size, path, calls):
    """``[bytes[src] for each call]`` that came to this rank over Gloo's sockets."""
    import os
    import socket
    import struct

    import torch
    import torch.distributed as dist

    def received():
        """Bytes received by each of this process's TCP connections, by (own port, peer's)."""
        found = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(number))) as sock:
                    ports = sock.getsockname()[1], sock.getpeername()[1]
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                    found[ports] = struct.unpack_from("Q", info, 128)[0]  # tcpi_bytes_received
            except (OSError, IndexError):
                continue  # closed meanwhile, or not a connection of TCP
        return found

    store = dist.FileStore(path, world_size)  # meets without a byte on the network

    def meet(name):
        store.set(f"{name} {rank}", "here")
        store.wait([f"{name} {other}" for other in range(world_size)])

    def make_call(name, numel):
        mine = torch.ones(numel)
        if name == "gloo_all_reduce":
            dist.reduce_scatter_tensor(mine, torch.ones(numel * world_size))
        elif name != "send":
            call(name.replace("gloo_all_reduces", "reduce_scatter"), world_size, numel)
        elif rank < 2:
            (dist.send, dist.recv)[rank](mine, 1 - rank)

    dist.barrier()  # all connections are there
    ports = [None] * world_size
    dist.all_gather_object(ports, [own for own, _ in received()])
    owner = {port: other for other in range(world_size) for port in ports[other]}
    results = []
    for number, (name, nbytes) in enumerate(calls):
        meet(f"before {number}")
        before = received()
        meet(f"begin {number}")
        make_call(name, nbytes // 4)
        meet(f"after {number}")
        came = [0] * world_size
        for connection, total in received().items():
            if connection[1] in owner:
                came[owner[connection[1]]] += total - before.get(connection, 0)
        results.append(came)
    return results


def expected(name, n, nbytes):
    """Bytes between ranks by the schedule, ``[dst][src]``; nbytes is what each rank brings."""
    if name == "send":
        schedule = gloo.send(nbytes)
    elif name in SUMS:
        schedule = build("reduce_scatter", name, n, n * nbytes)
    else:
        whole = nbytes if name in ("all_reduce", "reduce", "broadcast") else n * nbytes
        schedule = build(name, gloo.choose(name, n, whole), n, whole)
    table = np.zeros((n, n), dtype=int)
    for round_ in schedule.rounds:
        np.add.at(table, (round_.dst, round_.src), round_.nbytes + gloo.ENVELOPE_BYTES)
    return table.tolist()


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux counts for each connection")
@pytest.mark.parametrize("n", (2, 3, 4))
def test_every_pair_of_ranks_exchanges_the_bytes_of_the_schedule(n, tmp_path):
    names = (*KINDS, *SUMS, "barrier", "send")
    calls = [(name, 4004) for name in names] + [(name, 7_000_004) for name in names]
    args = str(tmp_path / "store"), calls
    found = simlib.run(bytes_between_ranks, n, args=args, check=False).results
    for number, (name, nbytes) in enumerate(calls):
        came = [found[rank][number] for rank in range(n)]
        assert came == expected(name, n, nbytes), (name, nbytes)
