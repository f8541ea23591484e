"""Simulated times: against the papers' closed forms, and examples worked out by hand."""

import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from closed_forms import CLOSED_FORMS, NETWORKS
from torch import nn

import simlib
from simlib import Cluster, Link
from simlib.core.collectives import ALGORITHMS

# As from a cell: the ranks need not import this module, and pytest, in every simulation.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
NUMBERS_OF_RANKS = [*range(2, 18), 24, 31, 32, 33, 48, 63, 64]
SIZES = [8, 100_000, 64 * 63 * 256]
SECOND = Link(1.0, 100.0)


def flat(n, link=SECOND):
    """One rank on each node."""
    return Cluster(n, 1, link)


def floats(nbytes):
    return torch.zeros(nbytes // 4)


# -- closed forms ----------------------------------------------------------------------------------


def call_once(rank, n, kind, nbytes):
    """One collective; ``nbytes`` as `simlib.collectives.schedule` counts them."""
    whole = floats(nbytes)
    if kind in ("all_gather", "reduce_scatter"):
        part = floats(nbytes // n)
    if kind == "all_reduce":
        dist.all_reduce(whole)
    elif kind == "broadcast":
        dist.broadcast(whole, src=0)
    elif kind == "reduce":
        dist.reduce(whole, dst=0)
    elif kind == "all_gather":
        dist.all_gather(list(whole.chunk(n)), part)
    elif kind == "reduce_scatter":
        dist.reduce_scatter(part, list(whole.chunk(n)))
    elif kind == "all_to_all":
        dist.all_to_all(list(whole.chunk(n)), list(whole.clone().chunk(n)))
    else:
        dist.barrier()


@pytest.mark.parametrize("n", NUMBERS_OF_RANKS)
@pytest.mark.parametrize("kind, name", CLOSED_FORMS)
def test_a_collective_takes_as_long_as_the_papers_say(kind, name, n):
    for link in NETWORKS.values():
        a, b = link.latency_s, 1 / link.bandwidth_Bps
        for nbytes in SIZES:
            if kind in ("all_gather", "reduce_scatter", "all_to_all"):  # equal parts
                nbytes = max(1, nbytes // (4 * n)) * 4 * n
            run = simlib.simulate(
                call_once, n, (kind, nbytes), cluster=flat(n, link), **{kind: name}
            )
            assert run.time_s == pytest.approx(CLOSED_FORMS[kind, name](n, nbytes, a, b), rel=1e-9)


@pytest.mark.parametrize("n", [2, 7, 32])
def test_a_ring_of_ones_own_takes_as_long_as_the_papers_say(n):
    def ring(rank, n):
        chunks = list(torch.ones(1000 * n).chunk(n))
        incoming = torch.empty(1000)
        for step in range(2 * (n - 1)):
            request = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
            dist.recv(incoming, (rank - 1) % n)
            request.wait()
            mine = chunks[(rank - step - 1) % n]
            mine += incoming if step < n - 1 else incoming - mine
        return torch.cat(chunks).unique().tolist()

    for link in NETWORKS.values():
        run = simlib.simulate(ring, n, cluster=flat(n, link))
        assert run.results == [[float(n)]] * n
        wanted = CLOSED_FORMS["all_reduce", "ring"](
            n, 4000 * n, link.latency_s, 1 / link.bandwidth_Bps
        )
        assert run.time_s == pytest.approx(wanted, rel=1e-9)


# -- messages --------------------------------------------------------------------------------------


def send_to_a_late_receiver(rank, n, nbytes):
    if rank == 0:
        dist.send(floats(nbytes), 1)
    else:
        time.sleep(5)
        dist.recv(floats(nbytes), 0)
    return time.monotonic()


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({}, [7.0, 7.0]),  # starts when both are there: 5 s, 1 s latency, 100 B at 100 B/s
        ({"sends": "eager"}, [0.0, 5.0]),  # has been there since 2 s
        ({"eager_limit_bytes": 100}, [0.0, 5.0]),
        ({"eager_limit_bytes": 99}, [7.0, 7.0]),
    ],
)
def test_rendezvous_and_eager_sends(options, ends):
    run = simlib.simulate(send_to_a_late_receiver, 2, (100,), cluster=flat(2), **options)
    assert run.results == ends


def test_both_send_first_is_a_deadlock_unless_sends_are_eager():
    def main(rank, n):
        dist.send(torch.ones(25), 1 - rank)
        dist.recv(torch.empty(25), 1 - rank)
        return time.monotonic()

    with pytest.raises(simlib.DeadlockError):
        simlib.simulate(main, 2, cluster=flat(2))
    assert simlib.simulate(main, 2, cluster=flat(2), sends="eager").results == [2.0, 2.0]


@pytest.mark.parametrize("receiver_comes_s", [0, 100])
def test_receives_of_any_source_take_messages_by_their_virtual_arrival(receiver_comes_s):
    def main(rank, n):
        if rank:
            time.sleep({1: 30, 2: 10, 3: 20}[rank])
            dist.send(floats(100), 0)
            return
        time.sleep(receiver_comes_s)
        return [dist.recv(floats(100)) for _ in range(3)]

    for options in ({}, {"sends": "eager"}):
        assert simlib.simulate(main, 4, cluster=flat(4), **options).results[0] == [2, 3, 1]


def test_incast_of_messages_with_different_start_times():
    # 300 B draw alone from 1 s; the 100 B join at 1.5 s and take half until 3.5 s; then alone.
    def main(rank, n):
        if rank == 0:
            requests = [dist.irecv(floats(300), 1), dist.irecv(floats(100), 2)]
            for request in requests:
                request.wait()
            return
        time.sleep(0 if rank == 1 else 0.5)
        dist.send(floats(300 if rank == 1 else 100), 0)
        return time.monotonic()

    assert simlib.simulate(main, 3, cluster=flat(3)).results == [None, 5.0, 3.5]


@pytest.mark.parametrize(
    ("placement", "step_s"),
    [
        ("block", 1 + 10 + 1),  # one message leaves each node: alone on 100 B/s
        ("round_robin", 1 + 10 + 2),  # two leave each node: 50 B/s each
        ([0, 1, 1, 0], 1 + 10 + 1),
    ],
)
def test_a_ring_step_by_placement(placement, step_s):
    def step(rank, n):
        request = dist.isend(floats(100), (rank + 1) % n)
        dist.recv(floats(100), (rank - 1) % n)
        request.wait()

    cluster = Cluster(2, 2, inter=Link(10.0, 100.0), intra=Link(1.0, 100.0))
    assert simlib.simulate(step, 4, cluster=cluster, placement=placement).time_s == step_s


def test_the_wire_has_the_messages_of_a_collective():
    def main(rank, n):
        dist.all_reduce(floats(400))

    run = simlib.simulate(main, 4, cluster=flat(4), all_reduce="ring", expand=True)
    assert len(run.wire) == 4 * 2 * 3
    for k in range(6):  # each step: 1 s latency, 100 B at 100 B/s
        step = [message for message in run.wire if message.start_s == 2.0 * k]
        assert {(m.src, m.dst) for m in step} == {(0, 1), (1, 2), (2, 3), (3, 0)}
        assert {(m.nbytes, m.end_s) for m in step} == {(100, 2.0 * k + 2)}
    assert [op.kind for op in run.trace] == ["all_reduce"] * 4
    assert simlib.simulate(main, 4, cluster=flat(4), all_reduce="ring").wire is None


@pytest.mark.parametrize("name", ALGORITHMS["all_reduce"])
def test_the_sum_is_the_same_by_every_algorithm(name):
    def main(rank, n):
        x = torch.arange(5.0) + rank
        dist.all_reduce(x)
        return x.tolist()

    run = simlib.simulate(main, 3, all_reduce=name)
    assert run.results == [[3.0 + 3 * i for i in range(5)]] * 3


# -- overlap ---------------------------------------------------------------------------------------


def test_async_collectives_follow_each_other_beside_computing():
    def main(rank, n, compute_s):
        requests = [dist.all_reduce(floats(100), async_op=True) for _ in range(3)]
        time.sleep(compute_s)
        ends = []
        for request in requests:
            request.wait()
            ends.append(time.monotonic())
        return ends

    # Each takes 4 s, there and back, one after the other.
    for compute_s, ends in ((0, [4, 8, 12]), (5, [5, 8, 12]), (50, [50, 50, 50])):
        run = simlib.simulate(main, 2, (compute_s,), cluster=flat(2), all_reduce="naive")
        assert run.results == [ends] * 2


def blocks():
    """Layers of 100 x 100 weights, 40,000 bytes each."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(6)))


def compute_before_each_gradient(model, compute_s):
    for weight in model.parameters():
        weight.register_hook(lambda gradient: time.sleep(compute_s))


def step_times(model, finish):
    """Seconds of the last of four steps, and its gradients."""
    for _ in range(4):
        begin = time.monotonic()
        model.zero_grad()
        model(torch.ones(2, 100)).sum().backward()
        finish()
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return time.monotonic() - begin, gradients


def with_ddp(rank, n, compute_s):
    model = blocks()
    compute_before_each_gradient(model, compute_s)
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    return step_times(model, finish=lambda: None)


def by_hand(rank, n, compute_s):
    model, requests = blocks(), []
    compute_before_each_gradient(model, compute_s)

    def reduce(weight):
        weight.grad /= n
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    def finish():
        while requests:
            requests.pop(0).wait()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(reduce)
    return step_times(model, finish)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("compute_s", [0.0, 50e-6, 5e-3])
def test_torchs_ddp_and_ones_own_take_equal_steps(compute_s, n):
    options = {"args": (compute_s,), "cluster": flat(n, NETWORKS["10 Gbit/s"])}
    torchs = simlib.simulate(with_ddp, n, all_reduce="ring", **options)
    own = simlib.simulate(by_hand, n, all_reduce="ring", **options)
    bucket_s = 2 * (n - 1) * (30e-6 + 40_000 / n / 1.25e9)
    wanted = max(compute_s + 6 * bucket_s, 6 * compute_s + bucket_s)
    for (torchs_s, gradients), (own_s, own_gradients) in zip(
        torchs.results, own.results, strict=True
    ):
        assert torchs_s == pytest.approx(own_s, rel=1e-9)
        assert own_s == pytest.approx(wanted, rel=1e-9)
        torch.testing.assert_close(gradients, own_gradients)


def test_other_orders_of_groups_on_each_rank_overlap():
    def main(rank, n):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        requests = [
            dist.all_reduce(floats(100), group=group, async_op=True)
            for group in (groups if rank == 0 else groups[::-1])
        ]
        for request in requests:
            request.wait()
        return time.monotonic()

    # Both cross the same link: 1 s latency, 200 B at 100 B/s.
    run = simlib.simulate(main, 2, cluster=flat(2), all_reduce="recursive_doubling")
    assert run.results == [3.0, 3.0]


def test_messages_of_one_pair_arrive_one_after_the_other():
    def main(rank, world_size):
        parts = [torch.zeros(250) for _ in range(10)]  # 1,000 bytes
        if rank == 0:
            for work in [dist.isend(part, 1) for part in parts]:
                work.wait()
            return None
        arrived_s = []
        for work in [dist.irecv(part, 0) for part in parts]:
            work.wait()
            arrived_s.append(time.perf_counter())
        return arrived_s

    link = simlib.Link(0.5, 1000.0)
    for in_order, wanted_s in ((True, [1.5 + k for k in range(10)]), (False, [10.5] * 10)):
        cluster = simlib.Cluster(2, 1, link, in_order=in_order)
        run = simlib.simulate(main, 2, cluster=cluster)
        assert run.results[1] == pytest.approx(wanted_s, rel=1e-12)
        assert run.replay(cluster).trace.end_s == pytest.approx(wanted_s[-1], rel=1e-12)


def test_who_polls_sees_an_op_end_at_its_moment_and_not_before():
    def main(rank, world_size):
        x = torch.ones(1)
        if rank:
            simlib.compute(2.0)
        work = dist.all_reduce(x, async_op=True)
        looks = 0
        while not work.is_completed():
            time.sleep(0.02)
            looks += 1
        return looks, x.item()

    cluster = simlib.Cluster(2, 1, simlib.Link(0.01, 1e9))
    run = simlib.simulate(main, 2, cluster=cluster, all_reduce="recursive_doubling")
    assert run.results[0] == (101, 2.0)  # 2.01 s and a little: after 100 naps it is 2.00 s
    assert run.results[1] == (1, 2.0)


def test_who_polls_without_a_nap_gets_on():
    def main(rank, world_size):
        x = torch.ones(1)
        simlib.compute(rank * 1.0)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        return x.item(), time.perf_counter()

    cluster = simlib.Cluster(2, 1, simlib.Link(0.5, 8.0))
    run = simlib.simulate(main, 2, cluster=cluster, all_reduce="recursive_doubling")
    assert run.results == [(2.0, 2.0)] * 2


@pytest.mark.parametrize(
    "kind, algorithm, call, wanted_s",
    [
        # 100 B last 2 s. Ranks 1 and 3 send to 0 and 2, and are through; 2 then sends on to 0.
        ("reduce", "binomial", lambda x: dist.reduce(x, 0), [4, 0, 2, 0]),
        # The root sends to 2 and 1 at once, which share its link, and is through; 2 sends on to 3.
        ("broadcast", "binomial", lambda x: dist.broadcast(x, 0), [0, 3, 3, 5]),
    ],
)
def test_eager_messages_of_collectives(kind, algorithm, call, wanted_s):
    def main(rank, world_size):
        call(torch.ones(25))
        return time.perf_counter()

    found = {}
    for limit in (100, 99):
        run = simlib.simulate(
            main, 4, cluster=flat(4), eager_limit_bytes=limit, **{kind: algorithm}
        )
        found[limit] = run.results
        times = {"cluster": flat(4), "algorithm": algorithm, "eager_limit_bytes": limit}
        ends_s = simlib.scale.ends_of(kind, 4, 100, **times)
        assert run.results == pytest.approx(ends_s.tolist(), rel=1e-12)
        again = run.replay(flat(4), eager_limit_bytes=limit, **{kind: algorithm})
        assert again.trace.end_s == max(ends_s)
    assert found[100] == wanted_s
    assert found[99] == simlib.simulate(main, 4, cluster=flat(4), **{kind: algorithm}).results


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_the_root_of_nothing_may_be_done_before_all_have_come(kind):
    def main(rank, world_size):
        simlib.compute(seconds=rank / 10)
        nothing = torch.empty(0)
        if kind == "reduce":
            dist.reduce(nothing, 2)
        else:
            parts = [torch.empty(0) for _ in range(world_size)] if rank == 2 else None
            dist.gather(nothing, parts, 2)

    cluster = simlib.Cluster(3, 4, simlib.Link(1e-3, 100.0))
    for seed in (None, 1):
        simlib.simulate(
            main, 12, cluster=cluster, eager_limit_bytes=0, seed=seed, placement="round_robin",
            algorithms="gloo",
        )  # fmt: skip
