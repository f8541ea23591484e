"""What recording costs: CPU per op, and a collective's wall time, each beside its control."""

from __future__ import annotations

import statistics

import simlib

from .table import heading, line, spread


def blocks(rank, world_size, nbytes, calls, rounds, clock_name):
    """Seconds per all_reduce on plain groups A and B and on the recorded one, block by block.

    All three are groups over the same ranks in the same processes, so that nothing else differs.
    """
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from simlib.core.record import backend

    clock = getattr(time, clock_name)
    wrapped = c10d._new_process_group_helper
    c10d._new_process_group_helper = backend._torch_new_group
    plain_a, plain_b = dist.new_group(), dist.new_group()
    c10d._new_process_group_helper = wrapped
    x = torch.zeros(max(1, nbytes // 4))
    ways = {"plain A": plain_a, "plain B": plain_b, "recorded": dist.new_group()}
    for way in ways.values():
        for _ in range(10):
            dist.all_reduce(x, group=way)
    seconds = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            dist.barrier(plain_a)
            start = clock()
            for _ in range(calls):
                dist.all_reduce(x, group=way)
            seconds[name].append((clock() - start) / calls)
    return seconds


class AtOnce:
    """A transport, and its request, that has everything done at once: what is left is our own."""

    def allreduce(self, tensors, opts):
        return self

    def wait(self):
        return True


def without_transport(rank, world_size, calls, rounds, reference, transport):
    """CPU seconds per all_reduce: torch's own call alone, twice, and with its recording.

    ``reference`` and ``transport`` answer at once. So neither thread sleeps, and the difference is
    the recording's own.
    """
    import time

    import torch
    import torch.distributed as dist

    x = torch.zeros(1)
    ways = {name: dist.new_group() for name in ("plain A", "plain B", "recorded")}
    for name, group in ways.items():
        if name == "recorded":
            group._group = transport
        else:
            group.allreduce = reference.allreduce
    seconds = {name: [] for name in ways}
    for _ in range(rounds):
        for name, group in ways.items():
            start = time.thread_time()
            for _ in range(calls):
                dist.all_reduce(x, group=group)
            seconds[name].append((time.thread_time() - start) / calls)
    return seconds


def _ratios(seconds, name, reference="plain A"):
    return [a / b for a, b in zip(seconds[name], seconds[reference], strict=True)]


def cpu_per_op(found: dict) -> list[list[float]]:
    """Seconds of CPU that an op costs more than the plain one: recorded, and its control."""
    return [
        [value - plain for value, plain in zip(found[name], found["plain A"], strict=True)]
        for name in ("recorded", "plain B")
    ]


def recording(rounds):
    """Print the table of recording costs."""
    heading("Recording and checking")
    for what, check, goal_us in (("recorded", False, 10), ("recorded and checked", True, 20)):
        args = 2000, 5 * rounds, AtOnce(), AtOnce()
        found = simlib.run(without_transport, 1, args=args, check=check).results[0]
        extra, control = cpu_per_op(found)
        held = statistics.median(extra) <= goal_us * 1e-6
        line(f"CPU per op, {what}, us", spread(extra, 1e6, 1), f"<= {goal_us}", held)
        line("  control: the plain call against itself, us", spread(control, 1e6, 1))
        args = 4, 2000, 5 * rounds, "thread_time"
        extra, control = cpu_per_op(simlib.run(blocks, 1, args=args, check=check).results[0])
        line("  with Gloo's threads, which sleep and wake, us", spread(extra, 1e6, 1))
        line("  control: plain Gloo against itself, us", spread(control, 1e6, 1))
    for what, nbytes, calls, goal in (("4 B", 4, 300, 1.3), ("10 MB", 10_000_000, 3, None)):
        args = nbytes, calls, 5 * rounds, "perf_counter"
        found = simlib.run(blocks, 4, args=args).results[0]
        recorded, control = _ratios(found, "recorded"), _ratios(found, "plain B")
        middle = statistics.median(recorded)
        held = middle <= goal if goal else min(control) <= middle <= max(control)
        line(f"all_reduce of {what} on 4 ranks, plain Gloo, us", spread(found["plain A"], 1e6, 0))
        goal = f"<= {goal}" if goal else "within the control"
        line("  recorded and checked / plain, wall", spread(recorded, digits=2), goal, held)
        line("  control: plain B / plain A", spread(control, digits=2))
