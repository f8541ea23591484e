"""What a GPU does to a program, without a GPU: each is faked on the CPU.

autograd runs what is on a GPU in a thread of its own, which has no Python frame above it. A
blocking collective of NCCL gives no request. A GPU that has failed refuses whatever comes next.
"""

import _thread
import asyncio
import collections
import functools
import operator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
    assert finding.kind == "race" and "all_reduce (no line of your code)" in finding.message


ASSERTS = "device-side assert triggered"


def nccls(what, error, last):
    """An error as torch makes it of one of NCCL's."""
    return dist.DistBackendError(
        f"NCCL error in: ProcessGroupNCCL.cpp:3690, {what}, NCCL version 2.28.9\n"
        f"{error}: what NCCL says of it.\nLast error:\n{last}"
    )


RAISED = {
    "assert": torch.AcceleratorError(f"CUDA error: {ASSERTS}\nSearch for `cudaErrorAssert' in"),
    "at an op": nccls(
        "unhandled cuda error", "ncclUnhandledCudaError", f"Cuda failure 710 '{ASSERTS}'"
    ),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "system": nccls("unhandled system error", "ncclSystemError", "no space in /dev/shm"),
    "usage": nccls("invalid usage", "ncclInvalidUsage", "Duplicate GPU detected"),
    "remote": nccls("remote process exited", "ncclRemoteError", "Connection closed by remote peer"),
    "said": RuntimeError("step 5 saw no CUDA error: nothing wrong, but the loss is nan"),
}
"""What torch says, by what has happened; ranks cannot build the first by themselves."""


class FromC(asyncio.Future):
    """A transport, and a request, whose methods raise in native code, as torch's do."""

    allreduce = wait = property(operator.methodcaller("result"))


class Posts:
    """A transport whose request raises."""

    def __init__(self, request):
        self._request = request

    def allreduce(self, *args):
        return self._request


def calls_what_fails(rank, world_size, name, at_wait):
    failed = FromC(loop=asyncio.new_event_loop())
    failed.set_exception(RAISED[name])
    if name == "said":
        raise RAISED[name]
    dist.group.WORLD._group = Posts(failed) if at_wait else failed
    dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize("at_wait", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("assert", f"rank 0 raised AcceleratorError: CUDA error: {ASSERTS} ("),
        ("at an op", f"rank 0 raised DistBackendError: CUDA error: {ASSERTS} ("),
        ("memory", "rank 0 raised OutOfMemoryError: CUDA out of memory. Tried"),
        ("system", "rank 0 raised DistBackendError: NCCL error in"),
        ("remote", "rank 0 raised DistBackendError: NCCL error in"),
        (
            "said",
            "rank 0 raised RuntimeError: step 5 saw no CUDA error: nothing wrong, but",
        ),
    ],
)
def test_what_has_failed_is_a_failure_of_the_rank(name, words, at_wait):
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(calls_what_fails, 1, args=(name, at_wait))
    assert str(caught.value).startswith(words)
    assert ("Set CUDA_LAUNCH_BLOCKING=1" in str(caught.value)) == (ASSERTS in words)


def test_a_call_that_nccl_refuses_is_one_that_cannot_be_right():
    with pytest.raises(simlib.InvalidCallError, match="Duplicate GPU"):
        simlib.run(calls_what_fails, 1, args=("usage", False))


def dies_or_waits(rank, world_size):
    """Rank 1 fails by itself; NCCL tells rank 0 that it is gone."""
    failed = FromC(loop=asyncio.new_event_loop())
    failed.set_exception(RAISED["remote" if rank == 0 else "at an op"])
    dist.group.WORLD._group = failed
    dist.all_reduce(torch.ones(2))


def test_who_lost_the_failed_rank_is_not_told():
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(dies_or_waits, 2)
    first = str(caught.value).splitlines()[0]
    assert first.startswith("rank 1 raised") and "rank 0" not in first


def only_one_comes(rank, world_size):
    dist.group.WORLD._group = Blocking(dist.group.WORLD._group)
    if rank == 0:
        dist.barrier()


def test_a_barrier_that_blocks_before_it_returns_is_a_wait():
    with pytest.raises(simlib.DeadlockError, match="rank 0"):
        simlib.run(only_one_comes, 2)


class Passed:
    """An event that its GPU has passed."""

    def query(self):
        return True

    def elapsed_time(self, later):
        return 0.01


def waits_on_the_cpu(rank, world_size):
    """Ops that end on a GPU; then rank 0 waits for a message that never comes."""
    recorder = dist.group.WORLD._recorder
    gpu_of = recorder.gpu_of

    def on_a_gpu(tensors):
        recorder.stream_ends.begin(torch.device("cuda", 0))
        return torch.device("cuda", 0)

    recorder.stream_ends._record = lambda device, event: event or Passed()
    recorder.gpu_of = on_a_gpu
    for _ in range(20):
        dist.all_reduce(torch.ones(2))
    recorder.gpu_of = gpu_of
    if rank == 0:
        dist.recv(torch.ones(2), 1)


def test_a_rank_looks_at_its_gpu_before_it_waits():
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.run(waits_on_the_cpu, 2)
    ops = caught.value.run.trace.of_rank(0)
    assert [op.end_s is None for op in ops] == [False] * 20 + [True]


def in_a_pool(rank, world_size):
    """A thread of Python's calls without a line of the learner's, while the rank goes backward."""
    with ThreadPoolExecutor(1) as pool:

        class Calls(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                pool.submit(dist.all_reduce, torch.ones(3)).result()
                return gradient

        Calls.apply(torch.ones(2, requires_grad=True)).sum().backward()


def test_a_thread_of_pythons_has_no_line_of_backward():
    (op,) = simlib.run(in_a_pool, 2).trace.of_rank(0)
    assert op.site.lineno == 0


def of_shapes(rank, world_size, *sizes):
    for size in sizes:
        dist.all_reduce(torch.ones(size))


def test_what_was_found_in_calls_belongs_to_their_run():
    for sizes in ((4, 8), (8, 4), (4,)):
        run = simlib.run(of_shapes, 2, args=sizes)
        assert [op.shapes for op in run.trace.of_rank(0)] == [((size,),) for size in sizes]


class Together:
    """A transport that begins messages together, as NCCL's group calls do."""

    supports_coalescing = True

    def __init__(self, inner):
        self._inner, self.calls, self._held = inner, [], []

    def _start_coalescing(self, device):
        self.calls.append("start")

    def send(self, *args):
        self.calls.append("send")
        self._held.append(lambda: self._inner.send(*args))

    def recv(self, *args):
        self.calls.append("recv")
        self._held.append(lambda: self._inner.recv(*args))

    def _end_coalescing(self, device):
        self.calls.append("end")
        self._works = [begin() for begin in self._held]
        return self

    def wait(self, *timeout):
        while self._works:
            self._works.pop().wait()
        return True


def both_send_first(rank, world_size):
    world = dist.group.WORLD
    together = Together(world._group)
    ((device, sort, _),) = world.transport.registered
    world.transport = replace(world.transport, registered=((device, sort, together),))
    world._group = together
    x, other = torch.full((2,), float(rank)), torch.zeros(2)
    messages = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    return together.calls, other.tolist()


def test_messages_of_a_batch_begin_together():
    run = simlib.run(both_send_first, 2, strict=True)
    calls = ["start", "send", "recv", "end"]
    assert run.results == [(calls, [1.0, 1.0]), (calls, [0.0, 0.0])]
    assert [(op.kind, op.end_s is None) for op in run.trace.of_rank(0)] == [
        ("send", False),
        ("recv", False),
    ]
