"""The time of an operation: the longer of its arithmetic and of its bytes."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import simlib
from simlib.core.engines.virtual.dispatch_mode import FlopCounts
from simlib.core.engines.virtual.op_time import OpTimes

M = 1e6
DEVICE = simlib.Device(rates={"float32": 1e12, "bfloat16": 4e12}, memory_Bps=1e9)


class Watch(TorchDispatchMode):
    """Notes the seconds of each op."""

    def __init__(self, device):
        super().__init__()
        self.times, self.found = OpTimes(device, FlopCounts()), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        cost = self.times.cost(func, args, kwargs or {}, out)
        if cost is not None:
            self.found.append(cost.seconds)
        return out


def seconds_of(call, device=DEVICE):
    with Watch(device) as watch:
        call()
    return watch.found


A, B = torch.rand(1000, 500), torch.rand(500, 2000)
ROW, OUT = torch.rand(1, 500), torch.empty(1, 2000)
COLUMN, INDEX = torch.rand(1000, 1), torch.arange(10)
TABLE = torch.rand(10_000, 100)
LISTS = [torch.rand(1000), torch.rand(500)], [torch.rand(1000), torch.rand(500)]
ONE_KB = 1e-6  # of 1000 bytes by a gigabyte a second


PART = torch.rand(10, 500)
EVERYWHERE = INDEX[:, None].expand(10, 500).clone()
STATES = [[torch.rand(1000)] for _ in range(4)]


def adam(**more):
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1.0}
    options |= {"amsgrad": False, "maximize": False}
    torch._fused_adamw_(*STATES, [], [torch.ones(())], **options, **more)


CALLS = {
    "add": (lambda: A + A, 4000),  # one is read once, and one written
    "add another": (lambda: A + A.clone(), 4000 + 6000),
    "multiply": (lambda: A * A.clone(), 4000 + 6000),
    "in place": (lambda: A.add_(1), 4000),
    "zero": (lambda: A.clone().zero_(), 4000 + 2000),
    "expanded": (lambda: A * COLUMN.expand(1000, 500), 4004),
    "cast": (lambda: A.to(torch.bfloat16), 3000),
    "zeros": (lambda: torch.zeros(1000), 4),
    "fewer zeros": (lambda: torch.zeros(500), 2),
    "arange": (lambda: torch.arange(0.0, 250.0), 1),
    "longer arange": (lambda: torch.arange(0.0, 500.0), 2),
    "embedding": (lambda: F.embedding(INDEX, TABLE), 2 * 4 + 0.08),
    "index": (lambda: A[INDEX], 2 * 20 + 0.08),
    "foreach": (lambda: torch._foreach_add_(*LISTS), 3 * 6),
    "mm out": (lambda: torch.mm(ROW, B, out=OUT), 2 + 4000 + 8),
    "index put": (lambda: A.index_put_((INDEX,), PART), 2 * 20 + 0.08),
    "index add by put": (lambda: A.index_put_((INDEX,), PART, accumulate=True), 3 * 20 + 0.08),
    "index put second": (lambda: A.__setitem__((slice(None), INDEX), COLUMN), 4 + 40 + 0.08),
    "masked put": (lambda: A.index_put_((A > 2,), torch.ones(())), 2500 + 500 + 2000 + 8e-3),
    "index copy": (lambda: A.index_copy_(0, INDEX, PART), 2 * 20 + 0.08),
    "index add": (lambda: A.index_add_(0, INDEX, PART), 3 * 20 + 0.08),
    "index fill": (lambda: A.index_fill_(0, INDEX, 1.0), 20 + 0.08),
    "scatter": (lambda: A.scatter_(0, EVERYWHERE, PART), 2 * 20 + 40),
    "scatter add": (lambda: A.scatter_add_(0, EVERYWHERE, PART), 3 * 20 + 40),
    "fused adam": (adam, 7 * 4 + 2 * 4e-3),
    "fused adam, scaled": (lambda: adam(grad_scale=torch.ones(())), 8 * 4 + 4 * 4e-3),
}


@pytest.mark.parametrize("call, kilobytes", CALLS.values(), ids=CALLS)
def test_an_op_without_flops_takes_its_bytes(call, kilobytes):
    assert sum(seconds_of(call)) == pytest.approx(kilobytes * ONE_KB)


def test_an_op_that_was_seen_before_takes_the_same():
    with Watch(DEVICE) as watch:
        times = []
        for call, _ in [*CALLS.values(), *reversed(CALLS.values())]:
            watch.found.clear()
            call()
            times.append(sum(watch.found))
    assert times == times[::-1]
    assert times[: len(CALLS)] == [sum(seconds_of(call)) for call, _ in CALLS.values()]


@pytest.mark.parametrize("call", [lambda: A.t(), lambda: A.view(-1)[3:], lambda: torch.empty(9)])
def test_a_view_and_empty_memory_begin_no_kernel(call):
    assert seconds_of(call) == []


def test_a_product_takes_its_flops_at_the_rate_of_its_dtype():
    flops, device = 2 * 1000 * 500 * 2000, simlib.Device(rates=DEVICE.rates)
    assert seconds_of(lambda: A @ B, device) == [pytest.approx(flops / 1e12)]
    half = A.bfloat16(), B.bfloat16()
    assert seconds_of(lambda: half[0] @ half[1], device) == [pytest.approx(flops / 4e12)]
    other = simlib.Device(flops_per_s=1e9, rates=DEVICE.rates)
    double = A.double(), B.double()
    assert seconds_of(lambda: double[0] @ double[1], other) == [pytest.approx(flops / 1e9)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_product_of_a_dtype_without_a_rate_is_refused(dtype):
    a = torch.ones(4, 4, dtype=dtype)
    says = f"mm computes in {dtype}, but the device has rates only for float32, bfloat16".replace(
        "torch.", ""
    )
    with pytest.raises(simlib.InvalidCallError, match=says):
        seconds_of(lambda: a @ a)
    assert len(seconds_of(lambda: a + a)) == 1
    assert len(seconds_of(lambda: a @ a, simlib.Device(memory_Bps=1e9))) == 1  # no rates at all


def test_rates_name_dtypes():
    with pytest.raises(simlib.InvalidCallError, match="'bf16', which is not a dtype"):
        simlib.Device(rates={"bf16": 1e12})


def test_a_small_product_takes_its_bytes():
    row = torch.rand(1, 500)
    nbytes = 4 * (500 + 500 * 2000 + 2000)
    assert seconds_of(lambda: row @ B) == [pytest.approx(nbytes / 1e9)]


def test_causal_attention_takes_half():
    q = torch.rand(1, 2, 64, 16)
    device = simlib.Device(rates=DEVICE.rates)
    whole, half = (
        seconds_of(lambda c=c: F.scaled_dot_product_attention(q, q, q, is_causal=c), device)
        for c in (False, True)
    )
    assert sum(half) == pytest.approx(sum(whole) / 2)


def two_products(rank, world_size):
    for _ in range(2):
        torch.mm(torch.rand(100, 100), torch.rand(100, 100))


@pytest.mark.parametrize("data", [True, False])
def test_a_simulated_rank_takes_the_time_of_its_operations_and_of_their_launch(data):
    device = simlib.Device(rates={"float32": 1e12}, memory_Bps=1e9, launch_s=1e-3)
    cluster = simlib.Cluster(1, 1, simlib.Link(0.0, 1e9), device=device)
    run = simlib.simulate(two_products, 1, cluster=cluster, data=data)
    nbytes = 4 * 100 * 100
    assert run.time_s == pytest.approx(2 * (2 * nbytes + 3 * nbytes) / 1e9 + 6 * 1e-3)
    assert run.flops == [2 * 2 * 100**3]
