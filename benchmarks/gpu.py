"""What recording an op of NCCL costs its rank: posting, on one GPU, with what is behind it."""

from __future__ import annotations

import statistics

import torch

import simlib

from .recording import AtOnce, cpu_per_op, without_transport
from .table import heading, line, spread

GOAL_US = 15
CALLS = 300


def posting(rank, world_size, rounds):
    """Seconds to post an all_reduce: on two plain groups of NCCL, recorded, and without events."""
    import random
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from simlib.core.record import backend

    wrapped = c10d._new_process_group_helper
    c10d._new_process_group_helper = backend._torch_new_group
    plain_a, plain_b = (dist.new_group(backend="nccl") for _ in range(2))
    c10d._new_process_group_helper = wrapped
    world = dist.group.WORLD
    gpu_of = world._recorder.gpu_of
    ways = {
        "plain A": (plain_a, gpu_of),
        "plain B": (plain_b, gpu_of),
        "recorded": (world, gpu_of),
        "without events": (world, lambda tensors: None),
    }
    x = torch.zeros(1024, device="cuda")
    seconds = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (group, gpu_of_an_op) in random.sample(list(ways.items()), len(ways)):
            world._recorder.gpu_of = gpu_of_an_op
            start = time.perf_counter()
            for _ in range(CALLS):
                dist.all_reduce(x, group=group)
            if number:  # the first round makes communicators
                seconds[name].append((time.perf_counter() - start) / CALLS)
            torch.cuda.synchronize()
    world._recorder.gpu_of = gpu_of
    return seconds


class AnEvent:
    """An event of a GPU that is always done: what is left is our own."""

    def query(self):
        return True

    def elapsed_time(self, later):
        return 0.01


def on_no_gpu(rank, world_size, *args):
    """As `without_transport`; each recorded op ends by an `AnEvent`."""
    import torch
    import torch.distributed as dist

    recorder = dist.group.WORLD._recorder
    device = torch.device("cuda", 0)

    def gpu_of(tensors):
        recorder.stream_ends.begin(device)
        return device

    recorder.gpu_of = gpu_of
    recorder.stream_ends._record = lambda device, event: event or AnEvent()
    return without_transport(rank, world_size, *args)


def gpu(rounds):
    """Print the table of what posting costs."""
    heading("Posting an op on a GPU")
    for what, check in (("recorded", False), ("recorded and checked", True)):
        args = 2000, 5 * rounds, AtOnce(), AtOnce()
        for name, function in (("no events", without_transport), ("faked events", on_no_gpu)):
            found = simlib.run(function, 1, args=args, check=check).results[0]
            extra, control = cpu_per_op(found)
            line(f"no GPU, {name}: CPU of an op more, {what}, us", spread(extra, 1e6, 1))
        line("  control: the plain call against itself, us", spread(control, 1e6, 1))
        if not torch.cuda.is_available():
            continue
        args = (5 * rounds,)
        found = simlib.run(posting, 1, args=args, check=check, backend="nccl").results[0]
        line("plain NCCL posts one, us", spread(found["plain A"], 1e6, 1))
        for name in ("recorded", "without events", "plain B"):
            pairs = zip(found[name], found["plain A"], strict=True)
            more = [value - plain for value, plain in pairs]
            goal = (f"<= {GOAL_US}", statistics.median(more) <= GOAL_US * 1e-6)
            goal = goal if name == "recorded" else ()
            line(f"  {name}: more than plain A, {what}, us", spread(more, 1e6, 1), *goal)
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU here: nothing was measured on one")
