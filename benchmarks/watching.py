"""A long run that is watched: what it costs, and whether its memory stays as it is."""

from __future__ import annotations

import statistics

import psutil

import simlib

from .recording import blocks
from .table import heading, line, spread

BATCH = 50
"""Messages that a rank has under way: so a machine of few cores changes processes less often."""


def many(rank, world_size, ops, looks, at_least_s):
    """So many ops on each rank: messages around the ring, and an all_reduce after each batch.

    Returns, at each of the ``looks``: ops so far, seconds without rests, the rank's own resident
    bytes, those of the process that watches, and seconds with rests.
    """
    import os
    import time

    import psutil
    import torch
    import torch.distributed as dist

    mine = psutil.Process()
    kernel = psutil.Process(int(os.environ["WATCHED_BY"]))
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    x, total = torch.zeros(1), torch.zeros(1)
    buffers = [torch.zeros(1) for _ in range(BATCH)]
    found, done, rested, start = [], 0, 0.0, time.perf_counter()
    for look in range(1, looks + 1):
        while done < ops * look / looks:
            requests = [dist.irecv(buffer, left) for buffer in buffers]
            requests += [dist.isend(x, right) for _ in range(BATCH)]
            for request in requests:
                request.wait()
            dist.all_reduce(total)
            done += 2 * BATCH + 1
            early = start + done / ops * at_least_s - time.perf_counter()
            if early > 0:
                time.sleep(early)
                rested += early
        seconds = time.perf_counter() - start
        memory = mine.memory_info().rss, kernel.memory_info().rss
        found.append((done, seconds - rested, *memory, seconds))
    return found


def long_run(ops, world_size, every_s, at_least_s):
    """Run `many` and print its memory and speed, at a tenth of it and at the end."""
    import os

    os.environ["WATCHED_BY"] = str(os.getpid())
    heading(f"Watched: {ops:,} ops on {world_size} ranks")
    args = ops // world_size, 20, at_least_s
    run = simlib.run(many, world_size, args=args, watch=every_s, timeout_s=600, fresh=True)
    first, last = ([of_rank[at] for of_rank in run.results] for at in (1, -1))
    for name, column in (("a rank", 2), ("the kernel", 3)):
        tenth, end = (max(one[column] for one in ranks) for ranks in (first, last))
        line(
            f"memory of {name}, at a tenth and at the end, MB",
            f"{tenth / 1e6:,.1f} and {end / 1e6:,.1f}",
            "+ 20 at most",
            end - tenth < 20e6,
        )
    rate = [
        (b[1] - a[1]) / (b[0] - a[0]) * 1e6
        for a, b in zip([(0, 0.0)] + run.results[0], run.results[0], strict=False)
    ]
    line("an op of a rank, wall without rests, us, by twentieths", spread(rate, digits=1))
    line("the first and the last twentieth of these, us", f"{rate[0]:.1f} and {rate[-1]:.1f}")
    line("ops of each rank, seconds", f"{last[0][0]:,}, {last[0][4]:,.0f}")
    line("the kernel with the run it made, MB", f"{psutil.Process().memory_info().rss / 1e6:,.1f}")
    heading("and its table")
    table = str(run).splitlines()
    print(*table[:8], "...", table[-1], sep="\n")


def cost(rounds):
    """What an op costs, watched and not, beside plain Gloo in the same processes."""
    heading("An all_reduce of 4 B on 2 ranks, wall, of plain Gloo")
    found = {False: [], True: []}
    control = []
    for _ in range(rounds):
        for watch in found:
            args = 4, 300, 5, "perf_counter"
            seconds = simlib.run(blocks, 2, args=args, watch=watch).results[0]
            middle = {name: statistics.median(values) for name, values in seconds.items()}
            found[watch].append(middle["recorded"] / middle["plain A"])
            control.append(middle["plain B"] / middle["plain A"])
    line("recorded and checked / plain", spread(found[False], digits=2))
    line("watched too / plain", spread(found[True], digits=2))
    line("control: plain / plain", spread(control, digits=2))


def watching(rounds, ops=40_000, world_size=2, every_s=60.0, at_least_s=0.0):
    """Print both tables."""
    cost(rounds)
    long_run(ops, world_size, every_s, at_least_s)
