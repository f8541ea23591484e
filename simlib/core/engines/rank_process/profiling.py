"""torch's profiler around the function of a rank, and what it saw, on its way to the kernel.

The kernel makes a folder, and removes it with all that is in it, whatever becomes of the ranks.
Each rank has its profiler write there, reads that, and leaves its `Profile` in a file.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...model.profile import Profile
from ...record import torch_inside
from ...record.kineto import KinetoTrace, read_kineto

MARK = "simlib: what time is it"
MARKS = 8
"""So often the clocks are compared: the first times take long."""
MOST_BYTES = 512 << 20
"""Of a profiler's file that a rank reads."""
OWN = (
    "the program uses torch.profiler itself, and a process has one profiler: read what the "
    "program's own has seen, or leave it out"
)


@contextlib.contextmanager
def profiled(folder: str, rank: int) -> Iterator[None]:
    """Profile the block and leave its `Profile` in the folder; nothing where that is ``""``."""
    if not folder:
        yield
        return
    from torch.profiler import profile  # no other run needs it

    profiler = profile()
    profiler.start()
    readings = _read_both_clocks()
    try:
        yield
    finally:
        ended_s = time.perf_counter()
        try:
            found = _seen(profiler, readings, ended_s, Path(folder, f"trace{rank}.json"))
        except Exception as error:
            found = Profile(why_none=f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):  # the kernel has given the run up
            Path(folder, f"rank{rank}.json").write_text(json.dumps(found.to_record()))


def _read_both_clocks() -> list[tuple[float, float]]:
    """Set marks; returns when that began and ended, by `time.perf_counter`."""
    from torch.profiler import record_function

    readings = []
    for _ in range(MARKS):
        before_s = time.perf_counter()
        with record_function(MARK):
            pass
        readings.append((before_s, time.perf_counter()))
    return readings


def _seen(profiler: Any, readings: list, ended_s: float, path: Path) -> Profile:
    """End the profiler and read what it has seen."""
    if not torch_inside.is_profiled():  # another one has taken its place, and ended
        return Profile(why_none=OWN)
    profiler.stop()
    profiler.export_chrome_trace(str(path))
    if path.stat().st_size > MOST_BYTES:
        return Profile(why_none="the profiler wrote more than 512 MiB: profile fewer steps")
    trace = read_kineto(path)
    if MARK not in trace.marks:
        return Profile(why_none=OWN)
    return profile_of(trace, readings, ended_s)


def profile_of(trace: KinetoTrace, readings: list[tuple[float, float]], ended_s: float) -> Profile:
    """The `Profile` of a trace in which `MARK` was set at these readings of another clock.

    The mark lies within its reading: that which leaves least room tells the difference best.
    """
    pairs = list(zip(readings, trace.marks[MARK], strict=True))
    (before_s, after_s), (start_s, end_s) = min(
        pairs, key=lambda pair: (pair[0][1] - pair[0][0]) - (pair[1][1] - pair[1][0])
    )
    shift_s = (before_s + after_s) / 2 - (start_s + end_s) / 2
    spans, on = trace.device_spans, "gpu"
    if not spans:
        thread = trace.mark_threads[MARK]
        spans, on = [span for span in trace.operators if span.stream == thread], "cpu"
    moved = [
        replace(span, start_s=span.start_s + shift_s, end_s=span.end_s + shift_s) for span in spans
    ]
    return Profile.of(on, moved, readings[-1][1], ended_s)


def profiles_in(folder: str, world_size: int, origin_s: float) -> list[Profile | None]:
    """By rank, what ranks have left in the folder; None of one that did not come to it."""
    found: list[Profile | None] = []
    for rank in range(world_size):
        try:
            record = json.loads(Path(folder, f"rank{rank}.json").read_text())
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append(Profile.of_record(record).since(origin_s))
    return found
