"""The memory of a rank: exact against models worked out by hand, and against a random program."""

from __future__ import annotations

import os
import pickle
import threading
import time

import hypothesis
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from collective_calls import call
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import simlib
from simlib.core.collectives import KINDS
from simlib.core.engines.virtual.dispatch_mode import DispatchMode, FlopCounts
from simlib.core.engines.virtual.memory_history import MAX_POINTS
from simlib.core.engines.virtual.memory_meter import MemoryHooks, MemoryMeter
from simlib.core.engines.virtual.op_time import FlopTimes
from simlib.core.model.errors import OutOfMemoryError
from simlib.core.model.ledger import CATEGORIES, Ledger
from simlib.core.model.trace import Site

SEED = int(os.environ["SEED"])


class Measured:
    """A meter of this thread's ops for the time of a ``with`` block; a test moves its clock."""

    def __init__(self, **options):
        self.time_s = 0.0
        self.meter = MemoryMeter(0, lambda: self.time_s, **options)
        self._parts = [MemoryHooks(lambda: self.meter), DispatchMode(memory=self.meter)]

    def __enter__(self):
        for part in self._parts:
            part.__enter__()
        return self

    def __exit__(self, *error):
        for part in reversed(self._parts):
            part.__exit__(*error)

    @property
    def current(self):
        """(parameters, gradients, optimizer state, activations and temporaries), now."""
        return tuple(self.meter.ledger().current.values())

    @property
    def peak(self):
        return tuple(self.meter.ledger().peak.values())


def test_a_perceptron_with_momentum_by_hand():
    with Measured() as rank:
        # Weights 16 x 4 and 2 x 16, biases 16 and 2, of 4 bytes each: 256 + 128 + 64 + 8.
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(8, 4)  # 128 bytes
        assert rank.current == (456, 0, 0, 128)
        for _ in range(2):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        # Momentum is as large as the parameters. Nothing but the batch is left of the step.
        assert rank.current == (456, 456, 456, 128)
    # Most is held in the second backward, as the ReLU makes the gradient of its input. There are
    # the gradients of the last layer, 136; the batch, 128; the ReLU's result, the gradient of it
    # and that of its input, 8 x 16 x 4 = 512 each; the loss and the gradient of it, 4 each. (The
    # ReLU's input and the output of the net have been released.)
    assert rank.peak == (456, 136, 456, 128 + 3 * 512 + 2 * 4)


def blocks():
    """Two blocks of two layers; a weight has 8 x 8 x 4 = 256 bytes."""
    layers = [nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()) for _ in range(4)]
    return [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])]


UNIT = 64 * 8 * 4  # bytes of a batch, and of each activation


@pytest.mark.parametrize(
    "forward, forward_units, peak",
    [
        # The input, and the result of each of four ReLUs. Most is held as the last layer has made
        # the gradients of its input and of its weight: these, the five, the gradient of its output;
        # the loss and its gradient, 4 bytes each.
        (lambda block, y: block(y), 5, (1024, 0, 0, 7 * UNIT + 256 + 8)),
        # The input, and the result of each block. Most is held as the first block has been
        # recomputed, with the gradients of two weights made: input, output, the gradient of the
        # block's result, the results of its first ReLU, its second layer and its second ReLU; the
        # loss and its gradient.
        (
            lambda block, y: checkpoint(block, y, use_reentrant=False),
            3,
            (1024, 512, 0, 6 * UNIT + 8),
        ),
    ],
    ids=["kept", "recomputed"],
)
def test_activations_by_hand(forward, forward_units, peak):
    with Measured() as rank:
        y = x = torch.ones(64, 8).requires_grad_()
        for block in blocks():
            y = forward(block, y)
        assert rank.current == (1024, 0, 0, forward_units * UNIT)
        y.sum().backward()
        assert rank.current == (1024, 1024, 0, 3 * UNIT)  # input, its gradient, output
    assert rank.peak == peak
    assert x.grad is not None


def test_a_shared_weight_is_held_once():
    with Measured() as rank:
        embedding = nn.Embedding(10, 4)  # 160 bytes
        head = nn.Linear(4, 10, bias=False)
        head.weight = embedding.weight
        tokens = torch.arange(3)  # int64: 24 bytes
        assert rank.current == (160, 0, 0, 24)
        head(embedding(tokens)).sum().backward()
        assert rank.current == (160, 160, 0, 24)
        optimizer = torch.optim.AdamW(head.parameters())
        optimizer.step()
        assert rank.current == (160, 160, 324, 24)


def test_a_model_converted_has_other_parameters():
    with Measured() as rank:
        net = nn.Linear(4, 4, bias=False)
        net.double()
        x = torch.ones(10, 4, dtype=torch.float64)
        net(x)
        assert rank.peak == (128, 0, 0, 640)
        assert rank.current == (128, 0, 0, 320)


def test_a_gradient_is_what_a_parameter_holds_at_the_time_of_asking():
    with Measured() as rank:
        parameter = nn.Parameter(torch.zeros(10))
        buffer = torch.ones(10)
        parameter.detach().add_(buffer)
        parameter.grad = buffer
        parameter * 2  # the first op that gets the parameter itself
        assert rank.current == (40, 40, 0, 0)
        parameter.grad = None
        assert rank.current == (40, 0, 0, 40)
        del buffer, parameter
        assert rank.current == (0, 0, 0, 0)


def test_a_peak_that_lasts_takes_new_names_and_keeps_its_time():
    with Measured() as rank:
        data = torch.zeros(10)
        rank.time_s = 1.0
        parameter = nn.Parameter(data)
        parameter.requires_grad_()
        parameter[0]
        ledger = rank.meter.ledger()
        assert (ledger.peak_s, rank.peak) == (0.0, (40, 0, 0, 0))
        other = torch.zeros(5)
        assert rank.peak == (40, 0, 0, 20)
        del other
        other = nn.Parameter(torch.zeros(5))
        other[0]
        assert rank.current == (60, 0, 0, 0)
        # As much as at the peak, but later.
        assert rank.peak == (40, 0, 0, 20)


def test_what_a_rank_was_given_counts_from_its_first_use():
    net, x = nn.Linear(4, 4, bias=False), torch.ones(2, 4)
    with Measured() as rank:
        assert rank.current == (0, 0, 0, 0)
        with torch.no_grad():
            y = net(x)
        assert rank.current == (64, 0, 0, 32)
        assert y.shape == (2, 4)


def test_a_storage_resized_by_itself():
    with Measured() as rank:
        x = torch.zeros(10)
        x.untyped_storage().resize_(0)
        assert rank.current == (0, 0, 0, 0)
        x.untyped_storage().resize_(80)
        assert rank.current == (0, 0, 0, 80)
        x.resize_(30)
        assert rank.current == (0, 0, 0, 120)
    assert rank.peak == (0, 0, 0, 120)
    x.untyped_storage().resize_(0)  # outside: nobody listens, and torch's own method is back
    assert torch.UntypedStorage.resize_.__qualname__ != "MemoryHooks._resized.<locals>.resize_"


def test_tensors_without_memory_of_their_own():
    with Measured() as rank:
        torch.empty(1000, device="meta") + 1
        indices, values = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
        sparse = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=False)
        assert sparse.sum() == 2
        del sparse
        assert rank.current == (0, 0, 0, 32 + 8)


def test_a_paused_rank_is_not_seen_and_views_and_ops_in_place_hold_nothing_more():
    with Measured() as rank:
        (mode,) = (part for part in rank._parts if isinstance(part, DispatchMode))
        mode.paused = True
        x = torch.ones(10)
        mode.paused = False
        assert rank.current == (0, 0, 0, 0)
        x += 1
        y = x[2:5].view(3, 1).expand(3, 7)
        x.mul_(2)[3] = 4
        assert rank.current == (0, 0, 0, 40)
        del x
        assert rank.current == (0, 0, 0, 40)
        del y
        assert rank.current == (0, 0, 0, 0)


steps = st.lists(st.tuples(st.sampled_from("new view add drop zero".split()), st.integers(0, 99)))


@hypothesis.seed(SEED)
@settings(max_examples=60, deadline=None, database=None)
@given(steps=steps)
def test_a_random_program_against_a_dictionary(steps):
    """The oracle knows who shares with whom; Python's own counting of references is not asked."""
    names, bases, sizes, peak = {}, {}, {}, 0
    with Measured() as rank:
        for number, (step, pick) in enumerate(steps):
            some = sorted(names)[pick % len(names)] if names else None
            if step == "new" or some is None:
                names[number], bases[number] = torch.ones(pick + 1), number
                sizes[number] = 4 * (pick + 1)
            elif step == "view":
                names[number], bases[number] = names[some][pick % 3 :], bases[some]
            elif step == "add":
                names[number], bases[number] = names[some] + 1, number
                sizes[number] = 4 * len(names[some])
            elif step == "zero":
                names[some].zero_()
            else:
                del names[some], bases[some]
            held = sum(sizes[base] for base in set(bases.values()))
            peak = max(peak, held)
            assert rank.current == (0, 0, 0, held)
        assert rank.peak == (0, 0, 0, peak)
        del names


def test_adam_by_hand_and_out_of_memory_names_rank_line_and_ledger():
    site = Site("computing", "cell", 7, "main", cell=3)

    def train(**options):
        with Measured(**options) as rank:
            net = nn.Linear(16, 4, bias=False)
            net(torch.ones(1, 16)).sum().backward()
            torch.optim.Adam(net.parameters()).step()
        return rank.peak

    # A weight of 256 bytes; two moments, and the number of steps as a float32; and in the step the
    # root of the second moment, and it over the bias correction.
    assert train() == (256, 256, 2 * 256 + 4, 2 * 256)
    needed = sum(train())
    assert sum(train(memory_bytes=needed)) == needed
    with pytest.raises(OutOfMemoryError) as caught:
        train(memory_bytes=needed - 1, site=lambda: site)
    error = caught.value
    assert error.kind == "out_of_memory"
    assert error.sites == {0: site}
    # Of the two temporaries of the step the second, 256 bytes, does not fit. The input is gone.
    assert error.ledger == dict(zip(CATEGORIES, (256, 256, 516, 256), strict=True))
    assert str(error).startswith(
        "rank 0 is out of memory (main, line 7): its device has 1,539 bytes, the rank holds 1,284 "
        "and needs 256 more; the rank holds parameters 256 bytes, gradients 256 bytes, optimizer "
        "state 516 bytes, activations and temporaries 256 bytes."
    )


def test_out_of_memory_in_backward_comes_through_autograd():
    with Measured() as rank:
        x = torch.ones(100).requires_grad_()
        y = (x * x).exp().sum()
        rank.meter._limit = sum(rank.current) + 4  # room for the gradient of the loss alone
        with pytest.raises(OutOfMemoryError):
            y.backward()
    with Measured(memory_bytes=1e3), pytest.raises(OutOfMemoryError, match="has 1,000 bytes"):
        torch.ones(1000)


def counted(main, ranks, **device):
    """A simulation on devices that count; a limit of memory makes them."""
    device = simlib.Device(**device or {"flops_per_s": 1e9})
    return simlib.simulate(main, ranks, cluster=simlib.clusters.ethernet_10g(ranks, device=device))


def test_a_rank_can_ask_what_it_holds_at_a_moment():
    def main(rank, world_size):
        before = simlib.held()
        net = nn.Linear(4, 4 * (rank + 1), bias=False)
        dist.barrier()
        between = simlib.held()
        net(torch.ones(1, 4)).sum().backward()
        return [tuple(moment.values()) for moment in (before, between, simlib.held())]

    assert counted(main, 2, memory_bytes=300).results == [
        [(0, 0, 0, 0), (64, 0, 0, 0), (64, 64, 0, 0)],
        [(0, 0, 0, 0), (128, 0, 0, 0), (128, 128, 0, 0)],
    ]


def test_a_program_can_say_what_its_tensors_are():
    """Mixed precision by hand: the master copy, a Parameter, and its gradient are Adam's state."""

    def main(rank, world_size):
        model = nn.Linear(256, 4, bias=False).bfloat16()
        master = nn.Parameter(model.weight.detach().float())
        optimizer = torch.optim.SGD([master], lr=0.1, momentum=0.9)
        simlib.hold(master, "optimizer state")
        for _ in range(2):
            model(torch.ones(1, 256, dtype=torch.bfloat16)).sum().backward()
            master.grad = model.weight.grad.float()
            simlib.hold([master.grad], "optimizer state")
            model.zero_grad()
            optimizer.step()
        optimizer.zero_grad()
        return simlib.held()

    run = counted(main, 1)
    n = 256 * 4
    expected = [2 * n, 0, 4 * n + 4 * n]  # parameters; gradients; master copy and momentum
    assert list(run.results[0].values())[:3] == expected
    assert run.memory[0].peak["parameters"] == 2 * n
    assert run.memory[0].peak["optimizer state"] >= 8 * n


def test_shards_of_fsdp2_are_parameters_before_any_optimizer_is_made():
    def main(rank, world_size):
        net = fully_shard(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
        held = [simlib.held()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(1, 16)).sum().backward()
            held.append(simlib.held())
            optimizer.step()
        return [moment["parameters"] for moment in held], held[1]["gradients"]

    shard = (16 * 16 + 16) * 4 // 4
    for run in (counted(main, 4), simlib.simulate(main, 4, memory=True)):
        assert run.results == [([shard] * 3, shard)] * 4


def test_what_a_program_says_of_released_memory_is_forgotten():
    def main(rank, world_size):
        x = torch.ones(1000)
        simlib.hold({"x": x}, "gradients")
        first = simlib.held()["gradients"]
        del x
        y = torch.ones(1000)
        return first, simlib.held()["gradients"], y.nbytes

    assert counted(main, 1).results == [(4000, 0, 4000)]


def test_who_counts_nothing_refuses_unknown_categories_and_to_say_what_is_held():
    with pytest.raises(simlib.InvalidCallError, match='"optimizer state"'):
        simlib.hold(torch.ones(1), "state")
    simlib.hold(torch.ones(1), "gradients")
    with pytest.raises(simlib.InvalidCallError, match=r"simlib.held\(\) is for ranks of"):
        simlib.held()

    def main(rank, world_size):
        try:
            simlib.held()
        except simlib.InvalidCallError:
            return "refused"

    assert simlib.simulate(main, 1).results == simlib.run(main, 1).results == ["refused"]


def test_history_is_in_order_and_holds_peak_and_end():
    with Measured() as rank:
        for second in range(4):
            rank.time_s = float(second)
            x = torch.ones(10 * (4 - second))
        held = [(time_s, sum(point.values())) for time_s, point in rank.meter.ledger().history]
    # A new tensor is there before the old one is released.
    assert held == [(0, 160), (1, 280), (1, 120), (2, 200), (2, 80), (3, 120), (3, 40)]
    ledger = rank.meter.ledger()
    assert (ledger.peak_s, ledger.peak_bytes, ledger.current_bytes) == (1.0, 280, 40)
    assert len(x) == 10


def test_a_long_history_is_thinned_and_keeps_the_peak():
    with Measured() as rank:
        for second in range(5000):
            rank.time_s = float(second)
            x = torch.ones(second + 1 if second != 3210 else 10**6)
    ledger = rank.meter.ledger()
    times = [time_s for time_s, _ in ledger.history]
    assert MAX_POINTS // 2 <= len(times) <= MAX_POINTS + 2
    assert times == sorted(times)
    assert sum(time_s < 2500 for time_s in times) == pytest.approx(len(times) / 2, rel=0.2)
    # The next tensor is there before the large one is released.
    assert (3211.0, ledger.peak) in ledger.history
    assert ledger.peak_bytes == 4 * (10**6 + 3212)
    assert len(x) == 5000


def test_each_rank_has_its_own_meter():
    """Two threads take turns within their steps; each meter sees its own rank only."""
    here, turns = threading.local(), [threading.Semaphore(1), threading.Semaphore(0)]
    found = {}

    def main(rank):
        here.meter = MemoryMeter(rank, lambda: 0.0)
        with DispatchMode(memory=here.meter):
            turns[rank].acquire()
            net = nn.Linear(4, 4 * (rank + 1), bias=False)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            turns[1 - rank].release()
            turns[rank].acquire()
            net(torch.ones(1, 4)).sum().backward()
            turns[1 - rank].release()
            turns[rank].acquire()
            optimizer.step()
            turns[1 - rank].release()
        found[rank] = tuple(here.meter.ledger().current.values())

    with MemoryHooks(lambda: getattr(here, "meter", None)):
        threads = [threading.Thread(target=main, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {0: (64, 64, 64, 0), 1: (128, 128, 128, 0)}


def send_and_recv(rank, n):
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(torch.ones(1024), 1 - rank)


def isend_and_irecv(rank, n):
    requests = (
        dist.isend(torch.ones(1024), (rank + 1) % n),
        dist.irecv(torch.ones(1024), (rank - 1) % n),
    )
    for request in requests:
        request.wait()


@pytest.mark.parametrize("eager_limit_bytes", [0, 1 << 20])
@pytest.mark.parametrize("root", [0, 2])
def test_what_an_op_took_is_let_go_when_it_ends_whoever_ends_first(root, eager_limit_bytes):
    def main(rank, world_size):
        held = {}
        for kind in KINDS:
            call(kind, world_size, 1024, root)
            held[kind] = sum(simlib.held().values())
        for messages in (send_and_recv, isend_and_irecv):
            messages(rank, world_size)
            held[messages.__name__] = sum(simlib.held().values())
        return held

    cluster = simlib.clusters.ethernet_10g(3, device=simlib.Device(flops_per_s=1e9))
    run = simlib.simulate(main, 3, cluster=cluster, eager_limit_bytes=eager_limit_bytes)
    assert {held for found in run.results for held in found.values()} == {0}


def test_what_wraps_the_result_of_a_functional_collective_has_no_memory():
    def main(rank, world_size):
        gathered = functional.all_gather_tensor(torch.ones(1000), 0, dist.group.WORLD)
        return type(gathered).__name__, gathered.sum().item()

    run = simlib.simulate(main, 2, memory=True)
    assert run.results == [("AsyncCollectiveTensor", 2000.0)] * 2
    assert [ledger.peak_bytes for ledger in run.memory] == [4000 + 8000] * 2


def test_a_ledger_is_a_plain_table_and_pickles():
    held = dict(zip(CATEGORIES, (256, 0, 1024, 8), strict=True))
    ledger = Ledger(3, dict(held, gradients=256), held, 1.5, [(1.5, held)])
    assert repr(ledger) == (
        "rank 3, bytes held           at the peak    now\n"
        "parameters                           256    256\n"
        "gradients                              0    256\n"
        "optimizer state                    1,024  1,024\n"
        "activations and temporaries            8      8\n"
        "total                              1,288  1,544"
    )
    assert pickle.loads(pickle.dumps(ledger)) == ledger
    with Measured() as rank:  # whole numbers beside one floating dtype leave it short
        x = torch.ones(8), torch.arange(4)
        ledger = rank.meter.ledger()
    assert list(ledger.by_dtype) == ["float32", "int64"]
    assert len(repr(ledger).splitlines()) == 2 + len(CATEGORIES)
    assert len(x) == 2


def test_a_step_in_two_precisions_is_told_by_dtype():
    """2 + 2 + 12 bytes a number: weights, gradients, and what Adam keeps with a master copy."""
    n = 64 * 32
    with Measured() as rank:
        weight = nn.Parameter(torch.zeros(64, 32, dtype=torch.bfloat16))
        master = weight.detach().float()
        rank.meter.tell([master], "optimizer state")
        optimizer = torch.optim.Adam([master], foreach=False)
        weight.sum().backward()
        master.grad = weight.grad.float()
        optimizer.step()
        master.grad = None
        ledger = rank.meter.ledger()
    assert list(ledger.by_dtype) == ["bfloat16", "float32"]
    low, full = ledger.by_dtype.values()
    assert (low.current["parameters"], low.current["gradients"]) == (2 * n, 2 * n)
    steps = 4  # Adam counts its steps in a tensor of one number
    assert full.current["optimizer state"] == 3 * 4 * n + steps
    assert ledger.current_bytes == 16 * n + steps
    for name in CATEGORIES:
        assert low.peak[name] + full.peak[name] == ledger.peak[name]
        assert low.current[name] + full.current[name] == ledger.current[name]
    for (time_s, held), *parts in zip(ledger.history, low.history, full.history, strict=True):
        assert held == {name: sum(part[1][name] for part in parts) for name in CATEGORIES}
        assert {part[0] for part in parts} == {time_s}
    assert repr(ledger).splitlines()[1:3] == [
        "parameters                         4,096   4,096",
        "  bfloat16                         4,096   4,096",
    ]
    assert pickle.loads(pickle.dumps(ledger)) == ledger


def rank_function(kind, others):
    """Trains 4 -> 8 -> 4 without biases for two steps of SGD with momentum, in the way of ``kind``.

    Returns the flops, and what is held in the end; Gloo's threads get time to let go of all but
    ``others`` bytes.
    """

    def main(rank, world_size):
        meter, counted = MemoryMeter(rank, lambda: 0.0), []
        mesh = init_device_mesh("cpu", (world_size,))
        on_op = lambda cost: counted.append(cost.flops)  # noqa: E731
        mode = DispatchMode(on_op, FlopTimes(1.0, FlopCounts()), memory=meter)
        sgd = {"lr": 0.1, "momentum": 0.9}
        with MemoryHooks(lambda: meter), mode:
            net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
            if kind.startswith("ddp"):
                net = nn.parallel.DistributedDataParallel(
                    net, gradient_as_bucket_view=kind == "ddp with views"
                )
            elif kind == "fsdp":
                for part in (net[0], net[2], net):
                    fully_shard(part, mesh=mesh)
            elif kind == "tp":
                parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            if kind == "ddp and zero":
                optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, **sgd)
            else:
                optimizer = torch.optim.SGD(net.parameters(), **sgd)
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.ones(6, 4)).sum().backward()
                optimizer.step()
            end_s = time.monotonic() + 30
            while True:
                *rest, other = meter.ledger().current.values()
                if other <= others or time.monotonic() > end_s:
                    return sum(counted), *rest, other
                time.sleep(0.001)

    return main


# Two steps: forward 2 * 6 * (32 + 32); backward the same for the weights, half for hidden values.
FLOPS = 2 * (768 + 768 + 384)


@pytest.mark.parametrize(
    "kind, flops, held, buckets",
    [
        # 2 x 32 weights of 4 bytes: 256, and as much of gradients and of momentum.
        ("plain", FLOPS, (256, 256, 256), 0),
        ("ddp", FLOPS, (256, 256, 256), 256),
        ("ddp with views", FLOPS, (256, 256, 256), 0),  # its buckets are the gradients
        ("ddp and zero", FLOPS, (256, 256, 128), 256),
        ("fsdp", FLOPS, (128, 128, 128), 0),
        ("tp", FLOPS // 2, (128, 128, 128), 0),
    ],
)
def test_what_real_ranks_compute_and_hold_after_training(kind, flops, held, buckets):
    for *found, other in simlib.run(rank_function(kind, buckets + 8), 2).results:
        assert tuple(found) == (flops, *held)
        # Threads of Gloo may not have let go yet of the loss and the gradient of it.
        assert buckets <= other <= buckets + 8


def other_roles(rank, world_size):
    """State that belongs to no parameter, and a gradient whose memory is exchanged."""
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state["count"] = 1
    weight.sum().backward()
    weight.grad.data = weight.grad.data * 2
    optimizer.step()
    torch.zeros(8000)
    return simlib.held()["gradients"]


def test_gradients_are_told_by_the_memory_that_they_have_now():
    run = simlib.simulate(other_roles, 1, memory=True)
    assert run.results == [4000]
    assert run.memory[0].peak["gradients"] == 4000
