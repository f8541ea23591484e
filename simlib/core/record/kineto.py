"""Read a trace that torch's profiler has written: Kineto's JSON, plain or gzipped.

Kineto writes times in microseconds since ``baseTimeNanoseconds`` (older ones since 1970). A span on
a GPU names the operator that launched it by an ``External id``, which both have.
"""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.profile import COMMUNICATION, COMPUTE, COPY, DeviceSpan, Part

COMMUNICATES = ("nccl", "rccl", "msccl")
"""How the names of kernels begin that move data between GPUs."""
ON_GPU = {"kernel": COMPUTE, "gpu_memcpy": COPY, "gpu_memset": COPY}
ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What is raised where a file or an event does not hold what it should."""
MOST_US = 1e18
"""No clock of a trace goes so far: some 30,000 years."""
CALLS = ("c10d::", "gloo:", "nccl:", "record_param_comms")
"""How operators are called that only post communication: how long it takes, they do not know."""


@dataclass(frozen=True)
class KinetoTrace:
    """What is read of one rank's file; times in seconds since the file's first event.

    Attributes
    ----------
    began_ns : int
        When the first event was, in nanoseconds since 1970.
    device_spans : list of DeviceSpan
        What ran on GPUs.
    operators : list of DeviceSpan
        What ran on the CPU: of each thread the operators that no other operator had called. The
        stream is the thread.
    marks : dict of str to list of (float, float)
        What the program has named by `torch.profiler.record_function`: its times.
    mark_threads : dict of str to int
        By the same names, the thread that did it last.
    """

    began_ns: int = 0
    device_spans: list[DeviceSpan] = field(default_factory=list)
    operators: list[DeviceSpan] = field(default_factory=list)
    marks: dict[str, list[Part]] = field(default_factory=dict)
    mark_threads: dict[str, int] = field(default_factory=dict)


def read_kineto(path: str | Path) -> KinetoTrace:
    """Read one file; single events that cannot be are left out.

    Parameters
    ----------
    path : str or Path
        A ``.json`` or ``.json.gz`` of `torch.profiler.profile.export_chrome_trace`.

    Raises
    ------
    ValueError
        The file is no trace of torch's profiler.
    OSError
        It cannot be read.

    **Cost** O(n log n) for n events, all of them in memory.
    """
    path = Path(path)
    open_it: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_it(path, "rt", encoding="utf-8", errors="replace") as file:
            content = json.load(file)
        return _trace_of(content)
    except (*ODD, RecursionError, EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path.name} is not a trace that torch's profiler wrote") from None


def _trace_of(content: dict[str, Any]) -> KinetoTrace:
    if "schemaVersion" not in content:
        raise ValueError("not Kineto's")
    events = list(filter(_is_sound, content["traceEvents"]))
    first = min((event["ts"] for event in events), default=0)
    began_ns = int(content.get("baseTimeNanoseconds", 0)) + round(first * 1000)
    by_sort: dict[str, list] = defaultdict(list)
    for event in events:
        by_sort[event.get("cat", "")].append(event)
    operators, annotations = (
        [event for event in by_sort[sort] if isinstance(event.get("tid"), int)]
        for sort in ("cpu_op", "user_annotation")
    )
    names = dict(_each(lambda event: (_id_of(event), event["name"]), operators + annotations))
    trace = KinetoTrace(began_ns)
    for sort, what in ON_GPU.items():
        read = functools.partial(_span_of, sort=what, first=first, names=names)
        trace.device_spans.extend(_each(read, by_sort[sort]))
    for event in annotations:
        trace.marks.setdefault(event["name"], []).append(_times_of(event, first))
        trace.mark_threads[event["name"]] = event["tid"]
    trace.operators.extend(_outermost(operators, first))
    return trace


def _is_sound(event: Any) -> bool:
    """Whether an event is a span that has a name, a start, and a length that is not negative."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    start_us, length_us = event.get("ts"), event.get("dur")
    if not (isinstance(start_us, int | float) and isinstance(length_us, int | float)):
        return False
    has_words = isinstance(event.get("name"), str) and isinstance(event.get("cat", ""), str)
    return has_words and abs(start_us) < MOST_US and 0 <= length_us < MOST_US  # False for NaN


def _each(read: Callable[[dict[str, Any]], Any], events: Iterable[dict[str, Any]]) -> Iterable[Any]:
    """What is read of each event, without those in which it does not stand."""
    for event in events:
        try:
            yield read(event)
        except ODD:
            continue


def _id_of(event: dict[str, Any]) -> int:
    return int(event["args"]["External id"])


def _times_of(event: dict[str, Any], first: float) -> Part:
    start_us = event["ts"] - first
    return start_us / 1e6, (start_us + event["dur"]) / 1e6


def _span_of(event: dict[str, Any], sort: str, first: float, names: dict) -> DeviceSpan:
    name, about = event["name"], event.get("args", {})
    if sort == COMPUTE and name.lower().startswith(COMMUNICATES):
        sort = COMMUNICATION
    device, stream = about.get("device", event["pid"]), about.get("stream", event["tid"])
    op = names.get(int(about.get("External id", -1)), "")
    return DeviceSpan(int(device), int(stream), name, sort, *_times_of(event, first), op)


def _outermost(events: list[dict[str, Any]], first: float) -> Iterable[DeviceSpan]:
    """The operators of each thread that lie in no other one, without those that communicate."""
    until: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        thread = event["tid"]
        if event["ts"] < until.get(thread, float("-inf")):
            continue
        until[thread] = event["ts"] + event["dur"]
        if not event["name"].startswith(CALLS):
            name = event["name"]
            yield DeviceSpan(-1, int(thread), name, COMPUTE, *_times_of(event, first), name)
