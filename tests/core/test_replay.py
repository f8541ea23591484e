"""`Run.replay`: recorded ops under another network."""

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib import Cluster, Link, clusters
from simlib.core.clockwork import collective_in_flight

SLOW = Cluster(4, 1, Link(1e-4, 1e6))
FAST = Cluster(2, 2, Link(1e-6, 1e9), Link(1e-7, 1e10))


def mixed(rank, n):
    """Compute, overlap, messages both ways, groups, collectives of several kinds."""
    x = torch.full((500,), float(rank))
    simlib.compute(1e-3 * (rank + 1))
    request = dist.all_reduce(x, async_op=True)
    y = torch.zeros(300)
    if rank % 2 == 0:
        dist.send(torch.ones(300), rank + 1, tag=3)
    else:
        dist.recv(y, rank - 1, tag=3)
    simlib.compute(2e-3)
    request.wait()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.broadcast(x, rank // 2 * 2, group=halves[rank // 2])
    parts = [torch.zeros(7) for _ in range(n)]
    dist.all_to_all(parts, [torch.ones(7)] * n)
    dist.barrier()
    return x[0].item()


def times(run):
    return [t for op in run.trace for t in (op.post_s, op.wait_s, op.end_s) if t is not None]


@pytest.mark.parametrize("options", [{}, {"all_reduce": "ring"}, {"sends": "eager"}])
def test_a_replay_on_the_same_cluster_gives_the_same_times(options):
    run = simlib.simulate(mixed, 4, cluster=SLOW, **options)
    before = times(run)
    again = run.replay(SLOW, **options)
    assert times(again) == pytest.approx(before, rel=1e-12)
    assert again.time_s == pytest.approx(run.time_s, rel=1e-12)
    assert again.results == run.results and again.engine == "replayed"
    run.replay(FAST, **options)
    assert times(run) == before, "the recording was changed"


def test_a_replay_on_another_cluster_is_a_simulation_there():
    """What the ranks do between ops does not depend on the network here."""
    moved = simlib.simulate(mixed, 4, cluster=SLOW).replay(FAST, "round_robin", expand=True)
    there = simlib.simulate(mixed, 4, cluster=FAST, placement="round_robin", expand=True)
    assert moved.time_s == pytest.approx(there.time_s, rel=1e-12)
    assert [(m.kind, m.src, m.dst, m.nbytes) for m in moved.wire] == [
        (m.kind, m.src, m.dst, m.nbytes) for m in there.wire
    ]
    assert moved.time_s < simlib.simulate(mixed, 4, cluster=SLOW).time_s


def test_a_run_on_real_ranks_is_replayed():
    run = simlib.run(mixed, 4)
    fast, slow = run.replay(FAST), run.replay(SLOW)
    assert len(fast.trace) == len(slow.trace) == len(run.trace)
    assert 3e-3 < fast.time_s <= slow.time_s
    assert sum(times(fast)) < sum(times(slow))  # the last op may wait for a rank that was held up
    assert run.trace[0].site == fast.trace[0].site


def test_slow_makes_a_rank_compute_longer_and_too_small_a_cluster_is_refused():
    run = simlib.simulate(mixed, 4, cluster=FAST)
    there = simlib.simulate(mixed, 4, cluster=FAST, slow={2: 10.0})
    assert run.replay(FAST, slow={2: 10.0}).time_s == pytest.approx(there.time_s, rel=1e-9)
    with pytest.raises(simlib.InvalidCallError, match="do not fit"):
        run.replay(clusters.ethernet_1g(nodes=3))


def test_what_never_ended_or_cannot_go_on_with_other_sends_is_refused():
    def main(rank, n):
        dist.send(torch.ones(4), 1 - rank)
        dist.recv(torch.zeros(4), 1 - rank)

    two = clusters.ethernet_1g(nodes=2)
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(main, 2)
    with pytest.raises(simlib.InvalidCallError, match="only a completed run"):
        caught.value.run.replay(two)
    with pytest.raises(simlib.DeadlockError, match="replay it with eager sends"):
        simlib.simulate(main, 2, sends="eager").replay(two)


def test_collectives_one_after_the_other_are_each_timed_in_one_go(monkeypatch):
    def main(rank, world_size):
        requests = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(9)]
        for request in requests:
            request.wait()

    cluster = Cluster(8, 1, Link(1.0, 8.0))
    run = simlib.simulate(main, 8, cluster=cluster, all_reduce="ring")
    assert run.time_s == pytest.approx(9 * 14 * 1.5)
    one_by_one = []
    monkeypatch.setattr(
        collective_in_flight.CollectiveInFlight, "wake", lambda self: one_by_one.append(self)
    )
    again = run.replay(cluster, all_reduce="ring")
    assert again.trace.end_s == pytest.approx(run.time_s)
    assert one_by_one == []
