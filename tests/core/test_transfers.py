"""Waiting for others, or transferring: `Run.transfers`, `Run.states`, and where they are shown."""

from collections import defaultdict

import numpy as np
import pytest
import torch
import torch.distributed as dist
from synthetic import RunMaker
from test_replay import FAST, SLOW, mixed

import simlib
from simlib import Cluster, Device, Link

US = 1e-6


def in_us(run, rank, seq=0):
    return [tuple(round(t / US, 6) for t in part) for part in run.transfers.get((rank, seq), [])]


def blocked_us(run):
    """Microseconds for which each rank waits, and for which it transfers."""
    states = run.states
    return [[round(s / US, 6) for s in each] for each in (states.waiting_s, states.transferring_s)]


# By the last arrival


def test_a_message_moves_when_both_have_called():
    maker = RunMaker(2)
    maker.send(0, 1, 10, 10, 60)
    maker.recv(1, 0, 30, 30, 58)
    run = maker.run()
    assert in_us(run, 0) == [(30, 60)] and in_us(run, 1) == [(30, 58)]
    assert blocked_us(run) == [[20, 0], [30, 28]]
    assert run.states.computing_s == pytest.approx([50 * US, 72 * US])
    maker = RunMaker(2)  # a rank that comes late to its wait has waited less
    maker.send(0, 1, 10, 50, 60, async_op=True)
    maker.recv(1, 0, 30, 30, 60)
    assert blocked_us(maker.run()) == [[0, 0], [10, 30]]
    maker = RunMaker(3)  # what never came is waited for
    maker.recv(0, 1, 20, 20, None)
    maker.collective("all_reduce", {1: (30, 30, None), 2: (40, 40, None)})
    assert maker.run().transfers == {}
    assert blocked_us(maker.run())[0] == [80, 70, 60]


@pytest.mark.parametrize(
    ("kinds", "starts"),
    [
        (("all_reduce", "all_gather", "barrier"), [40, 40, 40]),
        (("broadcast", "scatter"), [20, 20, 40]),  # all need the root
        (("reduce", "gather"), [10, 40, 40]),  # the root needs all, the others nobody
    ],
)
def test_a_collective_moves_when_the_last_has_come_whom_a_rank_needs(kinds, starts):
    posts = {0: 10, 1: 20, 2: 40}
    for kind in kinds:
        maker = RunMaker(3)
        peer = 1 if starts[0] < 40 else None
        maker.collective(kind, {rank: (at, at, 80) for rank, at in posts.items()}, peer=peer)
        run = maker.run()
        assert [in_us(run, rank) for rank in range(3)] == [[(start, 80)] for start in starts]


# In a simulation: to the message


def union(parts):
    """Parts of time put together where they touch."""
    found = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1] * (1 + 1e-12):
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([start, end])
    return [tuple(part) for part in found]


def of_the_wire(run):
    """The same as `Run.transfers`, of the messages kept by ``expand=True``, by rank."""
    found = defaultdict(list)
    for message in run.wire:
        for rank in (message.src, message.dst):
            found[rank].append((message.start_s, message.end_s))
    return {rank: union(parts) for rank, parts in found.items()}


def collectives(rank, n):
    """Late ranks, three sorts of collectives, groups that share links."""
    x = torch.ones(5000)
    simlib.compute(2e-3 * (rank % 3))
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    pairs = [dist.new_group([a, a + n // 2]) for a in range(n // 2)]
    dist.all_reduce(x, group=pairs[rank % (n // 2)])
    dist.reduce(x, 2)


@pytest.mark.parametrize("cluster", [SLOW, FAST], ids=["own links", "shared links"])
@pytest.mark.parametrize("options", [{}, {"all_reduce": "ring"}, {"sends": "eager"}])
def test_a_simulation_knows_every_message(cluster, options):
    run = simlib.simulate(collectives, 4, cluster=cluster, expand=True, **options)
    parts = defaultdict(list)
    for (rank, _), own in run.transfers.items():
        parts[rank] += own
    wire = of_the_wire(run)
    assert wire.keys() == {rank for rank, own in parts.items() if own}
    for rank, expected in wire.items():
        found = union(parts[rank])
        assert np.array(found) == pytest.approx(np.array(expected), rel=1e-9)


def test_a_leaf_of_a_tree_waits_until_its_parent_sends():
    def main(rank, n):
        dist.broadcast(torch.ones(250), 0)

    cluster = Cluster(4, 1, Link(1e-3, 1e6))
    run = simlib.simulate(main, 4, cluster=cluster, broadcast="binomial")
    step_s = 1e-3 + 1000 / 1e6  # 0 sends to 2, then 0 to 1 and 2 to 3
    assert run.states.waiting_s == pytest.approx([0, step_s, 0, step_s], rel=1e-9)
    assert run.states.transferring_s == pytest.approx([2 * step_s, step_s, 2 * step_s, step_s])


@pytest.mark.parametrize("late_s", [0, 0.5])
@pytest.mark.parametrize("device, adds_s", [(None, 0), (Device(1e12, 1e9, 1e5), 2000 / 1e5)])
def test_who_waits_for_a_late_rank_and_who_transfers_and_adds_meanwhile(late_s, device, adds_s):
    def main(rank, n):
        simlib.compute(late_s * (rank == 1))
        dist.all_reduce(torch.ones(1000))

    cluster = Cluster(2, 1, Link(1e-3, 1e6), device=device)
    states = simlib.simulate(main, 2, cluster=cluster, all_reduce="ring").states
    assert states.waiting_s == pytest.approx([late_s, 0])
    moves_s = 2 * (1e-3 + 2000 / 1e6) + adds_s
    assert states.transferring_s == pytest.approx([moves_s, moves_s], rel=1e-9)
    assert states.computing_s == pytest.approx([0, late_s])


@pytest.mark.parametrize("cluster", [SLOW, FAST])
def test_the_states_of_a_rank_fill_its_time(cluster):
    run = simlib.simulate(mixed, 4, cluster=cluster)
    states = run.states
    total_s = states.computing_s + states.waiting_s + states.transferring_s
    assert total_s == pytest.approx([end - start for start, end in run.trace.spans])
    assert states.computing_s == pytest.approx([1e-3 * (rank + 1) + 2e-3 for rank in range(4)])


def test_a_simulation_that_was_ended_goes_by_the_last_arrival():
    def main(rank, n):
        x = torch.ones(100)
        dist.all_reduce(x)
        dist.recv(x, (rank + 1) % n)

    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(main, 3, cluster=SLOW)
    run = caught.value.run
    reduced = {(op.rank, 0): [(0.0, op.end_s)] for op in run.trace if op.kind == "all_reduce"}
    assert run.transfers == reduced


def test_it_is_saved_and_told_and_a_replay_has_its_own(tmp_path):
    run = simlib.simulate(collectives, 4, cluster=SLOW)
    loaded = simlib.load(run.save(tmp_path / "run.json"))
    assert loaded.transfers == run.transfers
    assert loaded.table().splitlines()[2].split()[-3:] == ["computed", "waited", "transferred"]
    assert repr(run.states).splitlines()[-1].startswith("mean")
    again, same = run.replay(FAST), simlib.simulate(collectives, 4, cluster=FAST)
    assert again.states.waiting_s == pytest.approx(same.states.waiting_s, rel=1e-9)
    for unlike in (simlib.simulate(rest, 2, compute="measured"), simlib.run(rest, 2)):
        assert "transferred" not in unlike.table()  # these times do not repeat


def rest(rank, n):
    dist.barrier()
