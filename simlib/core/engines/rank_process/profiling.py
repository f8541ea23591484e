"""Run torch's profiler around the function of a rank, and send its data to the kernel.

The kernel makes a folder, and always removes it with its contents. Each rank first answers, as
without a profiler. Then its profiler writes into the folder. The rank reads these data, writes its
`Profile` to a file, and tells the kernel that it is done.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...model.profile import Profile
from ...record import torch_inside
from ...record.kineto import KinetoTrace, read_kineto
from .gpu_memory import has_used_a_gpu

MARK = "simlib: what time is it"
MARKS = 8
"""simlib compares the clocks this many times. The first comparisons take long."""
MOST_BYTES = 512 << 20
"""The largest profiler's file that a rank reads."""
OWN = (
    "the program uses torch.profiler itself, but a process can have only one profiler: read the "
    "results of the program's profiler, or remove that profiler from the program"
)
UNSEEN = (
    "the rank used a GPU, but torch's profiler saw no work of the GPU: the container may forbid "
    "profiling, or another profiler may be using the GPU"
)
UNREAD = "reading the profiler's results took too long or too much memory: profile fewer steps"


class RankProfiler:
    """torch's profiler around one call of a rank's function; none if the folder is ``""``."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = folder
        self._rank = rank
        self._profiler: Any = None
        self._readings: list[tuple[float, float]] = []
        self._ended_s = 0.0
        self._why_none = "the rank did not enter its function"

    def start(self) -> None:
        """Begin, just before the function. If this fails, the function runs without a profiler."""
        if not self.folder:
            return
        try:
            from torch.profiler import profile  # no other run needs it

            self._profiler = profile()
            self._profiler.start()
            self._readings = _read_both_clocks()
            self._why_none = ""
        except Exception as error:
            self._why_none = f"{type(error).__name__}: {error}"

    def function_ends(self) -> None:
        """Note when the rank leaves its function."""
        self._ended_s = time.perf_counter()

    def write(self) -> None:
        """Write the `Profile` into the folder, if there is one."""
        try:
            why = self._why_none
            found = Profile(why_none=why) if why else self._seen()
        except Exception as error:
            found = Profile(why_none=f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):  # the kernel has given the run up
            path = Path(self.folder, f"rank{self._rank}.json")
            path.write_text(json.dumps(found.to_record()))

    def _seen(self) -> Profile:
        """End the profiler and read its data."""
        if not torch_inside.is_profiled():  # another one has taken its place, and ended
            return Profile(why_none=OWN)
        path = Path(self.folder, f"trace{self._rank}.json")
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(path))
        if path.stat().st_size > MOST_BYTES:
            size = f"{MOST_BYTES >> 20} MiB"
            return Profile(why_none=f"the profiler wrote more than {size}: profile fewer steps")
        trace = read_kineto(path)
        if len(trace.marks.get(MARK, ())) != len(self._readings):
            return Profile(why_none=OWN)
        if not trace.device_spans and has_used_a_gpu():
            return Profile(why_none=UNSEEN)
        return profile_of(trace, self._readings, self._ended_s)


def _read_both_clocks() -> list[tuple[float, float]]:
    """Set marks. Returns the time before and after each mark, by `time.perf_counter`."""
    from torch.profiler import record_function

    readings = []
    for _ in range(MARKS):
        before_s = time.perf_counter()
        with record_function(MARK):
            pass
        readings.append((before_s, time.perf_counter()))
    return readings


def profile_of(trace: KinetoTrace, readings: list[tuple[float, float]], ended_s: float) -> Profile:
    """The `Profile` of a trace in which `MARK` was set at these readings of another clock.

    The mark is within its two readings. The pair with the smallest gap gives the best offset.
    """
    pairs = list(zip(readings, sorted(trace.marks[MARK]), strict=True))
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
    if on == "cpu":  # what the rank returned is put into bytes before the profiler ends
        moved = [span for span in moved if span.start_s < ended_s]
    return Profile.of(on, moved, readings[-1][1], ended_s)


def profiles_in(
    folder: str, world_size: int, origin_s: float, answered: Container[int]
) -> list[Profile | None]:
    """The profiles of ranks in the folder, by rank; None for a rank that has not ``answered``."""
    found: list[Profile | None] = []
    for rank in range(world_size):
        try:
            record = json.loads(Path(folder, f"rank{rank}.json").read_text())
        except (OSError, ValueError):
            found.append(Profile(why_none=UNREAD) if rank in answered else None)
        else:
            found.append(Profile.of_record(record).since(origin_s))
    return found
