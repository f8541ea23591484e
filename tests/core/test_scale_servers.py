"""Parameter servers: against simulations of real code, closed forms, and by hand."""

from __future__ import annotations

import sys
import time

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from closed_forms import CLUSTERS
from sampled import SEED, sampled

import simlib
from simlib import Cluster, Link, scale
from simlib.core.model.cluster import Topology
from simlib.core.model.errors import InvalidCallError
from simlib.core.scale.programs import Machine

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def parameter_server(rank, world_size, workers, elements, compute_s, update_s, asynchronous):
    """Hand-written workers and servers; what each saw: moments, or the staleness of gradients."""
    parts = [len(part) for part in np.array_split(np.arange(elements), world_size - workers)]
    if rank < workers:
        return work(rank, workers, parts, compute_s)
    serve = serve_each if asynchronous else serve_all
    return serve(workers, parts[rank - workers], len(compute_s), update_s)


def work(rank, workers, parts, compute_s):
    ends, began_s = [], time.perf_counter()
    for step in range(len(compute_s)):
        simlib.compute(seconds=compute_s[step][rank])
        requests = [dist.irecv(torch.empty(part), workers + i) for i, part in enumerate(parts)]
        requests += [dist.isend(torch.ones(part), workers + i) for i, part in enumerate(parts)]
        for request in requests:
            request.wait()
        ends.append(time.perf_counter() - began_s)
    return ends


def serve_all(workers, elements, steps, update_s):
    for _ in range(steps):
        gradients = [torch.empty(elements) for _ in range(workers)]
        for request in [dist.irecv(g, worker) for worker, g in enumerate(gradients)]:
            request.wait()
        simlib.compute(seconds=update_s)
        for request in [dist.isend(torch.ones(elements), worker) for worker in range(workers)]:
            request.wait()
    return []


def serve_each(workers, elements, steps, update_s):
    version, sent, staleness, requests = 0, [0] * workers, [], []
    for _ in range(workers * steps):
        worker = dist.recv(torch.empty(elements))
        staleness.append(version - sent[worker])
        simlib.compute(seconds=update_s)
        version += 1
        sent[worker] = version
        requests.append(dist.isend(torch.ones(elements), worker))
    for request in requests:
        request.wait()
    return staleness


@pytest.mark.parametrize(
    "name, asynchronous, numbers, update_s, compute",
    sampled(
        CLUSTERS, (False, True), ((1, 1), (4, 1), (5, 3), (3, 4)), (0.0, 3e-4),
        ("any", "any", 0.0, 1e-3), times=3,
    ),
)  # fmt: skip
def test_servers_take_as_long_as_simulated(name, asynchronous, numbers, update_s, compute):
    """Equal workers post all sends at one moment, so their order is that of the ranks."""
    cluster, (workers, number) = CLUSTERS[name], numbers
    bounds = (1e-4, 3e-3) if compute == "any" else (compute, compute)
    compute_s = np.random.default_rng(SEED).uniform(*bounds, (4, workers))
    elements = 20_002
    args = workers, elements, compute_s.tolist(), update_s, asynchronous
    run = simlib.simulate(parameter_server, workers + number, args, cluster=cluster)
    forward_s = compute_s / 4
    steps = scale.parameter_server_time(
        4 * elements, workers, number, cluster, forward_s=forward_s, update_s=update_s,
        backward_s=compute_s - forward_s, asynchronous=asynchronous, steps=4,
    )  # fmt: skip
    assert steps.end_s.T == pytest.approx(np.array(run.results[:workers]), rel=1e-9)
    assert steps.time_s == pytest.approx(run.time_s, rel=1e-9)
    if asynchronous:
        assert steps.staleness.tolist() == run.results[workers:]


def test_synchronous_servers_have_their_closed_form():
    # All gradients come in over a server's one link, all parameters go out over it.
    latency_s, bandwidth_Bps, workers = 1e-3, 1e8, 6
    cluster = Cluster(9, 1, Link(latency_s, bandwidth_Bps))
    for number in (1, 2, 3):
        steps = scale.parameter_server_time(
            12_000_000, workers, number, cluster, forward_s=0.1, backward_s=0.2, update_s=0.01,
            steps=5,
        )  # fmt: skip
        one_way_s = latency_s + workers * 12_000_000 / number / bandwidth_Bps
        assert steps.step_s == pytest.approx(0.31 + 2 * one_way_s, rel=1e-9)
        assert steps.updates_per_s == pytest.approx(1 / steps.step_s, rel=1e-9)
        assert steps.gradients_per_s == pytest.approx(workers / steps.step_s, rel=1e-9)
        assert not steps.staleness.any()


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_gradients_of_equal_workers_are_as_stale_as_there_are_others(workers):
    # A server that is never free makes updates in turn: between two of a worker's, all others'.
    cluster = Cluster(8, 1, Link(1e-3, 1e8))
    steps = scale.parameter_server_time(
        1_000_000, workers, 1, cluster, forward_s=0.0, backward_s=0.0, update_s=0.1,
        asynchronous=True, steps=100,
    )  # fmt: skip
    assert (steps.staleness[0, workers:] == workers - 1).all()
    # Each costs the server an update and a message in, of 11 ms; a lone worker's comes back, too.
    # The first worker ends earlier than the last, which is worth half a step of a hundred.
    served_s = 0.111 if workers > 1 else 0.122
    assert steps.updates_per_s == pytest.approx(1 / served_s, rel=0.01)


def test_asynchronous_workers_by_hand():
    # Messages of 1 s. Worker 0 computes 1 s, worker 1 3 s. Gradients there at 2 and 4, answers at
    # 3 and 5; worker 0's next at 5, its answer at 6; worker 1's next at 9, 0's third at 8.
    cluster = Cluster(3, 1, Link(0.0, 100.0))
    steps = scale.parameter_server_time(
        100, 2, 1, cluster, forward_s=[1, 3], backward_s=0, asynchronous=True, steps=2
    )
    assert steps.end_s.tolist() == [[3, 5], [6, 10]]
    assert steps.staleness.tolist() == [[0, 1, 1, 1]]
    assert steps.gradients_per_s == 2 / 6 + 2 / 10 and steps.time_s == 10
    assert steps.mean_staleness == 0.75 and steps.compute_s.tolist() == [[1, 3], [1, 3]]
    assert "asynchronous, 2 workers, 1 server, 2 steps: 10 s" in repr(steps)


def test_a_receive_of_any_source_takes_what_was_sent_first():
    machine = Machine(Topology(Cluster(3, 1, Link(1.0, 100.0)), 3))
    met = []

    def receives():
        yield 5.0
        for _ in range(2):
            message = machine.irecv(0)
            yield [message]
            met.append((message.src, message.end_s))

    def sends(rank, after_s):
        yield after_s
        yield [machine.isend(rank, 0, 100)]

    assert machine.run([receives(), sends(1, 3.0), sends(2, 2.0)]) == [9.0, 9.0, 7.0]
    assert met == [(2, 7.0), (1, 9.0)]


TIMES = {"forward_s": 1, "backward_s": 1}


@pytest.mark.parametrize(
    "asked, words",
    [
        ((100, 2, 0), "servers is 0: give a whole number of at least 1"),
        ((4, 2, 2), "model_bytes is 4: give a whole number of at least 8"),
        ((101, 2, 1), "101 bytes are not a whole number of parameters of 4"),
        ((100, 2, 9), "11 ranks"),
        ((100, 2, 1, {"forward_s": [1, 2, 3]}), "one for each of 2"),
        ((100, 2, 1, {"forward_s": -1}), "finite and at least 0"),
        ((100, 2, 1, {"forward_s": float("inf")}), "finite and at least 0"),
        ((100, 2, 1, {"update_s": [0.1, 0.2]}), "update_s is"),
        ((100, 2, 1, {"cluster": None}), "give a Cluster"),
        ((100, 2, 1, {"asynchronous": "yes"}), "asynchronous is 'yes': give a bool"),
        ((100, 2, 1, {"steps": 100_000}), "400,000 messages, but simlib follows at most"),
    ],
)
def test_refusals(asked, words):
    *sizes, more = asked if isinstance(asked[-1], dict) else (*asked, {})
    with pytest.raises(InvalidCallError, match=words):
        keywords = {"cluster": Cluster(8, 1, Link(0.0, 1.0)), **TIMES, **more}
        scale.parameter_server_time(*sizes, **keywords)
