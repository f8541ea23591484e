"""`measure`: what an answer gives, as plain lines of text."""

from __future__ import annotations

import functools

from ..engines.processes.real_run import run as run_on_processes
from .compare import describe
from .run_answer import WORLDS, changed_in_place, try_on


def measure(answer, inputs, worlds=WORLDS, in_place=False, timeout_s=20, start=None):
    """What an answer gives, as plain lines of text: values, messages and bytes of every world.

    Nothing is judged: hidden checks print this, and the grader compares it elsewhere. With
    ``start=Timed(...).start(timeout_s)`` it is simulated, and the virtual time is told, too.
    """
    start = start or functools.partial(run_on_processes, timeout_s=timeout_s)
    lines = []
    for world_size in worlds:
        by_rank = [inputs(rank, world_size) for rank in range(world_size)]
        run, after = try_on(answer, by_rank, start)
        got = [changed_in_place(mine) for mine in after] if in_place else run.results
        lines.append(f"{world_size}: {'; '.join(describe(value) for value in got)}")
        lines.append(f"{world_size}: messages {run.messages}, bytes {run.bytes_sent}")
        if run.engine == "simulated":
            lines.append(f"{world_size}: virtual time {run.time_s:.9f} s")
    return "\n".join(lines)
