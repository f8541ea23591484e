"""What the kernel needs of a drag's 200 ms (`browsing`), for every value of every control."""

from __future__ import annotations

import statistics
import time

import simlib
from simlib import labs

from .table import heading, line, spread

GOAL_S = 0.08  # of the 200 ms; the rest is for the way to the browser, its decoding and painting
POINTS = [(4 * 4**k, 30e-6 + 4 * 4**k / 1.25e9) for k in range(11)]


def work_and_tell(rank, world_size):
    """A rank function for a timeline."""
    import torch
    import torch.distributed as dist

    simlib.compute(seconds=1e-3)
    x = torch.zeros(100_000)
    if rank == 0:
        for dst in range(1, world_size):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=0)


def redrawing():
    """Move every control of every lab through all its values; print a line for each lab."""
    heading("redrawing a lab in the kernel, for each value of each control")
    runs = labs.simulate_sizes(work_and_tell)
    each = {
        "ping-pong": lambda: labs.ping_pong_lab(POINTS),
        "rounds of an all_reduce": lambda: labs.rounds_lab("ring", 8),
        "algorithm against size, one rank on a node": labs.crossover_lab,
        "algorithm against size, eight ranks on a node": lambda: labs.crossover_lab(8, 8),
        "break-even map": labs.break_even_lab,
        "training apart and together": labs.staleness_lab,
        "timeline by ranks": lambda: labs.world_size_lab(runs, 4),
    }
    for name, make in each.items():
        times_s = moved(make())
        goal = f"median <= {GOAL_S * 1e3:.0f} ms"
        line(name, f"{spread(times_s, 1e3, 0)} ms", goal, statistics.median(times_s) <= GOAL_S)


def moved(lab):
    """Seconds of each redrawing, one control after the other, each put back at its end."""
    times_s = []
    for control in lab.controls.values():
        first = control.value
        values = getattr(control, "options", None)
        values = [v for _, v in values] if values else range(control.min, control.max + 1)
        for value in [*values, first]:
            if value != control.value:
                start_s = time.perf_counter()
                control.value = value
                times_s.append(time.perf_counter() - start_s)
    return times_s
