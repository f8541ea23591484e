"""Simulated times: against the papers' closed forms, and examples worked out by hand."""

import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from closed_forms import CLOSED_FORMS, NETWORKS
from sampled import sampled
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
    parts = list(whole.chunk(n)) if kind in ("all_gather", "reduce_scatter", "all_to_all") else []
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "reduce": lambda: dist.reduce(whole, dst=0),
        "all_gather": lambda: dist.all_gather(parts, floats(nbytes // n)),
        "reduce_scatter": lambda: dist.reduce_scatter(floats(nbytes // n), parts),
        "all_to_all": lambda: dist.all_to_all(parts, list(whole.clone().chunk(n))),
        "barrier": dist.barrier,
    }
    calls[kind]()


@pytest.mark.parametrize("form, n, network", sampled(CLOSED_FORMS, NUMBERS_OF_RANKS, NETWORKS))
def test_a_collective_takes_as_long_as_the_papers_say(form, n, network):
    (kind, name), link = form, NETWORKS[network]
    for nbytes in SIZES:
        if kind in ("all_gather", "reduce_scatter", "all_to_all"):  # equal parts
            nbytes = max(1, nbytes // (4 * n)) * 4 * n
        options = {"cluster": flat(n, link), kind: name}
        run = simlib.simulate(call_once, n, (kind, nbytes), **options)
        wanted = CLOSED_FORMS[form](n, nbytes, link.latency_s, 1 / link.bandwidth_Bps)
        assert run.time_s == pytest.approx(wanted, rel=1e-9)


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
    def late_receiver(rank, n):
        time.sleep(5 * rank)
        dist.recv(floats(100), 0) if rank else dist.send(floats(100), 1)
        return time.monotonic()

    def both_send_first(rank, n):
        dist.send(floats(100), 1 - rank)
        dist.recv(floats(100), 1 - rank)
        return time.monotonic()

    assert simlib.simulate(late_receiver, 2, cluster=flat(2), **options).results == ends
    if ends[0]:
        with pytest.raises(simlib.DeadlockError):
            simlib.simulate(both_send_first, 2, cluster=flat(2), **options)
    else:
        run = simlib.simulate(both_send_first, 2, cluster=flat(2), **options)
        assert run.results == [2.0, 2.0]


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
    options = {"cluster": flat(n, NETWORKS["10 Gbit/s"]), "all_reduce": "ring"}
    both = (simlib.simulate(one, n, (compute_s,), **options).results for one in (with_ddp, by_hand))
    bucket_s = 2 * (n - 1) * (30e-6 + 40_000 / n / 1.25e9)
    wanted = max(compute_s + 6 * bucket_s, 6 * compute_s + bucket_s)
    for (torchs_s, gradients), (own_s, own_gradients) in zip(*both, strict=True):
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
        make, arrived_s = dist.irecv if rank else dist.isend, []
        for work in [make(floats(1000), 1 - rank) for _ in range(10)]:
            work.wait()
            arrived_s.append(time.perf_counter())
        return arrived_s

    for in_order, wanted_s in ((True, [1.5 + k for k in range(10)]), (False, [10.5] * 10)):
        cluster = Cluster(2, 1, Link(0.5, 1000.0), in_order=in_order)
        run = simlib.simulate(main, 2, cluster=cluster)
        assert run.results[1] == pytest.approx(wanted_s, rel=1e-12)
        assert run.replay(cluster).trace.end_s == pytest.approx(wanted_s[-1], rel=1e-12)


def test_who_polls_sees_an_op_end_at_its_moment_and_not_before():
    def main(rank, world_size, nap_s):
        x, looks = torch.ones(1), 0
        simlib.compute(2.0 * rank)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            if nap_s:
                time.sleep(nap_s)
            looks += 1
        return looks, x.item(), time.perf_counter()

    algorithm = {"all_reduce": "recursive_doubling"}
    run = simlib.simulate(main, 2, (0.02,), cluster=flat(2, Link(0.01, 1e9)), **algorithm)
    assert run.results[0][:2] == (101, 2.0)  # 2.01 s and a little: after 100 naps it is 2.00 s
    assert run.results[1][:2] == (1, 2.0)
    run = simlib.simulate(main, 2, (0.0,), cluster=flat(2, Link(0.5, 8.0)), **algorithm)
    assert [found[1:] for found in run.results] == [(2.0, 3.0)] * 2


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

    found, by_name = {}, {kind: algorithm}
    for limit in (100, 99):
        options = {"cluster": flat(4), "eager_limit_bytes": limit}
        run = simlib.simulate(main, 4, **options, **by_name)
        found[limit] = run.results
        ends_s = simlib.scale.ends_of(kind, 4, 100, algorithm=algorithm, **options)
        assert run.results == pytest.approx(ends_s.tolist(), rel=1e-12)
        again = run.replay(flat(4), eager_limit_bytes=limit, **by_name)
        assert again.trace.end_s == max(ends_s)
    assert found[100] == wanted_s
    assert found[99] == simlib.simulate(main, 4, cluster=flat(4), **by_name).results


def test_an_eager_message_keeps_its_link_from_the_next_collective_of_its_group():
    def main(rank, n):
        works = [dist.broadcast(floats(200), 0, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()

    run = simlib.simulate(main, 2, cluster=flat(2), sends="eager")
    assert [left_s for _, left_s in run.trace.spans] == pytest.approx([0.0, 5.0])


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_the_root_of_nothing_may_be_done_before_all_have_come(kind):
    def main(rank, world_size):
        simlib.compute(seconds=rank / 10)
        nothing = torch.empty(0)
        if kind == "reduce":
            dist.reduce(nothing, 2)
        else:
            dist.gather(nothing, [nothing.clone() for _ in range(12)] if rank == 2 else None, 2)

    options = {"cluster": Cluster(3, 4, Link(1e-3, 100.0)), "placement": "round_robin"}
    for seed in (None, 1):
        simlib.simulate(main, 12, eager_limit_bytes=0, seed=seed, algorithms="gloo", **options)
