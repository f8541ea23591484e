"""What a GPU does to a program, without a GPU: each is faked on the CPU.

autograd runs what is on a GPU in a thread of its own, which has no Python frame above it. A
blocking collective of NCCL gives no request. A GPU that has failed refuses whatever comes next.
"""

import _thread
import collections
import functools
import operator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import simlib


class Blocking:
    """A transport whose blocking ops return None, as NCCL's."""

    copies_results = True

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        method = getattr(self._inner, name)

        def call(*args):
            work = method(*args)
            if getattr(args[-1], "asyncOp", True):
                return work
            work.wait()
            return None

        return call


def collectives(rank, world_size):
    """Blocking calls of several sorts."""
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    dist.broadcast(x, src=1)
    parts = torch.zeros(4 * world_size)
    dist.all_gather_into_tensor(parts, x)
    lists = [torch.zeros(4) for _ in range(world_size)] if rank == 0 else None
    dist.gather(x, lists, dst=0)
    dist.reduce_scatter_tensor(x, parts)
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x.tolist()


def without_a_request(rank, world_size):
    dist.group.WORLD._group = Blocking(dist.group.WORLD._group)
    return collectives(rank, world_size)


def test_a_blocking_op_may_give_no_request():
    plain = simlib.run(collectives, 2, strict=True)
    run = simlib.run(without_a_request, 2, strict=True)
    assert run.results == plain.results
    kinds = [op.kind for op in run.trace.of_rank(0)]
    assert kinds == [op.kind for op in plain.trace.of_rank(0)]
    assert all(op.end_s is not None for op in run.trace.ops)


class InAThreadOfAutograd(torch.autograd.Function):
    """Goes backward in a thread that has no Python frame, while the rank waits in `backward`."""

    @staticmethod
    def forward(ctx, leads_here, losses):
        (ctx.loss,) = losses
        return leads_here.clone()

    @staticmethod
    def backward(ctx, gradient):
        frameless(
            torch.autograd.Variable._execution_engine.run_backward,
            (ctx.loss,), (gradient,), False, False, (), allow_unreachable=True,
            accumulate_grad=True,
        )  # fmt: skip
        return gradient, None


def frameless(function, *args, **kwargs):
    """Call native code in a thread where no Python frame is above it, as autograd does."""
    done = _thread.allocate_lock()
    done.acquire()
    calls = functools.partial(function, *args, **kwargs), done.release
    _thread.start_new_thread(collections.deque, (map(operator.call, calls), 0))
    assert done.acquire(timeout=60), "the thread has failed, see its traceback"


def ddp(rank, world_size, hook=None):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    if hook is not None:
        state = powerSGD.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
        model.register_comm_hook(state if hook is powerSGD.powerSGD_hook else None, hook)
    for _ in range(3):
        model.zero_grad()
        loss = model(torch.full((2, 3), float(rank))).sum()
        loss = InAThreadOfAutograd.apply(loss.detach().requires_grad_(), [loss])
        loss.backward()  # the learner's line
    return model.module.weight.grad.tolist()


def adds_twice(state, bucket):
    """A hook that calls again when its first op is through, in whichever thread that is."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)  # the hook's line

    def then(future):
        (value,) = future.value()
        dist.all_reduce(value)  # the callback's line
        return value / 4

    return work.get_future().then(then)


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


BACKWARD = ["# the learner's line"]


@pytest.mark.parametrize(
    ("hook", "marked"),
    [
        (None, BACKWARD),
        (fp16_compress_hook, BACKWARD),
        (powerSGD.powerSGD_hook, BACKWARD),
        (adds_twice, ["# the hook's line", "# the callback's line"]),
    ],
)
def test_ddp_in_a_thread_without_frames(hook, marked):
    run = simlib.run(ddp, 2, args=(hook,), strict=True)
    assert run.results == [[[1.0] * 3]] * 2
    lines = {op.site.lineno for op in run.trace.ops if op.kind == "all_reduce"}
    assert lines == {line_of(text) for text in marked}


def calls_without_frames(rank, world_size):
    group, x = dist.group.WORLD, torch.full((2,), float(rank))
    frameless(group.allreduce, [x], dist.AllreduceOptions())
    frameless(group.barrier, dist.BarrierOptions())
    y = torch.zeros(2)
    request = dist.all_reduce(y, async_op=True)
    frameless(group.send, [x], 1 - rank, 0)
    frameless(group.recv, [x], 1 - rank, 0)
    frameless(group.allreduce, [y], dist.AllreduceOptions())  # y is in use
    request.wait()


def test_calls_of_a_thread_without_frames():
    run = simlib.run(calls_without_frames, 2)
    kinds = ["all_reduce", "barrier", "all_reduce", "send", "recv", "all_reduce"]
    assert [op.kind for op in run.trace.of_rank(0)] == kinds
    (finding,) = run.findings
    assert finding.kind == "race" and "all_reduce (no line of yours)" in finding.message


ASSERTS = "device-side assert triggered"
TORCHS = f"""CUDA error: {ASSERTS}
Search for `cudaErrorAssert' in the CUDA documentation for more information.
CUDA kernel errors might be asynchronously reported at some other API call.
"""
NCCLS = f"""NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.28.9
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 710 '{ASSERTS}'"""


class Failed(Blocking):
    """The transport of a GPU that has failed."""

    def __init__(self, error, at_wait):
        self._error, self._at_wait = error, at_wait

    def __getattr__(self, name):
        return self if self._at_wait else self.wait

    def __call__(self, *args):
        return self

    def wait(self, *args):
        raise self._error


def calls_after_an_assert(rank, world_size, error, at_wait):
    dist.group.WORLD._group = Failed(error, at_wait)
    dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize("error", [torch.AcceleratorError(TORCHS), dist.DistBackendError(NCCLS)])
@pytest.mark.parametrize("at_wait", [False, True])
def test_a_failed_gpu_is_a_failure_of_the_rank(error, at_wait):
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(calls_after_an_assert, 1, args=(error, at_wait))
    first, line = str(caught.value).splitlines()[:2]
    assert first.startswith(f"rank 0 raised {type(error).__name__}: CUDA error: {ASSERTS} (")
    assert first.endswith(
        "CUDA_LAUNCH_BLOCKING=1 in the environment and run again: then each line waits for its GPU."
    )
